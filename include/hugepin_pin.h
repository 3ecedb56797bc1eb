/* hugepin: pins of registered memory, pools of buffers, and hints. The guides are hugepin_pin(3), hugepin_pin_try(3)
 * and hugepin_register(3). The rules for all functions stand in hugepin.h, which programs include. */
#ifndef HUGEPIN_PIN_H
#define HUGEPIN_PIN_H

#include "hugepin_domain.h"

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
 * With HUGEPIN_PIN_NO_EVICT nothing is evicted: what is not registered is registered only if there is room. It replaces
 * the registrations inside it all the same, because their memory stays registered.
 * -EINVAL: len is 0, the range wraps, or access has unknown bits. -EFAULT: the memory is not there, or is read-only and
 * to be written (with ODP the device finds out later). -EOPNOTSUPP: the device lacks the access, or cannot register the
 * memory. -ENOBUFS: over the budget or a limit, beside what is in use, or nothing may be evicted.
 * -ENOMEM: the same without a budget, or no memory for tables. -EPERM: not registered, and only the opener may
 * register. -ESTALE: the domain is the parent process's. Or the error of the backend.
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

/* Register `len` bytes from `offset` of a dma-buf, such as memory of an accelerator, for this pin alone. The keys name
 * them by addresses from iova on, which is also pin.base. hugepin_unpin deregisters. The bytes count against the budget.
 * fd may be closed after the call. Nobody watches the memory: unpin before its owner frees it.
 * -EOPNOTSUPP: the backend or the device does not take dma-bufs, or lacks the access. -EINVAL: fd is negative, len is 0, a
 * range wraps, or access has unknown bits. Or as hugepin_pin. Blocks as that does when it registers. */
int hugepin_pin_dmabuf(hugepin_domain *, int fd, uint64_t offset, size_t len, uint64_t iova, unsigned access,
		       struct hugepin_pin *ret_);

/* For a backend of the program's own: what its reg has returned for the registration of this pin, such as the cookie,
 * which is valid while the pin is out. `backend` is the one that the domain was opened with. 0 and *ret_. -EINVAL: a
 * NULL, a pin that is no longer out or of another domain, or another backend. Any thread; takes nanoseconds. */
int hugepin_pin_reg(hugepin_domain *, const struct hugepin_backend *backend, const struct hugepin_pin *pin,
		    struct hugepin_reg *ret_);

/* Pin n pieces in order, each as hugepin_pin does. A piece that one key cannot cover takes several pins. Returns the
 * number of pins written to ret_ (at least n), or an error of hugepin_pin, with nothing pinned and ret_ cleared.
 * -EMSGSIZE: more than max pins are needed. -EINVAL also for n < 0 or NULL. n = 0 is 0. */
int hugepin_pinv(hugepin_domain *, const struct iovec *, int n, unsigned access, struct hugepin_pin *ret_, int max);

/* Give n pins back. Cleared pins are skipped. 0, or -EINVAL when one of them was not the domain's (the others are given
 * back). */
int hugepin_unpinv(hugepin_domain *, struct hugepin_pin *pins, int n);

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

/* Announce that the range is about to be unmapped, replaced or discarded. The range is not in the heap. From now on no
 * pin in any domain finds it registered. Nor is it watched until it is registered again, so that mremap(2) and
 * userfaultfds of the program's own may have it. Make the change before this thread pins or announces anything else,
 * because from then on a pin of its neighbours may have it watched with them. Announce all changes that hugepin does not see (hugepin_pin(3) has the
 * list), and discards, because memory that is discarded otherwise is not cached until it is unmapped.
 * -EBUSY: a part is pinned, and stays registered until its last unpin. (While another thread registers with the same
 * domain, 0 is possible there, too.) -EINVAL: empty or wrapping. Allocates nothing and calls no backend, so hooks of
 * unmapping and purging may call it. Any thread, not in signal handlers. Waits some milliseconds at most. */
int hugepin_forget(const void *addr, size_t len);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
#pragma GCC diagnostic pop
}
#endif
#endif
