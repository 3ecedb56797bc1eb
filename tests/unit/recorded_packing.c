/*
 * Packing without a queue: plans, work requests and their elements, receives, elements of scattered pieces, layouts and
 * frames are what was recorded (tests/recorded.h). Memory, the slot and registrations lie where they always do, because
 * plans look at pages of 2 MiB. Rooms, limits and thresholds are often just those that are needed, one less and one
 * more.
 */
#include <errno.h>
#include <sys/mman.h>

#include "hugepin_sg.h"
#include "sge/plan.h"
#include "tests/recorded.h"
#include "tests/rnd.h"

#define MEMORY ((unsigned char *)0x200000000000)
enum { BYTES = 6 << 20, SLOT = 4 << 20, FRAME = 131072 };
enum { PIECES = 40, REGS = 24, ROOM = 64, ROUNDS = 12000, EACH = 2000, SLOT_KEY = 999 };

static unsigned char *slot;
static struct {
	uintptr_t addr;
	size_t len;
	int out;
} regs[REGS];
static int regs_n, fails_at, fails_with;
static bool whole; /* keys give no reference */

static long long place(uint64_t addr)
{
	return (long long)(addr - (uintptr_t)MEMORY);
}

static int key(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *pin)
{
	(void)arg;
	if (!addr) {
		note("back %u", (unsigned)pin->ref);
		regs[pin->ref - 1].out--;
		return 0;
	}
	note("key %llx+%zx %u", place((uintptr_t)addr), len, access);
	if (fails_at && --fails_at == 0)
		return fails_with;
	for (int i = 0; i < regs_n; i++)
		if ((uintptr_t)addr - regs[i].addr < regs[i].len) {
			regs[i].out += !whole;
			*pin = (struct hugepin_pin){ regs[i].addr, regs[i].len, 100 + (uint32_t)i, 0,
						     whole ? 0 : (uint64_t)i + 1 };
			return 0;
		}
	return -ENOKEY;
}

/* Some touch, some leave a hole, and some end where a page of 2 MiB does. */
static void register_some(void)
{
	uintptr_t at = (uintptr_t)MEMORY, end = at + BYTES;

	for (regs_n = 0; regs_n < REGS && at < end; regs_n++) {
		size_t len = (1 + rnd(128)) * 4096;

		at += rnd(4) ? 0 : 4096;
		len = rnd(4) ? len : (2 * MIB - at % (2 * MIB));
		regs[regs_n].addr = at;
		regs[regs_n].len = at + len > end ? end - at : len;
		regs[regs_n].out = 0;
		at += len;
	}
	whole = rnd(8) == 0;
	fails_at = rnd(12) ? 0 : 1 + (int)rnd(6);
	fails_with = rnd(2) ? -ENOKEY : -EIO;
}

static int some_pieces(struct iovec *iov)
{
	static const size_t lengths[] = { 0, 1, 63, 64, 65, 199, 200, 201, 256, 799, 800, 4096, 20000, 70000 };
	int n = (int)rnd(rnd(3) ? 8 : PIECES);
	unsigned most = 4 + (unsigned)rnd(11);
	size_t gap = (size_t[]){ 0, 32, 4096, 4128, 8192 }[rnd(5)];
	unsigned char *at = MEMORY + rnd(BYTES / 4096) * 4096;

	for (int i = 0; i < n; i++) {
		size_t len = lengths[rnd(most)];

		if (at + len > MEMORY + BYTES)
			at = MEMORY + rnd(8) * 64;
		iov[i] = (struct iovec){ at, len };
		at += len + (rnd(3) ? gap : 0);
	}
	return n;
}

static uint64_t hash_of(const unsigned char *p, size_t len)
{
	uint64_t h = 0;

	for (size_t i = 0; i < len; i += i + 4096 < len ? 7 : 1) /* all of the end, and samples before */
		h = (h ^ p[i]) * 0x100000001b3;
	return h;
}

static void note_elements(const struct ibv_sge *s, int n)
{
	for (int i = 0; i < n; i++)
		note("%llx+%x %u", place(s[i].addr), s[i].length, s[i].lkey);
}

/* A room or a limit: more than enough, or nearly what is needed. */
static uint32_t about(uint32_t needed, uint32_t most)
{
	uint32_t off = (uint32_t)rnd(3), tight = rnd(3) == 0;

	return !tight ? most : needed + off > 1 ? needed + off - 1 : 0;
}

static void note_info(const struct hugepin_sg_info *info)
{
	note("%llu bytes, %u elements, %u pins, %u copied, %u lines", (unsigned long long)info->bytes, info->sges,
	     info->pins, info->copied, info->lines);
}

static struct ibv_send_wr wr[ROOM];
static struct ibv_sge sge[4 * ROOM];
static struct hugepin_pin pins[4 * ROOM];

static void give_back(void)
{
	for (int i = 0; i < regs_n; i++)
		if (regs[i].out) {
			note("%d out %d", i, regs[i].out);
			regs[i].out = 0;
		}
}

static void plan_and_fill(void)
{
	static const uint32_t max_sge[] = { 1, 2, 3, 7, 30 }, inlines[] = { 0, 64, 220, 1000 };
	static const unsigned modes[] = { 0, HUGEPIN_SG_INLINE, HUGEPIN_SG_COPY, HUGEPIN_SG_GATHER,
					  HUGEPIN_SG_GATHER | HUGEPIN_SG_COPY, HUGEPIN_SG_INLINE | HUGEPIN_SG_COPY },
			      purposes[] = { 0, 0, HUGEPIN_SG_WRITE, HUGEPIN_SG_READ, HUGEPIN_SG_RECV };
	struct hugepin_sg_caps caps = { .max_sge = max_sge[rnd(5)], .max_recv_wr = 16 };
	struct hugepin_sg_model model = { .size = sizeof model, .source = HUGEPIN_SG_MODEL_DEVICE };
	struct ibv_send_wr tmpl = { .wr_id = 7, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct hugepin_sg_plan plan = { 0 };
	struct hugepin_sg_info info = { 0 };
	struct hugepin_sg_room room = { .size = sizeof room, .wr = wr, .sge = sge, .pins = pins, .slot = slot,
					.slot_lkey = SLOT_KEY, .key = key };
	struct iovec iov[PIECES];
	int n = some_pieces(iov), e;
	unsigned mode = modes[rnd(6)], purpose = purposes[rnd(5)];
	uint64_t bytes = 0;

	caps.max_wr = 1 + (uint32_t)rnd(5);
	caps.max_recv_sge = max_sge[rnd(5)];
	caps.max_sge_rd = max_sge[rnd(5)];
	caps.max_inline = inlines[rnd(4)];
	for (int i = 0; i < n; i++)
		bytes += iov[i].iov_len;
	caps.max_msg = rnd(6) ? UINT64_C(1) << 31 : bytes + rnd(3) - 1;
	caps.mtu_ud = rnd(8) ? 0 : 4096;
	for (int i = 0; i < 2; i++) {
		model.copy_below[i] = 200 * (uint32_t)rnd(3);
		model.apart_below[i] = 800 * (uint32_t)rnd(3);
		model.inline_pieces[i] = (uint32_t)rnd(9);
	}
	model.refused = rnd(6) ? 0 : modes[1 + rnd(3)];
	mode |= purpose | (rnd(2) ? HUGEPIN_SG_COLD : 0);
	e = hugepin_sg_plan(rnd(5) ? &model : NULL, &caps, iov, n, mode, &plan);
	note("plan %d: %x %u %u %u-%u", e, plan.mode, plan.n, plan.copy_below, plan.copy_from, plan.copy_to);
	note("%u %u %u %u", plan.slot, plan.wrs, plan.sges, plan.max_sge);
	if (e)
		return;
	memset(slot, 0, plan.slot + 64);
	room.wrs = about(plan.wrs, ROOM);
	room.sges = about(plan.sges, 4 * ROOM);
	room.pins_max = about(plan.sges, 4 * ROOM);
	room.slot_len = about(plan.slot, SLOT);
	if (rnd(20) == 0)
		room.key = NULL;
	if (purpose == HUGEPIN_SG_RECV) {
		struct ibv_recv_wr receive = { .wr_id = 9 };

		e = hugepin_sg_fill_recv(&caps, iov, n, &receive, &room, &info);
		note("receive %d, %d", e, receive.num_sge);
		note_info(&info);
		if (e > 0)
			note_elements(receive.sg_list, receive.num_sge);
		give_back();
		return;
	}
	if (purpose) {
		tmpl.opcode = purpose == HUGEPIN_SG_READ ? IBV_WR_RDMA_READ :
			      rnd(2)			 ? IBV_WR_RDMA_WRITE :
							   IBV_WR_RDMA_WRITE_WITH_IMM;
		tmpl.wr.rdma.remote_addr = 0x1000;
		tmpl.wr.rdma.rkey = 5;
	}
	if (rnd(10) == 0 && n)
		n--; /* another layout */
	e = hugepin_sg_fill(&plan, iov, n, &tmpl, &room, &info);
	note("fill %d", e);
	note_info(&info);
	for (const struct ibv_send_wr *w = wr; e > 0 && w; w = w->next) {
		note("%d %x %d %llx %u %llx %u", w->opcode, w->send_flags, w->num_sge, (unsigned long long)w->wr_id,
		     w->opcode == IBV_WR_SEND ? 0 : w->wr.rdma.rkey,
		     w->opcode == IBV_WR_SEND ? 0 : (unsigned long long)w->wr.rdma.remote_addr, w->imm_data);
		note_elements(w->sg_list, w->num_sge);
	}
	note("slot %llx", (unsigned long long)hash_of(slot, plan.slot + 64));
	give_back();
}

static void map_pieces(void)
{
	struct hugepin_sg_info info = { 0 };
	struct iovec iov[PIECES];
	int n = some_pieces(iov), sges = (int)about((uint32_t)n, 4 * ROOM), max = (int)about((uint32_t)n / 2, 4 * ROOM);
	size_t len = rnd(SLOT);
	int e = hugepin_sg_map(iov, n, HUGEPIN_READ, key, NULL, (struct hugepin_sge *)sge, sges, pins, max, &info);

	note("map %d", e);
	note_info(&info);
	note_elements(sge, e);
	give_back();
	note("lines %u, offset %zu", hugepin_sg_lines(iov, n), hugepin_sg_offset(iov, n, len));
}

static void lay_out(void)
{
	static const ptrdiff_t strides[] = { -4096, -64, -1, 0, 1, 63, 64, 65, 4096 };
	struct iovec iov[PIECES];
	size_t off[PIECES], len[PIECES], block = (size_t[]){ 0, 1, 32, 33, 64 }[rnd(5)], count = rnd(PIECES + 4);
	int max = rnd(3) ? PIECES : (int)rnd(PIECES), e;

	e = hugepin_sg_strided(MEMORY + MIB, block, strides[rnd(9)], count, iov, max);
	note("strided %d", e);
	for (int i = 0; i < e; i++)
		note("%llx+%zx", place((uintptr_t)iov[i].iov_base), iov[i].iov_len);
	for (int i = 0; i < PIECES; i++) {
		len[i] = rnd(3) * 64;
		off[i] = i && rnd(2) ? off[i - 1] + len[i - 1] : rnd(100) * 64 - 640;
	}
	e = hugepin_sg_indexed(MEMORY + MIB, off, len, rnd(PIECES), iov, max);
	note("indexed %d", e);
	for (int i = 0; i < e; i++)
		note("%llx+%zx", place((uintptr_t)iov[i].iov_base), iov[i].iov_len);
}

static void frame_some(void)
{
	static unsigned char to[FRAME];
	struct iovec iov[PIECES], got;
	struct hugepin_sg_rx rx = { 0 };
	uint64_t tag[PIECES], t = 0;
	size_t lengths[PIECES], bytes, room, change;
	int n = some_pieces(iov), e;
	ssize_t len;

	bytes = HUGEPIN_SG_TABLE(n);
	for (int i = 0; i < n; i++) {
		iov[i].iov_len %= 2048;
		lengths[i] = iov[i].iov_len;
		tag[i] = rnd(1000) << (i % 40);
		bytes += iov[i].iov_len;
	}
	memset(slot, 0, FRAME);
	room = about((uint32_t)bytes, FRAME);
	len = hugepin_sg_frame(slot, room, iov, rnd(4) ? tag : NULL, n);
	note("frame %zd %llx", len, (unsigned long long)hash_of(slot, FRAME));
	if (len > 0) {
		change = rnd(3) ? FRAME : rnd((uint64_t)HUGEPIN_SG_TABLE(n));
		if (change < FRAME)
			slot[change] ^= (unsigned char)(1 << change % 8);
		len += rnd(8) ? 0 : (ssize_t)rnd(3) - 1;
		e = hugepin_sg_iter(&rx, slot, (size_t)len);
		note("iter %d %u %u", e, rx.part, rx.parts);
		while (e >= 0 && hugepin_sg_next(&rx, &got, &t) == 1)
			note("%zx+%zx %llx", (size_t)((unsigned char *)got.iov_base - slot), got.iov_len,
			     (unsigned long long)t);
		memset(to, 0, sizeof to);
		got = (struct iovec){ to, about((uint32_t)(bytes - HUGEPIN_SG_TABLE(n)), FRAME) };
		len = hugepin_sg_scatter(slot, (size_t)len, &got, 1);
		note("scatter %zd %llx", len, (unsigned long long)hash_of(to, FRAME));
	}
	memset(slot, 0, 4096);
	room = about((uint32_t)HUGEPIN_SG_TABLE(n), 4096);
	change = rnd(4);
	len = hugepin_sg_table(slot, room, lengths, tag, n > 1 && change ? 1 : n, (unsigned)change,
			       change ? (unsigned)change + 1 : 1);
	note("table %zd %llx", len, (unsigned long long)hash_of(slot, 4096));
}

TEST(messages_are_packed_as_was_recorded)
{
	static void (*const what[])(void) = { plan_and_fill, plan_and_fill, plan_and_fill, map_pieces, lay_out,
					      frame_some };
	unsigned char *p = mmap(MEMORY, BYTES + SLOT, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (!EXPECT(p == MEMORY))
		return;
	slot = MEMORY + BYTES;
	for (size_t i = 0; i < BYTES; i += 16)
		MEMORY[i] = (unsigned char)(i / 16 * 7 + i / 4096);
	seed = 5;
	for (unsigned i = 1; i <= ROUNDS; i++) {
		register_some();
		what[rnd(6)]();
		if (i % EACH == 0)
			noted("%u rounds", i);
	}
	munmap(MEMORY, BYTES + SLOT);
	EXPECT(as_recorded("packing"));
}

T_MAIN
