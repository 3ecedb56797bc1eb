#include "alloc/hpage.h"

hp_sum hp_map512_sum(const struct hp_map512 *m)
{
	size_t start = 0, longest = 0, run = 0;
	bool at_start = true;

	for (size_t i = 0; i < 8; i++) {
		uint64_t w = m->w[i];
		unsigned left = 64;

		if (w == ~UINT64_C(0)) {
			run += 64;
			continue;
		}
		while (left) {
			/* The low bits of w are a free run, which ends inside this word, and then taken chunks. */
			unsigned ones = w == ~UINT64_C(0) ? 64 : (unsigned)__builtin_ctzll(~w);

			if (ones >= left) {
				run += left;
				break;
			}
			run += ones;
			if (at_start) {
				start = run;
				at_start = false;
			}
			longest = HP_MAX(longest, run);
			run = 0;
			w >>= ones;
			left -= ones;

			unsigned zeros = w ? (unsigned)__builtin_ctzll(w) : 64;

			if (zeros >= left)
				break;
			w >>= zeros;
			left -= zeros;
		}
	}
	if (at_start)
		start = run;
	return hp_sum_pack(start, HP_MAX(longest, run), run);
}

hp_sum hp_sum_merge(const hp_sum child[8], size_t chunks, unsigned borders)
{
	size_t start = 0, longest = 0, run = 0; /* run: free chunks directly before child i */
	bool at_start = true;

	for (unsigned i = 0; i < 8; i++) {
		size_t s = hp_sum_start(child[i]);

		if (i && borders >> i & 1) {
			if (at_start)
				start = run;
			at_start = false;
			longest = HP_MAX(longest, run);
			run = 0;
		}
		if (s == chunks) {
			run += chunks;
			continue;
		}
		run += s;
		if (at_start)
			start = run;
		at_start = false;
		longest = HP_MAX(longest, run);
		longest = HP_MAX(longest, hp_sum_longest(child[i]));
		run = hp_sum_end(child[i]);
	}
	if (at_start)
		start = run;
	return hp_sum_pack(start, HP_MAX(longest, run), run);
}
