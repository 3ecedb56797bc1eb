/*
 * Reports a misused pointer, or ends the process, after the caller has detected the misuse, mostly by
 * hp_misuse_reason() (misuse.h).
 */
#include "alloc/misuse.h"

#include "base/config.h"
#include "base/stats.h"

void hugepin_misuse_(const char *function, const void *ptr, const char *reason)
{
	char buf[200];
	struct hp_line l = { buf, buf + sizeof buf };

	hp_line_text(&l, function);
	hp_line_text(&l, "(0x");
	hp_line_number(&l, (uintptr_t)ptr, 16);
	hp_line_text(&l, "): ");
	hp_line_text(&l, reason);
	if (hp_config.abort_on_misuse)
		hp_die(buf, NULL, SIZE_MAX);
	hp_say(buf, NULL, SIZE_MAX);
	HP_STAT_COUNT(bad_pointers, 1);
}
