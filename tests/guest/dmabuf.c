/* link: hugepin-verbs hugepin ibverbs */
/* guest: plain odp */
/*
 * Pins of a dma-buf over a real provider. The dma-buf is of pages of a file in memory (/dev/udmabuf); where the kernel
 * makes none, the file itself stands for what is no dma-buf. soft-RoCE takes neither: then the error is the one that
 * the page names, and nothing is left of the attempts. On another device, the bytes that a peer writes have to arrive.
 */
#include "hugepin_verbs.h"
#include "live/live.h"
#include "guest/wire.h"

#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>

#define LEN (256 * KIB)
enum { TRIES = 50 };

static struct wire_port port;
static char *memory; /* the dma-buf's pages */
static int file = -1, dmabuf = -1;
static bool is_dmabuf;

static bool make_dmabuf(void)
{
	struct udmabuf_create create = { .size = LEN };
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);

	file = memfd_create("dmabuf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (file < 0 || ftruncate(file, LEN) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK))
		return false;
	memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	create.memfd = (uint32_t)file;
	dmabuf = device < 0 ? -1 : ioctl(device, UDMABUF_CREATE, &create);
	is_dmabuf = dmabuf >= 0;
	if (!is_dmabuf)
		dmabuf = dup(file);
	if (device >= 0)
		close(device);
	printf("# %s\n", is_dmabuf ? "a dma-buf of /dev/udmabuf" : "no /dev/udmabuf: a file that is no dma-buf");
	return memory != MAP_FAILED && dmabuf >= 0;
}

/* The peer, which is this process, writes a pattern by the pin's key. */
static bool lands(const struct hugepin_pin *pin)
{
	struct ibv_cq *cq = ibv_create_cq(port.device, 4, NULL, NULL, 0);
	struct ibv_qp *qp[2] = { NULL };
	char *source = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(port.pd, source, LEN, (int)IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { .addr = (uintptr_t)source, .length = LEN, .lkey = mr ? mr->lkey : 0 };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	time_t end = time(NULL) + t_seconds();
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
	bool ok = EXPECT(cq && mr && wire_join(&port, cq, qp));

	pattern_write(source, LEN, 4711);
	wr.wr.rdma.remote_addr = pin->base;
	wr.wr.rdma.rkey = pin->rkey;
	ok = ok && EXPECT_EQ(ibv_post_send(qp[0], &wr, &bad), 0);
	while (ok && !ibv_poll_cq(cq, 1, &wc) && time(NULL) < end)
		sched_yield();
	ok = ok && EXPECT_EQ(wc.status, IBV_WC_SUCCESS) && EXPECT_EQ(pattern_check(memory, LEN, 4711), -1);
	for (int i = 0; i < 2; i++)
		if (qp[i])
			EXPECT_EQ(ibv_destroy_qp(qp[i]), 0);
	if (mr)
		EXPECT_EQ(ibv_dereg_mr(mr), 0);
	if (cq)
		EXPECT_EQ(ibv_destroy_cq(cq), 0);
	munmap(source, LEN);
	return ok;
}

TEST(a_dmabuf_is_pinned_or_refused_by_the_error_that_says_so_and_nothing_is_left)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	struct hugepin_domain_stats s = { 0 };
	struct hugepin_pin pin, heap;
	struct ibv_mr *mr = NULL;
	hugepin_domain *d = NULL;
	char *p = hugepin_malloc(LEN);
	int err = 0;

	if (!wire_port_open(&port))
		SKIP("no verbs device: made for the guest");
	if (!EXPECT(make_dmabuf()) || !EXPECT_EQ(hugepin_verbs_open(port.pd, &attr, &d), 0))
		return;
	for (int i = 0; i < TRIES && !err; i++) {
		err = hugepin_pin_dmabuf(d, dmabuf, 0, LEN, (uintptr_t)memory,
					 HUGEPIN_READ | HUGEPIN_WRITE | HUGEPIN_REMOTE_WRITE, &pin);
		if (err)
			break;
		EXPECT(hugepin_verbs_mr(d, &pin, &mr) == 0 && mr->lkey == pin.lkey && mr->rkey == pin.rkey);
		EXPECT(i || lands(&pin));
		EXPECT_EQ(hugepin_unpin(d, &pin), 0);
	}
	printf("# %s: %s\n", ibv_get_device_name(port.device->device), err ? strerror(-err) : "takes dma-bufs");
	if (err)
		EXPECT(err == -EOPNOTSUPP || (!is_dmabuf && (err == -EINVAL || err == -EBADF)));
	for (int i = 0; i < TRIES && err; i++)
		EXPECT_EQ(hugepin_pin_dmabuf(d, dmabuf, 0, LEN, (uintptr_t)memory, 0, &pin), err);
	EXPECT(hugepin_domain_stats(d, &s, sizeof s) > 0 && s.regions == 0 && s.pinned_bytes == 0);
	EXPECT_EQ(s.uncached_asked, err ? 0 : TRIES);
	/* The domain serves other memory as before. */
	EXPECT_EQ(hugepin_pin(d, p, LEN, 0, &heap), 0);
	EXPECT(hugepin_verbs_mr(d, &heap, &mr) == 0 && mr->pd == port.pd && mr->lkey == heap.lkey);
	EXPECT_EQ(hugepin_unpin(d, &heap), 0);
	EXPECT_EQ(hugepin_domain_close(d), 0);
	hugepin_free(p);
	close(dmabuf);
	close(file);
	munmap(memory, LEN);
	EXPECT_EQ(ibv_dealloc_pd(port.pd), 0); /* EBUSY if a memory region is left */
	EXPECT_EQ(ibv_close_device(port.device), 0);
}

T_MAIN
