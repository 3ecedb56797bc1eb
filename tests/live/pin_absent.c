/* link: hugepin preload */
/*
 * A registration of an extent gives memory to its pages that have none. The heap's mappings there replace no memory in
 * use, so the interposed calls must not announce them to the domain that is registering.
 */
#include "live.h"

#include "../device.h"

enum { BUFFERS = 40 };

static struct device device;

TEST(an_extent_with_absent_pages_is_registered_once)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_ARENA };
	struct hugepin_domain_stats s;
	struct hugepin_pin pin;
	hugepin_domain *d;
	char *p[BUFFERS];

	for (int i = 0; i < BUFFERS; i++)
		memset(p[i] = hide(malloc(MIB)), 1, MIB);
	device_reset(&device);
	EXPECT_EQ(hugepin_domain_open(&device_backend, &device, &attr, &d), 0);
	for (int i = 0; i < BUFFERS - 1; i++)
		free(p[i]);
	hugepin_purge();
	for (int i = 0; i < 5; i++) {
		EXPECT_EQ(hugepin_pin(d, p[BUFFERS - 1], 4096, 0, &pin), 0);
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	EXPECT(hugepin_domain_stats(d, &s, sizeof s) > 0);
	EXPECT_EQ(s.registered, 1);
	EXPECT_EQ(s.misses, 1);
	EXPECT_EQ(s.invalidated, 0);
	EXPECT_EQ(device.regs, 1);
	free(p[BUFFERS - 1]);
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

T_MAIN
