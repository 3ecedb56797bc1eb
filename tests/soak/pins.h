/*
 * Pins of slots and of passing memory, and reads and writes of the kernel by them. A slot's kept pins are given back
 * before its memory is. A read that has been given to the kernel keeps its slot locked until it ends.
 */
#ifndef TESTS_SOAK_PINS_H
#define TESTS_SOAK_PINS_H

#include "slots.h"
#include "tests/ring.h"

/* Pin a part of the slot. *ret_len: the bytes that the key covers. */
static bool pin_part(struct slot *s, struct place *place, size_t len_max, uint64_t *rand, struct hugepin_pin *ret_pin,
		     size_t *ret_at, size_t *ret_len)
{
	const size_t at = rand_next(rand) % s->size, left = s->size - at;
	const size_t len = 1 + rand_next(rand) % (left < len_max ? left : len_max);
	const unsigned uncached = rand_next(rand) % 64 ? 0 : HUGEPIN_PIN_UNCACHED;
	const int e = hugepin_pin(place->domain, s->p + at, len, uncached, ret_pin);

	if (e) {
		if (e != -ENOBUFS && e != -ENOMEM && e != -EPERM) /* EPERM: RLIMIT_MEMLOCK is 0 */
			T_FAIL("a pin of %zu bytes is refused with %s: %s", len, strerror(-e), workers[CHANGER].doing);
		count_refused++;
		return false;
	}
	count_pins++;
	EXPECT_EQ(ret_pin->base, (uintptr_t)s->p + at);
	EXPECT(ret_pin->len && ret_pin->len <= len);
	*ret_at = at;
	*ret_len = ret_pin->len;
	return true;
}

/* Pin by the key that the slot holds, if the worker's domain made it and the registration has not ended. */
static bool pin_held(struct slot *s, const struct worker *w, struct hugepin_pin *ret_pin, size_t *ret_at, size_t *ret_len)
{
	if (!s->held.life || &places[s->held_place] != w->place)
		return false;
	const int e = hugepin_key_pin(&s->held);
	if (e) {
		EXPECT_EQ(e, -ENOKEY);
		s->held = (struct hugepin_key){ 0 };
		count_keys_ended++;
		return false;
	}
	*ret_pin = s->held.pin;
	*ret_at = ret_pin->base - (uintptr_t)s->p;
	*ret_len = ret_pin->len;
	count_keys++;
	return EXPECT(ret_pin->base >= (uintptr_t)s->p && *ret_at + *ret_len <= s->size && *ret_len <= IO_MAX);
}

static void slot_pin(struct slot *s, uint64_t *rand)
{
	const int place = (int)(rand_next(rand) % THREADS), i = (int)(rand_next(rand) % KEPT);
	struct hugepin_pin pin;
	size_t at, len;

	if (s->kept[i].pin.ref) {
		EXPECT_EQ(hugepin_unpin(places[s->kept[i].place].domain, &s->kept[i].pin), 0);
		return;
	}
	if (!pin_part(s, &places[place], s->size, rand, &pin, &at, &len))
		return;
	s->kept[i].place = place;
	s->kept[i].pin = pin;
}

/* The kernel writes a part of the slot to a file, or reads the file into the part. */
static void slot_io(struct worker *w, struct slot *s)
{
	struct io_uring *ring = &w->place->ring;
	struct hugepin_pin pin;
	size_t at, len;
	const bool fill = rand_next(&w->rand) % 2;

	if (!pin_held(s, w, &pin, &at, &len)) {
		if (!pin_part(s, w->place, IO_MAX, &w->rand, &pin, &at, &len))
			return;
		if (!s->held.life && !hugepin_key_take(w->place->domain, &pin, HUGEPIN_KEY_LAYOUT, &s->held))
			s->held_place = (int)(w->place - places);
	}
	if (fill) {
		memcpy(w->buffer, s->p + at, len);
		EXPECT_EQ(pwrite(w->file, w->buffer, len, 0), len);
		memset(s->p + at, 0xee, len);
		io_uring_prep_read_fixed(io_uring_get_sqe(ring), w->file, s->p + at, (unsigned)len, 0, (int)pin.lkey);
	} else {
		io_uring_prep_write_fixed(io_uring_get_sqe(ring), w->file, s->p + at, (unsigned)len, 0, (int)pin.lkey);
	}
	EXPECT_EQ(io_uring_submit(ring), 1);
	if (EXPECT_EQ(ring_result(ring), len) && !fill) {
		EXPECT_EQ(pread(w->file, w->buffer, len, 0), len);
		if (memcmp(w->buffer, s->p + at, len))
			T_FAIL("the device read wrong bytes of %zu at %p, %s memory", len, s->p + at,
			       s->foreign ? "foreign" : "heap");
	}
	if (fill)
		slot_check(s, "after the device has written it");
	EXPECT_EQ(hugepin_unpin(w->place->domain, &pin), 0);
	count_io++;
}

/* The kernel reads into p, by the registration of the domain that all threads share. */
static void device_fills(struct worker *w, char *p, size_t len)
{
	const uint64_t mark = atomic_fetch_add(&seeds, 1) << 24;
	struct io_uring *ring = &COMMON->ring;
	struct hugepin_pin pin;
	int e;

	if (!COMMON->has_ring)
		return;
	e = hugepin_pin(COMMON->domain, p, len, 0, &pin);
	if (e) {
		if (e != -ENOBUFS && e != -ENOMEM && e != -EPERM) /* EPERM: RLIMIT_MEMLOCK is 0 */
			T_FAIL("a pin of %zu bytes is refused with %s: %s", len, strerror(-e), workers[CHANGER].doing);
		count_refused++;
		return;
	}
	pattern_write(w->buffer, len, mark);
	EXPECT_EQ(pwrite(w->file, w->buffer, len, 0), len);
	pthread_mutex_lock(&COMMON->lock);
	io_uring_prep_read_fixed(io_uring_get_sqe(ring), w->file, p, (unsigned)len, 0, (int)pin.lkey);
	EXPECT_EQ(io_uring_submit(ring), 1);
	EXPECT_EQ(ring_result(ring), len);
	pthread_mutex_unlock(&COMMON->lock);
	if (pattern_check(p, len, mark) >= 0)
		T_FAIL("the device wrote %zu bytes for %p elsewhere: %s", len, p, w->doing);
	EXPECT_EQ(hugepin_unpin(COMMON->domain, &pin), 0);
	count_passed++;
}

/* Memory is mapped, pinned and read into at once, and unmapped. The thread writes nothing to the memory before: only
 * microseconds pass until the kernel reports who unmapped these addresses last. There are few sizes, so that threads
 * get each other's addresses. */
static void pass_through(struct worker *w)
{
	const uint64_t r = rand_next(&w->rand);
	const bool by_malloc = !preloaded && r % 4 == 0; /* glibc maps and unmaps so much: no arena has room */
	const size_t size = by_malloc ? 65 * MIB : MIB << r / 4 % 2, len = 1 + r / 8 % IO_MAX,
	at = 4096 * (r >> 32) % (MIB / 4);
	char *p = by_malloc ? hide(malloc(size)) : foreign_map(size);

	w->doing = by_malloc ? "passing memory of malloc through" : "passing memory of mmap through";
	if (!p) {
		count_nomem++;
		return;
	}
	device_fills(w, p + at, len);
	if (by_malloc)
		free(hide(p));
	else
		EXPECT_EQ(munmap(p, size), 0);
}

static void flight_start(struct worker *w, struct slot *s)
{
	struct flight *f = &w->flight;
	size_t len;

	if (!pin_part(s, w->place, FLIGHT_BYTES, &w->rand, &f->pin, &f->at, &len)) {
		pthread_mutex_unlock(&s->lock);
		return;
	}
	memcpy(w->buffer, s->p + f->at, len);
	memset(s->p + f->at, 0xdd, len);
	io_uring_prep_read_fixed(io_uring_get_sqe(&w->place->ring), w->pipe[0], s->p + f->at, (unsigned)len, 0,
				 (int)f->pin.lkey);
	EXPECT_EQ(io_uring_submit(&w->place->ring), 1);
	/* The bytes wait behind the buffer: the buffer has other uses meanwhile. */
	memcpy(w->buffer + IO_MAX, w->buffer, len);
	f->hops = 1 + (int)(rand_next(&w->rand) % 20);
	f->slot = s;
}

static void flight_land(struct worker *w)
{
	struct flight *f = &w->flight;
	const size_t len = f->pin.len;

	EXPECT_EQ(write(w->pipe[1], w->buffer + IO_MAX, len), len);
	EXPECT_EQ(ring_result(&w->place->ring), len);
	slot_check(f->slot, "after the device has written it late");
	EXPECT_EQ(hugepin_unpin(w->place->domain, &f->pin), 0);
	pthread_mutex_unlock(&f->slot->lock);
	f->slot = NULL;
	count_io++;
}

#endif
