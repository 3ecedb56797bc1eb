/*
 * hugepin: large buffers in hugepages, and a cache of their registrations.
 *
 * Rules for every function here, unless its comment says otherwise:
 *  - `int` functions return 0 or more, or -errno. On failure errno, stderr and every ret_ argument are left alone.
 *    Functions shaped like malloc return NULL and set errno.
 *  - Sizes are bytes. Any thread may call. Handles and buffers may be handed between threads.
 *  - A struct that shares its name with a function has a second name in _t, for C++: there `hugepin_stats s;` would
 *    name the function, and `hugepin_stats_t s;` names the struct.
 *  - Nothing prints or exits, with three exceptions: a malformed HUGEPIN_ variable (one line), HUGEPIN_STATS at exit,
 *    and a heap found misused (one line, then abort; HUGEPIN_ABORT=0 makes it a reported no-op).
 *
 * The guide is hugepin(7). Each group of functions has its page in section 3.
 */
#ifndef HUGEPIN_H
#define HUGEPIN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
/* A struct and a function of one name: to C++, the function hides a constructor that nobody calls. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

#define HUGEPIN_VERSION_MAJOR 0
#define HUGEPIN_VERSION_MINOR 1
#define HUGEPIN_VERSION ((HUGEPIN_VERSION_MAJOR << 16) | HUGEPIN_VERSION_MINOR)

/* The version of the library that runs. HUGEPIN_VERSION is the version compiled against. Never blocks. */
unsigned hugepin_version(void);

/* ------------------------------------------------------------------ heap: hugepin_malloc(3) */

/* The smallest request, in bytes, that the heap serves from hugepages. Smaller requests go to the next malloc down
 * (Rex, Mietke, Rehm 2006, section 3.2, item 1). */
#define HUGEPIN_LARGE_MIN 32768

/* As malloc, calloc, realloc and free of ISO C. Buffers that the heap serves start with a base page.
 * hugepin_realloc(p, 0) frees p and returns NULL, as glibc does.
 * The caller owns the buffer until he frees it, on any thread. Buffers of hugepin_malloc must go to hugepin_free. If
 * libhugepin-malloc.so is loaded, the two families are one.
 * Errors: NULL with ENOMEM. hugepin_free leaves errno alone.
 * May block: on a lock, mostly held for less than a microsecond (fork holds it for the time of the copy), and while the
 * kernel zeroes new pages. Not async-signal-safe. May be called from fork handlers and thread destructors.
 * Algorithm: segregated fit in address order over 4 KiB chunks (Wilson et al. 1995), without coalescing on free (Rex et
 * al. 2006, section 3.2). A pairing heap for each class of lengths finds the lowest run of free chunks. */
void *hugepin_malloc(size_t size);
void *hugepin_calloc(size_t count, size_t size);
void *hugepin_realloc(void *ptr, size_t size);
void hugepin_free(void *ptr);

/* A buffer aligned to `align`, a power of two. NULL with EINVAL for another `align`, with ENOMEM otherwise. The heap
 * serves an alignment of HUGEPIN_LARGE_MIN or more, whatever the size. Give back with hugepin_free. */
void *hugepin_aligned_alloc(size_t align, size_t size);

/* The number of bytes that may be used from ptr on: never less than was asked for. 0 for NULL. Never blocks for a heap
 * buffer. */
size_t hugepin_usable_size(const void *ptr);

/* ------------------------------------------------------------------ extents: hugepin_extent(3) */

/* The kind of memory in an extent. A mixed extent reports the weakest kind in it. */
enum { HUGEPIN_KIND_BASE = 0, HUGEPIN_KIND_THP = 1, HUGEPIN_KIND_HUGETLB = 2 };

/* An extent is a naturally aligned run of hugepages. The heap maps memory by extents, and memory should be registered
 * by extents. gen differs between two extents that had the same address. page_shift is log2 of the smallest page that
 * certainly backs the extent: that of base pages, 12 where they have 4 KiB, also for THP (the kernel may split them); 21
 * or 30 for hugetlb. node is that of HUGEPIN_NUMA, or -1. */
struct hugepin_extent {
	void *addr;
	size_t len;
	uint64_t gen;
	uint32_t page_shift, kind;
	int32_t node;
	uint32_t pad;
};
typedef struct hugepin_extent hugepin_extent_t;

/* Describe the extent that contains ptr, an address anywhere inside a heap buffer. `size` is sizeof *ret_: the library
 * writes as many bytes as both sides know. Returns the number of bytes the library knows. -ENOENT: ptr is not in the
 * heap. -EINVAL: ret_ is NULL or size is 0. Takes the heap's lock for some nanoseconds. A watcher may call it. */
int hugepin_extent(const void *ptr, struct hugepin_extent *ret_, size_t size);

/* Call leaving(arg, extent) each time before memory leaves the heap. addr and len are the part that leaves; the other
 * members describe its extent. The kernel takes the pages when the callback returns.
 * The callback runs on the thread that gives the memory back: the service thread, a caller of hugepin_purge or
 * malloc_trim, or a thread whose allocation would otherwise fail. No lock of the heap is held, so the callback may
 * allocate and free. It must not open or close stdio streams: a fork in another thread would wait for it for ever. It
 * must not call hugepin_watch or hugepin_unwatch (both return -EDEADLK), nor hugepin_purge (which then does nothing).
 * Give *ret_id to hugepin_unwatch. -EINVAL (no function or no ret_id), -ENOSPC (16 watchers), -EDEADLK, -ENOMEM
 * (RLIMIT_DATA does not let the list be written). */
int hugepin_watch(void (*leaving)(void *arg, const struct hugepin_extent *), void *arg, int *ret_id);

/* End a watch. When this returns, the callback is not running and will not run again. -ENOENT, -EDEADLK. May block for
 * as long as a callback runs. */
int hugepin_unwatch(int id);

/* Give back all memory of the heap that is wholly free now, without waiting for the decay time. Returns 0. Blocks for
 * some microseconds a hugepage. Does nothing inside a watcher. */
int hugepin_purge(void);

/* ------------------------------------------------------------------ pin cache: hugepin_domain(3), hugepin_pin(3) */

/* A domain is one place to register memory with. It has a backend, the backend's context (a protection domain of a
 * verbs device, an io_uring, or nothing), a policy and a budget. A process may have HUGEPIN_DOMAINS_MAX domains at a
 * time. */
typedef struct hugepin_domain hugepin_domain;
#define HUGEPIN_DOMAINS_MAX 64

/* The access that memory is registered for. A pin that says 0 gets the domain's default. */
enum {
	HUGEPIN_READ = 1, /* the device reads the memory: sending, writing to a file */
	HUGEPIN_WRITE = 2, /* the device writes to the memory: receiving, reading a file */
	HUGEPIN_REMOTE_READ = 4, /* a peer may read the memory */
	HUGEPIN_REMOTE_WRITE = 8,
	HUGEPIN_REMOTE_ATOMIC = 16,
	HUGEPIN_RELAXED = 32, /* relaxed ordering, if the device has it; an attribute of the domain, not of a pin */
	HUGEPIN_PIN_UNCACHED = 64, /* not an access: register for this pin alone, deregister at its unpin */
	HUGEPIN_ON_DEMAND = 128, /* not for callers: a domain that registers on demand passes this to its backend */
	/* Not accesses: phases of a transfer, for hugepin_prefetch. */
	HUGEPIN_PREFETCH_NEXT = 256, /* the payload is next */
	HUGEPIN_PREFETCH_WAIT = 512, /* the program now waits for the payload */
};

/* The abilities of a backend. The library asks once, when a domain is opened. Zero in the first three members: no
 * limit. */
struct hugepin_limits {
	size_t len_max; /* bytes of one registration */
	size_t bytes_max; /* bytes of all registrations at a time */
	uint32_t regs_max; /* registrations at a time */
	uint32_t access; /* HUGEPIN_READ ... HUGEPIN_RELAXED; a pin that wants others gets -EOPNOTSUPP */
	uint32_t flags; /* HUGEPIN_LIMIT_* */
	uint32_t pad;
};
enum {
	HUGEPIN_LIMIT_OPENER = 1, /* only the thread that opened the domain may register and deregister */
	HUGEPIN_LIMIT_LATE = 2, /* the kernel may charge for deregistered memory up to two seconds longer */
	HUGEPIN_LIMIT_ODP = 4, /* registers without pinning when asked for HUGEPIN_ON_DEMAND */
	HUGEPIN_LIMIT_BOTH = 8, /* registers for reading and writing, whatever is asked for */
	/* several calls of reg may run at a time, and that is quicker (hugepin_register) */
	HUGEPIN_LIMIT_PARALLEL = 16,
};

/* The keys of one registration. With io_uring, lkey is the buffer index. The library does not use `cookie`, which is
 * the backend's. */
struct hugepin_reg {
	uint32_t lkey, rkey;
	uint64_t cookie;
};

/* How a domain registers. Write your own backend for a device that has none here. The library holds the domain's lock
 * in all calls except now_ns: one call at a time for each domain, on any thread (HUGEPIN_LIMIT_OPENER: on the
 * opener's). With HUGEPIN_LIMIT_PARALLEL, hugepin_register calls reg on several threads at a time, while its own thread
 * holds the lock for all of them; no other function is called meanwhile. A function may block and allocate. It must not
 * call functions of any domain except hugepin_forget. addr and len are multiples of the base page.
 *  reg       0 and *ret_, or -errno. -ENOMEM, -EPERM, -EAGAIN: a limit is reached; the library deregisters something
 *            and calls again. -EFAULT: the memory is not there, or not for that access. -EINVAL, -EOPNOTSUPP: the
 *            device cannot take this memory (or not in one piece).
 *  dereg     0, or -errno: the library counts the failure and forgets the registration.
 *  prefetch  may be NULL. Bring the memory [addr, addr + len) of an on-demand registration in. 0: the device did
 *            this; 1: the backend did it by other means.
 *  limits    0 and *ret_, or -errno, which hugepin_domain_open returns.
 *  now_ns    may be NULL: CLOCK_MONOTONIC. The domain's clock, for tests and simulations. With such a clock the helper
 *            has no timer: it acts at the next pin or unpin.
 *  close     may be NULL. The domain is closed, or could not be opened: free ctx.
 *  paging    may be NULL. hugepin_domain_paging: 0 and *ret_, or -errno; -EOPNOTSUPP: the device counts nothing.
 *  terms     may be NULL. Policy hybrid, when the domain is opened: 0 and *ret_, or -errno: nothing was measured. */
struct hugepin_paging;
struct hugepin_terms;
struct hugepin_backend {
	size_t size; /* sizeof(struct hugepin_backend) */
	const char *name;
	int (*reg)(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_);
	int (*dereg)(void *ctx, struct hugepin_reg *reg);
	int (*prefetch)(void *ctx, const struct hugepin_reg *reg, void *addr, size_t len);
	int (*limits)(void *ctx, struct hugepin_limits *ret_);
	uint64_t (*now_ns)(void *ctx);
	void (*close)(void *ctx);
	int (*paging)(void *ctx, struct hugepin_paging *ret_);
	int (*terms)(void *ctx, struct hugepin_terms *ret_);
};

/* What operations of a device take, as measured, in nanoseconds: each once, and more for each base page. 0: it
 * was not measured. */
struct hugepin_terms {
	float reg, reg_page, dereg, dereg_page; /* of memory that is pinned */
	float demand, demand_page; /* registering on demand */
	float bring, bring_page; /* prefetch of pages that are not in memory */
	float fault_send, fault_receive; /* of one page that is not in memory, at the sender or at the receiver */
};
typedef struct hugepin_terms hugepin_terms_t;

/* When memory is registered, and for how long. DEFAULT is HUGEPIN_POLICY, or arena.
 *  ARENA    the heap's extents as wholes, at the first pin into one or earlier (Gerofi et al. 2016, pre-registration);
 *           other memory as LRU
 *  LRU      pinned memory stays registered until the budget needs the room (the pin-down cache of Tezuka et al. 1998)
 *  NONE     registered for each pin, deregistered at its unpin
 *  ODP      registered without pinning, where the device can; brought in as HUGEPIN_ODP_* says
 *  CF11     a helper thread deregisters between uses and registers again in time, by the periods of call sites (Li,
 *           Cameron et al. 2011)
 *  PREDICT  as CF11, but by the order of uses and with a price for misses; with a budget, memory that is used next is
 *           kept
 *  HYBRID   what is used often is pinned, within the budget; other memory is registered as with ODP, and a helper thread
 *           has the device bring it in before its next use (hugepin_odp(7)) */
enum {
	HUGEPIN_POLICY_DEFAULT,
	HUGEPIN_POLICY_ARENA,
	HUGEPIN_POLICY_LRU,
	HUGEPIN_POLICY_CF11,
	HUGEPIN_POLICY_PREDICT,
	HUGEPIN_POLICY_ODP,
	HUGEPIN_POLICY_NONE,
	HUGEPIN_POLICY_HYBRID,
};

/* When memory that is registered on demand is brought in (Li et al. 2016, section VII). Otherwise the device's faults do
 * that, page by page. DEFAULT is HUGEPIN_ODP, or optimal.
 *  NATIVE    never: it is registered, and nothing more
 *  ENHANCED  once, when it is registered
 *  OPTIMAL   while a transfer's control messages are under way, and again while the program waits: as hugepin_prefetch
 *            is told of these phases. Also once when a pin has registered it, by the service thread */
enum { HUGEPIN_ODP_DEFAULT, HUGEPIN_ODP_NATIVE, HUGEPIN_ODP_ENHANCED, HUGEPIN_ODP_OPTIMAL };

/* The child's share of heap memory that is registered. DEFAULT is HUGEPIN_FORK.
 *  COPY      a copy, made before the fork
 *  COW       the kernel's way: fork() copies pinned pages, which takes longer and may fail
 *  DONTFORK  nothing: a touch in the child is SIGSEGV, and the fork costs nothing
 * Where domains disagree about memory, COPY goes before COW before DONTFORK. */
enum { HUGEPIN_FORK_DEFAULT, HUGEPIN_FORK_COPY, HUGEPIN_FORK_COW, HUGEPIN_FORK_DONTFORK };

/* Who reports that memory outside the heap goes away (hugepin_pin(3), "Memory that goes away").
 *  DEFAULT  the kernel; where libhugepin-malloc.so is loaded, its calls, so that hits need not ask the kernel
 *  KERNEL   the kernel, asked at each hit while the program has several threads
 *  PROGRAM  the program, which calls hugepin_forget before memory goes; shared memory and mapped files are cached as
 *           well
 *  NONE     nobody: such memory is registered for each pin */
enum { HUGEPIN_WATCH_DEFAULT, HUGEPIN_WATCH_KERNEL, HUGEPIN_WATCH_PROGRAM, HUGEPIN_WATCH_NONE };

/* How much of the memory a pin for remote access (HUGEPIN_REMOTE_*) opens to the peer that gets its rkey.
 *  EXACT   the base pages of the pinned range, and nothing else
 *  EXTENT  the registration that any pin of the range would get: whole hugepages of the heap, or an extent. For peers
 *          that may see, or write, the whole heap. Fewer registrations */
enum { HUGEPIN_REACH_EXACT, HUGEPIN_REACH_EXTENT };

/* A registration with remote access comes to its end. It was pinned, so its rkey may be with a peer. `pinned` 0: the
 * key stops working when the callback returns. 1: pins are out, the key works until their last unpin, and the memory is
 * wanted back. This is told once of the pins that are out, and the end is told again. */
struct hugepin_expiry {
	uint64_t addr, len; /* what is registered */
	uint32_t rkey, pinned;
};
typedef struct hugepin_expiry hugepin_expiry_t;

/* How to open a domain. All members zero except size is a good choice. NULL means the same. */
struct hugepin_attr {
	size_t size; /* sizeof(struct hugepin_attr) */
	uint32_t policy; /* HUGEPIN_POLICY_* */
	uint32_t access; /* default access of pins; 0: HUGEPIN_READ | HUGEPIN_WRITE; HUGEPIN_RELAXED may be added */
	uint32_t fork; /* HUGEPIN_FORK_* */
	uint32_t flags; /* 0 */
	/* budget. 0: the limit of RLIMIT_MEMLOCK and of the device; UINT64_MAX: no budget, so nothing is evicted and
	 * the kernel's -ENOMEM is returned */
	uint64_t pinned_bytes_max;
	uint32_t pinned_regions_max; /* 0: the device's limit */
	uint32_t odp; /* HUGEPIN_ODP_* */
	uint32_t watch; /* HUGEPIN_WATCH_* */
	uint32_t reach; /* HUGEPIN_REACH_* */
	/* May be NULL. Called with expire_arg, on any thread, also inside the program's own calls that pin, unpin,
	 * purge or close, with the domain's lock: must not block, and must call no function of a domain. */
	void (*expire)(void *arg, const struct hugepin_expiry *);
	void *expire_arg;
};

/* Open a domain. *backend is copied. ctx is the caller's, or backend->close frees it. close is called on failure as
 * well, except for -EINVAL. May block and allocate.
 * -EINVAL: a NULL, or an unknown size, policy, access, fork, flag, odp, watch or reach. -EOPNOTSUPP: the device lacks
 * the policy or the access. -ENOSPC: HUGEPIN_DOMAINS_MAX. -ENOSYS: no membarrier(2). -ENOMEM. Or the error of limits()
 * (-EIO for its -EINVAL). */
int hugepin_domain_open(const struct hugepin_backend *backend, void *ctx, const struct hugepin_attr *attr,
			hugepin_domain **ret_);

/* Deregister everything and close. No other thread may be using the domain. Requests of hugepin_pin_try that wait get
 * -ECANCELED before this returns. -EBUSY: pins are out, and nothing has changed; seldom, another thread's pin in
 * another domain is counted here for a moment: close again. -EPERM: only the opener may use the domain, the caller is
 * not the opener, and the opener still lives. -EINVAL: NULL, or closed before. In a child of fork this frees the
 * child's copy, even while pins are out. */
int hugepin_domain_close(hugepin_domain *);

/* The backend that only locks memory (mlock) and gives no keys. Its ctx is NULL. */
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
	X(decayed, c, "registrations given back because their heap memory had long been free") \
	X(uncached, c, "pins registered for themselves alone") \
	X(cut, c, "pins whose key ends before the memory does") \
	X(refused, c, "registrations that the kernel or the device refused for lack of room") \
	X(nobufs, c, "pins that failed with -ENOBUFS") \
	X(failed, c, "deregistrations that failed") \
	X(prefetched, c, "hints carried out") \
	X(prefetched_otherwise, c, "of these, by touching pages where the device could not") \
	X(released, c, "registrations that the helper gave back") \
	X(repinned, c, "registrations that the helper made again before their use") \
	X(late, c, "misses on memory that had been registered before and given back") \
	X(records_lost, c, "pins and unpins whose record was lost, because the helper was behind") \
	X(helper_ns, c, "nanoseconds spent in the helper") \
	X(sharers, n, "helpers of this user's processes on this helper's core, this one included; 0: it has no core") \
	X(helper_delay_ns, n, "recent worst lateness of the helper, by which it begins earlier, in nanoseconds") \
	X(cost_fixed_ns, n, "the helper's estimate for one registration of its most frequent size: fixed nanoseconds") \
	X(cost_page_ns, n, "the same estimate: nanoseconds for each page") \
	X(cost_error, n, "mean error of this estimate, in thousandths") \
	X(crowded, c, "registrations that found as many others as the device, or pinned_regions_max, allows") \
	X(brought_bytes, Bc, "on-demand memory that the device was made to bring in") \
	X(prefetched_late, c, "announced transfers whose next phase was told before the service thread came to them")

struct hugepin_domain_stats {
	uint64_t version; /* HUGEPIN_VERSION of the library that filled it */
#define HUGEPIN_STATS_MEMBER(name, unit, sentence) uint64_t name;
	HUGEPIN_DOMAIN_STATS_LIST(HUGEPIN_STATS_MEMBER)
#undef HUGEPIN_STATS_MEMBER
};
typedef struct hugepin_domain_stats hugepin_domain_stats_t;

/* Copy a domain's statistics, as hugepin_stats does. Never blocks. */
int hugepin_domain_stats(hugepin_domain *, struct hugepin_domain_stats *ret_, size_t size);

/* What the device did about memory that is registered on demand, in pages: of all that is registered now. Deregistered
 * memory takes its counts with it. */
#define HUGEPIN_NOT_COUNTED UINT64_MAX /* for a member: the device does not count this */
struct hugepin_paging {
	uint64_t faults; /* brought in because the device met them missing */
	uint64_t prefetches; /* brought in ahead of that */
	uint64_t invalidations; /* taken from the device, since the kernel moved them or took them back */
};
typedef struct hugepin_paging hugepin_paging_t;

/* Ask the device's driver for these counts. `size` is sizeof *ret_. 0, or: -EOPNOTSUPP: not available: the device, its
 * driver or the backend does not count. -EINVAL: a NULL. -ESTALE. Or the error of the backend. Blocks, and takes the
 * domain's lock. */
int hugepin_domain_paging(hugepin_domain *, struct hugepin_paging *ret_, size_t size);

/* A pin: a reference on a registration that covers [base, base + len). Pins are the caller's memory, 32 bytes for ever.
 * The caller may move them and hand them to other threads. */
struct hugepin_pin {
	/* the part of the range that the keys cover, from its start. len is shorter than asked only if the device's
	 * longest registration ends inside the range: pin the rest by another call */
	uint64_t base, len;
	uint32_t lkey, rkey;
	uint64_t ref; /* used by the library; 0: not a pin */
};
typedef struct hugepin_pin hugepin_pin_t;

/* Pin [addr, addr + len) and return one reference in *ret_. While the reference is out, the range stays registered with
 * these keys, at least for `access` (HUGEPIN_READ ...; 0: the domain's default). The registration is rounded out: heap
 * memory to whole hugepages or the extent, other memory to base pages. With remote access: to base pages, for this
 * access alone (HUGEPIN_REACH_EXACT).
 * -EINVAL: len is 0, the range wraps, or access has unknown bits. -EFAULT: the memory is not there, or is read-only and
 * to be written (with ODP the device finds out later). -EOPNOTSUPP: the device lacks the access, or cannot register the
 * memory. -ENOBUFS: over the budget or a kernel limit, and everything registered is in use. -ENOMEM: the same without a
 * budget, or no memory for tables. -EPERM: not registered, and only the opener may register. -ESTALE: the domain is the
 * parent process's. Or the error of the backend.
 * Any thread. A pin of a registered range takes nanoseconds and does not block, except in the moment after watched
 * memory has gone away. Any other pin blocks for the backend, and for other registrations of the same domain. Not from
 * unmap hooks (hugepin_watch, backends), not in signal handlers. */
int hugepin_pin(hugepin_domain *, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* hugepin_pin for a layer whose own callers should be told apart. `site` names the place in the program: an address of
 * its code, best the return address of the layer's function. 0: the place is not known, and only the buffer tells uses
 * apart. hugepin_pin takes its own return address, and so do hugepin_pin_try, hugepin_pinv and hugepin_key_pin. */
int hugepin_pin_at(hugepin_domain *, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_,
		   uintptr_t site);

/* The outcome of a request of hugepin_pin_try. err 0: *pin is a pin of the range, which is the program's from now on:
 * copy it. Otherwise pin is NULL: -ECANCELED: the memory went away, or the domain was closed; or an error of
 * hugepin_pin. Called once, without a lock, on the service thread, or by hugepin_domain_close on its own. All signals
 * are blocked on the service thread, and it serves all domains: return soon. May call functions of the domain, except
 * after -ECANCELED, and never hugepin_domain_close. */
typedef void (*hugepin_pinned_fn)(void *arg, int err, const struct hugepin_pin *pin);

/* hugepin_pin that does not wait for the backend. 0 and *ret_: the range is registered, and this is a pin as of
 * hugepin_pin, at the same cost. -EAGAIN: not registered, as far as could be found out without waiting. The service
 * thread registers the range as hugepin_pin would, and evicts as that does; then done(arg, ...) is called, which may be
 * before this call returns. done NULL: no pin is taken, and no error told. Memory that can be cached is registered when
 * a later call asks for it.
 * -EBUSY: 64 requests of the domain wait, or there can be no service thread: nothing was started. -EPERM: not
 * registered, and only the opener may register: the opener calls hugepin_pin. -EINVAL: as hugepin_pin, and for
 * HUGEPIN_PIN_UNCACHED without done. Other errors as hugepin_pin. A child of fork has no requests. */
int hugepin_pin_try(hugepin_domain *, const void *addr, size_t len, unsigned access, hugepin_pinned_fn done, void *arg,
		    struct hugepin_pin *ret_);

/* Give a pin back, on any thread. The memory may stay registered. Clears *pin: a second unpin of it is -EINVAL, and so
 * is an unpin with another domain. Blocks only to deregister memory that was invalidated while it was pinned, or that
 * was registered for this pin alone. */
int hugepin_unpin(hugepin_domain *, struct hugepin_pin *pin);

/* Pin n pieces in order, each as hugepin_pin does. A piece that one key cannot cover takes several pins. Returns the
 * number of pins written to ret_ (at least n), or an error of hugepin_pin, with nothing pinned and ret_ cleared.
 * -EMSGSIZE: more than max pins are needed. -EINVAL also for n < 0 or NULL. n = 0 is 0. */
int hugepin_pinv(hugepin_domain *, const struct iovec *, int n, unsigned access, struct hugepin_pin *ret_, int max);

/* Give n pins back. Cleared pins are skipped. 0, or -EINVAL when one of them was not the domain's (the others are given
 * back). */
int hugepin_unpinv(hugepin_domain *, struct hugepin_pin *pins, int n);

/* A held key, for a buffer that is pinned again and again: made once of a pin of the buffer, it pins the same range at
 * the price of a few loads and a store, as long as the registration of that pin is kept. It is no reference: it keeps
 * nothing registered, and needs no end. 64 bytes for ever. Pins by a key only read it, so threads may share it, and it
 * may be copied. All zeros is a key that is not good. Only `pin` is the program's, to read. */
struct hugepin_key_domain; /* the library's */
struct hugepin_key {
	/* what each pin by the key is: base, len, lkey and rkey are those of the pin that the key was made of */
	struct hugepin_pin pin;
	const struct hugepin_key_domain *domain;
	const uint64_t *life; /* NULL: never good */
	uint64_t good;
	uint32_t pin_slow, unpin_slow;
};
#define HUGEPIN_KEY_LAYOUT 1 /* of this struct, which programs have compiled in */

/* Make a key of a pin that is out. The pin stays the caller's. `layout` is HUGEPIN_KEY_LAYOUT: a later library serves
 * keys of this layout, too, perhaps more slowly. -EINVAL: a NULL, layout 0, or not a pin of this domain that is out.
 * -EOPNOTSUPP: the library is older than the layout. Any thread. Never blocks. */
int hugepin_key_take(hugepin_domain *, const struct hugepin_pin *pin, unsigned layout, struct hugepin_key *ret_);

/* Pin by a key: as hugepin_pin of the key's range. 0: *key says what is pinned. hugepin_key_unpin gives the pin back;
 * so does hugepin_unpin, with a copy of key->pin, where *key may be overwritten meanwhile.
 * -ENOKEY: the registration has ended (it was evicted, or its memory went away), or the key is all zeros: pin by
 * hugepin_pin, and make another key of that pin. -EINVAL: the domain was closed. -ESTALE: the domain is the parent
 * process's. -ENOMEM: no memory for this thread's counters. A key does not ask whether heap memory is in use: memory
 * that was freed may still be registered.
 * Any thread, and several by one key. Takes some nanoseconds and no lock, except where a pin of the range would. Not in
 * signal handlers. */
int hugepin_key_pin(const struct hugepin_key *key);

/* Give a pin by the key back, on any thread. Each pin must be given back once: unlike hugepin_unpin, this cannot tell a
 * second time. -EINVAL: the key is all zeros, or of a domain that is closed or the parent process's. Blocks as
 * hugepin_unpin. */
int hugepin_key_unpin(const struct hugepin_key *key);

/* The two functions above are compiled into programs, and call these for everything but a hit. Programs do not call
 * them. counted: whether this thread has counted already. */
int hugepin_key_pin_slow(const struct hugepin_key *key, int counted);
int hugepin_key_unpin_slow(const struct hugepin_key *key, int counted);

#ifdef __GNUC__
/* Layout 1. A library that keeps its pins in another way has `life` point to a word that is not `good`, every bit of
 * `attention` set, and hugepin_key_counts NULL: then all goes to the two functions. */
struct hugepin_key_domain {
	uint32_t attention, pad;
	uint64_t ref;
};
struct hugepin_key_count {
	uint32_t pins, unpins;
};
/* The pins that this thread has counted, by the lower half of ref. NULL: it has none yet. */
extern __thread struct hugepin_key_count *hugepin_key_counts __attribute__((__tls_model__("initial-exec")));

/* The library has these as functions, too, for callers that cannot compile them. Inlined always, so that what is no hit
 * is called from the place of the pin. */
#ifndef HUGEPIN_KEY_INLINE
#define HUGEPIN_KEY_INLINE extern __inline__ __attribute__((__gnu_inline__, __always_inline__))
#endif

/* Count; then look at the word of attention; then at the life of the registration. The fence stops only the compiler.
 * It pairs with membarrier(2) of a thread that ends the registration: either that thread sees the count, or this one
 * sees the life ended. release, acquire: pair with the library's, as in a hit of hugepin_pin. */
HUGEPIN_KEY_INLINE int hugepin_key_pin(const struct hugepin_key *key)
{
	struct hugepin_key_count *count = hugepin_key_counts;

	if (__builtin_expect(!count || !key->life, 0))
		return hugepin_key_pin_slow(key, 0);
	count += key->pin.ref & UINT32_MAX;
	__atomic_store_n(&count->pins, __atomic_load_n(&count->pins, __ATOMIC_RELAXED) + 1, __ATOMIC_RELEASE);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (__builtin_expect(__atomic_load_n(&key->domain->attention, __ATOMIC_ACQUIRE) & key->pin_slow ||
				     __atomic_load_n(key->life, __ATOMIC_ACQUIRE) != key->good,
			     0))
		return hugepin_key_pin_slow(key, 1);
	return 0;
}

/* Look whether it is still the domain of the pin; count; then look at the word of attention. The fence pairs with
 * membarrier(2) of a thread that ends the registration: either that thread sees the count, or this one sees that it is
 * wanted. release: pairs with the sum of that thread. */
HUGEPIN_KEY_INLINE int hugepin_key_unpin(const struct hugepin_key *key)
{
	struct hugepin_key_count *count = hugepin_key_counts;

	if (__builtin_expect(!count || !key->life ||
				     (__atomic_load_n(&key->domain->ref, __ATOMIC_RELAXED) ^ key->pin.ref) >> 32,
			     0))
		return hugepin_key_unpin_slow(key, 0);
	count += key->pin.ref & UINT32_MAX;
	__atomic_store_n(&count->unpins, __atomic_load_n(&count->unpins, __ATOMIC_RELAXED) + 1, __ATOMIC_RELEASE);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (__builtin_expect(__atomic_load_n(&key->domain->attention, __ATOMIC_RELAXED) & key->unpin_slow, 0))
		return hugepin_key_unpin_slow(key, 1);
	return 0;
}
#endif

/* Register pools of buffers that stay, and pin them: as hugepin_pinv, but several ranges are registered at a time on up
 * to four threads, if the backend gains by that (HUGEPIN_LIMIT_PARALLEL), the process may use several processors, and
 * the policy has no helper. The threads end before the call returns. The pins keep the registrations from being
 * evicted, and pins of buffers inside find them registered. Ranges that do not fit the budget, or that the device
 * refuses, are registered one after the other, as hugepin_pin does it, and evict others. Errors as hugepin_pinv, with
 * nothing pinned. Takes the domain's lock for up to 64 registrations at a time. */
int hugepin_register(hugepin_domain *, const struct iovec *, int n, unsigned access, struct hugepin_pin *ret_, int max);

/* Give n pins back, as hugepin_unpinv, and deregister at once what has no other pin. What has, stays registered. Pins
 * of hugepin_pin may be among them. 0, or -EINVAL as hugepin_unpinv. Blocks for the backend. */
int hugepin_deregister(hugepin_domain *, struct hugepin_pin *pins, int n);

/* A hint: the range will be pinned soon. Where memory is registered on demand, also the next phase of a transfer (Li et
 * al. 2016, sections V and VI). A phase is a bit of `access`:
 *  none  a transfer is announced: its control messages are under way. Returns at once. The service thread registers the
 *        range if it fits the budget without evicting. Under HUGEPIN_ODP_OPTIMAL it has the device bring the range in
 *  NEXT  the payload is next: what has gone out since is brought in before this returns
 *  WAIT  the program waits, and the payload may not have arrived: the same
 * In domains that are not HUGEPIN_ODP_OPTIMAL, NEXT and WAIT return 0 at once. Otherwise they register a range that is
 * not registered, as an announcement does. They take the domain's lock, and the time of the device's calls. A device
 * that refuses is no error. -EINVAL as hugepin_pin. -EBUSY: too many hints are waiting. -ESTALE. */
int hugepin_prefetch(hugepin_domain *, const void *addr, size_t len, unsigned access);

/* Announce that the range is about to be unmapped, replaced or discarded by means that hugepin does not see
 * (hugepin_pin(3) has the list). The range is not in the heap. From now on no pin in any domain finds it registered.
 * -EBUSY: a part is pinned, and stays registered until its last unpin. (While another thread registers with the same
 * domain, 0 is possible there, too.) -EINVAL: empty or wrapping. Allocates nothing and calls no backend, so unmap hooks
 * may call it. */
int hugepin_forget(const void *addr, size_t len);

/* ------------------------------------------------------------------ lending keys: hugepin_lend(3), hugepin_lend(7) */

/* Keys for peers that read and write this process's memory themselves, within a budget: a peer asks once for the key of
 * a piece of memory, uses it without asking, and gives it back when it is asked to, or needs another (Firehose:
 * Bonachea and Bell 2003). Both sides open a lend: the side that owns the memory lends, the side that reads and writes
 * it borrows; one lend does both. Messages between peers are the caller's to carry, so any network serves. */
typedef struct hugepin_lend hugepin_lend;

/* Bytes of the longest message, without the caller's own bytes that ride in it (carry_max). */
#define HUGEPIN_LEND_MESSAGE_MAX 256

/* How what may be lent is shared among peers.
 *  POOL    a peer gets what is free. If nothing is, the peer that holds most is asked to give back what it has not used
 *          for longest
 *  STATIC  each peer has an equal share, which no other peer gets (Bonachea and Bell 2003) */
enum { HUGEPIN_LEND_POOL, HUGEPIN_LEND_STATIC };

/* A borrowed key. rkey opens the peer's memory [base, base + len), which begins at the address that was asked for. len
 * is shorter than asked if the key ends earlier: ask for the rest by another call. */
struct hugepin_far {
	uint64_t base, len;
	uint32_t rkey, peer;
	uint64_t ref; /* used by the library; 0: not a key */
};
typedef struct hugepin_far hugepin_far_t;

/* How to open a lend. Callbacks get the `arg` of hugepin_lend_open. They run inside calls of the same lend, on the
 * thread that made the call, except `wake`. */
struct hugepin_lend_attr {
	size_t size; /* sizeof(struct hugepin_lend_attr) */
	uint32_t peers; /* processes, this one included: they have the numbers 0 to peers - 1 */
	uint32_t policy; /* HUGEPIN_LEND_* */
	/* what lent keys open, with HUGEPIN_REACH_EXTENT at least: HUGEPIN_REMOTE_*; 0: HUGEPIN_REMOTE_READ |
	 * HUGEPIN_REMOTE_WRITE */
	uint32_t access;
	uint32_t carry_max; /* the caller's own bytes in a message, at most; 0: none; no more than 1 MiB */
	/* Memory that may be lent at a time, and memory that stays registered after it was given back. Together they
	 * are never exceeded. 0: half of the domain's budget, and an eighth of it. */
	uint64_t lent_bytes_max, idle_bytes_max;
	/* Send a message to a peer: it arrives once, and messages to one peer arrive in order. The message is the
	 * library's again when this returns. 0; -EAGAIN: no room now, the library tries again in
	 * hugepin_lend_progress(); another error: the peer is lost, and the caller will call hugepin_lend_gone. Called
	 * with the lend's lock: must call no function of the lend. */
	int (*send)(void *arg, uint32_t peer, const void *msg, size_t len);
	/* An asked-for key is here: err 0 and *key, of which the caller has one use (hugepin_lend_done). Bytes that the
	 * asking call carried are in the peer's memory, from key->base on, key->len of them at most. Or there is none,
	 * and key is NULL: -ENOBUFS: the peer lends no more now; -EACCES: the peer does not lend that memory; -EFAULT:
	 * it is not there (a part of what was carried may have been written, after all other errors nothing was);
	 * -ECONNRESET: the peer is gone; -ECANCELED: the lend is being closed; or the peer's error. Called once for
	 * each token, without a lock: may call functions of the lend, except close. */
	void (*ready)(void *arg, void *token, int err, const struct hugepin_far *key);
	/* Whether a peer may have the key of [addr, addr + len) of this process's memory. 0 and the buffer that
	 * contains addr: no byte outside of *ret_buffer is lent with it. Or -EACCES. NULL, only in a domain with reach
	 * HUGEPIN_REACH_EXTENT: the whole heap, and nothing else. A question that has to wait is asked again. Memory
	 * that is offered no more may be lent still: until its keys are asked back, when it is freed or unmapped.
	 * Called with the lend's lock: must call no function of the lend. */
	int (*offer)(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer);
	/* May be NULL. There is work for hugepin_lend_progress(): memory is wanted back. Called on the service
	 * thread, which a lend with this callback starts, without a lock: must return soon, and call no function of
	 * the lend. */
	void (*wake)(void *arg);
};

/* Open a lend of the domain's memory; one at a time in each domain. The domain must outlive the lend. attr is copied.
 * -EINVAL: a NULL (send, ready; offer, unless reach is EXTENT), no peers, an unknown size, policy or access, carry_max
 * too large, or sums that wrap. -EBUSY: the domain has a lend. -EOPNOTSUPP: the device lacks the
 * access, or HUGEPIN_LIMIT_OPENER.
 * -ESTALE: the domain is the parent process's. -ENOMEM. Allocates. */
int hugepin_lend_open(hugepin_domain *, const struct hugepin_lend_attr *attr, void *arg, hugepin_lend **ret_);

/* A key of the peer's memory [addr, addr + len). 1: *ret_ is a key, with one use, which hugepin_lend_done gives back
 * when the transfer has completed. 0: the peer was asked; ready(arg, token, ...) follows. Never waits for a peer.
 * -EINVAL: no such peer, len is 0, or the range wraps. -ENOTCONN: the peer is gone. -EBUSY: too many questions are out
 * (hugepin_lend(3)). -ENOMEM. -ESTALE: the lend is the parent process's. Or the error of send(). ready() is not called
 * after an error. Any thread. A key that is borrowed already takes nanoseconds and no lock, as a hit of hugepin_pin
 * does. */
int hugepin_lend_key(hugepin_lend *, uint32_t peer, uint64_t addr, size_t len, void *token, struct hugepin_far *ret_);

/* The same, and the peer has to be asked: `data`, of len bytes, rides in the message, and the peer's library writes it
 * to addr. So a put that misses takes one message and one answer. If this returns 1, nothing was carried. -EMSGSIZE:
 * len is over this side's carry_max; a peer whose carry_max is lower refuses (ready() gets -EMSGSIZE). */
int hugepin_lend_put(hugepin_lend *, uint32_t peer, uint64_t addr, const void *data, size_t len, void *token,
		     struct hugepin_far *ret_);

/* The transfer by this key has completed: give the use back. Clears *key. -EINVAL: not a key of this lend, or given
 * back before. Any thread. Takes nanoseconds, and sends a message if the peer waits for the key. */
int hugepin_lend_done(hugepin_lend *, struct hugepin_far *key);

/* Hand in a message from a peer. Messages from one peer must be handed in in their order. -EILSEQ: no message of this
 * protocol, or not one that this peer can have sent now; nothing has changed. -ENOTCONN: the peer is gone, or lost: no
 * message reaches it any more, so call hugepin_lend_gone. -EINVAL. -ENOMEM: no memory for this thread's counters;
 * nothing has changed, hand it in again. -ESTALE. May register memory, and so block. Any thread. */
int hugepin_lend_message(hugepin_lend *, uint32_t peer, const void *msg, size_t len);

/* Send what could not be sent before, and ask for keys back whose memory is wanted. Call it where the program makes
 * progress, and after wake(). Takes nanoseconds if there is nothing to do. 0, or -ESTALE. */
int hugepin_lend_progress(hugepin_lend *);

/* The peer is gone: no transfer of its and no transfer to it is under way or will be (its queue pair is in the error
 * state or destroyed), and no message of its will be handed in. Its keys end, questions to it get -ECONNRESET, and what
 * was lent to it is idle. -EINVAL. -EALREADY. hugepin_lend_again: the number is a peer's again. -EINVAL. -EALREADY: it
 * was not gone. */
int hugepin_lend_gone(hugepin_lend *, uint32_t peer);
int hugepin_lend_again(hugepin_lend *, uint32_t peer);

/* Close. -EBUSY: a peer that is not gone has keys of ours, or uses of keys are out; nothing has changed. Questions that
 * are out get -ECANCELED. In a child of fork this frees the child's copy. No other thread may be using the lend. */
int hugepin_lend_close(hugepin_lend *);

/* X(name, unit, sentence), as HUGEPIN_STATS_LIST. */
#define HUGEPIN_LEND_STATS_LIST(X) \
	X(lent_bytes, B, "memory that the peer has keys of; of all peers: memory lent to several counts once") \
	X(lent, n, "keys lent to the peer") \
	X(borrowed_bytes, B, "memory of the peer's that this side has keys of") \
	X(borrowed, n, "keys borrowed from the peer") \
	X(asked, c, "questions of the peer") \
	X(refused, c, "of these, answered no") \
	X(waited, c, "of these, answered when other memory had been given back") \
	X(asks, c, "questions to the peer") \
	X(denied, c, "of these, answered no") \
	X(recalls, c, "keys asked back from the peer") \
	X(recalled, c, "keys that the peer asked back") \
	X(carried, c, "bytes that rode in questions, in either direction") \
	X(sent, c, "messages sent") \
	X(received, c, "messages received") \
	X(broken, c, "messages refused by -EILSEQ") \
	X(idle_bytes, B, "registered memory that was given back; only of all peers") \
	X(idle_bytes_max, B, "the most that is kept idle now; only of all peers") \
	X(bytes_peak, B, "the most that lent and idle memory have been together; only of all peers") \
	X(bucket_bytes, B, "the size of the pieces that are lent now, or more; only of all peers") \
	X(table_bytes, B, "memory for the lend's tables; only of all peers")

struct hugepin_lend_stats {
	uint64_t version; /* HUGEPIN_VERSION of the library that filled it */
#define HUGEPIN_STATS_MEMBER(name, unit, sentence) uint64_t name;
	HUGEPIN_LEND_STATS_LIST(HUGEPIN_STATS_MEMBER)
#undef HUGEPIN_STATS_MEMBER
};
typedef struct hugepin_lend_stats hugepin_lend_stats_t;
#define HUGEPIN_LEND_ALL UINT32_MAX /* all peers */

/* Copy the statistics of a peer, or of HUGEPIN_LEND_ALL. `size` is sizeof *ret_. Returns the number of bytes that the
 * library knows. -EINVAL. Takes the lend's lock. */
int hugepin_lend_stats(hugepin_lend *, uint32_t peer, struct hugepin_lend_stats *ret_, size_t size);

/* ------------------------------------------------------------------ packing, without a device: hugepin_sg(7) */

/* Many small pieces as one message. Functions here do not allocate, block (unless a key function does) or keep state:
 * any thread may call them, and several at once. Pieces of length 0 are legal everywhere. Their addresses are not
 * looked at, and adapters never see them.
 * Common errors: -EINVAL (a NULL, n < 0, a piece at NULL, or one that wraps round the end of the address space),
 * -EMSGSIZE (does not fit the room given), -EOVERFLOW (over UINT32_MAX bytes: the most that one work request can say).
 * On failure output arrays may have been written to. */

/* One scatter/gather element, laid out as struct ibv_sge. */
struct hugepin_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

/* The outcome of mapping or filling. */
struct hugepin_sg_info {
	uint64_t bytes; /* bytes of the message */
	uint32_t sges, pins; /* numbers of elements, and of pins to give back */
	uint32_t copied; /* bytes that were copied; no element points into their pieces */
	uint32_t lines; /* cache lines of 64 bytes that the elements touch: the device reads these */
};

/* A key function finds the key of [addr, addr + len) for `access` (HUGEPIN_READ to send). *ret_ is a pin whose [base,
 * base + len) contains addr. The range may begin before addr, and end before or after addr + len. Another call asks for
 * the rest of the piece. A piece that begins in a range already returned with a ref, or in the latest range, is not
 * asked for. ref is 0 where there is nothing to give back. 0, -ENOKEY (not registered), or another error: the caller of
 * the key function then returns that error. A range that does not contain addr makes the caller return -EINVAL.
 * addr NULL: give back the pin *ret_, which an earlier call returned with a ref. The result is ignored. Pins taken
 * before an error are given back this way. */
typedef int (*hugepin_key_fn)(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* The pin cache as a key function. Its argument is a hugepin_domain. It finds registered memory and takes one reference
 * on it, as hugepin_pin does, but registers nothing (-ENOKEY). It returns the whole registration's range. It finds no
 * registration of a peer's own (HUGEPIN_REACH_EXACT). A caller who wants registration passes his own function, which
 * calls hugepin_pin, and hugepin_unpin for addr NULL. -EINVAL, -EOPNOTSUPP, -ESTALE and -ENOMEM as hugepin_pin. Threads
 * as hugepin_pin: a range that is not found at once is looked up under the domain's lock. */
int hugepin_sg_key(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* Make elements for n pieces, in their order. Empty pieces are dropped. A piece is split where its registration ends.
 * Neighbours that lie one after the other under one key are merged. Writes at most `sges` elements and `pins` pins: one
 * pin for each call of the key function that gave a ref, and at most one for each registration that contains its pieces
 * whole. The caller gives ret_pins back (hugepin_unpinv) when the device is done.
 * Returns the number of elements; 0 where all pieces are empty. -EINVAL and -EOVERFLOW come before the key function is
 * called. -EMSGSIZE: more elements or pins are needed; ret_info, if not NULL, then says how many elements, and how many
 * pins at most. -ENOKEY, or the error of the key function. On failure no pin is out. */
int hugepin_sg_map(const struct iovec *iov, int n, unsigned access, hugepin_key_fn key, void *arg,
		   struct hugepin_sge *ret_sges, int sges, struct hugepin_pin *ret_pins, int pins,
		   struct hugepin_sg_info *ret_info);

/* Pieces of a strided layout (MPI_Type_vector): `count` blocks of `block` bytes. Each block starts `stride` bytes after
 * the start of the one before; stride may be negative. Blocks that touch, in this order, become one piece. Returns the
 * number of pieces. -EINVAL, -EMSGSIZE. The total length has no limit. */
int hugepin_sg_strided(const void *base, size_t block, ptrdiff_t stride, size_t count, struct iovec *ret_, int max);

/* Pieces of an indexed layout (MPI_Type_create_hindexed): len[i] bytes at base + off[i], in order. An off[i] below 0,
 * cast to size_t, is in front of base. Empty pieces are dropped. Pieces that touch, in this order, become one. Returns
 * the number of pieces. -EINVAL, -EMSGSIZE. The total length has no limit. */
int hugepin_sg_indexed(const void *base, const size_t *off, const size_t *len, size_t n, struct iovec *ret_, int max);

/* Placement: the number of cache lines of 64 bytes that n pieces touch, each by itself. A device must read these lines.
 * UINT_MAX where there are more. */
unsigned hugepin_sg_lines(const struct iovec *iov, int n);

/* Placement: the offset within a page, a multiple of 64, at which a slot of `len` bytes should begin. Copying n pieces
 * (those that fit) one after the other to this offset meets the fewest loads that wait for a store with the same low
 * twelve bits (4 KiB aliasing). Of equal offsets the result crosses no more pages than it must, and is the lowest. 0
 * for bad arguments. */
size_t hugepin_sg_offset(const struct iovec *iov, int n, size_t len);

/* The frame is a message that describes itself: a header, a length and a tag for each record, then the records' bytes
 * one after the other (hugepin_sg_frame(5); little-endian). A record may be empty. */

#define HUGEPIN_SG_HEADER 24 /* bytes of the header, in front of the lengths */
/* Bytes in front of the records, in a frame of n records. */
#define HUGEPIN_SG_TABLE(n) (HUGEPIN_SG_HEADER + ((size_t)(n) * 4 + 7) / 8 * 8 + (size_t)(n) * 8)

/* Write the frame of n records into slot. Record i has iov[i].iov_len bytes and tag[i] (tag NULL: zeros). The pieces
 * must not lie in the slot. Returns the frame's length; -EINVAL, -EMSGSIZE, -EOVERFLOW. */
ssize_t hugepin_sg_frame(void *slot, size_t size, const struct iovec *iov, const uint64_t *tag, int n);

/* Write only the header and table of such a frame, HUGEPIN_SG_TABLE(n) bytes, for records that follow as elements.
 * part, parts: 0, 1. Or else this is part `part` of `parts` of one record that did not fit a frame, and n is 1. */
ssize_t hugepin_sg_table(void *slot, size_t size, const size_t *len, const uint64_t *tag, int n, unsigned part,
			 unsigned parts);

/* The state of a reader: the caller's memory, which points into the frame. The library owns all members except count,
 * part and parts. */
struct hugepin_sg_rx {
	const unsigned char *frame;
	uint64_t data; /* offset of the next record */
	uint32_t count, next; /* number of records, and index of the next */
	uint16_t part, parts; /* 0, 1: whole records */
	uint32_t len; /* length of the frame */
};

/* Begin to read a frame of `len` bytes, as received. The whole frame is checked first, so later calls cannot fail. The
 * frame need not be aligned or trusted. If others change it meanwhile, lengths and tags may be anything, but records
 * lie in the frame. Returns the number of records. -EILSEQ: not a frame, or not one of that length. */
int hugepin_sg_iter(struct hugepin_sg_rx *ret_, const void *frame, size_t len);

/* Return the next record, which lies in the frame, and its tag (ret_tag may be NULL). 1, or 0: there are no more. */
int hugepin_sg_next(struct hugepin_sg_rx *rx, struct iovec *ret_, uint64_t *ret_tag);

/* Copy the records' bytes over n pieces, one after the other as if they were one. Pieces must not overlap. Returns the
 * number of bytes. -EMSGSIZE: the pieces have less room than the records have bytes, and nothing is written. -EILSEQ,
 * -EINVAL. */
ssize_t hugepin_sg_scatter(const void *frame, size_t len, const struct iovec *iov, int n);

/* ------------------------------------------------------------------ statistics: hugepin_stats(3) */

/* X(name, unit, sentence): the one list behind the struct, the printing at exit and hugepin_stats(3). New members go to
 * the end. Units: B bytes now, n a number now, c a counter since the start, Bc bytes counted. */
#define HUGEPIN_STATS_LIST(X) \
	X(hugetlb_bytes, B, "heap memory mapped from the hugetlb pool") \
	X(thp_bytes, B, "heap memory that lies in transparent hugepages") \
	X(base_bytes, B, "heap memory that lies in base pages, or was mapped for THP and is not there yet") \
	X(reserved_bytes, B, "part of hugetlb_bytes that is reserved but not yet populated") \
	X(taken_bytes, B, "heap addresses in buffers, in the room behind them, and in freed buffers kept for reuse") \
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
	X(nomem, c, "requests that the heap could not serve; they got ENOMEM or went to the tier below") \
	X(decayed_bytes, Bc, "memory given back after the decay time") \
	X(purged_bytes, Bc, "memory given back on request or under pressure") \
	X(grown_in_place, c, "reallocations that grew in place") \
	X(moved, c, "reallocations that copied") \
	X(commit_waits, c, "allocations that waited for another thread's pages") \
	X(stolen, c, "idle threads' caches emptied by the service thread") \
	X(forks_copied, c, "forks that copied memory of the pool, or registered memory") \
	X(forks_cow, c, "forks left to the kernel's copy-on-write") \
	X(forks_uncovered, c, "forks_cow where the pool did not cover the heap: such a child may die") \
	X(forks_refused, c, "forks refused with ENOMEM") \
	X(fork_copied_bytes, Bc, "memory copied for children") \
	X(bad_pointers, c, "misuses reported (HUGEPIN_ABORT=0)") \
	X(small_bytes, B, "address space in use by the built-in small allocator") \
	X(service_wakeups, c, "times the service thread woke") \
	X(small_outside_bytes, B, "memory of the built-in small allocator outside the range that is set aside for it") \
	X(sparse_bytes, Bc, "memory mapped in base pages since the program touches little of its large buffers") \
	X(repaired_bytes, Bc, "memory of which hugepages were made later, where there had been none for THP") \
	X(image_bytes, B, "HUGEPIN_IMAGE: the program's own bss, data and text that was advised or put in hugepages") \
	X(image_left_bytes, B, "HUGEPIN_IMAGE: of what was asked for, memory that was left alone")

struct hugepin_stats {
	uint64_t version; /* HUGEPIN_VERSION of the library that filled it */
#define HUGEPIN_STATS_MEMBER(name, unit, sentence) uint64_t name;
	HUGEPIN_STATS_LIST(HUGEPIN_STATS_MEMBER)
#undef HUGEPIN_STATS_MEMBER
};
typedef struct hugepin_stats hugepin_stats_t;

/* Copy the statistics. `size` is sizeof *ret_: the library writes as many bytes as both sides know. Returns the number
 * of bytes the library knows. -EINVAL: ret_ is NULL. Each member is exact at some moment of the call, but not all at
 * the same moment. Never blocks. */
int hugepin_stats(struct hugepin_stats *ret_, size_t size);

/* The statistics lie on a page of their own. Another process may read it through /proc/PID/mem, at the dynamic symbol
 * hugepin_stats_page of libhugepin.so. No header declares the symbol, so that no program makes a copy of the page by a
 * copy relocation. magic is HUGEPIN_STATS_MAGIC once the heap is in use. */
#define HUGEPIN_STATS_MAGIC UINT64_C(0x6875676570696e31) /* "hugepin1" */
struct hugepin_stats_page {
	uint64_t magic, size; /* size: sizeof(struct hugepin_stats) */
	struct hugepin_stats stats;
};

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif
#endif
