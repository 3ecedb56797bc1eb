/*
 * sge/calibrate.c, with measure_device.c, on the strict device of mock_verbs.h: a provider that loses bytes is found out and
 * refused, whatever fails leaves nothing behind, and what was measured is kept. With measure_paging.c, too, on a device that
 * registers on demand. Its making of objects is replaced here, too. Which thresholds are found is the subject of sg_measure.c.
 *
 * The clock stands but for what the test says that each step takes. So what is measured does not depend on what else the
 * machine does.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/base.h"
#include "hugepin_verbs.h"
#include "mock_verbs.h"
#include "reg/backend/terms.h"
#include "reg/backend/verbs.h"
#include "reg/domain.h"
#include "sge/measure_paging.h"

/* ------------------------------------------------------------------ the device */

static struct {
	unsigned qps, cqs, mrs; /* that exist */
	unsigned calls, fails_at; /* of those that make or change something; the n-th fails. 0: none */
	uint32_t sges_max, inline_max;
	enum manner { HONEST, LOSES_ELEMENTS, LOSES_INLINE, LOSES_ALL, REFUSES_ELEMENTS, ENDS_IN_ERROR, NEVER_ENDS } manner;
	unsigned sends, most_elements, most_inline;
	uint32_t absent; /* the key of memory that is registered on demand, until it is brought in */
	uint64_t faulted; /* where it has faulted last */
	/* registering, deregistering, registering on demand, bringing in: a call, and each page */
	struct takes {
		uint64_t call_ns, page_ns;
	} reg, dereg, demand, bring;
	uint64_t fault_ns[2];
} dev;

static struct ibv_device device_name = { .name = "mock0" };
static struct ibv_pd pd = { .context = &mock.context };

static bool fails(void)
{
	const bool now = ++dev.calls == dev.fails_at;
	errno = now ? ENOMEM : errno;
	return now;
}

/* Other threads may look at the clock. */
static _Atomic double now;

static void take(double ns)
{
	atomic_store(&now, atomic_load(&now) + ns);
}

/* To look at the clock takes a nanosecond. */
static uint64_t clock_of_takes(void)
{
	take(1);
	return (uint64_t)atomic_load(&now);
}

static void take_pages(struct takes takes, size_t len)
{
	take((double)(takes.call_ns + takes.page_ns * (len / 4096)));
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	(void)context, (void)port, (void)index;
	memset(gid, 0, sizeof *gid);
	return fails() ? -1 : 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
			     int vector)
{
	(void)context, (void)cq_context, (void)channel, (void)vector;
	if (fails())
		return NULL;
	dev.cqs++;
	return mock_cq((unsigned)cqe);
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	EXPECT_EQ(dev.qps, 0);
	dev.cqs--;
	mock_cq_free(cq);
	return 0;
}

enum { MESSAGE_NS = 40000 };

/* To look for a completion takes a nanosecond, and a millisecond if there is none. */
static int poll_virtually(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	const int got = mock_poll_cq(cq, n, wc);

	take(got ? 1 : 1000000);
	return got;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	const bool inlined = wr->send_flags & IBV_SEND_INLINE;
	struct ibv_send_wr lie = *wr;

	dev.sends++;
	if (dev.absent && !inlined && (wr->sg_list->lkey == dev.absent || wr->wr.rdma.rkey == (dev.absent | MOCK_RKEY))) {
		const uint64_t at = wr->sg_list->lkey == dev.absent ? wr->sg_list->addr : wr->wr.rdma.remote_addr;
		if (at != dev.faulted)
			take((double)dev.fault_ns[wr->sg_list->lkey != dev.absent]);
		dev.faulted = at;
	}
	if (!inlined && wr->num_sge > (int)dev.most_elements)
		dev.most_elements = (unsigned)wr->num_sge;
	unsigned bytes = 0;
	for (int i = 0; i < wr->num_sge; i++)
		bytes += wr->sg_list[i].length;
	if (inlined && bytes > dev.most_inline)
		dev.most_inline = bytes;
	if (dev.manner == REFUSES_ELEMENTS && wr->num_sge > 4) {
		*bad = wr;
		return EINVAL;
	}
	take(MESSAGE_NS);
	if ((dev.manner == LOSES_ELEMENTS && !inlined && wr->num_sge > 1) || (dev.manner == LOSES_INLINE && inlined) ||
	    dev.manner == LOSES_ALL)
		lie.num_sge--; /* and yet success */
	if (dev.manner == ENDS_IN_ERROR && wr->num_sge > 1)
		((struct mock_qp *)qp)->fail = IBV_WC_LOC_QP_OP_ERR;
	if (dev.manner == NEVER_ENDS && inlined)
		return 0;
	return mock_post_send(qp, &lie, bad);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *p, struct ibv_qp_init_attr *init)
{
	(void)p;
	if (fails())
		return NULL;
	errno = EINVAL;
	if (init->cap.max_send_sge > dev.sges_max || init->cap.max_inline_data > dev.inline_max)
		return NULL;
	struct mock_qp *q = mock_qp(init->qp_type, init->send_cq, &init->cap, NULL);
	mock.context.ops.post_send = post_send;
	mock.context.ops.poll_cq = poll_virtually;
	dev.qps++;
	return &q->qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (fails())
		return EINVAL;
	if (mask & IBV_QP_DEST_QPN)
		mock_connect((struct mock_qp *)qp, mock_find(attr->dest_qp_num));
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	dev.qps--;
	mock_qp_free((struct mock_qp *)qp);
	return 0;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *p, void *addr, size_t length, int access)
{
	if (fails())
		return NULL;
	struct ibv_mr *mr = calloc(1, sizeof *mr);
	*mr = (struct ibv_mr){ .context = p->context, .pd = p, .addr = addr, .length = length };
	mr->lkey = mock_reg(addr, length, HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE);
	mr->rkey = mr->lkey | MOCK_RKEY;
	take_pages(access & IBV_ACCESS_ON_DEMAND ? dev.demand : dev.reg, length);
	if (access & IBV_ACCESS_ON_DEMAND) {
		dev.absent = mr->lkey;
		dev.faulted = 0;
	}
	dev.mrs++;
	return mr;
}

/* What the inline function calls where the compiler does not know the access. */
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *p, void *addr, size_t length, uint64_t iova, unsigned access)
{
	EXPECT_EQ(iova, (uintptr_t)addr);
	return ibv_reg_mr(p, addr, length, (int)access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	take_pages(dev.dereg, mr->length);
	if (mr->lkey == dev.absent)
		dev.absent = 0;
	mock_dereg(mr->lkey);
	free(mr);
	dev.mrs--;
	return 0;
}

/* ------------------------------------------------------------------ */

static char cache[] = "/tmp/sg_calibrate.XXXXXX";

static void set_up(enum manner manner)
{
	hp_clock_set(clock_of_takes);
	if (!mock.device.phys_port_cnt) {
		EXPECT(mkdtemp(cache) && !setenv("XDG_CACHE_HOME", cache, 1));
		mock.device.phys_port_cnt = 1;
		mock.context.device = &device_name;
		snprintf(mock.device.fw_ver, sizeof mock.device.fw_ver, "1.2");
	}
	memset(&dev, 0, sizeof dev);
	dev.sges_max = 30;
	dev.inline_max = 512;
	dev.manner = manner;
	mock.port.state = IBV_PORT_ACTIVE;
}

static int calibrate(struct hugepin_sg_model *m)
{
	*m = (struct hugepin_sg_model){ 0 };
	const int e = hugepin_sg_calibrate(&pd, HUGEPIN_SG_ANEW, m, sizeof *m);
	EXPECT_EQ(dev.qps, 0);
	EXPECT_EQ(dev.cqs, 0);
	EXPECT_EQ(dev.mrs, 0);
	return e;
}

TEST(a_device_that_is_honest_is_refused_nothing)
{
	struct hugepin_sg_model m;
	set_up(HONEST);
	EXPECT_EQ(calibrate(&m), 0);
	EXPECT_EQ(m.refused, 0);
	EXPECT_EQ(m.source, HUGEPIN_SG_MODEL_DEVICE);
	EXPECT_EQ(m.inline_pieces[0], 30); /* all ways take as long */
	EXPECT_EQ(dev.most_elements, 30);
	EXPECT(dev.most_inline > 128);
}

TEST(elements_that_get_lost_are_refused)
{
	struct hugepin_sg_model m;
	set_up(LOSES_ELEMENTS);
	EXPECT_EQ(calibrate(&m), 0);
	EXPECT_EQ(m.refused, HUGEPIN_SG_GATHER);
	/* and it is not forgotten */
	EXPECT_EQ(hugepin_sg_calibrate(&pd, 0, &m, sizeof m), 0);
	EXPECT_EQ(m.refused, HUGEPIN_SG_GATHER);
	/* nor planned with */
	static char a[600], b[600];
	struct iovec iov[2] = { { a, 600 }, { b, 600 } };
	struct hugepin_sg_caps caps = { .max_sge = 30, .max_recv_sge = 30, .max_wr = 16, .max_msg = 1 << 20 };
	struct hugepin_sg_plan plan;
	EXPECT_EQ(hugepin_sg_plan(&m, &caps, iov, 2, 0, &plan), 0);
	EXPECT_EQ(plan.mode, HUGEPIN_SG_COPY);
	EXPECT_EQ(hugepin_sg_plan(&m, &caps, iov, 2, HUGEPIN_SG_GATHER, &plan), -EOPNOTSUPP);
}

TEST(inline_data_that_gets_lost_is_refused)
{
	struct hugepin_sg_model m;
	set_up(LOSES_INLINE);
	EXPECT_EQ(calibrate(&m), 0);
	EXPECT_EQ(m.refused, HUGEPIN_SG_INLINE);
}

TEST(a_mode_that_cannot_be_posted_or_ends_in_errors_is_refused)
{
	struct hugepin_sg_model m;
	set_up(REFUSES_ELEMENTS); /* of inline data, too */
	EXPECT_EQ(calibrate(&m), 0);
	EXPECT_EQ(m.refused, HUGEPIN_SG_GATHER | HUGEPIN_SG_INLINE);
	set_up(ENDS_IN_ERROR);
	EXPECT_EQ(calibrate(&m), 0);
	EXPECT_EQ(m.refused, HUGEPIN_SG_GATHER | HUGEPIN_SG_INLINE);
}

TEST(what_never_completes_is_refused_after_a_while)
{
	struct hugepin_sg_model m;
	set_up(NEVER_ENDS);
	EXPECT_EQ(calibrate(&m), 0);
	EXPECT_EQ(m.refused, HUGEPIN_SG_INLINE);
}

TEST(a_device_that_cannot_even_send_one_element_is_an_error)
{
	struct hugepin_sg_model m;
	set_up(LOSES_ALL);
	EXPECT_EQ(calibrate(&m), -EIO);
	EXPECT_EQ(m.size, 0); /* left alone */
}

static bool close_to(const char *name, float found, float expected)
{
	if (found >= expected * 0.95f && found <= expected * 1.05f + 0.01f)
		return true;
	t_print("# %s: %.3f, not %.3f\n", name, (double)found, (double)expected);
	return false;
}
TEST(what_is_granted_is_what_is_measured)
{
	struct hugepin_sg_model m;
	set_up(HONEST);
	dev.sges_max = 3;
	dev.inline_max = 64;
	EXPECT_EQ(calibrate(&m), 0);
	EXPECT(dev.most_elements >= 1 && dev.most_elements <= 3);
	EXPECT(dev.most_inline > 0 && dev.most_inline <= 64);
	set_up(HONEST);
	dev.inline_max = 0;
	EXPECT_EQ(calibrate(&m), 0);
	EXPECT_EQ(dev.most_inline, 0);
}

TEST(each_call_may_fail)
{
	struct hugepin_sg_model m;
	set_up(HONEST);
	EXPECT_EQ(calibrate(&m), 0);
	const unsigned calls = dev.calls;
	EXPECT(calls > 8);
	unsigned failed = 0;
	for (unsigned i = 1; i <= calls; i++) {
		set_up(HONEST);
		dev.fails_at = i;
		const int e = calibrate(&m);
		failed += e != 0;
		if (!EXPECT(!e || e == -ENOMEM || e == -EINVAL || e == -EIO)) /* -EIO: registered for a pin alone, without a key */
			t_print("# call %u: %d\n", i, e);
	}
	EXPECT(failed >= calls / 2); /* another queue pair may be granted where one was not */
	set_up(HONEST);
	EXPECT_EQ(calibrate(&m), 0);
}

/* Sends that it takes to know the device, which are none if it was measured before. */
static unsigned sends_to_know(unsigned flags, struct hugepin_sg_model *m)
{
	memset(m, 0, sizeof *m);
	dev.sends = 0;
	errno = 77;
	EXPECT_EQ(hugepin_sg_calibrate(&pd, flags, m, sizeof *m), 0);
	EXPECT_EQ(errno, 77);
	EXPECT_EQ(m->size, sizeof *m);
	return dev.sends;
}

TEST(what_was_measured_is_kept_for_this_device_and_firmware)
{
	struct hugepin_sg_model m, again;
	set_up(HONEST);
	EXPECT(sends_to_know(HUGEPIN_SG_ANEW, &m) > 0);
	EXPECT_EQ(m.source, HUGEPIN_SG_MODEL_DEVICE);
	EXPECT_EQ(sends_to_know(0, &again), 0);
	EXPECT_EQ(again.source, m.source);
	EXPECT_EQ(again.refused, m.refused);
	EXPECT(!memcmp(&again, &m, sizeof m));
	EXPECT(sends_to_know(HUGEPIN_SG_ANEW, &again) > 0);
	EXPECT_EQ(sends_to_know(0, &again), 0);
	snprintf(mock.device.fw_ver, sizeof mock.device.fw_ver, "1.3");
	EXPECT(sends_to_know(0, &again) > 0);
	snprintf(mock.device.fw_ver, sizeof mock.device.fw_ver, "1.2");
	mock.device.vendor_part_id++;
	EXPECT(sends_to_know(0, &again) > 0);
	mock.device.vendor_part_id--;

	memset(&again, 0x55, sizeof again);
	EXPECT_EQ(hugepin_sg_calibrate(&pd, 0, &again, offsetof(struct hugepin_sg_model, source)), 0);
	EXPECT_EQ(again.size, offsetof(struct hugepin_sg_model, source));
	EXPECT_EQ(((unsigned char *)&again)[offsetof(struct hugepin_sg_model, source)], 0x55);
	EXPECT_EQ(hugepin_sg_calibrate(&pd, 0, NULL, sizeof m), -EINVAL);
	EXPECT_EQ(hugepin_sg_calibrate(NULL, 0, &m, sizeof m), -EINVAL);
	EXPECT_EQ(hugepin_sg_calibrate(&pd, 0, &m, sizeof m.size - 1), -EINVAL);
	EXPECT_EQ(hugepin_sg_calibrate(&pd, HUGEPIN_SG_ANEW << 1, &m, sizeof m), -EINVAL);
}

/* ------------------------------------------------------------------ on demand */

static int query_on_demand(struct ibv_context *context, const struct ibv_query_device_ex_input *in,
			   struct ibv_device_attr_ex *ret, size_t size)
{
	(void)context, (void)in;
	memset(ret, 0, size);
	ret->odp_caps.general_caps = IBV_ODP_SUPPORT;
	ret->odp_caps.per_transport_caps.rc_odp_caps =
		IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
	return 0;
}

static int advise(struct ibv_pd *p, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sge, uint32_t n)
{
	(void)p, (void)flags;
	EXPECT(n == 1 && advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE && sge->lkey == dev.absent);
	if (fails())
		return EIO;
	take_pages(dev.bring, sge->length);
	dev.absent = 0;
	return 0;
}

static struct verbs_context on_demand = {
	.query_device_ex = query_on_demand,
	.advise_mr = advise,
	.sz = sizeof on_demand,
	.context = { .device = &device_name, .abi_compat = __VERBS_ABI_IS_EXTENDED },
};
static struct ibv_pd on_demand_pd = { .context = &on_demand.context };

TEST(what_a_device_takes_on_demand_is_measured_and_kept)
{
	struct hugepin_sg_model m;
	struct hugepin_terms t = { 0 };
	struct hp_testbed testbed;
	set_up(HONEST);
	EXPECT_EQ(hp_verbs_testbed(&on_demand.context, &testbed), 0);
	EXPECT_EQ(hp_terms_of(&testbed, &t), -ENOENT); /* the device of the other tests has no such memory */
	dev.fault_ns[0] = 20000;
	dev.fault_ns[1] = 40000;
	dev.reg = (struct takes){ 50000, 700 };
	dev.dereg = (struct takes){ 30000, 400 };
	dev.demand = (struct takes){ 9000, 20 };
	dev.bring = (struct takes){ 200000, 3000 };
	EXPECT_EQ(hugepin_sg_calibrate(&on_demand_pd, HUGEPIN_SG_ANEW, &m, sizeof m), 0);
	EXPECT(!dev.qps && !dev.cqs && !dev.mrs);
	EXPECT_EQ(hp_terms_of(&testbed, &t), 0);
	EXPECT(close_to("fault_send", t.fault_send, 20000) && close_to("fault_receive", t.fault_receive, 40000));
	EXPECT(close_to("reg", t.reg, 50000) && close_to("reg_page", t.reg_page, 700));
	EXPECT(close_to("dereg", t.dereg, 30000) && close_to("dereg_page", t.dereg_page, 400));
	EXPECT(close_to("demand", t.demand, 9000) && close_to("demand_page", t.demand_page, 20));
	EXPECT(close_to("bring", t.bring, 200000) && close_to("bring_page", t.bring_page, 3000));

	/* the backend hands them to the pin cache */
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM };
	struct hugepin_terms again = { 0 };
	hugepin_domain *d;
	void *ctx;
	if (!EXPECT_EQ(hugepin_verbs_open(&on_demand_pd, &attr, &d), 0))
		return;
	errno = 77;
	EXPECT_EQ(hp_domain_backend(d, &ctx)->terms(ctx, &again), 0);
	EXPECT_EQ(errno, 77);
	EXPECT(!memcmp(&again, &t, sizeof t));
	snprintf(mock.device.fw_ver, sizeof mock.device.fw_ver, "1.3");
	EXPECT_EQ(hp_domain_backend(d, &ctx)->terms(ctx, &again), -ENOENT);
	snprintf(mock.device.fw_ver, sizeof mock.device.fw_ver, "1.2");
	EXPECT_EQ(hugepin_domain_close(d), 0);
}

TEST(of_memory_on_demand_nothing_is_left_either_whatever_fails)
{
	struct hugepin_terms t;
	set_up(HONEST);
	EXPECT_EQ(hp_measure_paging(&on_demand_pd, &t), 0);
	const unsigned calls = dev.calls;
	unsigned failed = 0;
	EXPECT(calls > 100);
	for (unsigned i = 1; i <= calls; i++) {
		set_up(HONEST);
		dev.fails_at = i;
		const int e = hp_measure_paging(&on_demand_pd, &t);
		failed += e != 0;
		if (!EXPECT(!dev.qps && !dev.cqs && !dev.mrs && (!e || e == -ENOMEM || e == -EINVAL || e == -EIO)))
			t_print("# call %u: %d\n", i, e);
	}
	EXPECT(failed >= calls - 16); /* another queue pair may be granted where one was not */
}

TEST(without_an_active_port_there_is_nothing_to_measure)
{
	struct hugepin_sg_model m;
	char command[128];
	set_up(HONEST);
	mock.port.state = IBV_PORT_DOWN;
	EXPECT_EQ(calibrate(&m), -EOPNOTSUPP);
	snprintf(command, sizeof command, "rm -r %s", cache);
	EXPECT_EQ(system(command), 0);
}

T_MAIN
