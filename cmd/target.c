/* Checks the program that `hugepin run` would start. Static programs, and programs that gain privileges, silently
 * ignore LD_PRELOAD. The user is told of this. */
#include "cmd/target.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
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

enum kind { KIND_UNKNOWN, KIND_SCRIPT, KIND_ELF };

struct image {
	enum kind kind;
	unsigned char ident[EI_NIDENT];
	unsigned machine;
	char loader[PATH_MAX]; /* path of the program's loader; empty: statically linked */
	char interpreter[SCRIPT_LINE_MAX]; /* the interpreter of a script */
	char argument[SCRIPT_LINE_MAX];
};

static void read_loader(int fd, const ElfW(Ehdr) *header, struct image *image)
{
	for (unsigned i = 0; i < header->e_phnum; i++) {
		ElfW(Phdr) segment;
		const off_t at = (off_t)(header->e_phoff + i * sizeof segment);
		if (pread(fd, &segment, sizeof segment, at) != (ssize_t)sizeof segment)
			return;
		if (segment.p_type != PT_INTERP)
			continue;
		if (pread(fd, image->loader, sizeof image->loader - 1, (off_t)segment.p_offset) < 0)
			image->loader[0] = '\0';
		return;
	}
}

/* Read the first lines of a file as the kernel would. -1 if it cannot be read. */
static int read_image(const char *path, struct image *image)
{
	union {
		char text[SCRIPT_LINE_MAX];
		ElfW(Ehdr) header;
	} head = { .text = "" };
	const int fd = open(path, O_RDONLY | O_CLOEXEC);

	*image = (struct image){ .kind = KIND_UNKNOWN };
	if (fd < 0)
		return -1;
	const ssize_t n = pread(fd, &head, sizeof head - 1, 0);
	if (n >= (ssize_t)sizeof head.header && !memcmp(head.text, ELFMAG, SELFMAG)) {
		image->kind = KIND_ELF;
		memcpy(image->ident, head.header.e_ident, EI_NIDENT);
		image->machine = head.header.e_machine;
		if (head.header.e_phentsize == sizeof(ElfW(Phdr)))
			read_loader(fd, &head.header, image);
	} else if (n > 2 && !strncmp(head.text, "#!", 2)) {
		head.text[strcspn(head.text, "\n")] = '\0';
		if (sscanf(head.text + 2, " %255s %255s", image->interpreter, image->argument) > 0)
			image->kind = KIND_SCRIPT;
	}
	close(fd);
	return 0;
}

/* A pointer to `count` elements of this size at offset `at` of a file in memory. NULL: the file ends before. */
static const void *part(const void *file, size_t file_len, uint64_t at, uint64_t count, size_t size)
{
	if (at > file_len || at % sizeof(ElfW(Addr)) || count > (file_len - at) / size)
		return NULL;
	return (const char *)file + at;
}

static bool defines_malloc(const void *file, size_t len)
{
	const ElfW(Ehdr) *header = part(file, len, 0, 1, sizeof *header);
	const ElfW(Shdr) *s = header ? part(file, len, header->e_shoff, header->e_shnum, sizeof *s) : NULL;

	for (unsigned i = 0; s && i < header->e_shnum; i++) {
		if (s[i].sh_type != SHT_DYNSYM || s[i].sh_link >= header->e_shnum)
			continue;
		const ElfW(Shdr) *names = &s[s[i].sh_link];
		const size_t count = s[i].sh_size / sizeof(ElfW(Sym));
		const ElfW(Sym) *symbol = part(file, len, s[i].sh_offset, count, sizeof *symbol);
		if (!symbol || names->sh_offset > len || names->sh_size > len - names->sh_offset)
			continue;
		const char *const text = (const char *)file + names->sh_offset;
		for (size_t n = 0; n < count; n++)
			if (symbol[n].st_shndx != SHN_UNDEF && symbol[n].st_name < names->sh_size &&
			    names->sh_size - symbol[n].st_name >= sizeof "malloc" &&
			    !memcmp(text + symbol[n].st_name, "malloc", sizeof "malloc"))
				return true;
	}
	return false;
}

/* Whether a program has its own allocator linked in and exports it. The loader searches the program before preloaded
 * libraries. */
static bool has_malloc(const char *path)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	bool has = false;

	if (fd < 0)
		return false;
	void *file = fstat(fd, &st) || st.st_size <= 0 ?
			     MAP_FAILED :
			     mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (file != MAP_FAILED) {
		has = defines_malloc(file, (size_t)st.st_size);
		munmap(file, (size_t)st.st_size);
	}
	close(fd);
	return has;
}

/* Find name as execvp() does. 0, or the exit status of a shell. */
static int find_program(const char *name, char path[PATH_MAX])
{
	const char *dirs = getenv("PATH");
	int status = HP_EXIT_NOT_FOUND;
	struct stat st;

	if (strchr(name, '/')) {
		snprintf(path, PATH_MAX, "%s", name);
		if (stat(path, &st))
			return errno == ENOENT || errno == ENOTDIR ? HP_EXIT_NOT_FOUND : HP_EXIT_CANNOT_EXEC;
		return S_ISREG(st.st_mode) && !access(path, X_OK) ? 0 : HP_EXIT_CANNOT_EXEC;
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

static int check_elf(const char *path, const struct image *image, char *why, size_t size)
{
	static struct image self; /* this command and the library are built for the same machine */
	const char *how;

	if (read_image("/proc/self/exe", &self))
		return 0;
	if (image->machine != self.machine || image->ident[EI_CLASS] != self.ident[EI_CLASS] ||
	    image->ident[EI_DATA] != self.ident[EI_DATA])
		snprintf(why, size, "%s is made for another architecture (%d bits, ELF machine %u) than the library",
			 path, image->ident[EI_CLASS] == ELFCLASS32 ? 32 : 64, image->machine);
	else if (!image->loader[0])
		snprintf(why, size, "%s is statically linked and cannot be helped: nothing can be preloaded into it",
			 path);
	else if (strcmp(hp_base_name(image->loader), hp_base_name(self.loader)))
		snprintf(why, size, "%s uses another C library (its loader is %s) and cannot be helped", path,
			 image->loader);
	else if ((how = gains_privileges(path)))
		snprintf(why, size, "%s is %s and cannot be helped: the loader ignores LD_PRELOAD for it", path, how);
	else {
		if (has_malloc(path))
			snprintf(why, size,
				 "%s has a malloc of its own, which the loader finds first: what that serves stays "
				 "where it is",
				 path);
		return 0;
	}
	return HP_EXIT_REFUSED;
}

int hp_target_check(const char *name, char *why, size_t size)
{
	char path[PATH_MAX];
	struct image image;

	*why = '\0';
	int status = find_program(name, path);
	if (status) {
		snprintf(why, size, "%s: %s", name, status == HP_EXIT_NOT_FOUND ? "not found" : "cannot be executed");
		return status;
	}
	for (int depth = 0; depth < SCRIPT_DEPTH_MAX && !read_image(path, &image); depth++) {
		if (image.kind == KIND_ELF)
			return check_elf(path, &image, why, size);
		if (image.kind != KIND_SCRIPT)
			return 0;
		/* "#!/usr/bin/env python3" is python3, looked up in PATH. */
		const bool env = !strcmp(hp_base_name(image.interpreter), "env") && image.argument[0] &&
				 image.argument[0] != '-' && !strchr(image.argument, '=');
		const char *next = env ? image.argument : image.interpreter;
		if (find_program(next, path)) {
			snprintf(why, size, "%s: its interpreter %s cannot be executed", name, next);
			return HP_EXIT_CANNOT_EXEC;
		}
	}
	return 0;
}
