/*
 * What the file of a program says. Nothing in it is believed: each part is copied out, if the file is long enough.
 */
#include "cmd/elf.h"

#include <elf.h>
#include <endian.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

#define BIG (__BYTE_ORDER == __BIG_ENDIAN)

struct file {
	const char *at;
	size_t len;
};

/* Copy the element with this index of a table. False: the file ends before. */
static bool element(const struct file *f, uint64_t table, uint64_t index, void *to, size_t size)
{
	if (table > f->len || index >= (f->len - table) / size)
		return false;
	memcpy(to, f->at + table + index * size, size);
	return true;
}

/* The text that begins at `at` and ends within `size` bytes; "" if it does not. */
static const char *text(const struct file *f, uint64_t at, uint64_t size)
{
	if (at >= f->len || !memchr(f->at + at, '\0', HP_MIN(size, f->len - at)))
		return "";
	return f->at + at;
}

/* The name at this offset in a section of names. */
static const char *name_in(const struct file *f, const ElfW(Shdr) *names, uint64_t offset)
{
	if (offset >= names->sh_size || names->sh_offset >= f->len)
		return "";
	return text(f, names->sh_offset + offset, names->sh_size - offset);
}

static void find_loader(const struct file *f, const ElfW(Ehdr) *header, struct hp_elf *ret_)
{
	ElfW(Phdr) segment;

	if (header->e_phentsize != sizeof segment)
		return; /* the kernel refuses it */
	for (unsigned i = 0; i < header->e_phnum && element(f, header->e_phoff, i, &segment, sizeof segment); i++)
		if (segment.p_type == PT_INTERP) {
			snprintf(ret_->loader, sizeof ret_->loader, "%s",
				 text(f, segment.p_offset, HP_MIN(segment.p_filesz, (uint64_t)sizeof ret_->loader)));
			return;
		}
}

/* Look for an allocator among the symbols that the file defines. Those that were hidden stand in the static table
 * alone. The names are malloc, and those of jemalloc with a prefix (redis; Rust's crate) and of mimalloc (Rust's). */
static void find_allocator(const struct file *f, const ElfW(Shdr) *table, const ElfW(Shdr) *names, struct hp_elf *ret_)
{
	static const char *const known[] = { "malloc", "je_malloc", "_rjem_malloc", "mi_malloc" };
	const uint64_t count = table->sh_size / sizeof(ElfW(Sym));
	ElfW(Sym) symbol;

	for (uint64_t i = 0; i < count && element(f, table->sh_offset, i, &symbol, sizeof symbol); i++) {
		if (symbol.st_shndx == SHN_UNDEF)
			continue;
		const char *const name = name_in(f, names, symbol.st_name);
		for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
			if (strcmp(name, known[k]))
				continue;
			const enum hp_allocator found =
				k == 0 && table->sh_type == SHT_DYNSYM ? HP_ALLOCATOR_EXPORTED : HP_ALLOCATOR_INSIDE;
			if (found > ret_->allocator) {
				ret_->allocator = found;
				ret_->allocates = known[k];
			}
		}
	}
}

static void look_at_sections(const struct file *f, const ElfW(Ehdr) *header, struct hp_elf *ret_)
{
	ElfW(Shdr) section, names, titles = { .sh_size = 0 };
	bool seen[2] = { false, false }; /* a file has one table of each kind: a second would only take time */

	element(f, header->e_shoff, header->e_shstrndx, &titles, sizeof titles);
	for (unsigned i = 0; i < header->e_shnum && element(f, header->e_shoff, i, &section, sizeof section); i++) {
		const bool dynamic = section.sh_type == SHT_DYNSYM;
		if (!strcmp(name_in(f, &titles, section.sh_name), ".go.buildinfo"))
			ret_->go = true;
		if ((!dynamic && section.sh_type != SHT_SYMTAB) || seen[dynamic] ||
		    section.sh_link >= header->e_shnum ||
		    !element(f, header->e_shoff, section.sh_link, &names, sizeof names))
			continue;
		seen[dynamic] = true;
		find_allocator(f, &section, &names, ret_);
	}
}

void hp_elf_read(const void *file, size_t len, struct hp_elf *ret_)
{
	const struct file f = { file, len };
	ElfW(Ehdr) header;

	*ret_ = (struct hp_elf){ .elf = element(&f, 0, 0, &header, sizeof header) &&
					!memcmp(header.e_ident, ELFMAG, SELFMAG) };
	if (!ret_->elf)
		return;
	ret_->wide = header.e_ident[EI_CLASS] == ELFCLASS64;
	ret_->big_endian = header.e_ident[EI_DATA] == ELFDATA2MSB;
	ret_->machine = header.e_machine; /* read with the wrong order of bytes, it is none of ours either */
	if (ret_->wide != (sizeof(ElfW(Addr)) == 8) || ret_->big_endian != BIG)
		return;
	find_loader(&f, &header, ret_);
	look_at_sections(&f, &header, ret_);
}
