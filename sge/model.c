/*
 * The file of a device's thresholds (model.h). It has one line "name VALUE VALUE" for each threshold, for pieces in the
 * cache and for others. The parser accepts only a complete file: each line once, in order, "end" last.
 */
#include "sge/model.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define KIND "hugepin-sg-model "
#define HEAD KIND "3\n"

int hp_sg_model_print(const struct hugepin_sg_model *m, const struct hp_testbed *testbed, char *text, size_t size)
{
#define FORMAT(name) #name " %u %u\n"
#define VALUES(name) , m->name[0], m->name[1]
	const int n = snprintf(text, size,
			       HEAD "device %s\nfirmware %s\ncpu %s\nrefused %u\n" HP_SG_THRESHOLDS(FORMAT) "end\n",
			       testbed->device, testbed->firmware, testbed->cpu, m->refused HP_SG_THRESHOLDS(VALUES));

	return n >= 0 && (size_t)n < size ? n : -EMSGSIZE;
}

/* Step over the line of `count` numbers. False: this is another line, or a number is above `max`. */
static bool line_of(const char **at, const char *name, uint64_t max, uint32_t *ret_, int count)
{
	size_t len;
	uint64_t n;
	const char *v = hp_results_line(at, name, &len);

	for (int i = 0; i < count; i++) {
		if (!v || !hp_results_digits(&v, max, &n) || *v++ != (i + 1 < count ? ' ' : '\n'))
			return false;
		ret_[i] = (uint32_t)n;
	}
	return true;
}

int hp_sg_model_parse(const char *text, struct hugepin_sg_model *ret_, struct hp_testbed *ret_testbed)
{
	struct hugepin_sg_model m = { .size = sizeof m, .source = HUGEPIN_SG_MODEL_DEVICE };
	struct hp_testbed testbed;
	const char *at = text + strlen(HEAD);

	if (strncmp(text, HEAD, strlen(HEAD)))
		return strncmp(text, KIND, strlen(KIND)) ? -EILSEQ : -ESTALE;
#define PARSE(name) || !line_of(&at, #name, UINT32_MAX, m.name, 2)
	if (!hp_results_testbed(&at, &testbed) ||
	    !line_of(&at, "refused", HUGEPIN_SG_INLINE | HUGEPIN_SG_GATHER, &m.refused, 1) ||
	    m.refused & HUGEPIN_SG_COPY HP_SG_THRESHOLDS(PARSE) || strcmp(at, "end\n"))
		return -EILSEQ;
	*ret_ = m;
	*ret_testbed = testbed;
	return 0;
}

int hp_sg_model_load(const char *path, struct hugepin_sg_model *ret_, struct hp_testbed *ret_testbed)
{
	char text[HP_SG_TEXT_MAX];
	const int err = hp_results_load(path, text, sizeof text);

	return err ? err : hp_sg_model_parse(text, ret_, ret_testbed);
}

/* ------------------------------------------------------------------ remembered */

/* What the last files said, and which files they were, because a server opens a queue for each peer. A file that is
 * renewed is another one. The lock is only tried: a child of fork may have it taken for good, and reads the file. */
enum { REMEMBERED = 4 };
static struct {
	pthread_mutex_t lock;
	unsigned next;
	struct {
		struct stat file;
		struct hp_testbed testbed;
		struct hugepin_sg_model model;
	} of[REMEMBERED];
} remembered = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool is_same_file(const struct stat *a, const struct stat *b)
{
	return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
	       a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static bool recall(const struct stat *file, struct hp_testbed *ret_testbed, struct hugepin_sg_model *ret_)
{
	bool found = false;

	if (pthread_mutex_trylock(&remembered.lock))
		return false;
	for (unsigned i = 0; i < REMEMBERED && !found; i++) {
		found = is_same_file(&remembered.of[i].file, file);
		if (found) {
			*ret_testbed = remembered.of[i].testbed;
			*ret_ = remembered.of[i].model;
		}
	}
	pthread_mutex_unlock(&remembered.lock);
	return found;
}

static void remember(const struct stat *file, const struct hp_testbed *testbed, const struct hugepin_sg_model *m)
{
	if (pthread_mutex_trylock(&remembered.lock))
		return;
	remembered.of[remembered.next].file = *file;
	remembered.of[remembered.next].testbed = *testbed;
	remembered.of[remembered.next].model = *m;
	remembered.next = (remembered.next + 1) % REMEMBERED;
	pthread_mutex_unlock(&remembered.lock);
}

/* The file is looked at before it is read. So if it is renewed in between, what is remembered is of a file that is
 * gone. */
int hp_sg_model_of(const struct hp_testbed *testbed, struct hugepin_sg_model *ret_)
{
	char path[HP_RESULTS_PATH_MAX];
	struct hugepin_sg_model m;
	struct hp_testbed found;
	struct stat file;
	int err = hp_results_path(HP_SG_KEPT, testbed, path);

	if (!err && stat(path, &file))
		err = -errno;
	if (!err && !recall(&file, &found, &m)) {
		err = hp_sg_model_load(path, &m, &found);
		if (!err)
			remember(&file, &found, &m);
	}
	err = err || hp_testbed_is(&found, testbed) ? err : -ENOENT;
	if (!err)
		*ret_ = m;
	return err;
}

int hp_sg_model_keep(const struct hp_testbed *testbed, const struct hugepin_sg_model *m)
{
	char path[HP_RESULTS_PATH_MAX], text[HP_SG_TEXT_MAX];
	int err = hp_results_path(HP_SG_KEPT, testbed, path);

	if (!err && hp_sg_model_print(m, testbed, text, sizeof text) < 0)
		err = -EMSGSIZE;
	return err ? err : hp_results_store(path, text);
}
