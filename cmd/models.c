/*
 * The thresholds of sending on this user's devices (hugepin_sg(7)). `hugepin info` shows those stored, and `hugepin
 * calibrate` measures. Only these commands load our library for verbs, and libibverbs with it.
 */
#include "cmd/models.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "cmd/facts.h"
#include "cmd/libraries.h"
#include "cmd/run.h"
#include "cmd/usage.h"
#include "reg/backend/terms.h"
#include "sge/model.h"

/* ------------------------------------------------------------------ shown */

static void tell_model(const struct hugepin_sg_model *m, const struct hp_testbed *testbed)
{
	const bool inlined = m->refused & HUGEPIN_SG_INLINE, gathered = m->refused & HUGEPIN_SG_GATHER;
	char why[128];

	hp_facts_text("  %s, firmware %s, %s\n", testbed->device, testbed->firmware, testbed->cpu);
	for (int cold = 0; cold < 2; cold++)
		hp_facts_text("    %s: pieces below %u bytes are copied, below %u if each has a registration of its own; "
			      "at most %u pieces go inline\n",
			      cold ? "not in the cache" : "in the cache", m->copy_below[cold], m->apart_below[cold],
			      m->inline_pieces[cold]);
	if (!m->refused)
		return;
	snprintf(why, sizeof why,
		 "this provider loses bytes of what is sent by %s%s%s, which is not used. After an update",
		 inlined ? "inline" : "", inlined && gathered ? " and " : "", gathered ? "several elements" : "");
	hp_facts_advise(why, "hugepin calibrate");
}

static int show_model(const char *path)
{
	struct hugepin_sg_model m;
	struct hp_testbed testbed;
	const int err = hp_sg_model_load(path, &m, &testbed);

	if (!err)
		tell_model(&m, &testbed);
	return err;
}

/* An operation's time. */
static void tell_line(const char *name, float fixed_ns, float page_ns)
{
	hp_facts_text("%s %.4g us + %.4g us/page", name, (double)fixed_ns / 1000, (double)page_ns / 1000);
}

static int show_terms(const char *path)
{
	struct hugepin_terms t;
	struct hp_testbed testbed;
	const int err = hp_terms_load(path, &t, &testbed);

	if (err)
		return err;
	hp_facts_text("  %s, firmware %s, %s\n", testbed.device, testbed.firmware, testbed.cpu);
	tell_line("    registering", t.reg, t.reg_page);
	tell_line(", deregistering", t.dereg, t.dereg_page);
	tell_line("\n    on demand: registering", t.demand, t.demand_page);
	tell_line(", bringing in", t.bring, t.bring_page);
	hp_facts_text("\n    a fault: %.4g us/page sent, %.4g us/page received\n", (double)t.fault_send / 1000,
		      (double)t.fault_receive / 1000);
	return 0;
}

/* Show the files whose names begin with this kind. */
static void show_kept(const char *kind, int (*show)(const char *path), const char *which)
{
	char path[HP_RESULTS_PATH_MAX];
	int shown = 0;
	DIR *d = hp_results_dir(path) ? NULL : opendir(path);
	const size_t len = d ? strlen(path) : 0, kind_len = strlen(kind);

	for (const struct dirent *e; d && (e = readdir(d));) {
		if (strncmp(e->d_name, kind, kind_len) || e->d_name[kind_len] != '-' || strchr(e->d_name, '/') ||
		    len + strlen(e->d_name) + 2 > sizeof path)
			continue;
		sprintf(path + len, "/%s", e->d_name);
		const int err = show(path);
		if (err)
			hp_facts_add(e->d_name, "%s, and is not used",
				     err == -ESTALE ? "is of another version of hugepin" : "cannot be read");
		if (err == -ESTALE)
			hp_facts_advise("defaults stand in for measurements of another version of hugepin",
					"hugepin calibrate");
		shown++;
	}
	if (d)
		closedir(d);
	if (!shown)
		hp_facts_add("measured", "nothing yet; with a %s: hugepin calibrate", which);
}

void hp_models_facts(void)
{
	hp_facts_section("Packing: which pieces of a message are copied, gathered, or go inline where they fit");
	show_kept(HP_SG_KEPT, show_model, "verbs device");
	hp_facts_section("Paging: what memory takes that is registered on demand");
	show_kept(HP_TERMS_KEPT, show_terms, "device that registers on demand");
}

/* ------------------------------------------------------------------ measured */

/* The functions of two libraries, by these names. */
#define FUNCTIONS(X)                                                                                                   \
	X(ibv_get_device_list) X(ibv_free_device_list) X(ibv_get_device_name) X(ibv_open_device) X(ibv_close_device)   \
	X(ibv_alloc_pd) X(ibv_dealloc_pd) X(hugepin_sg_calibrate)

static struct {
#define MEMBER(name) __typeof__(&name) name;
	FUNCTIONS(MEMBER)
} verbs;

/* Load the libraries, from the directory of the library that `run` preloads, or from the loader's directories. 0; or
 * -1, with the reason in `why`. */
static int load_verbs(char *why, size_t size)
{
	const char *const name = hp_libraries[HP_LIBRARY_VERBS].file;
	char preloaded[PATH_MAX], path[PATH_MAX];
	void *lib = NULL, *f;

	if (!hp_run_find_library(preloaded)) {
		if (hp_run_beside(preloaded, hp_libraries[HP_LIBRARY_HEAP].file, path))
			dlopen(path, RTLD_NOW);
		if (hp_run_beside(preloaded, name, path))
			lib = dlopen(path, RTLD_NOW);
	}
	if (!lib)
		lib = dlopen(name, RTLD_NOW);
	if (!lib) {
		snprintf(why, size, "%s", dlerror());
		return -1;
	}
#define LOOK_UP(name)                                                                                                  \
	f = dlsym(lib, #name);                                                                                         \
	if (!f) {                                                                                                      \
		snprintf(why, size, "%s", dlerror());                                                                  \
		return -1;                                                                                             \
	}                                                                                                              \
	memcpy(&verbs.name, &f, sizeof f);
	FUNCTIONS(LOOK_UP)
	return 0;
}

/* Whether the device has on-demand paging, with the same test as reg/backend/verbs.c. ibv_query_device_ex() is inline
 * and needs linking, so its code is repeated here. */
static int on_demand(struct ibv_context *context)
{
	const uint32_t needed =
		IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
	struct verbs_context *v = verbs_get_ctx_op(context, query_device_ex);
	struct ibv_device_attr_ex device = { 0 };

	if (!v || v->query_device_ex(context, NULL, &device, sizeof device))
		return 0;
	return device.odp_caps.general_caps & IBV_ODP_SUPPORT &&
	       (device.odp_caps.per_transport_caps.rc_odp_caps & needed) == needed;
}

int hp_models_odp(const char *name, char *why, size_t size)
{
	int n = 0, answer = -1;

	if (load_verbs(why, size))
		return -1;
	snprintf(why, size, "libibverbs does not know it");
	struct ibv_device **list = verbs.ibv_get_device_list(&n);
	for (int i = 0; list && i < n; i++) {
		if (strcmp(name, verbs.ibv_get_device_name(list[i])))
			continue;
		struct ibv_context *context = verbs.ibv_open_device(list[i]);
		if (context) {
			answer = on_demand(context);
			verbs.ibv_close_device(context);
		} else {
			snprintf(why, size, "%s", strerror(errno));
		}
	}
	if (list)
		verbs.ibv_free_device_list(list);
	return answer;
}

static int calibrate_device(struct ibv_device *device)
{
	struct hugepin_sg_model m;
	struct ibv_context *context = verbs.ibv_open_device(device);
	struct ibv_pd *pd = context ? verbs.ibv_alloc_pd(context) : NULL;
	const int err = pd ? verbs.hugepin_sg_calibrate(pd, HUGEPIN_SG_ANEW, &m, sizeof m) : -errno;

	if (pd)
		verbs.ibv_dealloc_pd(pd);
	if (context)
		verbs.ibv_close_device(context);
	if (err)
		fprintf(stderr, "hugepin calibrate: %s: %s\n", verbs.ibv_get_device_name(device),
			err == -EOPNOTSUPP ? "no port is active" : strerror(-err));
	return err;
}

int hp_calibrate_main(int argc, char **argv)
{
	static const struct option longs[] = { { "help", no_argument, NULL, 'h' }, { 0 } };
	const int c = getopt_long(argc, argv, "", longs, NULL);
	int n = 0, found = 0, failed = 0;
	char why[PATH_MAX + 256];

	if (c != -1)
		return hp_usage(argv[0], c == 'h');
	if (argc > optind + 1)
		return hp_usage_wrong(argv[0], "one device, or none for all");
	const char *const wanted = argv[optind];
	if (load_verbs(why, sizeof why)) {
		fprintf(stderr, "hugepin calibrate: %s\n", why);
		return HP_EXIT_FAILED;
	}
	struct ibv_device **list = verbs.ibv_get_device_list(&n);
	for (int i = 0; list && i < n; i++)
		if (!wanted || !strcmp(wanted, verbs.ibv_get_device_name(list[i]))) {
			found++;
			failed += calibrate_device(list[i]) != 0;
		}
	if (list)
		verbs.ibv_free_device_list(list);
	if (!found) {
		fprintf(stderr, "hugepin calibrate: there is no verbs device%s%s\n", wanted ? " " : "",
			wanted ? wanted : "");
		return HP_EXIT_FAILED;
	}
	hp_models_facts();
	hp_facts_print();
	return failed ? HP_EXIT_FAILED : 0;
}
