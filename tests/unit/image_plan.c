/*
 * The parts of an image that can lie in hugepages, against a model that asks each base page what it is.
 */
#include "dropin/image_plan.h"

#include "base/base.h"
#include "base/config.h"
#include "tests/any.h"
#include "tests/t.h"

enum { SPACE = 48 * 512, PAGE = 4096, HEADERS = 4 }; /* SPACE: base pages */

/* What a base page is. */
enum { NOTHING, SEALED, FILE_DATA, ZERO, CODE };

static struct {
	unsigned char is[SPACE];
	int segment[SPACE];
} model;
static ElfW(Phdr) header[HEADERS + 1];
static size_t headers;

static uintptr_t page_of(uintptr_t address, bool upwards)
{
	return (address + (upwards ? PAGE - 1 : 0)) / PAGE;
}

enum { RANGES = 64 };
static struct hp_image_range range[RANGES];
static size_t ranges;

static void note(void *unused, const struct hp_image_range *r)
{
	(void)unused;
	if (EXPECT(ranges < RANGES))
		range[ranges++] = *r;
}

/* Leaves the ranges in `range`. Returns their number. */
static size_t plan(uintptr_t base, const ElfW(Phdr) *h, size_t n, size_t page, int want, size_t least)
{
	ranges = 0;
	hp_image_plan(base, h, n, page, want, least, note, NULL);
	return ranges;
}

/* Segments in ascending order, as linkers make them, the first perhaps with a part that is sealed. */
static void make_image(void)
{
	uintptr_t at = 1 + any(100 * PAGE);

	memset(&model, 0, sizeof model);
	headers = 0;
	for (int n = 0; n < HEADERS; n++) {
		const int flags[] = { PF_R | PF_W, PF_R | PF_X, PF_R, PF_R | PF_W | PF_X, PF_W };
		ElfW(Phdr) *h = &header[headers];

		*h = (ElfW(Phdr)){ .p_type = any(8) ? PT_LOAD : PT_NOTE, .p_flags = (ElfW(Word))flags[any(any(2) ? 2 : 5)],
				   .p_vaddr = at, .p_filesz = any(4) ? any(5 * 512 * PAGE) : any(2 * PAGE) };
		h->p_memsz = h->p_filesz + (h->p_flags & PF_W && any(4) ? any(6 * 512 * PAGE) : 0);
		for (uintptr_t p = page_of(at, false); h->p_type == PT_LOAD && p < page_of(at + h->p_memsz, true); p++) {
			model.segment[p] = n + 1;
			model.is[p] = (h->p_flags & (PF_R | PF_W | PF_X)) == (PF_R | PF_W)
					      ? p < page_of(at + h->p_filesz, true) ? FILE_DATA : ZERO
				      : (h->p_flags & (PF_R | PF_W | PF_X)) == (PF_R | PF_X) ? CODE : NOTHING;
		}
		at += h->p_memsz + 2 * PAGE + any(3 * PAGE);
		headers++;
	}
	/* what is sealed begins a writable segment */
	ElfW(Phdr) *h = &header[any(HEADERS)];
	if (h->p_type == PT_LOAD && h->p_flags == (PF_R | PF_W) && any(2)) {
		header[headers] = *h;
		header[headers].p_type = PT_GNU_RELRO;
		header[headers].p_memsz = any(h->p_memsz + 1);
		for (uintptr_t p = page_of(h->p_vaddr, false); p < page_of(h->p_vaddr + header[headers].p_memsz, true); p++)
			model.is[p] = SEALED;
		headers++;
	}
}

/* The kind of a hugepage that begins at base page p, by its base pages; -1: it stays as it is. */
static int kind_of(uintptr_t p, int want)
{
	size_t count[5] = { 0 };

	for (int i = 0; i < 512; i++) {
		if (p + (uintptr_t)i >= SPACE || model.segment[p + (uintptr_t)i] != model.segment[p])
			return -1;
		count[model.is[p + (uintptr_t)i]]++;
	}
	if (count[ZERO] == 512)
		return want >= HP_IMAGE_WANT_BSS ? HP_IMAGE_BSS : -1;
	if (count[CODE] == 512)
		return want >= HP_IMAGE_WANT_ALL ? HP_IMAGE_TEXT : -1;
	if (count[FILE_DATA] + count[ZERO] == 512)
		return want >= HP_IMAGE_WANT_DATA ? HP_IMAGE_DATA : -1;
	return -1;
}

TEST(a_hugepage_is_planned_if_all_of_it_is_of_one_segment_and_not_sealed)
{
	size_t seen[3] = { 0 };

	for (int round = 0; round < 20000 && !t_failures; round++) {
		const int want = (int)any(4);

		make_image();
		const size_t n = plan(0, header, headers, PAGE, want, HP_PAGE);
		for (uintptr_t p = 0; p + 512 <= SPACE; p += 512) {
			int kind = -1;
			for (size_t i = 0; i < n; i++)
				if (p * PAGE >= range[i].start && p * PAGE < range[i].end) {
					EXPECT_EQ(kind, -1);
					kind = (int)range[i].kind;
				}
			EXPECT_EQ(kind, kind_of(p, want));
			if (kind >= 0)
				seen[kind]++;
		}
	}
	EXPECT(seen[HP_IMAGE_BSS] > 1000 && seen[HP_IMAGE_DATA] > 1000 && seen[HP_IMAGE_TEXT] > 1000);
}

TEST(an_image_may_lie_anywhere)
{
	struct hp_image_range here[RANGES];

	for (int round = 0; round < 2000 && !t_failures; round++) {
		make_image();
		const uintptr_t far = (UINT64_C(1) << 46) - any(1000) * HP_PAGE;
		const size_t n = plan(0, header, headers, PAGE, HP_IMAGE_WANT_ALL, HP_PAGE);
		memcpy(here, range, sizeof here);
		EXPECT_EQ(plan(far, header, headers, PAGE, HP_IMAGE_WANT_ALL, HP_PAGE), n);
		for (size_t i = 0; i < n; i++)
			EXPECT(range[i].start - far == here[i].start && range[i].end - far == here[i].end);
	}
}

TEST(a_range_below_the_least_is_left_out)
{
	ElfW(Phdr) h = { .p_type = PT_LOAD, .p_flags = PF_R | PF_W, .p_vaddr = HP_PAGE, .p_filesz = 0, .p_memsz = 4 * HP_PAGE };

	EXPECT_EQ(plan(0, &h, 1, PAGE, HP_IMAGE_WANT_BSS, 4 * HP_PAGE), 1);
	EXPECT(range[0].start == HP_PAGE && range[0].end == 5 * HP_PAGE);
	h.p_memsz -= PAGE;
	EXPECT_EQ(plan(0, &h, 1, PAGE, HP_IMAGE_WANT_BSS, 4 * HP_PAGE), 0);
}

TEST(headers_that_make_no_sense_give_no_range)
{
	ElfW(Phdr) h = { .p_type = PT_LOAD, .p_flags = PF_R | PF_W, .p_vaddr = HP_PAGE, .p_filesz = 1, .p_memsz = UINTPTR_MAX };

	EXPECT_EQ(plan(0, &h, 1, PAGE, HP_IMAGE_WANT_ALL, HP_PAGE), 0);
	h.p_filesz = 3 * HP_PAGE; /* more of the file than memory */
	h.p_memsz = PAGE;
	EXPECT_EQ(plan(0, &h, 1, PAGE, HP_IMAGE_WANT_ALL, HP_PAGE), 0);
	h.p_vaddr = UINTPTR_MAX - PAGE;
	EXPECT_EQ(plan(0, &h, 1, PAGE, HP_IMAGE_WANT_ALL, HP_PAGE), 0);
}

TEST(base_pages_may_be_large)
{
	ElfW(Phdr) h = { .p_type = PT_LOAD, .p_flags = PF_R | PF_W, .p_vaddr = HP_PAGE - 100, .p_filesz = 200, .p_memsz = 4 * HP_PAGE };

	EXPECT_EQ(plan(0, &h, 1, 65536, HP_IMAGE_WANT_BSS, HP_PAGE), 1);
	EXPECT(range[0].start == 2 * HP_PAGE && range[0].end == 5 * HP_PAGE);
}

TEST(all_parts_of_an_object_are_told)
{
	enum { PARTS = 35 };
	ElfW(Phdr) h[PARTS];

	for (size_t i = 0; i < PARTS; i++)
		h[i] = (ElfW(Phdr)){ .p_type = PT_LOAD, .p_flags = PF_R | PF_W, .p_vaddr = (2 * i + 1) * HP_PAGE, .p_memsz = HP_PAGE };
	EXPECT_EQ(plan(0, h, PARTS, PAGE, HP_IMAGE_WANT_BSS, HP_PAGE), PARTS);
	for (size_t i = 0; i < PARTS; i++)
		EXPECT_EQ(range[i].start, (2 * i + 1) * HP_PAGE);
}

T_MAIN
