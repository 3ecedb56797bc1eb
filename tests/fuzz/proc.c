/* link: base/base.c base/clock.c base/sys.c base/config.c */
/*
 * Fuzzes what the heap reads from the kernel: numbers behind a key, and lists like "0-1,4". A list sets the bits that a reader
 * who goes number by number would set, of as many as there is room for, and no others.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "alloc/map.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BITS = 256 };

static bool number(const char **s, uint64_t *ret_)
{
	uint64_t n = 0;

	if (**s < '0' || **s > '9')
		return false;
	for (; **s >= '0' && **s <= '9'; (*s)++)
		n = n * 10 + (uint64_t)(**s - '0');
	*ret_ = n;
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct {
		uint64_t mask[BITS / 64], behind;
	} got = { { 0 }, 0 };
	uint64_t expected[BITS / 64] = { 0 }, from, to;
	char text[256];
	const char *s = text, *at;

	if (size >= sizeof text)
		return 0;
	memcpy(text, data, size);
	text[size] = 0;
	if (strpbrk(text, " \t")) /* the kernel writes none there; a number may begin behind them */
		s = "";
	else
		parse_list(text, got.mask, BITS);
	while (number(&s, &from)) {
		to = from;
		if (*s == '-' && s++ && !number(&s, &to))
			to = from;
		s += *s == ',';
		for (uint64_t i = from; from <= to && to < BITS && i <= to; i++)
			expected[i / 64] |= UINT64_C(1) << i % 64;
	}
	assert(!memcmp(got.mask, expected, sizeof expected) && !got.behind);

	at = strstr(text, "Free:");
	from = 4711;
	if (at) {
		for (at += 5; *at == ' ' || *at == '\t'; at++)
			;
		number(&at, &from);
	}
	assert(hp_number_after(text, "Free:", 4711) == from);
	return 0;
}
