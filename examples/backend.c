/* link: hugepin */
/*
 * backend: a domain over a device of your own. This backend counts registrations; a real one would have a driver pin the
 * pages. Prints how often a buffer was registered for a thousand pins.
 */
#include <hugepin.h>
#include <stdio.h>

static int reg(void *ctx, void *addr, size_t len, unsigned access,
    struct hugepin_reg *ret_)
{
	unsigned *entries = ctx;

	(void)addr, (void)access; /* ... tell the device of them ... */
	*ret_ = (struct hugepin_reg){ .lkey = (*entries)++ };
	printf("entry %u, %zu bytes\n", ret_->lkey, len);
	return 0;
}

static int dereg(void *ctx, struct hugepin_reg *reg)
{
	(void)ctx, (void)reg; /* ... the same ... */
	return 0;
}

static int limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	*ret_ = (struct hugepin_limits){ 0 };
	ret_->access = HUGEPIN_READ | HUGEPIN_WRITE;
	return 0;
}

int main(void)
{
	const struct hugepin_backend backend = {
		.size = sizeof backend, .name = "table",
		.reg = reg, .dereg = dereg, .limits = limits,
	};
	struct hugepin_attr attr = {
		.size = sizeof attr, .policy = HUGEPIN_POLICY_LRU,
	};
	struct hugepin_domain_stats s;
	hugepin_domain *domain;
	struct hugepin_pin pin;
	char *buffer = hugepin_malloc(1 << 20);
	unsigned entries = 0;
	int err = -1;

	if (buffer)
		err = hugepin_domain_open(&backend, &entries, &attr, &domain);
	if (err < 0)
		goto out;
	for (int i = 0; i < 1000 && err == 0; i++) {
		err = hugepin_pin(domain, buffer, 1 << 20, 0, &pin);
		/* ... have the device work by pin.lkey ... */
		if (err == 0)
			hugepin_unpin(domain, &pin);
	}
	hugepin_domain_stats(domain, &s, sizeof s);
	printf("%llu of 1000 pins registered\n",
	    (unsigned long long)s.registered);
	hugepin_domain_close(domain);
out:
	hugepin_free(buffer);
	return err < 0;
}
