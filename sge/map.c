/*
 * Turning pieces of memory into elements of a work request: layouts, keys, and where to put a copy. Pure: no state, no
 * allocation, no lock; only the key function may block. hugepin_sg_key() gets special treatment as a key function,
 * because its keys are asked for all at once.
 *
 * A key is searched in three places: the latest range, then the pins taken so far (sge/pins.h), then the key function.
 * The pins are few, because pieces mostly lie in one arena.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "hugepin.h"
#include "reg/key.h"
#include "sge/iov.h"
#include "sge/pins.h"

#define LINE ((size_t)64)
#define ALIAS ((size_t)4096) /* bytes: the processor compares addresses of loads and stores modulo this first */
/* A longer piece counts as if it had this length. Its lines exceed an unsigned already, and the lines of 2^31 such
 * pieces fit into 64 bits. */
#define LEN_MAX (UINT64_C(64) << 32)

/* ------------------------------------------------------------------ elements */

/* The keys of one call of hugepin_sg_map(). */
struct keys {
	hugepin_key_fn find;
	void *arg;
	struct hugepin_pin *pins;
	uint32_t out, max; /* out: pins taken so far; max: room in the array */
	uint32_t sorted; /* pins[0 .. sorted - 1] are in order (sge/pins.h) */
};

static HP_COLD void settle_keys(struct keys *k)
{
	k->out = k->sorted = hp_pins_settle(k->pins, k->out, k->find, k->arg);
}

/* Keep the pin that find_piece_key() took, if there is room. Otherwise give it back, and count it unless the same
 * registration is in the array. */
static HP_COLD void keep_of_many(struct keys *k, struct hugepin_pin *pin)
{
	struct hugepin_pin again = *pin;
	uint32_t at;

	if (k->out <= k->max && (k->out == k->max || hp_pins_due(k->out, k->sorted)))
		settle_keys(k);
	if (k->out < k->max) {
		k->pins[k->out++] = *pin;
		return;
	}
	at = hp_pins_position(k->pins, k->sorted, pin);
	k->out += at == k->sorted || k->pins[at].ref != pin->ref;
	k->find(k->arg, NULL, 0, 0, &again);
}

/* Find a pin that covers addr: one that this call has already, or a new one, which is kept until the end of the call. 0
 * or an error of the key function. */
static int find_piece_key(struct keys *k, uint64_t addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	const struct hugepin_pin *known = hp_pins_find(k->pins, HP_MIN(k->out, k->max), k->sorted, addr);
	struct hugepin_pin pin = { 0 };
	int err;

	if (known) {
		*ret_ = *known;
		return 0;
	}
	err = k->find(k->arg, (void *)addr, len, access, &pin);
	if (err)
		return err < 0 ? err : -EINVAL;
	err = pin.len <= UINT64_MAX - pin.base && hp_pin_covers(&pin, addr) ? 0 : -EINVAL;
	*ret_ = pin;
	if (!pin.ref)
		return err;
	if (err)
		k->find(k->arg, NULL, 0, 0, &pin);
	else if (k->out < HP_MIN(k->max, (uint32_t)HP_PINS_FEW))
		k->pins[k->out++] = pin;
	else
		keep_of_many(k, &pin);
	return err;
}

static int give_keys_back(struct keys *k, int err)
{
	for (uint32_t i = 0; i < HP_MIN(k->out, k->max); i++) {
		k->find(k->arg, NULL, 0, 0, &k->pins[i]);
		k->pins[i] = (struct hugepin_pin){ 0 };
	}
	return err;
}

static HP_COLD int map_and_ask(const struct iovec *iov, int n, unsigned access, void *domain,
			       struct hugepin_sge *ret_sges, int sges, struct hugepin_pin *ret_pins, int pins,
			       struct hugepin_sg_info *ret_info);

int hugepin_sg_map(const struct iovec *iov, int n, unsigned access, hugepin_key_fn key, void *arg,
		   struct hugepin_sge *ret_sges, int sges, struct hugepin_pin *ret_pins, int pins,
		   struct hugepin_sg_info *ret_info)
{
	struct keys k = { .find = key, .arg = arg, .pins = ret_pins, .max = (uint32_t)pins };
	struct hugepin_pin range = { 0 }, found; /* the latest range */
	struct hugepin_sge beyond, *s = &beyond; /* the latest element; `beyond` if there was no room for it */
	struct hugepin_sg_info info = { 0 };
	uint64_t end = 0; /* end of the latest element */
	uint32_t count = 0;
	int err;

	if (HP_UNLIKELY(hp_keys_asked) && key == hugepin_sg_key)
		return map_and_ask(iov, n, access, arg, ret_sges, sges, ret_pins, pins, ret_info);
	err = hp_iov_bytes(iov, n, &info.bytes);
	if (err || !key || sges < 0 || pins < 0 || (sges && !ret_sges) || (pins && !ret_pins))
		return -EINVAL;
	if (info.bytes > UINT32_MAX)
		return -EOVERFLOW;
	for (int i = 0; i < n; i++) {
		uint64_t addr = (uintptr_t)iov[i].iov_base, left = iov[i].iov_len, len;
		uint32_t lkey;

		for (; left; addr += len, left -= len) {
			lkey = range.lkey;
			if (HP_UNLIKELY(!hp_pin_covers(&range, addr))) {
				err = find_piece_key(&k, addr, left, access, &found);
				if (err)
					return give_keys_back(&k, err);
				range = found;
			}
			len = HP_MIN(left, range.len - (addr - range.base));
			if (addr == end && lkey == range.lkey) {
				s->length += (uint32_t)len;
			} else {
				s = count < (uint32_t)sges ? &ret_sges[count] : &beyond;
				*s = (struct hugepin_sge){ addr, (uint32_t)len, range.lkey };
				count++;
			}
			end = addr + len;
		}
	}
	if (HP_UNLIKELY(k.out > HP_PINS_FEW && k.out > k.sorted && k.out <= k.max))
		settle_keys(&k);
	info.sges = count;
	info.pins = k.out;
	if (count > (uint32_t)sges || k.out > k.max)
		err = give_keys_back(&k, -EMSGSIZE);
	for (uint32_t i = 0; ret_info && !err && i < count; i++)
		info.lines += (uint32_t)hp_iov_lines(ret_sges[i].addr, ret_sges[i].length);
	if (ret_info)
		*ret_info = info;
	return err ? err : (int)count;
}

static int ask_each(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	return hugepin_sg_key(domain, addr, len, access, ret_);
}

/* For hugepin_sg_key(): ask for all keys at once, or for each if registrations are just changing. */
static HP_COLD int map_and_ask(const struct iovec *iov, int n, unsigned access, void *domain,
			       struct hugepin_sge *ret_sges, int sges, struct hugepin_pin *ret_pins, int pins,
			       struct hugepin_sg_info *ret_info)
{
	struct hugepin_sg_info info = { 0 };
	int count = hugepin_sg_map(iov, n, access, hp_key_later, domain, ret_sges, sges, ret_pins, pins, &info);

	if (count >= 0 && !hp_keys_stand(domain, ret_pins, (int)info.pins)) {
		for (uint32_t i = 0; i < info.pins; i++)
			hugepin_sg_key(domain, NULL, 0, 0, &ret_pins[i]);
		return hugepin_sg_map(iov, n, access, ask_each, domain, ret_sges, sges, ret_pins, pins, ret_info);
	}
	if (ret_info && (count >= 0 || count == -EMSGSIZE))
		*ret_info = info;
	return count;
}

/* ------------------------------------------------------------------ layouts */

int hugepin_sg_strided(const void *base, size_t block, ptrdiff_t stride, size_t count, struct iovec *ret_, int max)
{
	uintptr_t first = (uintptr_t)base, last;
	ptrdiff_t span;

	if (max < 0 || (max && !ret_))
		return -EINVAL;
	if (!block || !count)
		return 0;
	/* If the first and the last block are valid, so are those between. */
	if (__builtin_mul_overflow(stride, count - 1, &span) || __builtin_add_overflow(first, span, &last) ||
	    !hp_iov_valid(first, block) || !hp_iov_valid(last, block))
		return -EINVAL;
	if (stride > 0 && (size_t)stride == block) {
		block *= count;
		count = 1;
	}
	if (count > (size_t)max)
		return -EMSGSIZE;
	for (size_t i = 0; i < count; i++)
		ret_[i] = (struct iovec){ (void *)(first + i * (size_t)stride), block };
	return (int)count;
}

int hugepin_sg_indexed(const void *base, const size_t *off, const size_t *len, size_t n, struct iovec *ret_, int max)
{
	uintptr_t end = 0; /* end of the latest piece */
	size_t count = 0;

	if (max < 0 || (max && !ret_) || (n && (!off || !len)))
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		uintptr_t addr = (uintptr_t)base + off[i];

		if (!len[i])
			continue;
		if (!hp_iov_valid(addr, len[i]))
			return -EINVAL;
		if (addr != end && count++ < (size_t)max)
			ret_[count - 1] = (struct iovec){ (void *)addr, 0 };
		if (count <= (size_t)max)
			ret_[count - 1].iov_len += len[i];
		end = addr + len[i];
	}
	return count > (size_t)max ? -EMSGSIZE : (int)count;
}

/* ------------------------------------------------------------------ placement */

unsigned hugepin_sg_lines(const struct iovec *iov, int n)
{
	uint64_t count = 0;

	for (int i = 0; iov && i < n; i++)
		if (iov[i].iov_len)
			count += hp_iov_lines((uintptr_t)iov[i].iov_base, HP_MIN(iov[i].iov_len, LEN_MAX));
	return (unsigned)HP_MIN(count, UINT_MAX);
}

/* The offset for a copy at which the CPU waits least. A copy waits for its own stores if each store lies behind its
 * load by less than a vector or two, modulo a page. Copying 4096 bytes took 27 times as long at a distance of 8 bytes
 * as at 0, or at 64 and more (Xeon, AVX-512), so offsets up to twice that distance are avoided. Each piece rules out
 * two offsets, because the distance is the same throughout a piece. */
size_t hugepin_sg_offset(const struct iovec *iov, int n, size_t len)
{
	uint64_t waits[ALIAS / LINE] = { 0 }, pages, best_pages = 0;
	size_t at = 0, best = 0;

	for (int i = 0; iov && i < n && at < len; i++) {
		size_t piece = HP_MIN(iov[i].iov_len, len - at), equal = ((uintptr_t)iov[i].iov_base - at) % ALIAS;
		uint64_t loads = (piece + LINE - 1) / LINE;

		waits[(equal / LINE + 1) % (ALIAS / LINE)] += loads;
		if (equal % LINE)
			waits[(equal / LINE + 2) % (ALIAS / LINE)] += loads;
		at += piece;
	}
	for (size_t o = 0; o < ALIAS / LINE; o++) {
		pages = (o * LINE + (len - !!len) % ALIAS) / ALIAS;
		if (!o || waits[o] < waits[best] || (waits[o] == waits[best] && pages < best_pages)) {
			best = o;
			best_pages = pages;
		}
	}
	return best * LINE;
}
