/*
 * What hugepin run says of a program by its file: made-up files go in, findings and their sentences come out. The
 * memory behind a file cannot be read.
 */
#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cmd/elf.h"
#include "cmd/target.h"
#include "cmd/usage.h"
#include "tests/any.h"
#include "tests/t.h"

#define ROOM 65536 /* for a file; a base page or more */
#define LOADER "/lib64/ld-linux-x86-64.so.2"

/* A file: header, segment, sections, symbols, names. */
enum { NONE, DYNSYM, SYMTAB, NAMES, TITLES, GO, SECTIONS };
static struct {
	ElfW(Ehdr) header;
	ElfW(Phdr) segment;
	ElfW(Shdr) section[SECTIONS];
	ElfW(Sym) dynamic[3], all[3];
	char names[64], titles[32], loader[sizeof LOADER];
} made;

static uint32_t name_at; /* of the next name */

static void make(void)
{
	static const char titles[] = "\0.go.buildinfo\0.symtab";
	const unsigned char ident[] = { 0x7f, 'E', 'L', 'F', ELFCLASS64,
					ELFDATA2LSB, EV_CURRENT };

	memset(&made, 0, sizeof made);
	memcpy(made.header.e_ident, ident, sizeof ident);
	made.header.e_machine = EM_X86_64;
	made.header.e_phoff = offsetof(typeof(made), segment);
	made.header.e_phentsize = sizeof made.segment;
	made.header.e_phnum = 1;
	made.header.e_shoff = offsetof(typeof(made), section);
	made.header.e_shnum = SECTIONS;
	made.header.e_shstrndx = TITLES;
	memcpy(made.loader, LOADER, sizeof made.loader);
	made.segment = (ElfW(Phdr)){ .p_type = PT_INTERP, .p_offset = offsetof(typeof(made), loader),
				     .p_filesz = sizeof made.loader };
	made.section[DYNSYM] = (ElfW(Shdr)){ .sh_type = SHT_DYNSYM, .sh_offset = offsetof(typeof(made), dynamic),
					     .sh_size = sizeof made.dynamic, .sh_link = NAMES };
	made.section[SYMTAB] = (ElfW(Shdr)){ .sh_type = SHT_SYMTAB, .sh_offset = offsetof(typeof(made), all),
					     .sh_size = sizeof made.all, .sh_link = NAMES };
	made.section[NAMES] = (ElfW(Shdr)){ .sh_type = SHT_STRTAB, .sh_offset = offsetof(typeof(made), names),
					    .sh_size = sizeof made.names };
	made.section[TITLES] = (ElfW(Shdr)){ .sh_type = SHT_STRTAB, .sh_offset = offsetof(typeof(made), titles),
					     .sh_size = sizeof made.titles };
	memcpy(made.titles, titles, sizeof titles);
	name_at = 1;
}

static void symbol(ElfW(Sym) *s, const char *name, bool defined)
{
	s->st_name = name_at;
	s->st_shndx = defined ? 1 : SHN_UNDEF;
	strcpy(made.names + name_at, name);
	name_at += (uint32_t)strlen(name) + 1;
}

/* Read the first bytes of the file where nothing behind them can be read. */
static struct hp_elf read_some(size_t len)
{
	static struct hp_elf e;
	char *const all = mmap(NULL, 2 * ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (all == MAP_FAILED || mprotect(all + ROOM, ROOM, PROT_NONE))
		abort();
	memcpy(all + ROOM - len, &made, len);
	hp_elf_read(all + ROOM - len, len, &e);
	munmap(all, 2 * ROOM);
	return e;
}

static struct hp_elf read_all(void)
{
	return read_some(sizeof made);
}

/* ------------------------------------------------------------------ findings */

TEST(a_program_of_the_c_librarys_malloc_has_no_allocator)
{
	make();
	symbol(&made.dynamic[1], "malloc", false);
	symbol(&made.dynamic[2], "my_malloc", true);
	symbol(&made.all[1], "malloc_usable", true);
	const struct hp_elf e = read_all();
	EXPECT(e.elf && e.wide && !e.big_endian && !e.go);
	EXPECT_EQ(e.machine, EM_X86_64);
	EXPECT(!strcmp(e.loader, LOADER));
	EXPECT_EQ(e.allocator, HP_ALLOCATOR_NONE);
	EXPECT(!e.allocates);
}

TEST(a_malloc_that_is_exported_is_found_before_that_of_any_library)
{
	make();
	symbol(&made.dynamic[2], "malloc", true);
	symbol(&made.all[1], "je_malloc", true);
	const struct hp_elf e = read_all();
	EXPECT_EQ(e.allocator, HP_ALLOCATOR_EXPORTED);
	EXPECT(!strcmp(e.allocates, "malloc"));
}

TEST(a_malloc_that_is_hidden_is_inside)
{
	static const char *const names[] = { "malloc", "je_malloc", "_rjem_malloc", "mi_malloc" };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		for (int exported = 0; exported < 2; exported++) {
			if (!i && exported)
				continue;
			make();
			symbol(exported ? &made.dynamic[1] : &made.all[2], names[i], true);
			const struct hp_elf e = read_all();
			EXPECT_EQ(e.allocator, HP_ALLOCATOR_INSIDE);
			EXPECT(!strcmp(e.allocates, names[i]));
		}
}

TEST(a_program_without_a_loader_is_static)
{
	make();
	made.segment.p_type = PT_LOAD;
	EXPECT(!read_all().loader[0]);
	make();
	made.header.e_phentsize--; /* the kernel refuses this */
	EXPECT(!read_all().loader[0]);
	make();
	made.segment.p_filesz--; /* a path that does not end, and this, too */
	EXPECT(!read_all().loader[0]);
}

TEST(a_go_program_is_known_by_its_section)
{
	make();
	made.section[GO].sh_name = 1;
	EXPECT(read_all().go);
	made.header.e_shstrndx = SECTIONS; /* no names */
	EXPECT(!read_all().go);
}

TEST(what_is_no_elf_file_tells_nothing)
{
	make();
	made.header.e_ident[1] = 'e';
	EXPECT(!read_all().elf);
	make();
	symbol(&made.dynamic[1], "malloc", true);
	made.header.e_ident[EI_DATA] = ELFDATA2MSB; /* nothing else of it can be read */
	const struct hp_elf e = read_all();
	EXPECT(e.elf && e.big_endian && !e.loader[0]);
	EXPECT_EQ(e.allocator, HP_ALLOCATOR_NONE);
}

TEST(a_torn_file_tells_what_is_there)
{
	make();
	symbol(&made.dynamic[1], "malloc", true);
	made.section[GO].sh_name = 1;
	for (size_t len = 0; len <= sizeof made; len++) {
		const struct hp_elf e = read_some(len);
		EXPECT_EQ(e.elf, len >= sizeof made.header);
		EXPECT_EQ(e.allocator == HP_ALLOCATOR_EXPORTED, len >= offsetof(typeof(made), names) + sizeof "\0malloc");
		EXPECT_EQ(e.go, len >= offsetof(typeof(made), titles) + sizeof "\0.go.buildinfo");
		EXPECT_EQ(e.loader[0] != 0, len >= offsetof(typeof(made), loader) + sizeof LOADER);
	}
}

TEST(a_name_outside_of_its_section_is_none)
{
	make();
	symbol(&made.dynamic[1], "malloc", true);
	for (made.section[NAMES].sh_size = 0; made.section[NAMES].sh_size < sizeof "\0malloc"; made.section[NAMES].sh_size++)
		EXPECT_EQ(read_all().allocator, HP_ALLOCATOR_NONE);
	EXPECT_EQ(read_all().allocator, HP_ALLOCATOR_EXPORTED);
	/* nor is one that is reached beyond the end of all numbers */
	made.section[NAMES].sh_size = UINT64_MAX;
	made.section[NAMES].sh_offset -= 1 << 20;
	made.dynamic[1].st_name += 1 << 20;
	EXPECT_EQ(read_all().allocator, HP_ALLOCATOR_NONE);
}

TEST(numbers_that_point_anywhere_lead_nowhere)
{
	static const uint64_t far[] = { 0, 1, 7, 63, 1 << 10, UINT32_MAX, UINT64_MAX / 64, UINT64_MAX - 8, UINT64_MAX };

	for (int round = 0; round < 20000; round++) {
		make();
		symbol(&made.dynamic[1], "malloc", true);
		for (int i = 0; i < 3; i++) {
			const uint64_t to = far[any(sizeof far / sizeof *far)];
			const size_t at = any(offsetof(typeof(made), names) / 4) * 4, size = any(2) ? 4 : 8;
			if (at >= EI_NIDENT)
				memcpy((char *)&made + at, &to, size);
		}
		read_some(any(4) ? sizeof made : any(sizeof made));
	}
}

/* ------------------------------------------------------------------ what is said of them */

static struct hp_target judge(const char *gains)
{
	static struct hp_elf self;
	const struct hp_elf e = read_all();

	make();
	self = read_all();
	return hp_target_judge("prog", &e, &self, gains);
}

#define SAYS(t, text) EXPECT(strstr((t).why, (text)) || (t_print("# %s\n", (t).why), false))

TEST(a_program_that_fits_is_told_nothing)
{
	make();
	const struct hp_target t = judge(NULL);
	EXPECT_EQ(t.status, 0);
	EXPECT(!t.in_vain && !t.why[0]);
}

TEST(a_program_that_cannot_load_the_library_is_refused)
{
	make();
	made.header.e_machine = EM_386;
	made.header.e_ident[EI_CLASS] = ELFCLASS32;
	struct hp_target t = judge(NULL);
	EXPECT_EQ(t.status, HP_EXIT_REFUSED);
	SAYS(t, "prog is made for another architecture (32 bits, ELF machine 3) than the library");
	make();
	made.segment.p_type = PT_LOAD;
	t = judge("set-user-ID");
	EXPECT_EQ(t.status, HP_EXIT_REFUSED);
	SAYS(t, "prog is statically linked and cannot be helped: nothing can be preloaded into it; link it dynamically");
	make();
	strcpy(made.loader, "/lib/ld-musl.so.1");
	t = judge(NULL);
	EXPECT_EQ(t.status, HP_EXIT_REFUSED);
	SAYS(t, "prog uses another C library (its loader is /lib/ld-musl.so.1)");
	make();
	symbol(&made.dynamic[1], "malloc", true);
	t = judge("set-user-ID");
	EXPECT_EQ(t.status, HP_EXIT_REFUSED);
	EXPECT(!t.in_vain);
	SAYS(t, "prog is set-user-ID and cannot be helped: the loader ignores LD_PRELOAD for it; get its privileges before");
}

TEST(a_program_with_an_allocator_is_told_what_stays)
{
	make();
	symbol(&made.dynamic[1], "malloc", true);
	struct hp_target t = judge(NULL);
	EXPECT_EQ(t.status, 0);
	EXPECT(t.in_vain);
	SAYS(t, "prog has a malloc of its own, which the loader finds first: ");
	make();
	symbol(&made.all[1], "je_malloc", true);
	t = judge(NULL);
	EXPECT_EQ(t.status, 0);
	EXPECT(!t.in_vain);
	SAYS(t, "prog has an allocator inside its own file (je_malloc), which no library replaces: ");
}

TEST(a_go_program_is_told_what_serves_its_heap)
{
	for (int is_static = 0; is_static < 2; is_static++) {
		make();
		made.section[GO].sh_name = 1;
		if (is_static)
			made.segment.p_type = PT_LOAD;
		const struct hp_target t = judge(NULL);
		EXPECT_EQ(t.status, is_static ? HP_EXIT_REFUSED : 0);
		EXPECT(!t.in_vain);
		SAYS(t, "prog is a Go program, whose heap is not malloc's: ");
		SAYS(t, "transparent_hugepage/enabled is always");
	}
}

T_MAIN
