/*
 * Configuration: the parser of the HUGEPIN_* variables, and its messages, driven by the table in config.h.
 *
 * hp_config_load() runs within the process's first malloc, perhaps before any constructor, so it must not allocate, or
 * use stdio or the locale. The rest of the file is pure.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/base.h"
#include "base/config.h"

#define PREFIX "HUGEPIN_"
#define LINE_MAX_BYTES 240 /* the longest line that hp_say() prints whole */
#define SHOWN_MAX 48 /* most bytes of a wrong value or name to show, so that the message remains readable */

#define OPTION(NAME, member, type, def, min, max, words, sentence) \
	{ PREFIX #NAME, HP_##type, def, min, max, words, sentence, offsetof(struct hp_config, member) },
const struct hp_option hp_options[] = { HP_OPTIONS(OPTION) };
const int hp_options_count = sizeof hp_options / sizeof hp_options[0];

#define DEFAULT(NAME, member, type, def, ...) .member = def,
struct hp_config hp_config = { HP_OPTIONS(DEFAULT) };

/* Whether a value must be a power of two. Others are refused, because the heap can use none and must not silently round
 * the user's value. */
static bool wants_power_of_two(const struct hp_option *o)
{
	return o->offset == offsetof(struct hp_config, extent_max);
}

static int parse_word(const char *words, const char *text, int64_t *ret_value)
{
	size_t len = strlen(text);
	int64_t index = 0;

	for (const char *w = words;; index++) {
		size_t n = strcspn(w, "|");
		if (n == len && !memcmp(w, text, n)) {
			*ret_value = index;
			return 0;
		}
		if (!w[n])
			return -1;
		w += n + 1;
	}
}

/* The factor that a suffix stands for. 0: the type has no such suffix. */
static int64_t suffix_unit(enum hp_option_type type, const char *s)
{
	static const char sizes[] = "kmgt";
	const char first = (char)(s[0] | 0x20); /* lower case */

	if (!s[0])
		return 1;
	if (type == HP_TIME) {
		if (first == 's' && !s[1])
			return 1000;
		return first == 'm' && (s[1] | 0x20) == 's' && !s[2] ? 1 : 0;
	}
	const char *at = type == HP_SIZE && !s[1] ? strchr(sizes, first) : NULL;
	return at ? INT64_C(1) << 10 * (at - sizes + 1) : 0;
}

static int parse_report(const struct hp_option *o, const char *text, int64_t *ret_value)
{
	if (text[0] >= '0' && text[0] <= '0' + HP_REPORT_LIST && !text[1]) {
		*ret_value = text[0] - '0';
		return 0;
	}
	const int64_t len = strncmp(text, "file:", 5) ? -1 : (int64_t)strlen(text + 5);

	if (len < o->min || len > o->max)
		return -1;
	*ret_value = (intptr_t)text;
	return 0;
}

const char *hp_report_file(int64_t value)
{
	return value > HP_REPORT_LIST ? (const char *)(intptr_t)value + 5 : NULL;
}

int hp_option_parse(const struct hp_option *o, const char *text, int64_t *ret_value)
{
	int64_t value = 0;
	const char *s = text;

	if (o->type == HP_PATH) {
		const int64_t len = (int64_t)strlen(text);
		if (len < o->min || len > o->max)
			return -1;
		*ret_value = (intptr_t)text;
		return 0;
	}
	if (o->type == HP_REPORT)
		return parse_report(o, text, ret_value);
	if (o->words && parse_word(o->words, text, &value) == 0) {
		*ret_value = o->type == HP_WORD ? value : -1 - value;
		return 0;
	}
	if (o->type == HP_WORD)
		return -1;
	for (; *s >= '0' && *s <= '9'; s++)
		if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *s - '0', &value))
			return -1;
	const int64_t unit = suffix_unit(o->type, s);
	if (s == text || !unit || __builtin_mul_overflow(value, unit, &value))
		return -1;
	/* The default may lie outside the range: HUGEPIN_SPAN=0 means that the heap chooses. */
	if ((value < o->min || value > o->max) && value != o->def)
		return -1;
	if (wants_power_of_two(o) && !hp_is_power_of_two((size_t)value))
		return -1;
	*ret_value = value;
	return 0;
}

void hp_line_option(struct hp_line *l, const struct hp_option *o, int64_t value)
{
	static const char *const sizes[] = { "", "K", "M", "G", "T" };
	size_t i = 0;

	if (o->type == HP_PATH) {
		hp_line_text(l, value ? (const char *)(intptr_t)value : "none");
		return;
	}
	if (o->type == HP_REPORT && value > HP_REPORT_LIST) {
		hp_line_text(l, (const char *)(intptr_t)value);
		return;
	}
	if (o->type == HP_WORD || (o->words && value < 0)) {
		const char *w = o->words;
		for (value = o->type == HP_WORD ? value : -1 - value; value > 0; value--)
			w += strcspn(w, "|") + 1;
		for (; *w && *w != '|'; w++)
			hp_line_text(l, (const char[]){ *w, 0 });
		return;
	}
	if (o->type == HP_SIZE)
		for (; value && value % 1024 == 0 && i < 4; i++)
			value /= 1024;
	const bool seconds = o->type == HP_TIME && value && value % 1000 == 0;
	hp_line_number(l, (uint64_t)(seconds ? value / 1000 : value), 10);
	hp_line_text(l, sizes[i]);
	if (o->type == HP_TIME && value)
		hp_line_text(l, seconds ? "s" : "ms");
}

static void line_accepts(struct hp_line *l, const struct hp_option *o)
{
	if (o->type == HP_FLAG) {
		hp_line_text(l, "0 or 1");
		return;
	}
	if (o->type == HP_PATH) {
		hp_line_text(l, "a path");
		return;
	}
	if (o->type == HP_REPORT) {
		hp_line_text(l, "0, 1, 2 or file:FILE");
		return;
	}
	if (o->type == HP_WORD)
		hp_line_text(l, "one of ");
	for (const char *w = o->words; w && *w; w++)
		hp_line_text(l, *w == '|' ? ", " : (const char[]){ *w, 0 });
	if (o->type == HP_WORD)
		return;
	if (o->words) {
		hp_line_text(l, " or ");
	} else if (o->def < o->min) {
		hp_line_option(l, o, o->def);
		hp_line_text(l, " or ");
	}
	hp_line_text(l, wants_power_of_two(o) ? "a power of two"
			: o->type == HP_SIZE  ? "a size"
			: o->type == HP_TIME  ? "a time in ms or s"
					      : "a number");
	hp_line_text(l, " from ");
	hp_line_option(l, o, o->min);
	hp_line_text(l, " to ");
	hp_line_option(l, o, o->max);
}

char *hp_option_accepts(const struct hp_option *o, char *buf, size_t size)
{
	struct hp_line l = { buf, buf + size };

	line_accepts(&l, o);
	return buf;
}

/* Write at most len bytes of text from outside. Cut long text, and replace characters that control a terminal. */
static void line_foreign(struct hp_line *l, const char *s, size_t len)
{
	char shown[SHOWN_MAX + 1];
	const size_t n = HP_MIN(len, sizeof shown - 1);

	for (size_t i = 0; i < n; i++)
		shown[i] = (unsigned char)s[i] < ' ' || s[i] == 0x7f ? '?' : s[i];
	shown[n] = 0;
	hp_line_text(l, shown);
	if (n < len)
		hp_line_text(l, "...");
}

static void complain_value(const struct hp_option *o, const char *text)
{
	char buf[LINE_MAX_BYTES];
	struct hp_line l = { buf, buf + sizeof buf };

	hp_line_text(&l, o->name);
	hp_line_text(&l, "=");
	line_foreign(&l, text, strlen(text));
	hp_line_text(&l, " is not understood: it takes ");
	line_accepts(&l, o);
	hp_line_text(&l, "; using ");
	hp_line_option(&l, o, o->def);
	hp_say(buf, NULL, SIZE_MAX);
}

static void complain_unknown(const char *name, size_t len)
{
	char buf[LINE_MAX_BYTES];
	struct hp_line l = { buf, buf + sizeof buf };

	line_foreign(&l, name, len);
	hp_line_text(&l, " is not known; known are " PREFIX);
	for (int i = 0; i < hp_options_count; i++) {
		hp_line_text(&l, i ? ", " : "");
		hp_line_text(&l, hp_options[i].name + sizeof PREFIX - 1);
	}
	hp_say(buf, NULL, SIZE_MAX);
}

static bool is_known(const char *name, size_t len)
{
	/* Other libraries check their own variables. */
	if (!strncmp(name, PREFIX "X_", sizeof PREFIX "X_" - 1))
		return true;
	for (int i = 0; i < hp_options_count; i++)
		if (strlen(hp_options[i].name) == len && !memcmp(hp_options[i].name, name, len))
			return true;
	return false;
}

/* Copy a text, because programs may write over their environment, to change their name in ps. */
static int64_t keep_text(const struct hp_option *o, const char *text)
{
	static char path[4096], report[4096]; /* one of each is enough: one option is a PATH, and one a REPORT */
	char *kept = o->type == HP_PATH ? path : report;

	memcpy(kept, text, strlen(text) + 1);
	return (intptr_t)kept;
}

enum { UNREAD, READING, READ };
static _Atomic int state; /* relaxed: in the child no other thread */

void hp_config_child(void)
{
	int reading = READING;

	atomic_compare_exchange_strong_explicit(&state, &reading, UNREAD, memory_order_relaxed, memory_order_relaxed);
}

int hp_config_load(void)
{
	const int saved_errno = errno;
	int expected = UNREAD;

	/* acquire: hp_config is seen complete; pairs with the store of READ below */
	if (atomic_load_explicit(&state, memory_order_acquire) == READ)
		return 0;
	/* Return -1 also if another thread is just reading. acquire: pairs with the same store. */
	if (!environ || !atomic_compare_exchange_strong_explicit(&state, &expected, READING, memory_order_acquire,
								 memory_order_acquire))
		return expected == READ ? 0 : -1;
	for (int i = 0; i < hp_options_count; i++) {
		const struct hp_option *o = &hp_options[i];
		const char *text = hp_env(o->name);
		int64_t *value = (int64_t *)((char *)&hp_config + o->offset);
		if (text && hp_option_parse(o, text, value))
			complain_value(o, text);
		else if (text && (o->type == HP_PATH || (o->type == HP_REPORT && *value > HP_REPORT_LIST)))
			*value = keep_text(o, text);
	}
	const bool secure = getauxval(AT_SECURE) != 0;

	/* A setuid program does not read these variables, so it must not complain about them. */
	for (char **e = environ; !secure && *e; e++) {
		const size_t len = strcspn(*e, "=");
		if (!strncmp(*e, PREFIX, sizeof PREFIX - 1) && !is_known(*e, len))
			complain_unknown(*e, len);
	}
	if (hp_config.small_pinned && hp_config.small != HP_SMALL_JEMALLOC) {
		hp_say(PREFIX "SMALL_PINNED=1 can be had with " PREFIX "SMALL=jemalloc alone, whose memory is ours; using 0",
		       NULL, SIZE_MAX);
		hp_config.small_pinned = 0;
	}
	/* release: later callers see hp_config complete; pairs with the loads above */
	atomic_store_explicit(&state, READ, memory_order_release);
	errno = saved_errno;
	return 0;
}
