/* hugepin: domains of the pin cache: where memory is registered, when, and for how long; and backends. The guide is
 * hugepin_domain(3); hugepin_policy(7) and hugepin_odp(7) compare the policies. The rules for all functions stand in
 * hugepin.h, which programs include. */
#ifndef HUGEPIN_DOMAIN_H
#define HUGEPIN_DOMAIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
/* A struct and a function of one name: to C++, the function hides a constructor that nobody calls. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* A domain is one place to register memory with. It has a backend, the backend's context (a protection domain of a
 * verbs device, an io_uring, or nothing), a policy and a budget. A process may have 65536 domains at a time. */
typedef struct hugepin_domain hugepin_domain;

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
	HUGEPIN_PIN_NO_EVICT = 1024, /* not an access: evict nothing for this pin, so that it may fail instead */
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
 * holds the lock for all of them; no other function is called meanwhile. A function may block and allocate, and no
 * thread is cancelled in it. It must not call functions of any domain except hugepin_forget. addr and len are multiples
 * of the base page.
 *  reg       0 and *ret_, or -errno. -ENOMEM, -EAGAIN: a limit is reached; the library deregisters something and calls
 *            again, unless dereg fails. -EFAULT: the memory is not there, or not for that access. -EINVAL, -EOPNOTSUPP: the
 *            device cannot take this memory (or not in one piece).
 *  dereg     0, or -errno: the library counts the failure and forgets the registration.
 *  prefetch  may be NULL. Bring the memory [addr, addr + len) of an on-demand registration in. 0: the device did
 *            this; 1: the backend did it by other means.
 *  limits    0 and *ret_, or -errno, which hugepin_domain_open returns.
 *  now_ns    may be NULL: CLOCK_MONOTONIC. The domain's clock, for tests and simulations. With such a clock the helper
 *            has no timer: it acts at the next pin or unpin.
 *  close     may be NULL. The domain is closed, or could not be opened: free ctx.
 *  paging    may be NULL. hugepin_domain_paging: 0 and *ret_, or -errno; -EOPNOTSUPP: the device counts nothing.
 *  reg_dmabuf  may be NULL: -EOPNOTSUPP. hugepin_pin_dmabuf: as reg, of `len` bytes from `offset` of the dma-buf fd,
 *            which the keys name by addresses from iova on. None of the three need be whole base pages. dereg ends it.
 *  terms     may be NULL. Policy hybrid, when the domain is opened: 0 and *ret_, or -errno: nothing was measured.
 *  lingering  may be NULL: nothing. How much of what was deregistered lingers: it is not free yet, because another
 *            thread has to let go of it, and counts as in use. What this thread can let go of, it lets go of first.
 * From reg, reg_dmabuf, limits and paging a number above 0, as libibverbs returns, becomes -EIO. */
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
	int (*reg_dmabuf)(void *ctx, int fd, uint64_t offset, size_t len, uint64_t iova, unsigned access,
			  struct hugepin_reg *ret_);
	void (*lingering)(void *ctx, size_t *ret_bytes, uint32_t *ret_regs);
};

/* For `limits`: bytes that this process may have pinned beyond those that it has, in whole base pages; 1: less than a
 * base page. 0: there is no limit. A process with CAP_IPC_LOCK has none. */
size_t hugepin_memlock(void);

/* Whether this thread is inside a backend's reg or dereg, with the domain's lock held: 1 or 0. For libraries that stand
 * before functions of a device: a call from there must not come back to the pin cache. */
int hugepin_registering(void);

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

/* A registration with remote access comes to its end, or, with HUGEPIN_EXPIRE_LOCAL, any. It was pinned, so its rkey may
 * be with a peer, or its lkey in a cache of the program's. `pinned` 0: the keys stop working when the callback returns.
 * 1: pins are out, the keys work until their last unpin, and the memory is wanted back, or has other keys from now on.
 * This is told once of the pins that are out, and the end is told again. */
struct hugepin_expiry {
	uint64_t addr, len; /* what is registered */
	uint32_t rkey, pinned;
	uint32_t lkey, pad;
};
typedef struct hugepin_expiry hugepin_expiry_t;

/* attr.flags: call `expire` for registrations without remote access, too, for programs that keep an lkey longer than its
 * pin. */
#define HUGEPIN_EXPIRE_LOCAL 1

/* How to open a domain. All members zero except size is a good choice. NULL means the same. */
struct hugepin_attr {
	size_t size; /* sizeof(struct hugepin_attr) */
	uint32_t policy; /* HUGEPIN_POLICY_* */
	uint32_t access; /* default access of pins; 0: HUGEPIN_READ | HUGEPIN_WRITE; HUGEPIN_RELAXED may be added */
	uint32_t fork; /* HUGEPIN_FORK_* */
	uint32_t flags; /* HUGEPIN_EXPIRE_LOCAL, or 0 */
	/* budget. 0: HUGEPIN_PIN_BUDGET, or else the limit of RLIMIT_MEMLOCK and of the device; UINT64_MAX: no budget,
	 * so nothing is evicted and the kernel's -ENOMEM is returned */
	uint64_t pinned_bytes_max;
	uint32_t pinned_regions_max; /* 0: the device's limit */
	uint32_t odp; /* HUGEPIN_ODP_* */
	uint32_t watch; /* HUGEPIN_WATCH_* */
	uint32_t reach; /* HUGEPIN_REACH_* */
	/* May be NULL. Called with expire_arg, on any thread, also inside the program's own calls that pin, unpin,
	 * purge or close, with the domain's lock: must not block, and must call no function of a domain. */
	void (*expire)(void *arg, const struct hugepin_expiry *);
	void *expire_arg;
	/* A power of two: a registration outside the heap is rounded out to aligned blocks of so many bytes, within its
	 * mapping (hugepin_domain(3), "Ranges that move"). 0: to base pages */
	uint64_t round_max;
};

/* Open a domain. *backend is copied. ctx is the caller's, or backend->close frees it. close is called on failure as
 * well, except for -EINVAL. May block and allocate.
 * -EINVAL: a NULL, an unknown size, policy, access, fork, flag, odp, watch or reach, or a bad round_max. -EOPNOTSUPP:
 * the device lacks the policy or the access. -ENOSPC: 65536 domains. -ENOSYS: no membarrier(2). -ENOMEM. Or the error
 * of limits() (-EIO for its -EINVAL, and for a number above 0). */
int hugepin_domain_open(const struct hugepin_backend *backend, void *ctx, const struct hugepin_attr *attr,
			hugepin_domain **ret_);

/* Deregister everything and close. No other thread may be using the domain. Requests of hugepin_pin_try that wait get
 * -ECANCELED before this returns. Returns the number of registrations that the device refused to end, mostly 0:
 * their memory stays pinned until the program closes the device's object, as a ring whose owner has ended. -EBUSY:
 * pins are out, and nothing has changed; seldom, another thread's pin in another domain is counted here for a
 * moment: close again. -EPERM: only the opener may use the domain, the caller is not the opener, and the opener
 * still lives. -EINVAL: NULL, or closed before. In a child of fork this frees the child's copy, even while pins are
 * out. */
int hugepin_domain_close(hugepin_domain *);

/* Deregister memory that is not pinned, until at most `bytes` are registered; with 0, all of it, also what is registered
 * on demand. What was not used for longest, or is expected to be used last, goes first. Owed work is done before, and
 * with UINT64_MAX nothing else: memory that went away is deregistered, which otherwise waits for the opener's next pin
 * where only the opener may deregister, and for the next pin in a program of one thread, or of more that has registered
 * nothing since it started them. 0. -EBUSY: more is pinned, and nothing else is left. -EPERM: only the opener may
 * deregister. -EDEADLK: this thread is in a callback that runs with a lock of the library, or in a signal handler that
 * has interrupted it. -EINVAL: NULL. -ESTALE. Any thread. Blocks for the backend. */
int hugepin_domain_trim(hugepin_domain *, uint64_t bytes);

/* The backend that only locks memory (mlock) and gives no keys. Its ctx is NULL. */
const struct hugepin_backend *hugepin_mlock(void);

/* X(name, unit, sentence), as HUGEPIN_STATS_LIST of hugepin_stats.h. */
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
	X(refused, c, "registrations that the kernel or the device refused for lack of memory to lock, or of slots") \
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
	X(prefetched_late, c, "announced transfers whose next phase was told before the service thread came to them") \
	X(hits, c, "pins and lookups that found memory registered") \
	X(uncached_policy, c, "of the uncached, under policy none") \
	X(uncached_asked, c, "by HUGEPIN_PIN_UNCACHED, or of a dma-buf") \
	X(uncached_changing, c, "while another thread was changing mappings") \
	X(uncached_shared, c, "of shared memory or a file") \
	X(uncached_unwatched, c, "of memory that nobody watches, or that the kernel refuses to watch") \
	X(uncached_discarded, c, "of memory of which the program had discarded a part") \
	X(uncached_budget, c, "since what would be cached exceeds the budget or a limit") \
	X(uncached_other, c, "since the device refused what would be cached, or the heap did not have it")

struct hugepin_domain_stats {
	uint64_t version; /* HUGEPIN_VERSION of the library that filled it */
#define HUGEPIN_STATS_MEMBER(name, unit, sentence) uint64_t name;
	HUGEPIN_DOMAIN_STATS_LIST(HUGEPIN_STATS_MEMBER)
#undef HUGEPIN_STATS_MEMBER
};
typedef struct hugepin_domain_stats hugepin_domain_stats_t;

/* Copy a domain's statistics, as hugepin_stats does. Never blocks, but adds up hits from the counts that each thread
 * keeps for each registration. */
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

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif
#endif
