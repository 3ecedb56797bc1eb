/* Memory with registrations, a key function that counts pins, and room for work requests: shared by the tests of
 * sge/fill.c. */
#ifndef TESTS_UNIT_SG_FILL_H
#define TESTS_UNIT_SG_FILL_H

#include "tests/unit/sg_plan.h"

enum { ARENA = 1 << 16, REGS = 16, SLOT_KEY = 999, PIECES = 96 };
static unsigned char arena[ARENA], slot[ARENA + 1];
static struct {
	uintptr_t addr;
	size_t len;
	uint32_t lkey;
	int out; /* pins */
} regs[REGS];
static int regs_n, key_calls, key_fails_at, key_fails_with; /* calls fail from the n-th on */
static bool key_whole; /* key() gives no reference */
static unsigned key_access = HUGEPIN_READ;

static inline int key(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *pin)
{
	EXPECT(arg == regs);
	if (!addr) {
		EXPECT(pin->ref >= 1 && pin->ref <= REGS);
		EXPECT(regs[pin->ref - 1].out-- > 0);
		return 0;
	}
	EXPECT(len && access == key_access);
	if (++key_calls >= key_fails_at && key_fails_at)
		return key_fails_with;
	for (int i = 0; i < regs_n; i++)
		if ((uintptr_t)addr - regs[i].addr < regs[i].len) {
			regs[i].out += !key_whole;
			*pin = (struct hugepin_pin){ regs[i].addr, regs[i].len, regs[i].lkey, 0,
						     key_whole ? 0 : (uint64_t)i + 1 };
			return 0;
		}
	return -ENOKEY;
}

static inline int pins_out(void)
{
	int out = 0;
	for (int i = 0; i < regs_n; i++)
		out += regs[i].out;
	return out;
}

static inline void release(struct hugepin_pin *pins, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		key(regs, NULL, 0, 0, &pins[i]);
}

struct work {
	struct ibv_send_wr wr[PIECES];
	struct ibv_sge sge[4 * PIECES + 1];
	struct hugepin_pin pins[4 * PIECES];
	struct hugepin_sg_room room;
};

static inline struct hugepin_sg_room *work_room(struct work *w)
{
	w->room = (struct hugepin_sg_room){
		.size = sizeof w->room, .wr = w->wr, .sge = w->sge, .pins = w->pins, .slot = slot, .slot_len = ARENA,
		.wrs = PIECES, .sges = 4 * PIECES, .pins_max = 4 * PIECES, .slot_lkey = SLOT_KEY, .key = key,
		.arg = regs,
	};
	return &w->room;
}

/* Make registrations of 4096 bytes, with holes of 4096 bytes between them. comb() places three pieces in each. */
static inline void register_comb(void)
{
	regs_n = 8;
	for (int i = 0; i < regs_n; i++) {
		regs[i].addr = (uintptr_t)arena + (size_t)i * 8192;
		regs[i].len = 4096;
		regs[i].lkey = 100 + (uint32_t)i;
		regs[i].out = 0;
	}
	key_calls = key_fails_at = 0;
	key_whole = false;
}

static inline int comb(struct iovec *iov, int n, size_t len)
{
	for (int i = 0; i < n; i++)
		iov[i] = (struct iovec){ arena + i / 3 * 8192 + i % 3 * 1300, len };
	return n;
}

#endif
