/*
 * The picture: registered memory over time, and below it marks at the misses. There is one panel, or a grid of panels
 * with the same axes, each with its title above it.
 *
 * A trace may have many more events than the picture has columns. For each column only the first, the lowest, the
 * highest and the last value are kept. This draws the same picture (Jugel et al., M4: A Visualization-Oriented Time
 * Series Data Aggregation, VLDB 2014).
 */
#include "cmd/plot_draw.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/facts.h"
#include "cmd/text.h"

/* Sizes of the picture's parts, in pixels. A letter is as wide as that on average, or less. */
enum { WIDTH = 1200, EDGE = 24, TITLE = 30, ROW = 22, MARKS = 14, GAP = 8, LEFT = 96, BELOW = 60, LETTER = 8 };
enum { BINS = 300 }; /* columns of the misses of several ranks */
enum { LABEL_MAX = PATH_MAX + 300 };

/* The unit of an axis, and its name. */
struct scale {
	double unit;
	const char *name;
};

static struct scale bytes_scale(uint64_t most)
{
	return most < UINT64_C(1) << 20	  ? (struct scale){ 0x1p10, "KiB" }
	       : most < UINT64_C(1) << 30 ? (struct scale){ 0x1p20, "MiB" }
					  : (struct scale){ 0x1p30, "GiB" };
}

static struct scale time_scale(uint64_t most_ns)
{
	return most_ns < 2000000      ? (struct scale){ 1e3, "µs" }
	       : most_ns < 2000000000 ? (struct scale){ 1e6, "ms" }
				      : (struct scale){ 1e9, "s" };
}

/* ------------------------------------------------------------------ where things are */

struct layout {
	int columns, rows;
	int legend; /* rows of text above the panels */
	int title; /* height of a panel's title */
	int plot, marks; /* heights of a panel, and of its marks */
	int head, right; /* the height above the panels; the margin at their right */
	int height; /* of the picture */
	int members; /* of each line, if all have so many; 0: they differ */
	uint64_t most_bytes; /* the left axis holds this */
	size_t most_misses; /* of a bin */
};

static size_t bin_misses(const struct hp_picture *p, const struct hp_curve *c, size_t bins[BINS])
{
	size_t most = 0;

	memset(bins, 0, BINS * sizeof *bins);
	for (size_t i = 0; i < c->misses; i++) {
		size_t *bin = &bins[hp_plot_column(c->miss_ns[i], p->length_ns, BINS)];

		++*bin;
		most = *bin > most ? *bin : most;
	}
	return most;
}

static struct layout find_layout(const struct hp_picture *p, const char *title)
{
	static const int heights[] = { 440, 240, 190, 160 }; /* of panels one above the other */
	struct layout l = { .columns = p->panels <= 4 ? 1 : p->panels <= 12 ? 2 : p->panels <= 30 ? 3 : 4, .right = EDGE };
	size_t bins[BINS];
	bool ranges = false;

	l.rows = (p->panels + l.columns - 1) / l.columns;
	l.plot = l.columns == 1 ? heights[p->panels - 1] : l.columns == 2 ? 150 : l.columns == 3 ? 110 : 90;
	l.members = p->curve[0].members;
	for (int i = 0; i < p->curves; i++) {
		const struct hp_curve *c = &p->curve[i];
		const size_t most = bin_misses(p, c, bins);

		l.most_bytes = c->member_peak_bytes > l.most_bytes ? c->member_peak_bytes : l.most_bytes;
		l.most_misses = most > l.most_misses ? most : l.most_misses;
		l.members = c->members == l.members ? l.members : 0;
		ranges |= c->members > 1;
	}
	if (ranges && (l.members || l.columns == 1))
		l.right = LEFT;
	l.legend = ranges + (p->panels < p->curves ? p->curves : 0);
	l.title = p->panels < p->curves ? 0 : ROW;
	if (l.most_misses)
		l.marks = p->curves / p->panels * MARKS;
	l.head = EDGE + (title ? TITLE : 0) + l.legend * ROW;
	l.height = l.head + l.rows * (l.title + l.plot + l.marks + GAP) + BELOW;
	return l;
}

struct hp_plot_size hp_plot_size(const struct hp_picture *p, const char *title)
{
	return (struct hp_plot_size){ WIDTH, find_layout(p, title).height };
}

/* A rectangle, in pixels from the upper left. */
struct box {
	int left, right, top, bottom;
};

/* The box of a panel's plot. */
static struct box panel_box(const struct layout *l, int panel)
{
	const int width = (WIDTH - LEFT - l->right - (l->columns - 1) * EDGE) / l->columns;
	const int left = LEFT + panel % l->columns * (width + EDGE);
	const int top = l->head + panel / l->columns * (l->title + l->plot + l->marks + GAP) + l->title;

	return (struct box){ left, left + width, top, top + l->plot };
}

static double screen_x(int pixels)
{
	return (double)pixels / (double)WIDTH;
}

static double screen_y(const struct layout *l, int pixels)
{
	return 1 - (double)pixels / l->height;
}

/* ------------------------------------------------------------------ text */

/* Write text in gnuplot's single quotes, where only the quote is special. Makes it valid UTF-8, as an SVG must be. */
static void quote(FILE *to, const char *text)
{
	json_t *const valid = hp_facts_string(text);

	putc('\'', to);
	for (text = json_string_value(valid); *text; text++) {
		if (*text == '\'')
			putc('\'', to);
		putc((unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text, to);
	}
	putc('\'', to);
	json_decref(valid);
}

/* Write a text at a place, in pixels. */
static void write_text(FILE *to, const struct layout *l, int x, int y, const char *how, const char *text)
{
	fprintf(to, "set label at screen %f, screen %f %s ", screen_x(x), screen_y(l, y), how);
	quote(to, text);
	putc('\n', to);
}

/* What the members of a curve are. */
static const char *member_name(const struct hp_picture *p, const struct hp_curve *c)
{
	return p->run[c->run].domains > 1 ? "domain" : "rank";
}

/* Write the label of a curve: its policy, domain and file, as far as other curves make them necessary, its average and
 * peak. As much of
 * it as `width` letters hold. */
static void make_label(char label[LABEL_MAX], const struct hp_picture *p, const struct hp_curve *c, size_t width)
{
	char who[PATH_MAX + 100], mean[HP_TEXT_MAX], peak[HP_TEXT_MAX], one[HP_TEXT_MAX], domain[40] = "";
	const char *name = hp_base_name(c->name), *misses = c->misses == 1 ? "miss" : "misses";
	const char *together = c->members > 1 ? " together" : "";
	size_t room;

	for (int i = 0; i < p->curves; i++)
		if (strcmp(c->name, p->curve[i].name) && !strcmp(name, hp_base_name(p->curve[i].name)))
			name = c->name;
	if (c->members == 1 && p->run[c->run].domains > 1)
		snprintf(domain, sizeof domain, ", domain %llu", (unsigned long long)c->first->domain);
	snprintf(who, sizeof who, "%s%s, %s", c->first->policy, domain, name);
	hp_text_bytes(c->mean_bytes, mean);
	hp_text_bytes(c->peak_bytes, peak);
	if (c->members > 1)
		snprintf(label, LABEL_MAX, "%s: %d %ss together: mean %s, peak %s; a %s at most %s; %zu %s", who,
			 c->members, member_name(p, c), mean, peak, member_name(p, c),
			 hp_text_bytes(c->member_peak_bytes, one), c->misses, misses);
	else
		snprintf(label, LABEL_MAX, "%s: mean %s, peak %s, %zu %s", who, mean, peak, c->misses, misses);
	if (strlen(label) > width)
		snprintf(label, LABEL_MAX, "%s:%s mean %s, peak %s", who, together, mean, peak);
	if (strlen(label) > width)
		snprintf(label, LABEL_MAX, "%s:%s peak %s", who, together, peak);
	if (strlen(label) <= width)
		return;
	room = strlen(label) - strlen(name); /* what is not the name; the end of the name tells files apart */
	room = width > room + 10 ? width - room - 3 : 7;
	room = strlen(name) > room ? strlen(name) - room : 0;
	snprintf(label, LABEL_MAX, "%s%s, ...%s:%s peak %s", c->first->policy, domain, name + room, together, peak);
}

/* ------------------------------------------------------------------ data */

static void write_value(FILE *to, const struct hp_picture *p, const struct layout *l, const struct hp_curve *c,
			struct hp_value v)
{
	fprintf(to, "%.9g %.9g\n", (double)v.t_ns / time_scale(p->length_ns).unit,
		(double)v.bytes / c->members / bytes_scale(l->most_bytes).unit);
}

static void write_values(FILE *to, const struct hp_picture *p, const struct layout *l, const struct hp_curve *c)
{
	for (size_t first = 0, next; first < c->values; first = next) {
		const int column = hp_plot_column(c->value[first].t_ns, p->length_ns, HP_COLUMNS);
		size_t low = first, high = first;

		for (next = first + 1; next < c->values; next++) {
			if (hp_plot_column(c->value[next].t_ns, p->length_ns, HP_COLUMNS) != column)
				break;
			low = c->value[next].bytes < c->value[low].bytes ? next : low;
			high = c->value[next].bytes > c->value[high].bytes ? next : high;
		}
		/* Keep these four values in the order of time, each once. */
		const size_t keep[] = { first, low < high ? low : high, low < high ? high : low, next - 1 };
		for (int i = 0; i < 4; i++)
			if (!i || keep[i] > keep[i - 1])
				write_value(to, p, l, c, c->value[keep[i]]);
	}
	write_value(to, p, l, c, (struct hp_value){ c->end_ns, c->value[c->values - 1].bytes });
}

/* Write the range of the members: for the begin and the end of each column its time, its least and its most. */
static void write_band(FILE *to, const struct hp_picture *p, const struct layout *l, const struct hp_curve *c)
{
	const double end = (double)c->end_ns / time_scale(p->length_ns).unit;
	const double width = (double)p->length_ns / time_scale(p->length_ns).unit / (double)HP_BAND;
	const double unit = bytes_scale(l->most_bytes).unit;

	for (int i = 0; i < HP_BAND && i * width <= end; i++)
		for (int edge = 0; edge < 2; edge++)
			fprintf(to, "%.9g %.9g %.9g\n", (i + edge) * width < end ? (i + edge) * width : end,
				(double)c->low[i] / unit, (double)c->high[i] / unit);
}

/* Write the marks: of one series each miss. Of several members the misses of each bin, as a mark that is as high as the
 * bin is full, but high enough to be seen. A mark is its time, its upper end and its height, of a row of height 1. */
static void write_misses(FILE *to, const struct hp_picture *p, const struct layout *l, const struct hp_curve *c, int row)
{
	const double unit = time_scale(p->length_ns).unit;
	int last = -1;

	if (c->members > 1) {
		size_t bins[BINS];

		bin_misses(p, c, bins);
		for (int i = 0; i < BINS; i++) {
			const double height = 0.3 + 0.6 * (double)bins[i] / (double)l->most_misses;

			if (bins[i])
				fprintf(to, "%.9g %.9g %.9g\n", (i + 0.5) * (double)p->length_ns / unit / (double)BINS,
					row + 0.95 - height, height);
		}
		return;
	}
	for (size_t i = 0; i < c->misses; i++) {
		const int column = hp_plot_column(c->miss_ns[i], p->length_ns, HP_COLUMNS);

		if (column != last)
			fprintf(to, "%.9g %d.15 0.7\n", (double)c->miss_ns[i] / unit, row);
		last = column;
	}
}

/* ------------------------------------------------------------------ drawing */

/* The colours of Okabe and Ito, which most colour-blind people can tell apart. */
static const char *colour(int i)
{
	static const char *const colours[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9" };

	return colours[i % (int)(sizeof colours / sizeof *colours)];
}

/* A curve's colour: each policy has its own. */
static const char *curve_colour(const struct hp_picture *p, int i)
{
	int n = 0;

	for (int k = 0; k < i; k++) {
		if (!strcmp(p->curve[k].first->policy, p->curve[i].first->policy))
			return curve_colour(p, k);
		bool known = false;
		for (int j = 0; j < k; j++)
			known |= !strcmp(p->curve[j].first->policy, p->curve[k].first->policy);
		n += !known;
	}
	return colour(n);
}

static void write_margins(FILE *to, const struct layout *l, struct box b)
{
	fprintf(to,
		"set lmargin at screen %f; set rmargin at screen %f; set bmargin at screen %f; set tmargin at screen "
		"%f\n",
		screen_x(b.left), screen_x(b.right), screen_y(l, b.bottom), screen_y(l, b.top));
}

/* Write the texts around the panels: the title, the legend and the names of the axes. */
static void write_texts(FILE *to, const struct hp_picture *p, const struct layout *l, const char *title)
{
	const int middle = l->head + (l->height - l->head - BELOW) / 2, row = EDGE + (title ? TITLE : 0) + ROW / 2;
	const struct hp_curve *range = NULL;
	char text[200];

	for (int i = 0; i < p->curves; i++)
		if (p->curve[i].members > 1)
			range = &p->curve[i];
	if (title)
		write_text(to, l, WIDTH / 2, EDGE + 2, "center font ',16'", title);
	if (range) {
		const char *who = member_name(p, range);

		snprintf(text, sizeof text,
			 "line: all %ss together%s; band: from the %s that has least at that time to the one that has most",
			 who, l->right > EDGE ? " (right axis)" : ", divided by their number", who);
		write_text(to, l, LEFT, row, "left textcolor rgb '#505050'", text);
	}
	if (l->right > EDGE) {
		if (l->members)
			snprintf(text, sizeof text, "%d %ss together (%s)", l->members, member_name(p, range),
				 bytes_scale(l->most_bytes * (uint64_t)l->members).name);
		else
			snprintf(text, sizeof text, "together");
		write_text(to, l, WIDTH - EDGE / 2, middle, "center rotate by 90", text);
	}
	snprintf(text, sizeof text, "registered memory%s%s (%s)", range ? " of a " : "", range ? member_name(p, range) : "",
		 bytes_scale(l->most_bytes).name);
	write_text(to, l, EDGE / 2 + 4, middle, "center rotate by 90", text);
	snprintf(text, sizeof text, "time (%s)", time_scale(p->length_ns).name);
	write_text(to, l, (LEFT + WIDTH - l->right) / 2, l->height - EDGE + 4, "center", text);
	if (l->marks && l->columns == 1)
		for (int i = 0; i < p->panels; i++)
			write_text(to, l, LEFT - 12, panel_box(l, i).bottom + 2 + l->marks / 2, "right font ',10'", "misses");
}

/* The step between an axis's marks: 1, 2 or 5 times a power of ten, so that there is room for their numbers. */
static double tic_step(double most, int pixels)
{
	static const double steps[] = { 1, 2, 5, 10 };
	const double least = most / (pixels < 200 ? pixels / 28 : pixels / 40);
	double power = 1;
	int i = 0;

	while (power < least / 10)
		power *= 10;
	while (power > least)
		power /= 10;
	while (steps[i] * power < least && i < 3)
		i++;
	return steps[i] * power;
}

/* Draw the lines of a panel: the first one widest, so that none hides another. */
static void write_panel(FILE *to, const struct hp_picture *p, const struct layout *l, int panel)
{
	const struct scale x = time_scale(p->length_ns), y = bytes_scale(l->most_bytes);
	const double most = l->most_bytes ? (double)l->most_bytes * 1.05 : y.unit;
	const int first = panel, end = p->panels < p->curves ? p->curves : panel + 1;
	const struct hp_curve *c = &p->curve[first];
	const bool bottom = panel + l->columns >= p->panels && !l->marks;
	const struct box b = panel_box(l, panel);
	char label[LABEL_MAX];

	if (l->title) {
		char how[100];

		snprintf(how, sizeof how, "left textcolor rgb '%s'%s", curve_colour(p, first),
			 l->columns > 2 ? " font ',10'" : "");
		make_label(label, p, c, (size_t)(b.right - b.left) / (l->columns > 2 ? LETTER - 1 : LETTER));
		write_text(to, l, b.left, b.top - ROW / 2, how, label);
	}
	write_margins(to, l, b);
	fprintf(to, "set border %d linecolor rgb '#606060'\nset grid linecolor rgb '#d8d8d8' linetype 1 linewidth 0.5\n",
		c->members > 1 && l->right > EDGE ? 11 : 3);
	fprintf(to, "set xrange [0:%.9g]\nset yrange [0:%.9g]\n", p->length_ns ? (double)p->length_ns / x.unit : 1.0,
		most / y.unit);
	fprintf(to, "set format x '%s'\nset xtics out nomirror scale %d\nset ytics out nomirror %g\nset format y '%s'\n", bottom ? "% h" : "", bottom,
		tic_step(most / y.unit, l->plot), panel % l->columns ? "" : "% h");
	if (c->members > 1 && l->right > EDGE && (panel % l->columns == l->columns - 1 || panel == p->panels - 1)) {
		const double unit = bytes_scale(l->most_bytes * (uint64_t)c->members).unit;

		fprintf(to, "set y2range [0:%.9g]\nset y2tics out %g\nset format y2 '%s'\n", most * c->members / unit,
			tic_step(most * c->members / unit, l->plot),
			l->members				     ? "% h"
			: unit == 0x1p30 ? "%h GiB"
			: unit == 0x1p20 ? "%h MiB"
					 : "%h KiB");
	} else {
		fputs("unset y2tics\n", to);
	}
	if (!l->title)
		fprintf(to, "set key at screen %f, screen %f left top Left reverse samplen 2 maxcols 1\n", screen_x(LEFT),
			screen_y(l, l->head - p->curves * ROW - 8));
	else
		fputs("unset key\n", to);
	fputs("plot", to);
	for (int i = first; i < end; i++) {
		if (p->curve[i].members > 1)
			fprintf(to, " $band%d using 1:2:3 with filledcurves fillcolor rgb '%s' fillstyle transparent solid 0.25 "
				    "noborder notitle,",
				i, curve_colour(p, i));
		fprintf(to, " $values%d using 1:2 with steps linewidth %g linecolor rgb '%s' title ", i,
			2 + 2.2 * (end - 1 - i), curve_colour(p, i));
		make_label(label, p, &p->curve[i], WIDTH / LETTER);
		quote(to, label);
		fputs(i + 1 < end ? "," : "\n", to);
	}
	fputs("unset label\nunset key\n", to);
	if (!l->marks)
		return;
	write_margins(to, l, (struct box){ b.left, b.right, b.bottom + 2, b.bottom + 2 + l->marks });
	fprintf(to, "unset grid\nset border 1\nset format x '%s'\nset xtics out nomirror scale %d\nunset ytics\nunset y2tics\nset yrange [%d:0]\n",
		panel + l->columns >= p->panels ? "% h" : "", panel + l->columns >= p->panels, end - first);
	fputs("plot", to);
	for (int i = first; i < end; i++)
		fprintf(to, " $misses%d using 1:2:(0):3 with vectors nohead linewidth 1.5 linecolor rgb '%s' notitle%s", i,
			curve_colour(p, i), i + 1 < end ? "," : "\n");
}

void hp_plot_script(FILE *to, const struct hp_picture *p, const char *title, bool svg)
{
	const struct layout l = find_layout(p, title);

	for (int i = 0; i < p->curves; i++) {
		const struct hp_curve *c = &p->curve[i];

		fprintf(to, "$values%d << END\n", i);
		write_values(to, p, &l, c);
		if (c->members > 1) {
			fprintf(to, "END\n$band%d << END\n", i);
			write_band(to, p, &l, c);
		}
		fprintf(to, "END\n$misses%d << END\n", i);
		write_misses(to, p, &l, c, l.title ? 0 : i);
		fputs("END\n", to);
	}
	if (svg)
		fprintf(to, "set terminal svg noenhanced size %d,%d font 'sans-serif,14' background rgb 'white'\n",
			WIDTH, l.height);
	else
		fprintf(to, "set terminal pngcairo noenhanced size %d,%d font 'sans,12' background rgb 'white'\n",
			WIDTH, l.height);
	fputs("set encoding utf8\nset multiplot\nset tics out nomirror\n", to);
	write_texts(to, p, &l, title);
	for (int i = 0; i < p->panels; i++)
		write_panel(to, p, &l, i);
	fputs("unset multiplot\n", to);
}
