/*
 * Requests of hugepin_pin_try() while they wait: their memory goes away, the queue is full, the domain is closed.
 */
#include "base/service.h"
#include "reg/gone.h"
#include "reg/queue.h"
#include "reg/request.h"
#include "reg/uffd.h"
#include "tests/unit/child.h"
#include "tests/unit/pin_try.h"

/* A domain on a device of its own, since the service thread may call both devices in turn with the test. */
static hugepin_domain *open_beside(struct device *v)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	hugepin_domain *d = NULL;

	device_reset(v);
	EXPECT_EQ(hugepin_domain_open(&device_backend, v, &attr, &d), 0);
	return d;
}

/* The service thread waits in a callback of another domain. */
static struct {
	struct device device;
	hugepin_domain *d;
	char *p;
	sem_t held, go;
} stuck;

static void get_stuck(void *unused, int err, const struct hugepin_pin *pin)
{
	struct hugepin_pin mine = *pin;

	(void)unused;
	EXPECT_EQ(err, 0);
	EXPECT_EQ(hugepin_unpin(stuck.d, &mine), 0);
	sem_post(&stuck.held);
	sem_wait(&stuck.go);
}

static void hold_service(void)
{
	struct hugepin_pin pin;

	stuck.d = open_beside(&stuck.device);
	stuck.p = map(4096);
	sem_init(&stuck.held, 0, 0);
	sem_init(&stuck.go, 0, 0);
	EXPECT_EQ(hugepin_pin_try(stuck.d, stuck.p, 4096, 0, get_stuck, NULL, &pin), -EAGAIN);
	sem_wait(&stuck.held);
}

static void let_service_go(void)
{
	sem_post(&stuck.go);
	close_empty(&stuck.device, stuck.d);
	munmap(stuck.p, 4096);
}

/* Ask, and do not wait. */
static void ask_later(hugepin_domain *d, const void *p, size_t len, struct told *t)
{
	struct hugepin_pin pin;

	memset(t, 0, sizeof *t);
	sem_init(&t->done, 0, 0);
	EXPECT_EQ(hugepin_pin_try(d, p, len, 0, tell, t, &pin), -EAGAIN);
}

PIN_TEST(a_request_whose_memory_goes_away_is_cancelled, open_lru(), MIB)
{
	struct told gone, stays, forgotten;

	hold_service();
	ask_later(d, p, 8192, &gone);
	ask_later(d, p + 65536, 4096, &stays);
	ask_later(d, p + 100000, 20000, &forgotten);
	/* Announced, so that it does not depend on the kernel. */
	EXPECT_EQ(hugepin_forget(p + 4096, 4096), 0);
	EXPECT_EQ(hugepin_forget(p + 110000, 1), 0);
	EXPECT_EQ(gone.times || forgotten.times, 0); /* no callback inside of munmap */
	let_service_go();
	sem_wait(&gone.done);
	sem_wait(&stays.done);
	sem_wait(&forgotten.done);
	EXPECT_EQ(gone.err, -ECANCELED);
	EXPECT_EQ(forgotten.err, -ECANCELED);
	EXPECT_EQ(stays.err, 0);
	EXPECT_EQ(device.calls, 1);
	EXPECT_EQ(hugepin_unpin(d, &stays.pin), 0);
}

static int forget_it(void *addr, size_t len)
{
	EXPECT_EQ(hugepin_forget(addr, len), 0);
	return 0;
}

PIN_TEST(a_request_whose_memory_goes_away_while_it_is_registered_is_cancelled, open_lru(), MIB)
{
	struct told t;

	device.refuse = forget_it;
	EXPECT_EQ(ask(d, p, 8192, 0, &t), -ECANCELED);
	device.refuse = NULL;
	EXPECT_EQ(device.calls, 1);
	EXPECT_EQ(ask(d, p, 8192, 0, &t), 0);
	EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
}

/* As the kernel tells of an unmapping: when the addresses are free, and other memory may be there. */
static int tell_late(void *addr, size_t len)
{
	hp_gone_tell_all(&(struct hp_range){ .start = (uintptr_t)addr, .end = (uintptr_t)addr + len, .past = true });
	device.refuse = NULL;
	return 0;
}

PIN_TEST(what_lay_at_the_addresses_before_does_not_cancel_a_request, open_lru(), MIB)
{
	struct told waits, gone, t;
	char *other = map(8192);

	hold_service();
	ask_later(d, p, 8192, &waits);
	ask_later(d, other, 8192, &gone);
	tell_late(p, 4096);
	munmap(other + 4096, 4096);
	tell_late(other + 4096, 4096);
	let_service_go();
	sem_wait(&waits.done);
	sem_wait(&gone.done);
	EXPECT_EQ(waits.err, 0);
	EXPECT_EQ(gone.err, -ECANCELED);
	EXPECT_EQ(device.calls, 1);
	EXPECT_EQ(hugepin_unpin(d, &waits.pin), 0);

	device.refuse = tell_late; /* while it is registered */
	EXPECT_EQ(ask(d, p + 65536, 8192, 0, &t), 0);
	EXPECT_EQ(t.times, 1);
	EXPECT_EQ(device.calls, 3);
	EXPECT(device_covers(&device, &t.pin, HUGEPIN_READ | HUGEPIN_WRITE));
	EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
	munmap(other, 4096);
}

/* Holds the lock of a domain's queue, so that the watcher, which has read an event, cannot queue it there. */
struct queue_holder {
	hugepin_domain *d;
	sem_t held;
	_Atomic bool asked;
};

static void *hold_queue(void *holder)
{
	struct queue_holder *h = holder;
	uint64_t mask = hp_queue_lock(h->d);

	sem_post(&h->held);
	for (int ms = 0; ms < 100 && !h->asked; ms++)
		hp_futex_sleep(1000000);
	hp_futex_sleep(20000000);
	hp_queue_unlock(h->d, mask);
	return NULL;
}

/* The watcher tells domains of an event one after the other, so either may be first. */
PIN_TEST(what_the_thread_itself_did_before_does_not_cancel_its_request, open_lru(), MIB)
{
	static struct device beside;
	hugepin_domain *of[] = { d, open_beside(&beside) };
	struct hugepin_pin pin;
	struct told t;
	pthread_t thread;

	if (!hp_uffd_works())
		return; /* nobody tells of the discard */
	for (int i = 0; i < 2; i++) {
		struct queue_holder h = { .d = of[i] };
		char *q = p + i * 65536;

		for (int k = 0; k < 2; k++) {
			EXPECT_EQ(hugepin_pin(of[k], q, 4096, 0, &pin), 0);
			EXPECT_EQ(hugepin_unpin(of[k], &pin), 0);
		}
		sem_init(&h.held, 0, 0);
		EXPECT_EQ(pthread_create(&thread, NULL, hold_queue, &h), 0);
		sem_wait(&h.held);
		EXPECT_EQ(madvise(q, 4096, MADV_DONTNEED), 0);
		memset(&t, 0, sizeof t);
		sem_init(&t.done, 0, 0);
		EXPECT_EQ(hugepin_pin_try(of[!i], q, 4096, HUGEPIN_PIN_UNCACHED, tell, &t, &pin), -EAGAIN);
		h.asked = true;
		sem_wait(&t.done);
		EXPECT_EQ(t.err, 0);
		EXPECT_EQ(hugepin_unpin(of[!i], &t.pin), 0);
		pthread_join(thread, NULL);
	}
	close_empty(&beside, of[1]);
}

PIN_TEST(too_many_requests_are_refused_and_one_without_a_callback_waits_once, open_lru(), 4 * MIB)
{
	static struct told t[HP_REQUESTS_MAX];
	struct hugepin_pin pin;

	hold_service();
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(hugepin_pin_try(d, p, 4096, 0, NULL, NULL, &pin), -EAGAIN);
	EXPECT_EQ(d->requests_count, 1);
	for (size_t i = 1; i < HP_REQUESTS_MAX; i++)
		ask_later(d, p + i * 8192, 4096, &t[i]);
	EXPECT_EQ(hugepin_pin_try(d, p + 2 * MIB, 4096, 0, tell, NULL, &pin), -EBUSY);
	EXPECT_EQ(hugepin_pin_try(d, p, 4096, 0, NULL, NULL, &pin), -EAGAIN); /* it waits already */
	let_service_go();
	for (size_t i = 1; i < HP_REQUESTS_MAX; i++) {
		sem_wait(&t[i].done);
		EXPECT_EQ(t[i].err, 0);
		EXPECT_EQ(t[i].pin.base, p + i * 8192); /* in order, each its own */
		EXPECT_EQ(hugepin_unpin(d, &t[i].pin), 0);
	}
	EXPECT_EQ(d->requests_count, 0);
}

PIN_TEST(without_a_service_thread_a_request_is_refused, open_lru(), MIB)
{
	struct hugepin_pin pin;
	struct told t;

	hp_service_end();
	EXPECT_EQ(hugepin_pin_try(d, p, 4096, 0, tell, NULL, &pin), -EBUSY);
	EXPECT_EQ(d->requests_count, 0);
	hp_service_allow();
	EXPECT_EQ(ask(d, p, 4096, 0, &t), 0);
	EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
}

TEST(a_domain_that_another_thread_keeps_is_served_later)
{
	static struct device beside;
	hugepin_domain *d = open_lru(), *other = open_beside(&beside);
	char *p = map(MIB);
	struct told t, quick;

	hp_lock(&d->lock);
	memset(&t, 0, sizeof t);
	memset(&quick, 0, sizeof quick);
	sem_init(&t.done, 0, 0);
	sem_init(&quick.done, 0, 0);
	EXPECT_EQ(hp_request_add(d, &(struct hp_pin_request){ .addr = p, .len = 4096, .access = HUGEPIN_READ,
							  .done = tell, .arg = &t }), 0);
	EXPECT_EQ(hp_request_add(other, &(struct hp_pin_request){ .addr = p, .len = 4096, .access = HUGEPIN_READ,
							      .done = tell, .arg = &quick }), 0);
	sem_wait(&quick.done); /* that of the other domain does not wait */
	usleep(50000);
	EXPECT_EQ(t.times, 0);
	hp_unlock(&d->lock);
	EXPECT_EQ(hugepin_unpin(other, &quick.pin), 0);
	close_empty(&beside, other);
	sem_wait(&t.done);
	EXPECT_EQ(t.err, 0);
	EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

TEST(closing_cancels_the_requests_that_wait)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);
	struct told t[3];
	struct hugepin_pin pin;

	hold_service();
	for (size_t i = 0; i < 3; i++)
		ask_later(d, p + i * 8192, 4096, &t[i]);
	EXPECT_EQ(hugepin_pin_try(d, p + 65536, 4096, 0, NULL, NULL, &pin), -EAGAIN);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	for (size_t i = 0; i < 3; i++) {
		EXPECT_EQ(t[i].times, 1); /* before close returned */
		EXPECT_EQ(t[i].err, -ECANCELED);
		EXPECT_EQ(t[i].locks, 0);
	}
	let_service_go();
	EXPECT_EQ(t[0].times + t[1].times + t[2].times, 3);
	munmap(p, MIB);
}

PIN_TEST(a_domain_that_is_not_closed_keeps_its_requests, open_lru(), MIB)
{
	struct hugepin_pin held;
	struct told t;

	EXPECT_EQ(hugepin_pin(d, p + 65536, 4096, 0, &held), 0);
	hold_service();
	ask_later(d, p, 4096, &t);
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	EXPECT_EQ(t.times, 0);
	let_service_go();
	sem_wait(&t.done);
	EXPECT_EQ(t.err, 0);
	EXPECT_EQ(hugepin_unpin(d, &held) || hugepin_unpin(d, &t.pin), 0);
}

static void *close_in_vain(void *d)
{
	EXPECT_EQ(hugepin_domain_close(d), -EBUSY);
	return NULL;
}

PIN_TEST(a_request_that_came_while_a_domain_was_closing_is_served_when_it_stays, open_lru(), MIB)
{
	struct hugepin_pin held;
	struct told t;
	pthread_t closer;

	EXPECT_EQ(hugepin_pin(d, p + 65536, 4096, 0, &held), 0);
	hp_lock(&d->lock);
	pthread_create(&closer, NULL, close_in_vain, d);
	while (!d->closing)
		usleep(1000);
	memset(&t, 0, sizeof t);
	sem_init(&t.done, 0, 0);
	EXPECT_EQ(hp_request_add(d, &(struct hp_pin_request){ .addr = p, .len = 4096, .access = HUGEPIN_READ,
							  .done = tell, .arg = &t }), 0);
	while (hp_request_job.asked)
		usleep(1000);
	usleep(20000); /* the service thread has skipped the domain */
	hp_unlock(&d->lock);
	pthread_join(closer, NULL);
	sem_wait(&t.done);
	EXPECT_EQ(t.err, 0);
	EXPECT_EQ(hugepin_unpin(d, &t.pin) || hugepin_unpin(d, &held), 0);
}

TEST(a_child_of_fork_has_no_requests)
{
	hugepin_domain *d = open_lru();
	char *p = map(MIB);
	struct hugepin_pin pin;
	struct told t;
	int status;
	pid_t pid;

	hold_service();
	ask_later(d, p, 4096, &t);
	pid = fork();
	if (pid == 0) {
		hugepin_domain *own;

		EXPECT_EQ(hugepin_pin_try(d, p, 4096, 0, tell, &t, &pin), -ESTALE);
		EXPECT_EQ(hugepin_domain_close(d), 0);
		EXPECT_EQ(hugepin_domain_close(stuck.d), 0);
		device_reset(&device);
		for (int i = 0; i < 3; i++) { /* the places of the parent's domains are used again */
			struct told mine;

			own = open_as(HUGEPIN_POLICY_LRU, 0, 0);
			EXPECT_EQ(ask(own, p + 65536, 4096, 0, &mine), 0);
			EXPECT_EQ(hugepin_unpin(own, &mine.pin), 0);
			EXPECT_EQ(hugepin_domain_close(own), 0);
		}
		EXPECT_EQ(t.times, 0);
		_exit(t_failures != 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	let_service_go();
	sem_wait(&t.done);
	EXPECT_EQ(t.err, 0);
	EXPECT_EQ(hugepin_unpin(d, &t.pin), 0);
	munmap(p, MIB);
	close_empty(&device, d);
}

T_MAIN
