/* See touched.h. */
#include "alloc/touched.h"

enum { REVERSALS_MAX = 8 };

static uint32_t needed(const struct hp_touched *t)
{
	return (uint32_t)HP_TOUCHED_MIN << t->reversals;
}

/* Whether less than three quarters of the buffers were touched a little. */
static bool many_are_filled(const struct hp_touched *t)
{
	return t->looked >= HP_TOUCHED_MIN && 4 * t->little < 3 * t->looked;
}

void hp_touched_add(struct hp_touched *t, bool little)
{
	t->looked++;
	t->little += little;
	if (t->sparse && many_are_filled(t)) {
		if (t->reversals < REVERSALS_MAX)
			t->reversals++;
		t->sparse = false;
		t->looked = t->little = 0;
	} else if (t->looked >= needed(t) && 16 * t->little >= 15 * t->looked) {
		t->sparse = true;
	}
	if (t->looked >= 2 * needed(t)) { /* halve the counts, so that new buffers weigh more than old ones */
		t->looked /= 2;
		t->little /= 2;
	}
}

bool hp_touched_is_dense(const struct hp_touched *t)
{
	return !t->sparse && many_are_filled(t);
}
