/*
 * Files of measured results (results.h). A text has one line "name value" for each value. A number has six
 * decimals in any locale.
 */
#include "reg/backend/results.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define MILLIONTH 1000000u

/* ------------------------------------------------------------------ text */

int hp_results_print(char *text, size_t size, const char *name, double ns)
{
	const double most = HP_RESULTS_NS_MAX;
	const uint64_t u = ns > 0 ? (uint64_t)((ns < most ? ns : most) * MILLIONTH + 0.5) : 0;

	return snprintf(text, size, "%s %u.%06u\n", name, (unsigned)(u / MILLIONTH), (unsigned)(u % MILLIONTH));
}

const char *hp_results_line(const char **at, const char *name, size_t *ret_len)
{
	const size_t n = strlen(name);
	const char *end = strchr(*at, '\n'), *from = *at + n + 1;

	if (strncmp(*at, name, n) || (*at)[n] != ' ' || !end || end < from)
		return NULL;
	*at = end + 1;
	*ret_len = (size_t)(end - from);
	return from;
}

static bool line_text(const char **at, const char *name, char *ret_, size_t size)
{
	size_t len;
	const char *from = hp_results_line(at, name, &len);

	if (!from || len >= size)
		return false;
	memcpy(ret_, from, len);
	ret_[len] = '\0';
	return true;
}

bool hp_results_digits(const char **at, uint64_t max, uint64_t *ret_)
{
	uint64_t n = 0;
	const char *from = *at;

	for (; isdigit((unsigned char)**at) && n <= max; (*at)++)
		n = n * 10 + (uint64_t)(**at - '0');
	*ret_ = n;
	return *at > from && n <= max;
}

bool hp_results_number(const char **at, const char *name, float *ret_)
{
	size_t len;
	uint64_t whole, part;
	const char *v = hp_results_line(at, name, &len), *dot;

	if (!v || !hp_results_digits(&v, HP_RESULTS_NS_MAX, &whole) || *v != '.')
		return false;
	dot = v++;
	if (!hp_results_digits(&v, MILLIONTH - 1, &part) || v != dot + 7 || *v != '\n')
		return false;
	*ret_ = (float)((double)whole + (double)part / MILLIONTH);
	return true;
}

bool hp_results_testbed(const char **at, struct hp_testbed *ret_)
{
	return line_text(at, "device", ret_->device, sizeof ret_->device) &&
	       line_text(at, "firmware", ret_->firmware, sizeof ret_->firmware) &&
	       line_text(at, "cpu", ret_->cpu, sizeof ret_->cpu);
}

bool hp_testbed_is(const struct hp_testbed *a, const struct hp_testbed *b)
{
	return !strcmp(a->device, b->device) && !strcmp(a->firmware, b->firmware) && !strcmp(a->cpu, b->cpu);
}

/* ------------------------------------------------------------------ files */

int hp_results_dir(char path[HP_RESULTS_PATH_MAX])
{
	const char *cache = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
	int n;

	if (cache && *cache == '/') /* the XDG Base Directory Specification says to ignore a relative path */
		n = snprintf(path, HP_RESULTS_PATH_MAX, "%s/hugepin", cache);
	else if (home && *home == '/')
		n = snprintf(path, HP_RESULTS_PATH_MAX, "%s/.cache/hugepin", home);
	else
		return -ENOENT;
	return n > 0 && n < HP_RESULTS_PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* Append a part of the file's name. Characters with a meaning in paths or for a shell are replaced. */
static char *append_name(char *at, const char *name)
{
	*at++ = '-';
	for (; *name; name++)
		*at++ = isalnum((unsigned char)*name) && (unsigned char)*name < 128 ? *name : *name == '.' ? '.' : '_';
	*at = '\0';
	return at;
}

int hp_results_path(const char *kind, const struct hp_testbed *testbed, char path[HP_RESULTS_PATH_MAX])
{
	const int err = hp_results_dir(path);
	const size_t len = err ? 0 : strlen(path);
	char *at = path + len;

	if (err)
		return err;
	if (len + strlen(kind) + sizeof *testbed + 16 > HP_RESULTS_PATH_MAX)
		return -ENAMETOOLONG;
	at += sprintf(at, "/%s", kind);
	at = append_name(at, testbed->device);
	at = append_name(at, testbed->firmware);
	append_name(at, testbed->cpu);
	return 0;
}

/* Read up to size - 1 bytes of a file, and terminate the text. */
static ssize_t read_text(const char *path, char *text, size_t size)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	size_t len = 0;
	ssize_t n = 1;

	if (fd < 0)
		return -errno;
	while (len < size - 1 && n > 0 && (n = read(fd, text + len, size - 1 - len)) > 0)
		len += (size_t)n;
	if (n < 0)
		n = -errno;
	close(fd);
	text[len] = '\0';
	return n < 0 ? n : (ssize_t)len;
}

int hp_results_load(const char *path, char *text, size_t size)
{
	const ssize_t n = read_text(path, text, size);

	if (n < 0)
		return (int)n;
	return strlen(text) == (size_t)n ? 0 : -EILSEQ;
}

/* Make missing directories of `path`. */
static void make_dirs(char *path)
{
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		(void)!mkdir(path, 0700);
		*slash = '/';
	}
}

int hp_results_store(const char *path, const char *text)
{
	char temporary[HP_RESULTS_PATH_MAX + 8];
	const ssize_t len = (ssize_t)strlen(text);
	int err = 0;

	snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
	make_dirs(temporary);
	const int fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	const ssize_t n = write(fd, text, (size_t)len);
	if (n != len)
		err = n < 0 ? -errno : -ENOSPC;
	if (close(fd) && !err)
		err = -errno;
	if (!err && rename(temporary, path))
		err = -errno;
	if (err)
		unlink(temporary);
	return err;
}

static char cpu[80];

static void find_cpu(void)
{
	char text[4096];
	struct utsname u;
	const char *at = read_text("/proc/cpuinfo", text, sizeof text) > 0 ? strstr(text, "model name") : NULL;

	at = at ? strchr(at, ':') : NULL;
	if (at) {
		at += 1 + strspn(at + 1, " \t");
		snprintf(cpu, sizeof cpu, "%.*s", (int)strcspn(at, "\n"), at);
	} else {
		snprintf(cpu, sizeof cpu, "%s", uname(&u) ? "unknown" : u.machine);
	}
}

/* The kernel makes its text anew at each reading, for every processor, so read it once. */
void hp_results_cpu(char *name, size_t size)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, find_cpu);
	snprintf(name, size, "%.*s", (int)size - 1, cpu);
}
