/*
 * The base of every tier: assertions, hints for the compiler, raw files, messages, memory for tables, the clock.
 * Nothing here allocates, takes a lock or calls stdio, so that all of it may be used inside malloc.
 */
#ifndef HP_BASE_BASE_H
#define HP_BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sys.h"
#include "hugepin.h"

#define HP_LIKELY(x) __builtin_expect(!!(x), 1)
#define HP_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define HP_TLS _Thread_local __attribute__((tls_model("initial-exec")))
#define HP_COLD __attribute__((cold, noinline))
/* Marks a function that is only called by its name, so that it needs no landing instruction of CET for indirect
 * jumps. */
#if defined __CET__ && __CET__ & 1
#define HP_DIRECT __attribute__((nocf_check))
#else
#define HP_DIRECT
#endif

/* Sizes of the design, in one place. A chunk is the heap's unit, a page is a hugepage. Neither depends on the kernel's
 * base page, hp_base_page. */
#define HP_CHUNK_SHIFT 12
#define HP_CHUNK ((size_t)1 << HP_CHUNK_SHIFT)
#define HP_PAGE_SHIFT 21
#define HP_PAGE ((size_t)1 << HP_PAGE_SHIFT)
#define HP_PAGE_CHUNKS_SHIFT (HP_PAGE_SHIFT - HP_CHUNK_SHIFT)
#define HP_PAGE_CHUNKS ((size_t)1 << HP_PAGE_CHUNKS_SHIFT)

/* The name by which one of our libraries is loaded, such as "libhugepin-verbs.so.0". The name without a number is for
 * compilers, and may not be installed. */
#define HP_SONAME(library) library ".so." HP_QUOTED(HUGEPIN_VERSION_MAJOR)
#define HP_QUOTED(x) HP_QUOTED_(x)
#define HP_QUOTED_(x) #x

#define HP_MIN(a, b) ((a) < (b) ? (a) : (b))
#define HP_MAX(a, b) ((a) > (b) ? (a) : (b))

static inline size_t hp_round_up(size_t x, size_t power_of_two)
{
	return (x + power_of_two - 1) & ~(power_of_two - 1);
}

/* Bytes of the kernel's base page: 4096 on x86-64; 4096, 16384 or 65536 on AArch64. Ranges passed to the kernel consist
 * of these. The library's constructor sets it, so code that may run before calls hp_base_page_init(). A test sets
 * another size. */
extern size_t hp_base_page;
void hp_base_page_init(void);

/* Chunks of a base page. No two buffers of the heap share a base page. */
static inline size_t hp_base_chunks(void)
{
	return hp_base_page >> HP_CHUNK_SHIFT;
}

/* Whether the processor maps HP_PAGE bytes by one entry of its upper tables, of which the lowest has 8 bytes for each
 * base page. If so, the kernel reports a THP of that size in /proc/PID/pagemap and smaps, and MADV_COLLAPSE makes one.
 * With larger base pages, THP of that size are some of the kernel's smaller ones (mTHP). */
static inline bool hp_page_is_pmd(void)
{
	return hp_base_page * (hp_base_page / 8) == HP_PAGE;
}

static inline bool hp_is_power_of_two(size_t x)
{
	return x && !(x & (x - 1));
}

/* Debug builds (make DEBUG=1) check; release builds still type-check the condition. */
#ifdef HP_DEBUG
#define HP_ASSERT(x) ((x) ? (void)0 : hp_die("assertion failed: " #x " at " __FILE__, NULL, (size_t)__LINE__))
#else
#define HP_ASSERT(x) ((void)sizeof(!!(x)))
#endif

/* One line on stderr by write(2): "hugepin: what[ ptr][ number]\n". ptr NULL and number SIZE_MAX are left out. */
void hp_say(const char *what, const void *ptr, size_t number);

/* Say that the file of an option cannot be written, and the error's number. */
void hp_say_unwritten(const char *option, const char *path, int err);

/* hp_say(), then abort(). */
_Noreturn void hp_die(const char *what, const void *ptr, size_t number);

/* A line built in a caller's buffer: append text or a number, always terminated; truncates silently. */
struct hp_line {
	char *at, *end;
};
void hp_line_text(struct hp_line *l, const char *s);
void hp_line_number(struct hp_line *l, uint64_t n, unsigned radix);

/* The program has confined itself, so from now on we make no system call of a new kind, open no file and start no
 * thread. */
extern bool hp_sandboxed;

/* Whether the process may have a filter of system calls, which may end the process for a call that it does not know. */
bool hp_is_filtered(void);

/* Read a small file by raw system calls, without cancellation points: bytes read (buf is terminated) or -errno. */
long hp_read_file(const char *path, char *buf, size_t size);

/* Open a file for writing, by raw system calls, without cancellation points. flags: O_APPEND, and O_CREAT to create a
 * missing file with mode 0600. Follows no link and waits for nothing. Returns a descriptor or -errno; -EPERM: the file
 * is not a regular file of this user with one name, so another user may have put it there. If others may read the file,
 * its mode becomes 0600. */
int hp_open_own(const char *path, int flags);

/* The unsigned number that follows `key` in text (as in "MemAvailable:   123 kB"), or def. */
uint64_t hp_number_after(const char *text, const char *key, uint64_t def);

/* Map memory for tables: zeroed, never executable, not known to malloc. NULL: the kernel refuses. */
void *hp_meta_map(size_t size);

/* As hp_meta_map(), but the kernel empties the memory in a child of fork, whatever handlers of fork ran. */
void *hp_meta_map_own(size_t size);

/* Map memory for tables in two steps: reserve() takes the addresses, and open() gives access (by one raw system call,
 * which no hooks see) to all base pages that the range touches. */
void *hp_meta_reserve(size_t size);
bool hp_meta_open(void *p, size_t size);

/* Unmap memory of hp_meta_map() or hp_meta_reserve(). p may be NULL. */
void hp_meta_unmap(void *p, size_t size);

/* Make table memory read as zero again. Whole base pages go back to the kernel. Partial ones are written, because other
 * parts of the table may share them. */
void hp_meta_zero(void *p, size_t size);

#define HP_MADV_COLLAPSE 25 /* Linux 6.1; Debian 12's C library lacks the name */

/* Have the kernel put memory under [start, start + len), for writing or for reading (Linux 5.14). A missing hugepage of
 * the pool is an error here, instead of SIGBUS at the first touch. 0 or -errno; keeps errno. Makes a raw system call,
 * which no hooks see. */
int hp_populate(uintptr_t start, size_t len, bool write);

/* CLOCK_MONOTONIC in ns. */
uint64_t hp_clock_ns(void);

/* clock_gettime(2), without a system call where the kernel needs none. 0 or -errno. */
struct timespec;
long hp_clock_gettime(int clock, struct timespec *ret_);

/* Set another clock, for tests; NULL: CLOCK_MONOTONIC. The constructor calls this, too, to seal the pointer. */
void hp_clock_set(uint64_t (*clock_ns)(void));

/* The processor time that this thread has used, in ns. Unlike hp_clock_ns(), this makes a system call. */
uint64_t hp_thread_ns(void);

#endif
