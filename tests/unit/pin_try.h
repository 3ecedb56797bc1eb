/* What a request of hugepin_pin_try() is told: shared by its tests. */
#ifndef TESTS_UNIT_PIN_TRY_H
#define TESTS_UNIT_PIN_TRY_H

#include <semaphore.h>

#include "base/lock.h"
#include "tests/unit/pin.h"

/* What a request was told. */
struct told {
	sem_t done;
	_Atomic int times;
	int err;
	struct hugepin_pin pin;
	pthread_t thread;
	unsigned locks;
};

static inline void tell(void *arg, int err, const struct hugepin_pin *pin)
{
	struct told *t = arg;

	EXPECT_EQ(!pin, err != 0);
	t->err = err;
	t->pin = pin ? *pin : (struct hugepin_pin){ 0 };
	t->thread = pthread_self();
	t->locks = hp_locks_held;
	t->times++;
	sem_post(&t->done);
}

/* Ask for a range that is not registered, and wait. Returns what was told. */
static inline int ask(hugepin_domain *d, const void *p, size_t len, unsigned access, struct told *t)
{
	struct hugepin_pin pin = { .ref = 77 };

	memset(t, 0, sizeof *t);
	sem_init(&t->done, 0, 0);
	EXPECT_EQ(hugepin_pin_try(d, p, len, access, tell, t, &pin), -EAGAIN);
	EXPECT_EQ(pin.ref, 77);
	sem_wait(&t->done);
	return t->err;
}

#endif
