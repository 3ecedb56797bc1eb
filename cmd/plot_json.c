/*
 * Trace Event JSON.
 */
#include "cmd/plot_json.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <string.h>

#include "cmd/facts.h"

static bool more;

static void write_json(FILE *to, json_t *object)
{
	if (!object)
		hp_plot_fail("%s", strerror(ENOMEM));
	fputs(more ? ",\n" : "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n", to);
	more = true;
	json_dumpf(object, to, JSON_COMPACT | JSON_REAL_PRECISION(15));
	json_decref(object);
}

void hp_json_name(FILE *to, int file, const char *name)
{
	write_json(to, json_pack("{s:s, s:i, s:s, s:{s:o}}", "ph", "M", "pid", file + 1, "name", "process_name", "args",
				 "name", hp_facts_string(name)));
}

/* Write an event: registered bytes as a curve, registrations and pins as spans, misses as instants. */
void hp_json_event(void *arg, int file, const struct hp_event *e)
{
	static const char *const phases[] = { "b", "e", "b", "e", "i" };
	const bool pin = e->kind == HP_PIN || e->kind == HP_UNPIN;
	const char *const category = e->kind == HP_MISS ? "miss" : pin ? "pin" : "registration";
	const double t_us = (double)e->t_ns / 1000;
	char name[64], id[64], addr[32];
	FILE *to = arg;

	snprintf(name, sizeof name, "%s, domain %" PRIu64, category, e->domain);
	snprintf(id, sizeof id, "%" PRIu64 ":0x%" PRIx64, e->domain, e->addr);
	snprintf(addr, sizeof addr, "0x%" PRIx64, e->addr);
	write_json(to, json_pack("{s:s, s:i, s:I, s:f, s:s, s:s, s:s, s:{s:s}, s:{s:s, s:o, s:s}}", "ph",
				 phases[e->kind], "pid", file + 1, "tid", (json_int_t)e->domain, "ts", t_us, "cat",
				 category, "name", name, "s", "t", "id2", "local", id, "args", "addr", addr, "len",
				 hp_facts_bytes(e->len), "policy", e->policy));
	if (e->kind != HP_REGISTER && e->kind != HP_DEREGISTER)
		return;
	snprintf(name, sizeof name, "registered bytes, domain %" PRIu64, e->domain);
	write_json(to, json_pack("{s:s, s:i, s:f, s:s, s:{s:o}}", "ph", "C", "pid", file + 1, "ts", t_us, "name", name,
				 "args", "bytes", hp_facts_bytes(e->bytes)));
}

void hp_json_end(FILE *to)
{
	fputs("\n]}\n", to);
}
