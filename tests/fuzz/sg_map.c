/* link: sge/map.c */
/*
 * Fuzzes the making of elements: registrations, pieces, the room there is and the call that fails come from the input; the
 * elements are the pieces' bytes in order, each under a key of a registration that has it, and each pin is given back on
 * failure. Registrations may overlap. Nothing is read at the pieces' addresses.
 */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "hugepin.h"
#include "reg/key.h"

/* The pin cache's, which asks nobody: keys here are this file's own. */
bool hp_keys_asked;

int hugepin_sg_key(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	(void)domain, (void)addr, (void)len, (void)access, (void)ret_;
	abort();
}

int hp_key_later(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	return hugepin_sg_key(domain, addr, len, access, ret_);
}

bool hp_keys_stand(void *domain, const struct hugepin_pin *pins, int n)
{
	(void)domain, (void)pins, (void)n;
	abort();
}

enum { REGS = 6, PIECES = 10, SPACE = 2048, BYTES = PIECES * SPACE };
#define BASE UINT64_C(0x7f0000000000)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t *input;
static size_t input_left;

static uint64_t take(int bytes)
{
	uint64_t x = 0;

	for (; bytes && input_left; bytes--, input_left--)
		x = x << 8 | *input++;
	return x;
}

static struct {
	uint64_t start, end;
	uint32_t key;
	bool counted;
	int out;
} reg[REGS];
static int regs, out, calls, fail_at;

static int key(void *arg, const void *addr_, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	uint64_t addr = (uintptr_t)addr_;

	assert(arg == reg);
	if (!addr) {
		assert(ret_->ref && reg[ret_->ref - 1].out-- > 0);
		out--;
		return 0;
	}
	assert(len && addr + len > addr && access == 3);
	if (++calls == fail_at)
		return -EIO;
	for (int i = 0; i < regs; i++)
		if (addr >= reg[i].start && addr < reg[i].end) {
			*ret_ = (struct hugepin_pin){ reg[i].start, reg[i].end - reg[i].start, reg[i].key, 0,
						      reg[i].counted ? (uint64_t)i + 1 : 0 };
			reg[i].out += reg[i].counted;
			out += reg[i].counted;
			return 0;
		}
	return -ENOKEY;
}

static bool has(uint64_t addr, const uint32_t *k)
{
	for (int i = 0; i < regs; i++)
		if (addr >= reg[i].start && addr < reg[i].end && (!k || reg[i].key == *k))
			return true;
	return false;
}

/* What is to be returned if the call is not made to fail; 0: elements. The pieces' bytes go to `flat`. */
static uint64_t flat[BYTES];

static int expected(const struct iovec *iov, int n, size_t *ret_bytes)
{
	unsigned __int128 sum = 0;
	size_t bytes = 0;

	for (int i = 0; i < n; i++) {
		unsigned __int128 end = (unsigned __int128)(uintptr_t)iov[i].iov_base + iov[i].iov_len;

		if (iov[i].iov_len && (!iov[i].iov_base || end > UINT64_MAX))
			return -EINVAL;
		sum += iov[i].iov_len;
	}
	if (sum > UINT32_MAX)
		return -EOVERFLOW;
	for (int i = 0; i < n; i++)
		for (size_t k = 0; k < iov[i].iov_len; k++) {
			if (!has((uintptr_t)iov[i].iov_base + k, NULL))
				return -ENOKEY;
			assert(bytes < BYTES); /* no piece of registered bytes is longer than SPACE */
			flat[bytes++] = (uintptr_t)iov[i].iov_base + k;
		}
	*ret_bytes = bytes;
	return 0;
}

static void check(const struct hugepin_sge *sge, int n, const struct hugepin_sg_info *info, size_t bytes)
{
	size_t at = 0;

	assert(info->sges == (uint32_t)n && info->bytes == bytes && info->pins == (uint32_t)out && info->lines >= (uint32_t)n);
	for (int i = 0; i < n; i++) {
		assert(sge[i].length);
		assert(!i || sge[i].lkey != sge[i - 1].lkey || sge[i].addr != sge[i - 1].addr + sge[i - 1].length);
		for (uint32_t b = 0; b < sge[i].length; b++, at++)
			assert(at < bytes && flat[at] == sge[i].addr + b && has(flat[at], &sge[i].lkey));
	}
	assert(at == bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct iovec iov[PIECES];
	static struct hugepin_sge sge[BYTES];
	struct hugepin_pin *pin;
	struct hugepin_sg_info info;
	int n, count, wanted, sges, pins;
	size_t bytes = 0;

	input = data;
	input_left = size;
	out = calls = 0;
	memset(reg, 0, sizeof reg);
	sges = (int)take(1) % 32;
	pins = (int)take(1) % 8;
	fail_at = (int)take(1);
	regs = (int)take(1) % (REGS + 1);
	for (int i = 0; i < regs; i++) {
		reg[i].start = BASE + take(2) % SPACE;
		reg[i].end = reg[i].start + take(2) % (BASE + SPACE - reg[i].start + 1);
		reg[i].key = (uint32_t)take(1) % 8;
		reg[i].counted = reg[i].key & 1;
	}
	n = (int)take(1) % (PIECES + 1);
	for (int i = 0; i < n; i++) {
		unsigned kind = (unsigned)take(1) % 8;

		if (kind == 0) /* anywhere, of any length */
			iov[i] = (struct iovec){ (void *)take(8), take(8) };
		else if (kind == 1) /* behind the one before */
			iov[i] = i ? (struct iovec){ (void *)((uintptr_t)iov[i - 1].iov_base + iov[i - 1].iov_len), take(1) } :
				     (struct iovec){ NULL, 0 };
		else
			iov[i] = (struct iovec){ (void *)(BASE + take(2) % SPACE), take(kind < 5 ? 1 : 2) % SPACE };
	}
	wanted = expected(iov, n, &bytes);

	/* Of the exact size: to write behind it is found. */
	pin = malloc((size_t)pins * sizeof *pin + 1);
	assert(pin);
	count = hugepin_sg_map(iov, n, 3, key, reg, sge, sges, pin, pins, &info);
	if (fail_at && calls >= fail_at)
		wanted = -EIO;
	if (count == -EMSGSIZE) {
		assert(!wanted && out == 0 && (info.sges > (uint32_t)sges || info.pins > (uint32_t)pins));
		free(pin);
		/* Where registrations overlap, it depends on which of them are known what is needed. */
		pins = REGS;
		sges = BYTES;
		pin = malloc((size_t)pins * sizeof *pin + 1);
		assert(pin);
		fail_at = 0;
		count = hugepin_sg_map(iov, n, 3, key, reg, sge, sges, pin, pins, &info);
		assert(count >= 0);
	}
	if (wanted) {
		assert(count == wanted && out == 0);
	} else {
		assert(count >= 0 && count <= sges && out <= pins);
		check(sge, count, &info, bytes);
	}
	free(pin);
	return 0;
}
