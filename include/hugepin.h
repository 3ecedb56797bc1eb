/*
 * hugepin: large buffers in hugepages, and a cache of their registrations.
 *
 * Rules for every function here, unless its comment says otherwise:
 *  - `int` functions return 0 or more, or -errno; on failure errno, stderr and every ret_ argument are left alone.
 *    Functions shaped like malloc return NULL and set errno.
 *  - Sizes are bytes. Any thread may call; the handles and buffers may be handed between threads.
 *  - Nothing prints or exits, except: a malformed HUGEPIN_ variable (one line), HUGEPIN_STATS=1 at exit, and a heap
 *    found misused (one line, then abort; HUGEPIN_ABORT=0 makes it a reported no-op).
 *
 * The guide is hugepin(7); each group of functions has its page in section 3.
 */
#ifndef HUGEPIN_H
#define HUGEPIN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

#define HUGEPIN_VERSION_MAJOR 0
#define HUGEPIN_VERSION_MINOR 1
#define HUGEPIN_VERSION ((HUGEPIN_VERSION_MAJOR << 16) | HUGEPIN_VERSION_MINOR)

/* The version of the library that runs, as HUGEPIN_VERSION is the one compiled against. Never blocks. */
unsigned hugepin_version(void);

/* ------------------------------------------------------------------ heap: hugepin_malloc(3) */

/* The smallest request, in bytes, that the heap serves from hugepages; what is smaller goes to the next malloc down
 * (Rex, Mietke, Rehm 2006, section 3.2, item 1). */
#define HUGEPIN_LARGE_MIN 32768

/* As malloc, calloc, realloc and free of ISO C. Buffers that the heap serves start on a 4 KiB boundary.
 * hugepin_realloc(p, 0) frees p and returns NULL, as glibc does. The caller owns the buffer until he frees it, on any
 * thread; buffers of hugepin_malloc must go to hugepin_free, except where libhugepin-malloc.so is loaded: then the two
 * families are one. May block (a lock, mostly held for less than a microsecond, by fork for the time of the copy; the kernel's
 * zeroing of new pages).
 * NULL with ENOMEM; hugepin_free leaves errno alone.
 * Not async-signal-safe; may be called from fork handlers and thread destructors.
 * Algorithm: address-ordered first fit over 4 KiB chunks without coalescing on free (Rex et al. 2006, section 3.2;
 * Wilson et al. 1995), found by packed summaries in a radix tree (the page allocator of Go 1.14). */
void *hugepin_malloc(size_t size);
void *hugepin_calloc(size_t count, size_t size);
void *hugepin_realloc(void *ptr, size_t size);
void hugepin_free(void *ptr);

/* A buffer aligned to `align`, a power of two. NULL with EINVAL for another `align`, with ENOMEM otherwise. An alignment
 * of HUGEPIN_LARGE_MIN or more is served by the heap whatever the size. Give back with hugepin_free. */
void *hugepin_aligned_alloc(size_t align, size_t size);

/* How many bytes may be used behind ptr: never less than was asked. 0 for NULL. Never blocks for a heap buffer. */
size_t hugepin_usable_size(const void *ptr);

/* ------------------------------------------------------------------ extents: hugepin_extent(3) */

/* What an extent's memory is made of. A mixed extent reports the weakest kind in it. */
enum { HUGEPIN_KIND_BASE = 0, HUGEPIN_KIND_THP = 1, HUGEPIN_KIND_HUGETLB = 2 };

/* A naturally aligned run of hugepages, the unit in which the heap maps memory and in which it should be registered.
 * gen tells two extents that had the same address apart. page_shift: log2 of the smallest page that backs it for certain
 * (12 for base pages and for THP, which the kernel may split; 21 or 30 for hugetlb). node: of HUGEPIN_NUMA, or -1. */
struct hugepin_extent {
	void *addr;
	size_t len;
	uint64_t gen;
	uint32_t page_shift, kind;
	int32_t node;
	uint32_t pad;
};

/* Describe the extent that ptr (anywhere inside a heap buffer) lies in. `size` is sizeof *ret_: as many bytes are
 * written as both sides know. Returns the number of bytes the library knows, -ENOENT if ptr is not in the heap, -EINVAL
 * if ret_ is NULL or size is 0. Takes the heap's lock for some nanoseconds; may be called from a watcher. */
int hugepin_extent(const void *ptr, struct hugepin_extent *ret_, size_t size);

/* Call leaving(arg, extent) each time before memory leaves the heap: addr and len are the part that leaves, the rest
 * describes its extent. When the call returns, the kernel takes the pages.
 * The callback runs on the thread that gives the memory back: the service thread, a caller of hugepin_purge or
 * malloc_trim, or a thread whose allocation would otherwise fail. No lock of the heap is held: it may allocate and free;
 * it must not open or close stdio streams (a fork in another thread would wait for it for ever), nor call hugepin_watch,
 * hugepin_unwatch (both -EDEADLK) or hugepin_purge (which then does nothing).
 * *ret_id is to be given to hugepin_unwatch. -EINVAL (no function or no ret_id), -ENOSPC (16 watchers), -EDEADLK. */
int hugepin_watch(void (*leaving)(void *arg, const struct hugepin_extent *), void *arg, int *ret_id);

/* End a watch. When it returns, the callback is not running and will not run again. -ENOENT, -EDEADLK. May block for as
 * long as a callback runs. */
int hugepin_unwatch(int id);

/* Give back now all memory of the heap that is wholly free, without waiting for the decay time. Returns 0. Blocks for
 * some microseconds a hugepage; does nothing inside a watcher. */
int hugepin_purge(void);

/* ------------------------------------------------------------------ pin cache: hugepin_domain(3), hugepin_pin(3) */

/* A domain is one place to register memory with: a backend and its context (a protection domain of a verbs device, an
 * io_uring, nothing at all), a policy and a budget. A process may have HUGEPIN_DOMAINS_MAX of them at a time. */
typedef struct hugepin_domain hugepin_domain;
#define HUGEPIN_DOMAINS_MAX 64

/* What memory is registered for. A pin that says 0 gets the domain's default. */
enum {
	HUGEPIN_READ = 1, /* the device reads it on our behalf: sending, writing to a file */
	HUGEPIN_WRITE = 2, /* the device writes it on our behalf: receiving, reading a file */
	HUGEPIN_REMOTE_READ = 4, /* a peer may read it */
	HUGEPIN_REMOTE_WRITE = 8,
	HUGEPIN_REMOTE_ATOMIC = 16,
	HUGEPIN_RELAXED = 32, /* relaxed ordering, where the device has it: of all that a domain registers; no pin's choice */
	HUGEPIN_PIN_UNCACHED = 64, /* not access: register for this pin alone, and deregister at its unpin */
	HUGEPIN_ON_DEMAND = 128, /* not for callers: what a domain of policy odp asks of its backend */
};

/* What a backend can do, asked once, when the domain is opened. Zero in the first three: no limit. */
struct hugepin_limits {
	size_t len_max; /* bytes, of one registration */
	size_t bytes_max; /* bytes, of all at a time */
	uint32_t regs_max; /* registrations at a time */
	uint32_t access; /* HUGEPIN_READ ... HUGEPIN_RELAXED that it has; a pin that wants others gets -EOPNOTSUPP */
	uint32_t flags; /* HUGEPIN_LIMIT_* */
	uint32_t pad;
};
enum {
	HUGEPIN_LIMIT_OPENER = 1, /* only the thread that opened the domain may register and deregister */
	HUGEPIN_LIMIT_LATE = 2, /* what was deregistered may be charged for up to two seconds more */
	HUGEPIN_LIMIT_ODP = 4, /* registers without pinning when asked for HUGEPIN_ON_DEMAND */
};

/* The keys of one registration. io_uring: lkey is the buffer index. cookie is the backend's. */
struct hugepin_reg {
	uint32_t lkey, rkey;
	uint64_t cookie;
};

/* How a domain registers. Bring your own for a device that has none here. All functions but now_ns are called with the
 * domain's lock held, one at a time for each domain, on any thread (HUGEPIN_LIMIT_OPENER: on the opener's): they may block
 * and allocate, and must not call functions of any domain but hugepin_forget.
 * addr and len are multiples of the base page.
 *  reg       0 and *ret_, or -errno. -ENOMEM, -EPERM, -EAGAIN: a limit is reached; something is deregistered, and it is called
 *            again. -EFAULT: that memory is not there, or not for that access. -EINVAL, -EOPNOTSUPP: not memory for this
 *            device (or not in one piece).
 *  dereg     0; a failure is counted, and the registration forgotten.
 *  prefetch  may be NULL. Bring [addr, addr + len) of an on-demand registration in. 0: the device did; 1: by other means.
 *  limits    0 and *ret_, or -errno, which hugepin_domain_open returns.
 *  now_ns    may be NULL: CLOCK_MONOTONIC. The domain's clock, for tests and simulations: no time that a helper waits for comes
 *            by itself then, it acts at the next pin or unpin.
 *  close     may be NULL. The domain is closed, or could not be opened: free ctx. */
struct hugepin_backend {
	size_t size; /* sizeof(struct hugepin_backend) */
	const char *name;
	int (*reg)(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_);
	int (*dereg)(void *ctx, struct hugepin_reg *reg);
	int (*prefetch)(void *ctx, const struct hugepin_reg *reg, void *addr, size_t len);
	int (*limits)(void *ctx, struct hugepin_limits *ret_);
	uint64_t (*now_ns)(void *ctx);
	void (*close)(void *ctx);
};

/* When memory is registered and when no longer. DEFAULT is HUGEPIN_POLICY, or arena.
 *  ARENA    the heap's extents as wholes, at the first pin into one or earlier (Gerofi et al. 2016, pre-registration); what is
 *           not the heap's as LRU
 *  LRU      what was pinned stays registered until the budget needs the room (the pin-down cache of Tezuka et al. 1998)
 *  NONE     registered for each pin, deregistered at its unpin
 *  ODP      registered without pinning, where the device can (Li et al. 2016, native mode)
 *  CF11      a helper thread gives registrations back between uses and has them again in time, by the periods of call
 *            sites (Li, Cameron et al. 2011)
 *  PREDICT   the same, by the order of uses and at a price for misses; within a budget, what is used next is kept */
enum {
	HUGEPIN_POLICY_DEFAULT,
	HUGEPIN_POLICY_ARENA,
	HUGEPIN_POLICY_LRU,
	HUGEPIN_POLICY_CF11,
	HUGEPIN_POLICY_PREDICT,
	HUGEPIN_POLICY_ODP,
	HUGEPIN_POLICY_NONE,
};

/* What a forked child gets of heap memory that is registered. DEFAULT is HUGEPIN_FORK.
 *  COPY      a copy, made before the fork
 *  COW       what the kernel does: it copies pinned pages in fork(), which takes longer and may fail
 *  DONTFORK  nothing: touching it in the child is SIGSEGV; the fork costs nothing
 * Where domains disagree about memory, COPY goes before COW before DONTFORK. */
enum { HUGEPIN_FORK_DEFAULT, HUGEPIN_FORK_COPY, HUGEPIN_FORK_COW, HUGEPIN_FORK_DONTFORK };

/* Who tells when memory goes away that is not the heap's (hugepin_pin(3), "Memory that goes away").
 *  DEFAULT  the kernel; where libhugepin-malloc.so is loaded, its calls, so that hits need not ask the kernel
 *  KERNEL   the kernel, asked at each hit while the program has several threads
 *  PROGRAM  the program, which calls hugepin_forget before memory goes; shared memory and mapped files are cached as well
 *  NONE     nobody: that memory is registered for each pin */
enum { HUGEPIN_WATCH_DEFAULT, HUGEPIN_WATCH_KERNEL, HUGEPIN_WATCH_PROGRAM, HUGEPIN_WATCH_NONE };

/* How to open a domain. All zero but size is a good choice; NULL is the same. */
struct hugepin_attr {
	size_t size; /* sizeof(struct hugepin_attr) */
	uint32_t policy; /* HUGEPIN_POLICY_* */
	uint32_t access; /* default of pins that say 0; 0: HUGEPIN_READ | HUGEPIN_WRITE; HUGEPIN_RELAXED may be added */
	uint32_t fork; /* HUGEPIN_FORK_* */
	uint32_t flags; /* 0 */
	uint64_t pinned_bytes_max; /* budget. 0: what RLIMIT_MEMLOCK and the device allow; UINT64_MAX: none, nothing is
				    * evicted and the kernel's -ENOMEM is returned */
	uint32_t pinned_regions_max; /* 0: what the device allows */
	uint32_t pad;
	uint32_t watch; /* HUGEPIN_WATCH_* */
	uint32_t pad2;
};

/* Open a domain. *backend is copied; ctx is the caller's, or freed by backend->close (which is called on failure as well,
 * except for -EINVAL). May block and allocate.
 * -EINVAL (a NULL, a size, a policy, an access, a flag or a watch that is not known), -EOPNOTSUPP (a policy or access that the
 * device does not have), -ENOSPC (HUGEPIN_DOMAINS_MAX), -ENOSYS (no membarrier(2)), -ENOMEM, or what limits() says (-EIO
 * for its -EINVAL). */
int hugepin_domain_open(const struct hugepin_backend *backend, void *ctx, const struct hugepin_attr *attr,
			hugepin_domain **ret_);

/* Deregister everything and close. No other thread may be using it. -EBUSY: pins are out, nothing has changed; -EPERM: not
 * the opener of a domain that only its opener may use, as long as that thread lives. In a child of fork it frees the child's copy, whatever is out. */
int hugepin_domain_close(hugepin_domain *);

/* The backend that registers nothing but locks memory (mlock), and gives no keys. For ctx: NULL. */
const struct hugepin_backend *hugepin_mlock(void);

/* X(name, unit, sentence), as HUGEPIN_STATS_LIST. */
#define HUGEPIN_DOMAIN_STATS_LIST(X) \
	X(pinned_bytes, B, "registered memory, overlaps counted twice") \
	X(pinned_peak_bytes, B, "the most that pinned_bytes has been") \
	X(regions, n, "registrations") \
	X(extents, n, "of these, whole extents of the heap") \
	X(retired, n, "of these, invalidated but still in use") \
	X(bytes_max, B, "the budget; 0: none") \
	X(misses, c, "pins that did not find memory registered") \
	X(registered, c, "registrations made") \
	X(registered_bytes, Bc, "memory registered") \
	X(registered_ns, c, "nanoseconds spent in the backend, registering") \
	X(deregistered, c, "registrations given back") \
	X(deregistered_ns, c, "nanoseconds spent in the backend, deregistering") \
	X(ahead, c, "extents registered before the first pin into them") \
	X(evicted, c, "registrations given back to make room") \
	X(merged, c, "registrations that took the place of others inside them") \
	X(widened, c, "of these, for more access than one of the others had") \
	X(invalidated, c, "registrations whose memory went away") \
	X(decayed, c, "registrations given back because the heap memory was free for long") \
	X(uncached, c, "pins registered for themselves alone") \
	X(cut, c, "pins whose key ends before the memory does") \
	X(refused, c, "registrations that the kernel or the device refused for want of room") \
	X(nobufs, c, "pins that failed with -ENOBUFS") \
	X(failed, c, "deregistrations that failed") \
	X(prefetched, c, "hints carried out") \
	X(prefetched_otherwise, c, "of these, by touching pages where the device could not") \
	X(released, c, "registrations that the helper gave back") \
	X(repinned, c, "registrations that the helper made again before their use") \
	X(late, c, "misses on memory that was registered before, and had been given back") \
	X(records_lost, c, "pins and unpins that the helper was not told of: it was behind") \
	X(sites_short, c, "call sites known by the return address alone, for want of frame pointers") \
	X(helper_ns, c, "nanoseconds spent in the helper") \
	X(sharers, n, "helpers of this user's processes that share a core with this one's, which is one of them; 0: it may not help") \
	X(helper_delay_ns, n, "recent worst lateness of the helper, by which it begins earlier, in nanoseconds") \
	X(cost_fixed_ns, n, "what the helper takes to register, in the size that it registers most: nanoseconds for each time") \
	X(cost_page_ns, n, "and nanoseconds for each page") \
	X(cost_error, n, "mean error of what was predicted so, in thousandths")

struct hugepin_domain_stats {
	uint64_t version; /* HUGEPIN_VERSION of the library that filled it */
#define HUGEPIN_STATS_MEMBER(name, unit, sentence) uint64_t name;
	HUGEPIN_DOMAIN_STATS_LIST(HUGEPIN_STATS_MEMBER)
#undef HUGEPIN_STATS_MEMBER
};

/* Copy a domain's statistics, as hugepin_stats does. Never blocks. */
int hugepin_domain_stats(hugepin_domain *, struct hugepin_domain_stats *ret_, size_t size);

/* A pin: a reference on a registration that covers [base, base + len). Pins are the caller's memory, 32 bytes for ever; they
 * may be moved and handed to other threads. */
struct hugepin_pin {
	uint64_t base, len; /* the part of the range that the keys cover, from its start: shorter than asked only where the
			     * device's longest registration ends inside; pin the rest by another call */
	uint32_t lkey, rkey;
	uint64_t ref; /* the library's; 0: not a pin */
};

/* Pin [addr, addr + len) and return one reference in *ret_. As long as it is out, the range stays registered with these
 * keys, for `access` (HUGEPIN_READ ...; 0: the domain's default) at least.
 * What is registered is rounded out: for the heap's memory to whole hugepages or the extent, else to base pages.
 * -EINVAL: len is 0, the range wraps, or unknown bits in access; -EFAULT: memory that is not there, or is read-only and to be
 * written (not with ODP, where the device finds out); -EOPNOTSUPP: access that the device does not have, or memory that it
 * cannot register; -ENOBUFS: over the budget or a kernel limit, and all that is registered is in use; -ENOMEM: the same without
 * a budget, or no memory for tables; -EPERM: not registered, and only the opener may; -ESTALE: the domain is the parent
 * process's; or what the backend said.
 * Any thread. When the range is registered it takes nanoseconds and does not block, but in the moment after watched memory
 * has gone away; else it blocks for the backend, and for other registrations of the same domain. Not from unmap hooks
 * (hugepin_watch, backends), not in signal handlers. */
int hugepin_pin(hugepin_domain *, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* Give a pin back, on any thread. The memory may stay registered. Clears *pin: giving it back again, or to another domain, is
 * -EINVAL. Does not block, except for the deregistration of what was invalidated while it was pinned. */
int hugepin_unpin(hugepin_domain *, struct hugepin_pin *pin);

/* Pin n pieces, each as by hugepin_pin, in order; a piece that one key cannot cover takes several pins. Returns how many pins
 * were written to ret_ (at least n), or an error of hugepin_pin, with nothing pinned and ret_ cleared; -EMSGSIZE: more than max
 * are needed; -EINVAL also for n < 0 or NULL. n = 0 is 0. */
int hugepin_pinv(hugepin_domain *, const struct iovec *, int n, unsigned access, struct hugepin_pin *ret_, int max);

/* Give n pins back; cleared ones are skipped. 0, or -EINVAL when one of them was not the domain's (the others are given
 * back). */
int hugepin_unpinv(hugepin_domain *, struct hugepin_pin *pins, int n);

/* A hint: the range will be pinned soon. Returns at once; the service thread registers it if it fits the budget without
 * evicting, or, under ODP, has the device bring it in. -EINVAL as hugepin_pin; -EBUSY: too many hints are waiting; -ESTALE. */
int hugepin_prefetch(hugepin_domain *, const void *addr, size_t len, unsigned access);

/* The range is about to be unmapped, replaced or discarded by means that hugepin does not see (hugepin_pin(3) has the list),
 * and is not the heap's: no pin in any domain finds it registered from now on. -EBUSY: a part is pinned; it stays registered
 * until its last unpin (0 is possible there, too, while another thread registers with the same domain). -EINVAL: empty or
 * wrapping. Allocates nothing and calls no backend: may be called from unmap hooks. */
int hugepin_forget(const void *addr, size_t len);

/* ------------------------------------------------------------------ packing, without a device: hugepin_sg(7) */

/* Many small pieces as one message. Nothing here allocates, blocks (but for a key function that does) or keeps state: any
 * thread, and at once. Pieces of length 0 are legal everywhere and their addresses are not looked at; adapters never get to
 * see them. Common errors: -EINVAL (a NULL, n < 0, a piece at NULL or one that wraps round the end of the address space),
 * -EMSGSIZE (does not fit the room given), -EOVERFLOW (over UINT32_MAX bytes: what one work request can say). Arrays that were
 * to be filled may have been written to on failure. */

/* One scatter/gather element, laid out as struct ibv_sge. */
struct hugepin_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

/* What was made of the pieces. */
struct hugepin_sg_info {
	uint64_t bytes; /* of the message */
	uint32_t sges, pins; /* elements, and pins to be given back */
	uint32_t copied; /* bytes that were copied, for which no element points into the pieces */
	uint32_t lines; /* cache lines of 64 bytes that the elements touch: what a device reads */
};

/* Find the key of [addr, addr + len), for `access` (HUGEPIN_READ for what is sent). *ret_ is a pin whose [base, base + len)
 * contains addr; it may begin before it, and end before or after addr + len: the rest of the piece is asked for by another
 * call, and a piece that begins in a range already returned with a ref, or in the latest, is not asked for. ref: 0 where there
 * is nothing to give back. 0, -ENOKEY (not registered), or another error, with which the caller of the key function then
 * returns. A range that does not contain addr is -EINVAL there.
 * addr NULL: give the pin *ret_ back, which an earlier call returned with a ref; what this returns is not looked at. Keys
 * taken before an error are given back this way. */
typedef int (*hugepin_key_fn)(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* The pin cache as key function; its argument is a hugepin_domain. Finds what is registered and takes one reference on it,
 * as hugepin_pin does, but registers nothing (-ENOKEY), and returns the whole registration's range. A caller who wants
 * registration passes a function of his own that calls hugepin_pin, and hugepin_unpin for addr NULL. -EINVAL, -EOPNOTSUPP,
 * -ESTALE and -ENOMEM as hugepin_pin. Threads as hugepin_pin: what is not found at once is looked for under the domain's
 * lock. */
int hugepin_sg_key(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* Elements for n pieces, in their order: empty ones are dropped, a piece is split where its registration ends, neighbours
 * that lie one after the other under one key are merged. Writes at most `sges` elements and `pins` pins (one for each call of
 * the key function that gave a ref; at most one for each registration that contains its pieces whole). The caller gives
 * ret_pins back (hugepin_unpinv) when the device is done.
 * Returns the number of elements; 0 where all is empty. -EINVAL and -EOVERFLOW, before the key function is called;
 * -EMSGSIZE (more elements or pins are needed: ret_info, if not NULL, then says how many elements, and how many pins at most),
 * -ENOKEY, or what the key function returned; on failure no pin is out. */
int hugepin_sg_map(const struct iovec *iov, int n, unsigned access, hugepin_key_fn key, void *arg,
		   struct hugepin_sge *ret_sges, int sges, struct hugepin_pin *ret_pins, int pins,
		   struct hugepin_sg_info *ret_info);

/* Pieces of a strided layout (MPI_Type_vector): `count` blocks of `block` bytes, the start of each `stride` bytes after the
 * start of the one before, which may be negative; blocks that touch, in this order, are one piece. Returns the number of
 * pieces. -EINVAL, -EMSGSIZE; of any length. */
int hugepin_sg_strided(const void *base, size_t block, ptrdiff_t stride, size_t count, struct iovec *ret_, int max);

/* Pieces of an indexed layout (MPI_Type_create_hindexed): len[i] bytes at base + off[i], in order; an off[i] below 0, cast,
 * is in front of base. Empty ones are dropped and those that touch, in this order, are one piece. Returns the number of
 * pieces. -EINVAL, -EMSGSIZE; of any length. */
int hugepin_sg_indexed(const void *base, const size_t *off, const size_t *len, size_t n, struct iovec *ret_, int max);

/* Placement: how many cache lines of 64 bytes n pieces touch, each by itself: what a device must read for them. UINT_MAX
 * where there are more. */
unsigned hugepin_sg_lines(const struct iovec *iov, int n);

/* Placement: the offset within a page, a multiple of 64, at which a slot of `len` bytes should begin, so that copying n
 * pieces one after the other into it (those that fit) meets the fewest loads that have to wait for a store with the same low
 * twelve bits (4 KiB aliasing); of equals, one that crosses no more pages than it must, and the lowest. 0 for bad arguments. */
size_t hugepin_sg_offset(const struct iovec *iov, int n, size_t len);

/* The frame, a message that describes itself: a header, a length and a tag for each record, then the records' bytes one
 * after the other (hugepin_sg_frame(5); little-endian). A record may be empty. */

#define HUGEPIN_SG_HEADER 24 /* bytes before the lengths */
/* Bytes in front of the records of a frame of n. */
#define HUGEPIN_SG_TABLE(n) (HUGEPIN_SG_HEADER + ((size_t)(n) * 4 + 7) / 8 * 8 + (size_t)(n) * 8)

/* Write the frame of n records, record i of iov[i].iov_len bytes, with tag[i] (NULL: zeros), into slot. Returns its length;
 * -EINVAL, -EMSGSIZE, -EOVERFLOW. The pieces must not lie in the slot. */
ssize_t hugepin_sg_frame(void *slot, size_t size, const struct iovec *iov, const uint64_t *tag, int n);

/* The same without the records: its header and table alone, HUGEPIN_SG_TABLE(n) bytes, for records that follow as elements.
 * part, parts: 0, 1; or this is part `part` of `parts` of one record that did not fit a frame, and n is 1. */
ssize_t hugepin_sg_table(void *slot, size_t size, const size_t *len, const uint64_t *tag, int n, unsigned part,
			 unsigned parts);

/* Reading: the caller's memory, which points into the frame. Members are the library's but for count, part and parts. */
struct hugepin_sg_rx {
	const unsigned char *frame;
	uint64_t data; /* offset of the next record */
	uint32_t count, next; /* records in all, and the next */
	uint16_t part, parts; /* 0, 1: whole records */
	uint32_t len; /* of the frame */
};

/* Begin to read a frame of `len` bytes, as received: the whole of it is checked first, so that what follows cannot fail. It
 * need not be aligned, and need not be trusted. Where others change it meanwhile, lengths and tags may be any, but records lie
 * in the frame. Returns the number of records; -EILSEQ: not a frame, or not one of that length. */
int hugepin_sg_iter(struct hugepin_sg_rx *ret_, const void *frame, size_t len);

/* The next record, which lies in the frame, and its tag (may be NULL). 1, or 0: there are no more. */
int hugepin_sg_next(struct hugepin_sg_rx *rx, struct iovec *ret_, uint64_t *ret_tag);

/* Copy the records' bytes, one after the other as if they were one, over n pieces. Returns how many bytes; -EMSGSIZE: the
 * pieces have less room than the records bytes, nothing is written; -EILSEQ; -EINVAL. Pieces must not overlap. */
ssize_t hugepin_sg_scatter(const void *frame, size_t len, const struct iovec *iov, int n);

/* ------------------------------------------------------------------ statistics: hugepin_stats(3) */

/* X(name, unit, sentence). The one list that the struct, the printing at exit and hugepin_stats(3) are made from. New
 * members are added at the end. Units: B bytes now, n a number now, c a counter since the start, Bc bytes counted. */
#define HUGEPIN_STATS_LIST(X) \
	X(hugetlb_bytes, B, "heap memory mapped from the hugetlb pool") \
	X(thp_bytes, B, "heap memory that lies in transparent hugepages") \
	X(base_bytes, B, "heap memory that lies in base pages, or was mapped for THP and is not there yet") \
	X(reserved_bytes, B, "part of hugetlb_bytes that is reserved but not yet populated") \
	X(taken_bytes, B, "heap addresses in buffers, with room behind them and freed ones kept for reuse") \
	X(taken_peak_bytes, B, "the most that taken_bytes has been") \
	X(listed_bytes, B, "freed buffers in the shared lists, not yet coalesced") \
	X(room_bytes, B, "address space kept free behind growing buffers") \
	X(extents, n, "extents that exist") \
	X(threads, n, "threads that own a cache") \
	X(mappings, n, "mappings of the process that the heap accounts for") \
	X(placed, c, "buffers cut from the tree") \
	X(relisted, c, "buffers taken from the shared lists") \
	X(cleared, c, "freed buffers coalesced") \
	X(pool_short, c, "hugepages that the pool refused at mmap") \
	X(pool_denied, c, "hugepages that were granted but could not be populated") \
	X(thp_failed, c, "mappings that could not be advised as THP") \
	X(nomem, c, "heap requests that ended in ENOMEM or in the tier below") \
	X(decayed_bytes, Bc, "memory given back after the decay time") \
	X(purged_bytes, Bc, "memory given back on request or under pressure") \
	X(grown_in_place, c, "reallocations that grew in place") \
	X(moved, c, "reallocations that copied") \
	X(commit_waits, c, "allocations that waited for another thread's pages") \
	X(stolen, c, "idle threads' caches emptied by the service thread") \
	X(forks_copied, c, "forks whose child got a copy of the pool's memory") \
	X(forks_cow, c, "forks left to the kernel's copy-on-write") \
	X(forks_uncovered, c, "forks_cow where the pool did not cover the heap: such a child may die") \
	X(forks_refused, c, "forks refused with ENOMEM") \
	X(fork_copied_bytes, Bc, "memory copied for children") \
	X(bad_pointers, c, "misuses reported (HUGEPIN_ABORT=0)") \
	X(small_bytes, B, "address space in use by the built-in small allocator") \
	X(service_wakeups, c, "times the service thread woke") \
	X(small_outside_bytes, B, "memory of the built-in small allocator outside the range that is set aside for it") \
	X(guard_bytes, B, "HUGEPIN_GUARD: inaccessible pages behind live buffers") \
	X(guard_kept_bytes, B, "HUGEPIN_GUARD: freed buffers that are inaccessible and not used again yet") \
	X(guard_calls, c, "HUGEPIN_GUARD: calls of mprotect(2), two for a malloc and one for a free") \
	X(guard_missing, c, "HUGEPIN_GUARD: buffers or frees without, as there would be too many mappings")

struct hugepin_stats {
	uint64_t version; /* HUGEPIN_VERSION of the library that filled it */
#define HUGEPIN_STATS_MEMBER(name, unit, sentence) uint64_t name;
	HUGEPIN_STATS_LIST(HUGEPIN_STATS_MEMBER)
#undef HUGEPIN_STATS_MEMBER
};

/* Copy the statistics. `size` is sizeof *ret_: as many bytes are written as both sides know. Returns the number of bytes
 * the library knows; -EINVAL if ret_ is NULL. Each member is exact at some moment of the call, not all at the same.
 * Never blocks. */
int hugepin_stats(struct hugepin_stats *ret_, size_t size);

/* The statistics live on a page of their own, which another process may read through /proc/PID/mem: it is the object
 * that the dynamic symbol hugepin_stats_page of libhugepin.so names (not declared here, so that no program makes a copy of
 * it by a copy relocation). magic is HUGEPIN_STATS_MAGIC once the heap is in use. */
#define HUGEPIN_STATS_MAGIC UINT64_C(0x6875676570696e31) /* "hugepin1" */
struct hugepin_stats_page {
	uint64_t magic, size; /* size: sizeof(struct hugepin_stats) */
	struct hugepin_stats stats;
};

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
