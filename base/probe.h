/*
 * The probes of libhugepin.so: places where bpftrace, gdb and perf can look at a running process (USDT, provider
 * `hugepin`; hugepin_probes(7)). A probe is one nop, and a note in the file that says where the nop and its arguments
 * are. So an argument must be at hand: a register, a constant, a word in memory, and never the result of a call that
 * nothing else needs. The paths of hits, malloc and free have no probe (tools/check-exports). Without <sys/sdt.h>
 * (systemtap-sdt-dev) at build time, or with `make PROBES=`, there are no probes.
 *
 * The page repeats the names, the arguments and the reasons; tools/check-man compares them. A number keeps its meaning,
 * so a new reason comes at the end of its list, and a new argument behind the others.
 */
#ifndef HP_BASE_PROBE_H
#define HP_BASE_PROBE_H

#include <stdint.h>

#if __has_include(<sys/sdt.h>) && !defined(HP_NO_PROBES)
#define SDT_USE_VARIADIC
#include <sys/sdt.h>
#define HP_PROBE(name, ...) STAP_PROBEV(hugepin, name, ##__VA_ARGS__)
#else
#define HP_PROBE(name, ...) ((void)sizeof((uint64_t[]){ __VA_ARGS__ }))
#endif

/* A probe's function: always inline, because a note can name the caller's registers only there. */
#define HP_PROBE_FN static inline __attribute__((always_inline, unused)) void

/* ------------------------------------------------------------------ words for numbers */

/* X(NAME, word, sentence), in the order of the numbers, from 0 up. */

/* The purpose of a registration; enum hp_region_kind is the same. */
#define HP_PROBE_KINDS(X)                                                                                              \
	X(EXTENT, "extent", "a whole extent of the heap")                                                              \
	X(RUN, "run", "some hugepages of an extent")                                                                   \
	X(FOREIGN, "foreign", "base pages outside the heap")                                                           \
	X(UNCACHED, "uncached", "base pages, for one pin only")

/* Why a registration leaves the cache while its memory stays. */
#define HP_PROBE_EVICTED(X)                                                                                            \
	X(BUDGET, "budget", "room within the domain's budget is needed, or hugepin_domain_trim names bytes")            \
	X(COUNT, "count", "another registration is needed, and the domain has as many as it may have")                 \
	X(TABLE, "table", "another registration is needed, and the table of all domains is full")                      \
	X(REFUSED, "refused", "the kernel or the device has refused another registration for want of memory")          \
	X(IDLE, "idle", "the policy's helper expects no use soon")                                                     \
	X(DECAYED, "decayed", "the heap's memory there has been free for as long as HUGEPIN_DECAY")                    \
	X(PURGED, "purged", "the program calls hugepin_purge, and the heap's memory there is free")                  \
	X(PARTLY, "partly", "only a part of an extent is pinned, and the rest has been free for long")                 \
	X(MERGED, "merged", "a larger registration takes its place")                                                   \
	X(CLOSED, "closed", "the domain is closed")                                                                    \
	X(ASKED, "asked", "the program called hugepin_deregister")                                                   \
	X(TURNED, "turned", "the policy has it pinned instead of registered on demand, or the reverse")               \
	X(TRIMMED, "trimmed", "the program called hugepin_domain_trim for all")

/* Why a registration is stale. */
#define HP_PROBE_GONE(X)                                                                                               \
	X(UNMAPPED, "unmapped", "the memory was unmapped, moved, or mapped over")                                      \
	X(DISCARDED, "discarded", "the program discarded the pages, as by madvise(MADV_DONTNEED)")                     \
	X(FORGOTTEN, "forgotten", "the program called hugepin_forget")                                                 \
	X(WIDENED, "widened", "too much went away at once to be told apart, and this may have been part of it")

/* Why a pin is not cached. */
#define HP_PROBE_ONCE(X)                                                                                               \
	X(POLICY, "policy", "the policy is none")                                                                      \
	X(ASKED, "asked", "the program asked for it by HUGEPIN_PIN_UNCACHED")                                          \
	X(CHANGING, "changing", "another thread is changing mappings, and has not ended in time")                      \
	X(SHARED, "shared", "the memory is shared, or a file's: others may take it away unseen")                       \
	X(UNWATCHED, "unwatched", "nobody would tell when the memory goes away")                                       \
	X(UNWATCHABLE, "unwatchable", "the kernel refuses to watch it: a userfaultfd of the program's, or a limit")    \
	X(DISCARDED, "discarded", "the program discarded a part of it, and the pages may not have gone yet")           \
	X(BUDGET, "budget", "whole hugepages exceed the budget or a limit")                                            \
	X(LENGTH, "length", "the device takes no length that is a whole hugepage")                                     \
	X(LOST, "lost", "the memory is no buffer of the heap's, or was not given to this child")                       \
	X(DEVICE, "device", "the device refused to register it as it would be cached")

/* The fate of the buffers in hugepages at a fork. */
#define HP_PROBE_FORKED(X)                                                                                             \
	X(NOTHING, "nothing", "the kernel shares all memory with the child, and none is the pool's")                   \
	X(COPIED, "copied", "the parent copies buffers for the child")                                                 \
	X(MOVED, "moved", "the parent moves buffers out of the pool")                                                  \
	X(COW, "cow", "the kernel shares pages of the pool, copy-on-write")

#define HP_PROBE_NUMBER(prefix, NAME) HP_##prefix##_##NAME
#define HP_EVICTED_NUMBER(NAME, word, sentence) HP_PROBE_NUMBER(EVICTED, NAME),
#define HP_GONE_NUMBER(NAME, word, sentence) HP_PROBE_NUMBER(GONE, NAME),
#define HP_ONCE_NUMBER(NAME, word, sentence) HP_PROBE_NUMBER(ONCE, NAME),
#define HP_FORKED_NUMBER(NAME, word, sentence) HP_PROBE_NUMBER(FORKED, NAME),
enum hp_evicted { HP_PROBE_EVICTED(HP_EVICTED_NUMBER) };
enum hp_gone_reason { HP_PROBE_GONE(HP_GONE_NUMBER) };
enum hp_once { HP_PROBE_ONCE(HP_ONCE_NUMBER) };
enum hp_forked { HP_PROBE_FORKED(HP_FORKED_NUMBER) };

/* ------------------------------------------------------------------ the pin cache */

/* In all of these the domain's number comes first. */

HP_PROBE_FN hp_probe_miss(uint64_t domain, uint64_t addr, uint64_t bytes, uint64_t access)
{
	HP_PROBE(miss, domain, addr, bytes, access);
}

HP_PROBE_FN hp_probe_registration(uint64_t domain, uint64_t addr, uint64_t bytes, uint64_t kind, uint64_t ns,
				  uint64_t error)
{
	HP_PROBE(registration, domain, addr, bytes, kind, ns, error);
}

HP_PROBE_FN hp_probe_deregistration(uint64_t domain, uint64_t addr, uint64_t bytes, uint64_t kind, uint64_t ns)
{
	HP_PROBE(deregistration, domain, addr, bytes, kind, ns);
}

HP_PROBE_FN hp_probe_eviction(uint64_t domain, uint64_t addr, uint64_t bytes, enum hp_evicted reason)
{
	HP_PROBE(eviction, domain, addr, bytes, (uint64_t)reason);
}

HP_PROBE_FN hp_probe_invalidation(uint64_t domain, uint64_t addr, uint64_t bytes, enum hp_gone_reason reason,
				  uint64_t gone_addr, uint64_t gone_bytes)
{
	HP_PROBE(invalidation, domain, addr, bytes, (uint64_t)reason, gone_addr, gone_bytes);
}

HP_PROBE_FN hp_probe_uncached(uint64_t domain, uint64_t addr, uint64_t bytes, enum hp_once reason)
{
	HP_PROBE(uncached, domain, addr, bytes, (uint64_t)reason);
}

/* ------------------------------------------------------------------ the heap */

HP_PROBE_FN hp_probe_extent_made(uint64_t addr, uint64_t bytes, uint64_t number)
{
	HP_PROBE(extent_made, addr, bytes, number);
}

HP_PROBE_FN hp_probe_extent_gone(uint64_t addr, uint64_t bytes, uint64_t number)
{
	HP_PROBE(extent_gone, addr, bytes, number);
}

HP_PROBE_FN hp_probe_commit_begin(uint64_t addr, uint64_t bytes)
{
	HP_PROBE(commit_begin, addr, bytes);
}

HP_PROBE_FN hp_probe_commit(uint64_t addr, uint64_t bytes, uint64_t hugetlb, uint64_t thp, uint64_t base)
{
	HP_PROBE(commit, addr, bytes, hugetlb, thp, base);
}

HP_PROBE_FN hp_probe_give_back(uint64_t addr, uint64_t bytes, uint64_t hugetlb, uint64_t thp, uint64_t base)
{
	HP_PROBE(give_back, addr, bytes, hugetlb, thp, base);
}

HP_PROBE_FN hp_probe_fork_begin(uint64_t hugetlb)
{
	HP_PROBE(fork_begin, hugetlb);
}

HP_PROBE_FN hp_probe_fork_copy(enum hp_forked reason, uint64_t copied, uint64_t moved)
{
	HP_PROBE(fork_copy, (uint64_t)reason, copied, moved);
}

#endif
