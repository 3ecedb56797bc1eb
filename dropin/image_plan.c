/* The plan of an image: see image_plan.h. */
#include "dropin/image_plan.h"

#include "base/base.h"
#include "base/config.h"

struct telling {
	size_t least;
	void (*each)(void *arg, const struct hp_image_range *r);
	void *arg;
};

static uintptr_t down(uintptr_t at, size_t unit)
{
	return at & ~(uintptr_t)(unit - 1);
}

/* The end of the address space rounds to itself, so no sum wraps. */
static uintptr_t up(uintptr_t at, size_t unit)
{
	return at > UINTPTR_MAX - (unit - 1) ? down(UINTPTR_MAX, unit) : down(at + unit - 1, unit);
}

static void tell(const struct telling *t, uintptr_t start, uintptr_t end, enum hp_image_kind kind)
{
	const struct hp_image_range r = { up(start, HP_PAGE), down(end, HP_PAGE), kind };

	if (r.start < r.end && r.end - r.start >= t->least)
		t->each(t->arg, &r);
}

/* Where the part ends that the loader protects after relocation, if it begins in [start, end). It ends there by whole
 * pages: the page in which it ends may be read-only or not. */
static uintptr_t relro_end(uintptr_t base, const ElfW(Phdr) *headers, size_t count, size_t page, uintptr_t start,
			   uintptr_t end)
{
	uintptr_t at = start;

	for (size_t i = 0; i < count; i++) {
		const uintptr_t from = base + headers[i].p_vaddr;

		if (headers[i].p_type == PT_GNU_RELRO && from >= start && from < end)
			at = HP_MAX(at, up(from + headers[i].p_memsz, page));
	}
	return at;
}

void hp_image_plan(uintptr_t base, const ElfW(Phdr) *headers, size_t count, size_t page, int want, size_t least,
		   void (*each)(void *arg, const struct hp_image_range *r), void *arg)
{
	const struct telling t = { least, each, arg };

	for (size_t i = 0; i < count; i++) {
		const ElfW(Phdr) *h = &headers[i];
		const uintptr_t start = down(base + h->p_vaddr, page);
		const uintptr_t file_end = up(base + h->p_vaddr + h->p_filesz, page);
		const uintptr_t end = up(base + h->p_vaddr + h->p_memsz, page);

		if (h->p_type != PT_LOAD || !(h->p_flags & PF_R) || end < start || file_end > end)
			continue;
		if (h->p_flags & PF_W) {
			if (h->p_flags & PF_X)
				continue;
			/* The hugepage in which both lie is copied. So bss begins with the next one. */
			const bool copied = want >= HP_IMAGE_WANT_DATA && h->p_filesz;
			const uintptr_t data = relro_end(base, headers, count, page, start, end);

			if (copied)
				tell(&t, data, HP_MIN(up(file_end, HP_PAGE), down(end, HP_PAGE)), HP_IMAGE_DATA);
			if (want >= HP_IMAGE_WANT_BSS)
				tell(&t, HP_MAX(file_end, data), end, HP_IMAGE_BSS);
		} else if (h->p_flags & PF_X && want >= HP_IMAGE_WANT_ALL) {
			tell(&t, start, file_end, HP_IMAGE_TEXT);
		}
	}
}
