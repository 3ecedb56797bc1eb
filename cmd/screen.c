/*
 * Draws a look at a process on a terminal. What matters most comes first, because a small terminal shows no more: a
 * title, then a bar for each share, two in a row where there is room. Below stands the text that others get, its lines
 * broken at spaces. A bar has its number behind it, so a terminal without colours shows the same.
 *
 * The control sequences are those that every terminal has (ECMA-48), and those of colours. All text is printable ASCII
 * (cmd/process.h, cmd/look.h), so a byte is a column; only bars have more bytes than columns.
 */
#include "cmd/screen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/text.h"
#include "cmd/show.h"
#include "cmd/text.h"

enum {
	LEAD = 17, /* columns in front of a row's first bar: of what, and the share's name */
	LEAD_MORE = 6, /* and in front of its second bar */
	AROUND = 13, /* columns around a bar: a space, brackets, and the number */
	BAR_MIN = 10, /* two bars share a row if each has so many columns */
	BAR_MAX = 40,
	INDENT = 10, /* of a line's continuation, as in the text itself */
	TEXT_MIN = 2 /* rows that are worth the beginning of the text */
};

struct share {
	const char *name, *none; /* none: in place of the bar where whole is 0 */
	uint64_t part, whole;
	bool poor; /* worth a look: in another colour */
};

/* ------------------------------------------------------------------ bars */

static void draw_share(FILE *to, const struct hp_screen *s, const struct share *share, int cells)
{
	char number[HP_TEXT_MAX];
	struct hp_line l = { number, number + HP_TEXT_MAX };
	const double full = share->whole ? (double)HP_MIN(share->part, share->whole) / (double)share->whole : 0;
	/* Round down, so that only a whole is full, but show that there is something. */
	const int halves = HP_MAX((int)(full * 2 * cells), share->part && share->whole);

	if (!share->whole) {
		fprintf(to, " [%-*.*s]%*s", cells, cells, share->none, AROUND - 3, "");
		return;
	}
	HP_SAY(&l, "%", HP_MIN(share->part, share->whole), share->whole);
	fputs(s->colour ? share->poor ? " [\033[33m" : " [\033[32m" : " [", to);
	for (int i = 0; i < halves / 2; i++)
		fputs(s->utf8 ? "█" : "#", to);
	if (halves % 2)
		fputs(s->utf8 ? "▌" : "-", to);
	fprintf(to, "%s%*s] %-*s", s->colour ? "\033[m" : "", cells - (halves + 1) / 2, "", AROUND - 4, number);
}

/* Draw two shares of one thing, in one row or one below the other. Returns the rows. */
static int draw_shares(FILE *to, const struct hp_screen *s, const char *of, const struct share share[2])
{
	const int width = s->columns - 1, both = (width - LEAD - LEAD_MORE) / 2 - AROUND;
	const bool beside = both >= BAR_MIN;
	const int cells = HP_MAX(1, HP_MIN(BAR_MAX, beside ? both : width - LEAD - AROUND));

	fprintf(to, "%s%*s", of, LEAD - (int)strlen(of), share[0].name);
	draw_share(to, s, &share[0], cells);
	fprintf(to, beside ? "%*s" : "\n%*s", beside ? LEAD_MORE : LEAD, share[1].name);
	draw_share(to, s, &share[1], cells);
	fputc('\n', to);
	return beside ? 1 : 2;
}

static int draw_heap(FILE *to, const struct hp_screen *s, const struct hp_look *look)
{
	const struct hugepin_stats *const h = &look->heap;
	const uint64_t huge = h->hugetlb_bytes + h->thp_bytes, mapped = huge + h->base_bytes,
		       idle = HP_MIN(h->listed_bytes + h->room_bytes, h->taken_bytes);

	return draw_shares(to, s, "heap",
			   (const struct share[]){ { "hugepages", "not used", huge, mapped, huge < mapped / 2 },
						   { "live", "not used", h->taken_bytes - idle, mapped, false } });
}

static int draw_domain(FILE *to, const struct hp_screen *s, const struct hp_look_domain *d)
{
	const uint64_t pinned = d->stats.pinned_bytes, budget = d->stats.bytes_max, million = 1000000;
	const double hits = hp_look_hit_rate(d);
	char of[LEAD];

	snprintf(of, sizeof of, "%u %s", d->number, hp_show_policy(d->policy));
	return draw_shares(to, s, of,
			   (const struct share[]){ { "pinned", "no budget", pinned, budget, pinned > budget / 10 * 9 },
						   { "hits", "no pins", (uint64_t)(HP_MAX(hits, 0.0) * (double)million),
						     hits < 0 ? 0 : million, hits < 0.5 } });
}

/* ------------------------------------------------------------------ text */

/* Where to break a line: behind a part of it, if this leaves no short row, or at the last space. */
static int break_of(const char *line, int room)
{
	const int least = (int)strspn(line, " ");

	for (int parts = 1; parts >= 0; parts--)
		for (int at = room; at > (parts ? HP_MAX(least, room / 2) : least); at--)
			if (line[at] == ' ' && (!parts || strchr(",; ", line[at - 1])))
				return at;
	return room;
}

/* Print text in rows of `width` columns. Returns their number; to: NULL, only count them. */
static int print_rows(FILE *to, const char *text, int width)
{
	int rows = 0;

	while (*text) {
		const char *const end = text + strcspn(text, "\n");
		int indent = 0;
		do {
			const int room = width - indent,
				  len = end - text > room ? break_of(text, room) : (int)(end - text);
			if (to)
				fprintf(to, "%*s%.*s\n", indent, "", len, text);
			rows++;
			text += len;
			text += strspn(text, " ");
			indent = width > 3 * INDENT ? INDENT : 0;
		} while (text < end);
		text = end + (*end == '\n');
	}
	return rows;
}

static char *text_of(const struct hp_process *p, const struct hp_look *look, uint32_t regions)
{
	char *text = NULL;
	size_t size = 0;
	FILE *const to = open_memstream(&text, &size);

	if (!to)
		return NULL;
	hp_show_text(to, p, look, regions);
	fclose(to);
	return text;
}

static const char *below_title(const char *text)
{
	const size_t title = strcspn(text, "\n");

	return text + title + (text[title] == '\n');
}

/* The text with as many of `regions` as fit in the rows. */
static char *text_that_fits(const struct hp_process *p, const struct hp_look *look, uint32_t regions, int rows,
			    int width)
{
	uint32_t least = 0, most = rows > 0 ? HP_MIN(regions, (uint32_t)rows) : 0;

	while (least < most) {
		const uint32_t n = (least + most + 1) / 2;
		char *const text = text_of(p, look, n);
		if (text && print_rows(NULL, below_title(text), width) <= rows)
			least = n;
		else
			most = n - 1;
		free(text);
	}
	return text_of(p, look, least);
}

/* ------------------------------------------------------------------ the screen */

/* Put a page in the place of the one that is there, and dots in that of its last row if it has too many. */
static void replace(FILE *to, const char *page, int rows, int width)
{
	fputs("\033[H", to);
	for (int row = 1; row <= rows && *page; row++) {
		const int len = (int)strcspn(page, "\n");
		const bool cut = row == rows && page[len] && page[len + 1];
		fprintf(to, "%.*s\033[K\n", cut ? HP_MIN(3, width) : len, cut ? "..." : page);
		page += len + (page[len] == '\n');
	}
	fputs("\033[J", to);
}

static void draw_page(FILE *to, const struct hp_screen *s, int width, const struct hp_process *p,
		      const struct hp_look *look, uint32_t regions)
{
	int left = s->rows - 3; /* without the title, an empty row, and the last one */
	char *text = text_of(p, look, 0);

	if (!text)
		return;
	fprintf(to, "%.*s\n", HP_MIN(width, (int)strcspn(text, "\n")), text);
	free(text);
	if (width > LEAD + AROUND) {
		left -= draw_heap(to, s, look);
		for (unsigned i = 0; i < look->domains; i++)
			if (look->domain[i].shown)
				left -= draw_domain(to, s, &look->domain[i]);
	}
	text = left < TEXT_MIN ? NULL : text_that_fits(p, look, regions, left, width);
	if (text) {
		fputc('\n', to);
		print_rows(to, below_title(text), width);
	}
	free(text);
}

void hp_screen_draw(FILE *to, const struct hp_screen *s, const struct hp_process *p, const struct hp_look *look,
		    uint32_t regions)
{
	char *page = NULL;
	size_t size = 0;
	FILE *const rows = open_memstream(&page, &size);
	const int width = HP_MAX(s->columns - 1, 1);

	if (!rows)
		return;
	draw_page(rows, s, width, p, look, regions);
	if (!fclose(rows))
		replace(to, page, s->rows - 1, width);
	fflush(to);
	free(page);
}
