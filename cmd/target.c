/* Checks the program that `hugepin run` would start. Static programs, and programs that gain privileges, silently
 * ignore LD_PRELOAD; others have an allocator that nothing can replace. The user is told of this before. */
#include "cmd/target.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "cmd/text.h"
#include "cmd/usage.h"

#define SCRIPT_DEPTH_MAX 5 /* interpreters that are scripts themselves; the kernel's own limit */
#define SCRIPT_LINE_MAX 256

struct image {
	struct hp_elf elf;
	char interpreter[SCRIPT_LINE_MAX]; /* of a script; empty: it is none */
	char argument[SCRIPT_LINE_MAX];
};

/* Read a file as the kernel would. -1 if it cannot be read. */
static int read_image(const char *path, struct image *image)
{
	char line[SCRIPT_LINE_MAX] = "";
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	*image = (struct image){ .elf = { .elf = false } };
	if (fd < 0)
		return -1;
	if (pread(fd, line, sizeof line - 1, 0) > 2 && !strncmp(line, "#!", 2)) {
		line[strcspn(line, "\n")] = '\0';
		sscanf(line + 2, " %255s %255s", image->interpreter, image->argument);
	} else if (!fstat(fd, &st) && st.st_size > 0) {
		void *const file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (file != MAP_FAILED) {
			hp_elf_read(file, (size_t)st.st_size, &image->elf);
			munmap(file, (size_t)st.st_size);
		}
	}
	close(fd);
	return 0;
}

static bool is_file(const struct stat *st)
{
	errno = S_ISDIR(st->st_mode) ? EISDIR : EACCES;
	return S_ISREG(st->st_mode);
}

/* Find name as execvp() does. 0, or the exit status of a shell, with the reason in errno. */
static int find_program(const char *name, char path[PATH_MAX])
{
	const char *dirs = getenv("PATH");
	int status = HP_EXIT_NOT_FOUND;
	struct stat st;

	if (strchr(name, '/')) {
		snprintf(path, PATH_MAX, "%s", name);
		if (stat(path, &st))
			return errno == ENOENT || errno == ENOTDIR ? HP_EXIT_NOT_FOUND : HP_EXIT_CANNOT_EXEC;
		return is_file(&st) && !access(path, X_OK) ? 0 : HP_EXIT_CANNOT_EXEC;
	}
	if (!dirs)
		dirs = "/bin:/usr/bin";
	for (bool last = !*name; !last;) {
		const int len = (int)strcspn(dirs, ":");
		last = !dirs[len];
		snprintf(path, PATH_MAX, "%.*s%s%s", len, dirs, len ? "/" : "", name);
		dirs += len + 1;
		if (stat(path, &st) || !S_ISREG(st.st_mode))
			continue;
		if (!access(path, X_OK))
			return 0;
		status = HP_EXIT_CANNOT_EXEC;
	}
	errno = status == HP_EXIT_NOT_FOUND ? ENOENT : EACCES;
	return status;
}

/* How starting this file would raise privileges, or NULL if it would not. If it does, the loader ignores LD_PRELOAD
 * (AT_SECURE: cap_bprm_creds_from_file in the kernel's security/commoncap.c). */
static const char *gains_privileges(const char *path)
{
	struct statvfs fs;
	struct stat st;

	if (stat(path, &st) || statvfs(path, &fs) || (fs.f_flag & ST_NOSUID) ||
	    prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
		return NULL;
	if ((st.st_mode & S_ISUID) && st.st_uid != getuid())
		return "set-user-ID";
	if ((st.st_mode & S_ISGID) && (st.st_mode & S_IXGRP) && st.st_gid != getgid())
		return "set-group-ID";
	if (getuid() && getxattr(path, "security.capability", NULL, 0) > 0)
		return "given file capabilities";
	return NULL;
}

/* ------------------------------------------------------------------ the rules */

__attribute__((format(printf, 3, 4))) static void say(struct hp_target *t, int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(t->why, sizeof t->why, format, args);
	va_end(args);
	t->status = status;
}

#define GO "%s is a Go program, whose heap is not malloc's: it gets the hugepages that the kernel gives to all, " \
	   "where transparent_hugepage/enabled is always"

struct hp_target hp_target_judge(const char *path, const struct hp_elf *program, const struct hp_elf *self,
				 const char *gains)
{
	const bool is_static = !program->loader[0];
	struct hp_target t = { .status = 0 };

	if (program->wide != self->wide || program->big_endian != self->big_endian || program->machine != self->machine)
		say(&t, HP_EXIT_REFUSED,
		    "%s is made for another architecture (%d bits, ELF machine %u) than the library", path,
		    program->wide ? 64 : 32, program->machine);
	else if (program->go && is_static)
		say(&t, HP_EXIT_REFUSED, GO, path);
	else if (is_static)
		say(&t, HP_EXIT_REFUSED,
		    "%s is statically linked and cannot be helped: nothing can be preloaded into it; link it "
		    "dynamically, or have it call libhugepin.a",
		    path);
	else if (strcmp(hp_base_name(program->loader), hp_base_name(self->loader)))
		say(&t, HP_EXIT_REFUSED, "%s uses another C library (its loader is %s) and cannot be helped", path,
		    program->loader);
	else if (gains)
		say(&t, HP_EXIT_REFUSED,
		    "%s is %s and cannot be helped: the loader ignores LD_PRELOAD for it; get its privileges before, "
		    "by sudo hugepin run or setpriv hugepin run",
		    path, gains);
	else if (program->go)
		say(&t, 0, GO, path);
	else if (program->allocator == HP_ALLOCATOR_EXPORTED)
		say(&t, 0,
		    "%s has a malloc of its own, which the loader finds first: what that serves stays where it is; "
		    "build the program with the C library's malloc",
		    path);
	else if (program->allocator == HP_ALLOCATOR_INSIDE)
		say(&t, 0,
		    "%s has an allocator inside its own file (%s), which no library replaces: only what its libraries "
		    "allocate comes to hugepin; build the program with the C library's malloc",
		    path, program->allocates);
	t.in_vain = !t.status && !program->go && program->allocator == HP_ALLOCATOR_EXPORTED;
	return t;
}

struct hp_target hp_target_check(const char *name)
{
	static struct image image, self;
	struct hp_target t = { .status = 0 };
	char path[PATH_MAX];

	t.status = find_program(name, path);
	if (t.status) {
		if (t.status == HP_EXIT_NOT_FOUND)
			say(&t, t.status, "%s: not found", *name ? name : "''");
		else
			say(&t, t.status, "%s: cannot be executed: %s", name, strerror(errno));
		return t;
	}
	for (int depth = 0; depth < SCRIPT_DEPTH_MAX && !read_image(path, &image); depth++) {
		if (image.elf.elf)
			return read_image("/proc/self/exe", &self) ?
				       t :
				       hp_target_judge(path, &image.elf, &self.elf, gains_privileges(path));
		if (!image.interpreter[0])
			return t;
		/* "#!/usr/bin/env python3" is python3, looked up in PATH. */
		const bool env = !strcmp(hp_base_name(image.interpreter), "env") && image.argument[0] &&
				 image.argument[0] != '-' && !strchr(image.argument, '=');
		const char *next = env ? image.argument : image.interpreter;
		if (find_program(next, path)) {
			say(&t, HP_EXIT_CANNOT_EXEC, "%s: its interpreter %s cannot be executed: %s", name, next,
			    strerror(errno));
			return t;
		}
	}
	return t;
}
