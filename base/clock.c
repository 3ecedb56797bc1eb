/*
 * The clock, by the kernel's function in the page of code that it maps into each process (vdso(7)). clock_gettime() is
 * not used, because it has a public name (sys.h), nor is a system call, because it takes several times as long. The
 * function is looked up once in that page's own symbols. Where it is not found, the system call serves.
 */
#include <elf.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>

#include "base/base.h"
#include "base/seal.h"
#include "base/sys.h"

#if defined(__aarch64__)
#define VDSO_NAME "__kernel_clock_gettime"
#else
#define VDSO_NAME "__vdso_clock_gettime"
#endif

typedef int (*clock_fn)(clockid_t clock, struct timespec *ret_);

static uint64_t clock_monotonic_ns(void);
static HP_SEALED(struct {
	uint64_t (*ns)(void); /* a test may have a clock of its own */
	clock_fn of_kernel;   /* NULL: not found, or not looked for yet */
}) clocks = { { clock_monotonic_ns, NULL } };

/* The function of that name in a loaded image, or NULL. The hash table is read only for the number of symbols. */
static clock_fn find_function(uintptr_t image)
{
	const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
	const Elf64_Phdr *part = (const Elf64_Phdr *)(image + head->e_phoff);
	const Elf64_Dyn *dynamic = NULL;
	const Elf64_Sym *symbols = NULL;
	const Elf64_Word *hash = NULL;
	const char *names = NULL;
	uintptr_t offset = 0; /* from an address in the file to where it is mapped */
	bool loaded = false;

	for (int i = 0; i < head->e_phnum; i++) {
		if (part[i].p_type == PT_LOAD && !loaded) {
			offset = image + part[i].p_offset - part[i].p_vaddr;
			loaded = true;
		} else if (part[i].p_type == PT_DYNAMIC) {
			dynamic = (const Elf64_Dyn *)(image + part[i].p_offset);
		}
	}
	for (; loaded && dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
		switch (dynamic->d_tag) {
		case DT_SYMTAB:
			symbols = (const Elf64_Sym *)(dynamic->d_un.d_ptr + offset);
			break;
		case DT_STRTAB:
			names = (const char *)(dynamic->d_un.d_ptr + offset);
			break;
		case DT_HASH:
			hash = (const Elf64_Word *)(dynamic->d_un.d_ptr + offset);
			break;
		default:
			break;
		}
	}
	for (Elf64_Word i = 0; symbols && names && hash && i < hash[1]; i++)
		if (symbols[i].st_shndx != SHN_UNDEF && strcmp(names + symbols[i].st_name, VDSO_NAME) == 0)
			return (clock_fn)(symbols[i].st_value + offset);
	return NULL;
}

/* Before this has run, the system call serves. */
__attribute__((constructor(101))) static void find_clock(void)
{
	uintptr_t image = getauxval(AT_SYSINFO_EHDR);
	clock_fn found = image ? find_function(image) : NULL;

	if (!found)
		return;
	hp_unseal(&clocks, sizeof clocks);
	clocks.is.of_kernel = found;
	hp_seal(&clocks, sizeof clocks);
}

static uint64_t ns_of(const struct timespec *t)
{
	return (uint64_t)t->tv_sec * 1000000000 + (uint64_t)t->tv_nsec;
}

long hp_clock_gettime(int clock, struct timespec *ret_)
{
	return clocks.is.of_kernel ? clocks.is.of_kernel(clock, ret_) : hp_sys(SYS_clock_gettime, clock, ret_);
}

static uint64_t clock_monotonic_ns(void)
{
	struct timespec t = {0, 0};

	hp_clock_gettime(CLOCK_MONOTONIC, &t);
	return ns_of(&t);
}

/* The kernel's function makes a system call for this clock, too. */
uint64_t hp_thread_ns(void)
{
	struct timespec t = {0, 0};

	hp_sys(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &t);
	return ns_of(&t);
}

uint64_t hp_clock_ns(void)
{
	return clocks.is.ns();
}

void hp_clock_set(uint64_t (*clock_ns)(void))
{
	hp_unseal(&clocks, sizeof clocks);
	clocks.is.ns = clock_ns ? clock_ns : clock_monotonic_ns;
	hp_seal(&clocks, sizeof clocks);
}
