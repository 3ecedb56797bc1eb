/* link: lend/lend.c lend/borrowed.c lend/borrow.c lend/serve.c lend/news.c lend/send.c lend/lender.c lend/bucket.c lend/wire.c base/lock.c base/base.c base/clock.c base/sys.c */
/*
 * Fuzzes what a lend reads from its peers, in both roles: a message is taken or refused, and whatever peers send, what is lent
 * stays within its limits, each call of hugepin_lend_key() has one answer, and when all peers are gone nothing is pinned.
 *
 * The input is a list of steps. A step is a byte, of which the lower two bits are a peer and the others say what to do, a byte
 * with the length of what follows, and that: a message as it came. The pin cache is a stand-in that only counts.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/service.h"
#include "base/stats.h"
#include "lend/state.h"
#include "reg/counts.h"
#include "reg/lent.h"
#include "reg/lookup.h"
#include "reg/pin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MEMORY ((char *)0x200000000000)
#define BYTES ((size_t)2 << 20)
enum { PEERS = 4, KEYS = 64 };

/* ------------------------------------------------------------------ in place of the pin cache */

static struct hugepin_domain domain; /* zeroed but for what a lend looks at */
static unsigned pins, regions, refused;
static struct hp_counts counts[4096];
HP_TLS struct hp_counts *hp_counts_self = counts;
_Atomic uint64_t hp_counts_undone;

int hp_lent_pin(hugepin_domain *d, uint64_t addr, size_t len, unsigned access, struct hugepin_pin *ret_,
		uint64_t *ret_start, uint64_t *ret_end)
{
	(void)d, (void)access;
	if (refused && --refused == 0)
		return addr & 4096 ? -ENOMEM : -EFAULT;
	pins++;
	*ret_ = (struct hugepin_pin){ addr, len, 1, 2, 1 + regions++ % 8 };
	*ret_start = *ret_end = ret_->ref;
	return 0;
}

void hp_lent_unpin(hugepin_domain *d, struct hugepin_pin *pin, uint64_t start, uint64_t end, bool ends)
{
	(void)d, (void)ends;
	assert(pin->ref && pins && start == pin->ref && end == pin->ref);
	pins--;
	memset(pin, 0, sizeof *pin);
}

void hp_lent_forget(hugepin_domain *d, uint32_t region, uint64_t start, uint64_t end)
{
	(void)d, (void)region;
	assert(start == end);
}

int hugepin_unpin(hugepin_domain *d, struct hugepin_pin *pin)
{
	(void)d;
	assert(pin->ref && pins);
	pins--;
	memset(pin, 0, sizeof *pin);
	return 0;
}

int hugepin_extent(const void *ptr, struct hugepin_extent *ret_, size_t size)
{
	(void)ptr, (void)ret_, (void)size;
	return -ENOENT;
}

int hp_lent_set(hugepin_domain *d, const struct hp_lend_hooks *hooks, void *lend)
{
	d->lend_hooks = hooks;
	d->lend = lend;
	return 0;
}
bool hp_lent_settle(hugepin_domain *d)
{
	(void)d;
	return true;
}

void hp_lent_listen(hugepin_domain *d)
{
	(void)d;
}

void hp_lent_clear(hugepin_domain *d)
{
	d->lend_hooks = NULL;
}
uint64_t hp_lent_budget(const hugepin_domain *d)
{
	(void)d;
	return BYTES;
}
bool hp_lent_exact(const hugepin_domain *d)
{
	return d;
}
bool hp_lent_access(const hugepin_domain *d, unsigned access)
{
	(void)access;
	return d;
}
void hp_lent_drop(hugepin_domain *d, uint32_t region, uint64_t start, uint64_t end)
{
	(void)d, (void)region, (void)start, (void)end;
}

static bool index_used[4096];
uint32_t hp_lent_index_new(void)
{
	for (uint32_t i = 1; i < 4096; i++)
		if (!index_used[i]) {
			index_used[i] = true;
			return i;
		}
	return 0;
}
void hp_lent_index_free(uint32_t index)
{
	assert(index_used[index] && !hp_counts_sum(index));
	index_used[index] = false;
}

uint32_t hp_counts_sum(uint32_t region)
{
	return atomic_load_explicit(&counts[region].pins, memory_order_relaxed) -
	       atomic_load_explicit(&counts[region].unpins, memory_order_relaxed);
}
uint32_t hp_counts_made(uint32_t region)
{
	return atomic_load_explicit(&counts[region].pins, memory_order_relaxed);
}
void hp_counts_barrier(void)
{
}
bool hp_counts_adopt(void)
{
	return true;
}
void hp_counts_unpin_shared(uint32_t region)
{
	(void)region;
}
void hp_count_back(struct hp_counts *c, uint32_t index)
{
	hp_count(&c[index].unpins);
}

bool hp_lookup_put(_Atomic uint64_t *words, uint64_t hash, uint32_t index, uint32_t extra)
{
	(void)extra;
	atomic_store_explicit(&words[0], index << HP_LOOKUP_CHECK_BITS | hp_lookup_check(hash), memory_order_relaxed);
	return false;
}

struct hp_exposed hp_exposed;

bool hp_service_running(void)
{
	return false;
}
bool hp_service_ask(struct hp_job *job)
{
	return !job;
}

/* ------------------------------------------------------------------ the caller */

static hugepin_lend *l;
static unsigned out, busy, keys; /* tokens that are out; what send() says; keys with uses */
static struct hugepin_far key[KEYS];

static int send_message(void *arg, uint32_t peer, const void *msg, size_t len)
{
	struct hp_wire w;

	(void)arg, (void)peer;
	assert(hp_wire_read(&w, msg, len) == 0);
	if (!busy)
		return 0;
	return busy-- % 3 ? -EAGAIN : -EPIPE;
}

static void ready(void *arg, void *token, int err, const struct hugepin_far *k)
{
	(void)arg;
	assert(token == &out && out-- && err <= 0 && !err == !!k);
	if (!k)
		return;
	assert(k->len && k->ref);
	if (keys < KEYS)
		key[keys++] = *k;
	else
		assert(hugepin_lend_done(l, &(struct hugepin_far){ k->base, k->len, k->rkey, k->peer, k->ref }) == 0);
}

static int offer(void *arg, uint32_t peer, uint64_t addr, size_t len, struct iovec *ret_buffer)
{
	(void)arg, (void)peer, (void)len;
	*ret_buffer = (struct iovec){ MEMORY, BYTES };
	return addr & 1 << 20 ? -EACCES : 0;
}

static void step(uint8_t what, const uint8_t *bytes, size_t len)
{
	uint32_t peer = what & 3;
	uint64_t addr = (uintptr_t)MEMORY + (len ? bytes[0] : 0) * 4096u;
	struct hugepin_far k;
	int r;

	switch (what >> 2 & 15) {
	default:
		r = hugepin_lend_message(l, peer, bytes, len);
		assert(r == 0 || r == -EILSEQ || r == -ENOTCONN);
		break;
	case 1:
	case 2:
		out++;
		r = what >> 2 & 2 ? hugepin_lend_key(l, peer, addr, 100, &out, &k) :
				    hugepin_lend_put(l, peer, addr, bytes, len ? len : 1, &out, &k);
		if (r)
			out--;
		if (r == 1)
			assert(k.base == addr && k.peer == peer && hugepin_lend_done(l, &k) == 0);
		break;
	case 3:
		if (keys)
			assert(hugepin_lend_done(l, &key[--keys]) == 0);
		break;
	case 4:
		assert(hugepin_lend_progress(l) == 0);
		break;
	case 5:
		if (hugepin_lend_gone(l, peer))
			assert(hugepin_lend_again(l, peer) == 0);
		break;
	case 6:
		busy = len ? bytes[0] & 15 : 2;
		break;
	case 7:
		refused = 1 + (len ? bytes[0] & 7 : 0);
		break;
	case 8:
		domain.lend_hooks->wanted(domain.lend, len ? bytes[0] & 7 : 1);
		break;
	case 9:
		domain.lend_hooks->dropped(domain.lend, len ? bytes[0] & 7 : 1);
		break;
	case 10:
		domain.lend_hooks->crowded(domain.lend, (len ? bytes[0] : 1) * 4096u);
		break;
	case 11:
		for (int i = 0; i <= HP_NEWS_MAX; i++)
			domain.lend_hooks->wanted(domain.lend, 4000);
		break;
	}
	assert(l->lender.lent <= l->lender.lent_max);
	assert(l->lender.lent + l->lender.idle <= l->lender.lent_max + l->lender.idle_base);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static bool mapped;
	struct hugepin_lend_attr attr = { .size = sizeof attr,
					  .peers = PEERS,
					  .carry_max = 64,
					  .lent_bytes_max = BYTES / 4,
					  .idle_bytes_max = BYTES / 8,
					  .send = send_message,
					  .ready = ready,
					  .offer = offer };

	if (size < 1)
		return 0;
	if (!mapped)
		assert(mmap(MEMORY, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MEMORY);
	mapped = true;
	attr.policy = data[0] & 1;
	attr.access = data[0] & 2 ? HUGEPIN_REMOTE_READ : 0;
	domain.pid = getpid();
	out = busy = keys = refused = regions = 0;
	assert(hugepin_lend_open(&domain, &attr, NULL, &l) == 0);
	for (size_t at = 1; at + 2 <= size;) {
		size_t len = HP_MIN(data[at + 1], size - at - 2);
		uint8_t *copy = malloc(len ? len : 1); /* so that a read behind its end is seen */

		assert(copy);
		memcpy(copy, data + at + 2, len);
		step(data[at], copy, len);
		free(copy);
		at += 2 + len;
	}
	refused = busy = 0;
	for (uint32_t peer = 0; peer < PEERS; peer++)
		hugepin_lend_gone(l, peer);
	while (keys)
		assert(hugepin_lend_done(l, &key[--keys]) == 0);
	assert(!out && !pins && !l->lender.lent && !l->borrowed_count);
	assert(hugepin_lend_close(l) == 0);
	return 0;
}
