/*
 * Carrying out a plan: elements, keys and work requests are written to the caller's arrays.
 *
 * Runs of pieces to be gathered go to hugepin_sg_map(), between the copied pieces. A registration that an earlier run
 * pinned serves later runs, too. A piece without a key may be copied instead. So may a piece that lies in several
 * registrations, if there would be too many elements otherwise. If both happen, each piece is at most one element, as
 * the plan assumes.
 *
 * Only behind the last piece can the pieces' lengths be compared with the plan. A failure then gives back any pins that
 * were taken.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "sge/iov.h"
#include "sge/pins.h"
#include "sge/plan.h"

struct filling {
	const struct hugepin_sg_room *room;
	hugepin_key_fn key; /* never NULL */
	unsigned access; /* the adapter's access to the pieces */
	uint32_t sges, pins; /* elements and pins written so far */
	uint32_t sorted; /* pins[0 .. sorted - 1] are in order (sge/pins.h) */
	uint32_t run; /* pins that were taken before the latest call of hugepin_sg_map() */
	size_t slot; /* bytes of the slot written so far */
	size_t spare; /* bytes of the slot left for pieces that the plan does not copy */
	bool joins; /* the last element is the slot's: the next copied piece extends it */
	bool unsplit; /* copy even pieces that lie in several registrations */
};

/* The place of an element. An empty room may have no address. */
static inline struct ibv_sge *element(const struct filling *f, size_t i)
{
	return (struct ibv_sge *)((uintptr_t)f->room->sge + i * sizeof(struct ibv_sge));
}

static int no_key(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	(void)arg, (void)addr, (void)len, (void)access, (void)ret_;
	return -ENOKEY;
}

/* Key function: looks in the pins of earlier runs, then calls the caller's key function. */
static int pinned_or_key(void *filling, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_)
{
	struct filling *f = filling;
	const struct hugepin_pin *known =
		addr ? hp_pins_find(f->room->pins, f->pins, f->sorted, (uintptr_t)addr) : NULL;
	if (known) {
		*ret_ = *known;
		ret_->ref = 0;
		return 0;
	}
	return f->key(f->room->arg, addr, len, access, ret_);
}

static void unpin_from(struct filling *f, uint32_t first)
{
	while (f->pins > first) {
		struct hugepin_pin *pin = &f->room->pins[--f->pins];
		f->key(f->room->arg, NULL, 0, 0, pin);
		*pin = (struct hugepin_pin){ 0 };
	}
}

static HP_COLD void settle_filling(struct filling *f)
{
	f->pins = f->sorted = hp_pins_settle(f->room->pins, f->pins, f->key, f->room->arg);
}

static int int_of(uint32_t n)
{
	return n < INT_MAX ? (int)n : INT_MAX;
}

/* ------------------------------------------------------------------ elements */

static inline bool copied(const struct hugepin_sg_plan *plan, uint32_t i, size_t len)
{
	return len < plan->copy_below || i - plan->copy_from < plan->copy_to - plan->copy_from;
}

/* As memcpy(), but without the call, which takes longer than the copy for short pieces. Returns the end. */
static inline char *put_bytes(char *to, const char *from, size_t len)
{
	if (len >= 16 && len <= 32) {
		memcpy(to, from, 16);
		memcpy(to + len - 16, from + len - 16, 16);
	} else if (len >= 8 && len <= 32) {
		memcpy(to, from, 8);
		memcpy(to + len - 8, from + len - 8, 8);
	} else {
		memcpy(to, from, len);
	}
	return to + len;
}

static int copy_to_slot(struct filling *f, const struct iovec *piece)
{
	char *to = (char *)f->room->slot + f->slot;
	if (!f->joins) {
		if (f->sges == f->room->sges)
			return -EMSGSIZE;
		f->room->sge[f->sges++] = (struct ibv_sge){ (uintptr_t)to, 0, f->room->slot_lkey };
	}
	put_bytes(to, piece->iov_base, piece->iov_len);
	f->room->sge[f->sges - 1].length += (uint32_t)piece->iov_len;
	f->slot += piece->iov_len;
	f->joins = true;
	return 0;
}

/* Gather a run of pieces. Returns the number of elements, or an error. After an error no key of the run is held. */
static int map_run(struct filling *f, const struct iovec *iov, int n)
{
	const struct hugepin_sg_room *r = f->room;
	struct hugepin_sg_info info = { 0 };
	if (HP_UNLIKELY(hp_pins_due(f->pins, f->sorted)))
		settle_filling(f);
	int sges = hugepin_sg_map(iov, n, f->access, pinned_or_key, f, (struct hugepin_sge *)(r->sge + f->sges),
				  int_of(r->sges - f->sges), r->pins + f->pins, int_of(r->pins_max - f->pins), &info);
	/* Some registrations may be pinned twice, so settling the pins may make room. */
	if (sges == -EMSGSIZE && f->pins > f->sorted && info.pins > r->pins_max - f->pins) {
		settle_filling(f);
		return map_run(f, iov, n);
	}
	f->run = f->pins;
	if (sges > 0) {
		f->sges += (uint32_t)sges;
		f->pins += info.pins;
		f->joins = false;
	}
	return sges;
}

/* Add one piece: gather it, or copy it if it cannot be gathered and the slot has room. */
static int gather_or_copy(struct filling *f, const struct iovec *piece)
{
	uint32_t sges = f->sges;
	bool joins = f->joins;
	int ret = map_run(f, piece, 1);
	bool split = f->unsplit && (ret > 1 || ret == -EMSGSIZE);
	if ((ret != -ENOKEY && !split) || piece->iov_len > f->spare)
		return ret < 0 ? ret : 0;
	unpin_from(f, f->run);
	f->sges = sges;
	f->joins = joins;
	f->spare -= piece->iov_len;
	return copy_to_slot(f, piece);
}

static int gather_run(struct filling *f, const struct iovec *iov, int n)
{
	int err = f->unsplit ? 0 : map_run(f, iov, n);
	if (!f->unsplit && err != -ENOKEY)
		return err < 0 ? err : 0;
	err = 0;
	for (int i = 0; i < n && !err; i++)
		if (iov[i].iov_len)
			err = gather_or_copy(f, &iov[i]);
	return err;
}

static int fill_elements(struct filling *f, const struct hugepin_sg_plan *plan, const struct iovec *iov, int n)
{
	int err = 0;
	for (int i = 0, end; i < n && !err; i = end) {
		end = i + 1;
		if (!iov[i].iov_len) {
			continue;
		} else if (copied(plan, (uint32_t)i, iov[i].iov_len)) {
			err = copy_to_slot(f, &iov[i]);
		} else {
			while (end < n && (!iov[end].iov_len || !copied(plan, (uint32_t)end, iov[end].iov_len)))
				end++;
			err = gather_run(f, iov + i, end - i);
		}
	}
	return err;
}

static uint32_t lines_of_elements(const struct ibv_sge *sge, uint32_t n)
{
	uint64_t lines = 0;
	for (uint32_t i = 0; i < n; i++)
		lines += hp_iov_lines(sge[i].addr, sge[i].length);
	return (uint32_t)lines; /* fits: the plan's bytes fit into 32 bits, and so does the number of elements */
}

/* Whether the piece overlaps the slot. Such a piece cannot be copied, because the copy would overwrite it before all is
 * read. */
static inline bool in_slot(const struct hugepin_sg_room *r, uintptr_t addr, size_t len)
{
	uintptr_t slot = (uintptr_t)r->slot;
	return r->slot_len && (addr - slot < r->slot_len || slot - addr < len);
}

/* Check that the plan was made for pieces like these. 0 or -EINVAL. */
static int check_pieces(const struct hugepin_sg_plan *plan, const struct iovec *iov, int n,
			const struct hugepin_sg_room *r)
{
	bool copies = plan->mode & HUGEPIN_SG_COPY && r->slot, bad = false;
	uint64_t bytes = 0, slot_bytes = 0;
	for (int i = 0; i < n; i++) {
		uintptr_t addr = (uintptr_t)iov[i].iov_base;
		size_t len = iov[i].iov_len;
		if (!len)
			continue;
		bad |= !hp_iov_valid(addr, len) || len > UINT32_MAX || (copies && in_slot(r, addr, len));
		bytes += len;
		slot_bytes += copied(plan, (uint32_t)i, len) ? len : 0;
	}
	return bad || bytes != plan->bytes || slot_bytes != plan->slot ? -EINVAL : 0;
}

/* The number of work requests that the elements need. -EMSGSIZE: too many. */
static int wrs_of(const struct hugepin_sg_plan *plan, const struct filling *f)
{
	uint32_t wrs = f->sges <= plan->max_sge ? 1 : plan->max_sge ? (f->sges - 1) / plan->max_sge + 1 : UINT32_MAX;
	bool splits = plan->mode & (HUGEPIN_SG_WRITE | HUGEPIN_SG_READ);
	return wrs > f->room->wrs || (wrs > 1 && !splits) ? -EMSGSIZE : int_of(wrs);
}

/* Copy some pieces and gather the others. */
static int fill_mixture(struct filling *f, const struct hugepin_sg_plan *plan, const struct iovec *iov, int n)
{
	const struct filling start = *f;
	int err = check_pieces(plan, iov, n, f->room);
	if (!err)
		err = fill_elements(f, plan, iov, n);
	if (err == -EMSGSIZE || (!err && wrs_of(plan, f) < 0)) {
		unpin_from(f, 0);
		*f = start;
		f->unsplit = true;
		err = fill_elements(f, plan, iov, n);
	}
	return err;
}

/* Copy all pieces, in one pass. */
static int fill_copied(struct filling *f, const struct hugepin_sg_plan *plan, const struct iovec *iov, int n)
{
	const struct hugepin_sg_room *r = f->room;
	uint64_t left = plan->bytes;
	char *to = r->slot;
	if (left && !r->sges)
		return -EMSGSIZE;
	for (int i = 0; i < n; i++) {
		uintptr_t addr = (uintptr_t)iov[i].iov_base;
		size_t len = iov[i].iov_len;
		if (!len)
			continue;
		if (len > left || !hp_iov_valid(addr, len) || in_slot(r, addr, len))
			return -EINVAL;
		to = put_bytes(to, iov[i].iov_base, len);
		left -= len;
	}
	if (left)
		return -EINVAL;
	if (plan->bytes)
		r->sge[f->sges++] = (struct ibv_sge){ (uintptr_t)r->slot, (uint32_t)plan->bytes, r->slot_lkey };
	f->slot = plan->bytes;
	return 0;
}

static int fill_inlined(struct filling *f, const struct hugepin_sg_plan *plan, const struct iovec *iov, int n)
{
	const struct hugepin_sg_room *r = f->room;
	uint64_t left = plan->bytes;
	uint32_t sges = 0;
	for (int i = 0; i < n; i++) {
		uintptr_t addr = (uintptr_t)iov[i].iov_base;
		size_t len = iov[i].iov_len;
		if (!len)
			continue;
		if (len > left || !hp_iov_valid(addr, len))
			return -EINVAL;
		if (sges == r->sges)
			return -EMSGSIZE;
		r->sge[sges++] = (struct ibv_sge){ addr, (uint32_t)len, 0 };
		left -= len;
	}
	f->sges = sges;
	return left ? -EINVAL : 0;
}

/* Put the first `pins` pins in order if there are enough new ones, or no room for more. Returns how many remain. */
static HP_COLD uint32_t few_left(struct filling *f, uint32_t pins)
{
	bool full = pins == f->room->pins_max && pins > HP_PINS_FEW && pins > f->sorted;
	if (!full && !hp_pins_due(pins, f->sorted))
		return pins;
	f->pins = pins;
	settle_filling(f);
	return f->pins;
}

/* Gather pieces that each lie in one registration, as most do, in a few instructions per piece. Returns the number of
 * pieces done, or an error. The next piece then lies in several registrations, or there is no room for it. */
static inline int gather_whole(struct filling *f, const struct iovec *iov, int n, uint64_t *bytes_left)
{
	const struct hugepin_sg_room *r = f->room;
	struct ibv_sge *sge = r->sge, *stop = element(f, r->sges);
	uint64_t base = 0, range = 0, end = 0, left = *bytes_left;
	uint32_t lkey = 0, pins = 0;
	struct hugepin_pin without_room;
	int i, err = 0;
	for (i = 0; i < n; i++) {
		uint64_t addr = (uintptr_t)iov[i].iov_base, len = iov[i].iov_len;
		if (!len)
			continue;
		if (addr - base >= range) {
			if (HP_UNLIKELY(pins == r->pins_max || pins >= 2 * HP_PINS_FEW))
				pins = few_left(f, pins);
			const struct hugepin_pin *pin = hp_pins_find(r->pins, pins, f->sorted, addr);
			if (!pin) {
				struct hugepin_pin *room = pins == r->pins_max ? &without_room : &r->pins[pins];
				if (!hp_iov_valid(addr, len))
					break;
				room->ref = 0; /* without room, a key still serves if it need not be given back */
				err = f->key(r->arg, iov[i].iov_base, len, f->access, room);
				if (err)
					break;
				if (room->ref && room == &without_room) {
					f->key(r->arg, NULL, 0, 0, room);
					break;
				}
				pins += room->ref != 0;
				pin = room;
			}
			/* Clip the range at the first and last address, so that one comparison decides whether a piece
			 * is inside. */
			base = pin->base + !pin->base;
			range = pin->len - (pin->len && !pin->base);
			range = range < UINT64_MAX - base ? range : UINT64_MAX - base;
			lkey = pin->lkey;
			end = 0;
			err = addr - base < range ? 0 : -EINVAL;
			if (err)
				break;
		}
		if (len > range - (addr - base) || len > left || (sge == stop && addr != end))
			break;
		left -= len;
		if (addr == end) {
			sge[-1].length += (uint32_t)len;
		} else {
			sge->addr = addr;
			sge->length = (uint32_t)len;
			sge->lkey = lkey;
			sge++;
		}
		end = addr + len;
	}
	f->sges = (uint32_t)(sge - r->sge);
	f->pins = pins;
	*bytes_left = left;
	return !err ? i : err < 0 ? err : -EINVAL;
}

static int fill_gathered(struct filling *f, const struct hugepin_sg_plan *plan, const struct iovec *iov, int n)
{
	uint64_t left = plan->bytes;
	int done = gather_whole(f, iov, n, &left);
	if (done < 0)
		return done;
	if (done == n)
		return left ? -EINVAL : 0;
	for (int i = done; i < n; i++) {
		if (iov[i].iov_len > left)
			return -EINVAL;
		left -= iov[i].iov_len;
	}
	int sges = left ? -EINVAL : map_run(f, iov + done, n - done);
	return sges < 0 ? sges : 0;
}

/* ------------------------------------------------------------------ work requests */

/* Write the work requests from last to first, because `tmpl` may be the first of them. */
static void chain_requests(const struct hugepin_sg_plan *plan, const struct ibv_send_wr *tmpl, const struct filling *f,
			   int wrs)
{
	const unsigned last_only = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
	struct ibv_sge *end = element(f, f->sges);
	uint64_t offset = plan->bytes;
	for (int i = wrs - 1; i >= 0; i--) {
		struct ibv_send_wr *wr = &f->room->wr[i];
		struct ibv_sge *sge = element(f, (size_t)i * plan->max_sge);
		bool last = i == wrs - 1;
		*wr = *tmpl;
		wr->next = last ? NULL : wr + 1;
		wr->sg_list = sge;
		wr->num_sge = (int)(end - sge);
		wr->send_flags &= ~(unsigned)IBV_SEND_INLINE;
		if (plan->mode & HUGEPIN_SG_INLINE && plan->bytes)
			wr->send_flags |= IBV_SEND_INLINE;
		if (!last) {
			wr->send_flags &= ~last_only;
			/* Only writes and reads are split, because a send is one work request. */
			wr->opcode = plan->mode & HUGEPIN_SG_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
		}
		if (!i)
			break;
		wr->send_flags &= ~(unsigned)IBV_SEND_FENCE;
		while (end > sge)
			offset -= (--end)->length;
		wr->wr.rdma.remote_addr += offset;
	}
}

static bool room_ok(const struct hugepin_sg_room *r)
{
	return r && r->size >= sizeof *r && (r->sge || !r->sges) && (r->pins || !r->pins_max);
}

int hugepin_sg_fill(const struct hugepin_sg_plan *plan, const struct iovec *iov, int n, const struct ibv_send_wr *tmpl,
		    const struct hugepin_sg_room *room, struct hugepin_sg_info *ret_info)
{
	if (!plan || n < 0 || (n && !iov) || !tmpl || !room_ok(room) || !room->wr || plan->n != (uint32_t)n ||
	    plan->mode & HUGEPIN_SG_RECV)
		return -EINVAL;
	bool write = tmpl->opcode == IBV_WR_RDMA_WRITE || tmpl->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	bool read = tmpl->opcode == IBV_WR_RDMA_READ;
	bool send = tmpl->opcode == IBV_WR_SEND || tmpl->opcode == IBV_WR_SEND_WITH_IMM ||
		    tmpl->opcode == IBV_WR_SEND_WITH_INV;
	if (plan->mode & HUGEPIN_SG_WRITE ? !write : plan->mode & HUGEPIN_SG_READ ? !read : !send)
		return -EINVAL;
	if (!send && plan->bytes && tmpl->wr.rdma.remote_addr + (plan->bytes - 1) < plan->bytes - 1)
		return -EINVAL;
	size_t slot_len = room->slot ? room->slot_len : 0;
	if (slot_len < plan->slot)
		return -EMSGSIZE;

	const unsigned both = HUGEPIN_SG_GATHER | HUGEPIN_SG_COPY;
	bool may_copy = (plan->mode & both) == both;
	const struct filling start = {
		.room = room,
		.key = room->key ? room->key : no_key,
		.access = read ? HUGEPIN_WRITE : HUGEPIN_READ,
		.spare = slot_len - plan->slot,
	};
	struct filling f = start;
	int ret;
	if (plan->mode & HUGEPIN_SG_INLINE)
		ret = fill_inlined(&f, plan, iov, n);
	else if (!(plan->mode & HUGEPIN_SG_GATHER))
		ret = fill_copied(&f, plan, iov, n);
	else if (plan->slot)
		ret = fill_mixture(&f, plan, iov, n);
	else
		ret = fill_gathered(&f, plan, iov, n);
	ret = ret ? ret : wrs_of(plan, &f);
	if (may_copy && !plan->slot && (ret == -ENOKEY || ret == -EMSGSIZE)) { /* some piece cannot be gathered */
		unpin_from(&f, 0);
		f = start;
		ret = fill_mixture(&f, plan, iov, n);
		ret = ret ? ret : wrs_of(plan, &f);
	}
	if (ret < 0) {
		unpin_from(&f, 0);
		return ret;
	}
	if (HP_UNLIKELY(f.pins > HP_PINS_FEW && f.pins > f.sorted)) /* give back registrations that were pinned twice */
		settle_filling(&f);
	chain_requests(plan, tmpl, &f, ret);
	if (ret_info)
		*ret_info = (struct hugepin_sg_info){
			.bytes = plan->bytes,
			.sges = f.sges,
			.pins = f.pins,
			.copied = (uint32_t)f.slot,
			.lines = plan->mode & HUGEPIN_SG_INLINE ? 0 : lines_of_elements(room->sge, f.sges),
		};
	return ret;
}

int hugepin_sg_fill_recv(const struct hugepin_sg_caps *caps, const struct iovec *iov, int n, struct ibv_recv_wr *wr,
			 const struct hugepin_sg_room *room, struct hugepin_sg_info *ret_info)
{
	if (!caps || !wr || !room_ok(room))
		return -EINVAL;
	struct filling f = { .room = room, .key = room->key ? room->key : no_key };
	struct hugepin_sg_info info;
	uint32_t sges = room->sges < caps->max_recv_sge ? room->sges : caps->max_recv_sge;
	int ret = hugepin_sg_map(iov, n, HUGEPIN_WRITE, f.key, room->arg, (struct hugepin_sge *)room->sge, int_of(sges),
				 room->pins, int_of(room->pins_max), &info);
	if (ret < 0)
		return ret;
	if (info.bytes > caps->max_msg) {
		f.pins = info.pins;
		unpin_from(&f, 0);
		return -EMSGSIZE;
	}
	wr->sg_list = room->sge;
	wr->num_sge = ret;
	if (ret_info)
		*ret_info = info;
	return ret;
}
