/* link: ibverbs */
/* guest: plain odp */
/*
 * What a peer can reach through libhugepin-verbscache.so, on a real device: this program runs again with it preloaded,
 * by default and with trusted peers, and once without it. It puts bytes by remote keys, between two connected queue
 * pairs of its own.
 */
#include "live/live.h"
#include "live/watched.h"
#include "guest/wire.h"

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#if __has_include(<rdma/fi_domain.h>)
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#define HAVE_FABRIC 1
#endif

enum { LEN = 64 << 10, LANDED = 0, REFUSED = 3, BROKEN = 4, MISSING = 77 };

#define MUST(x)                                                                                                        \
	do {                                                                                                           \
		if (!(x)) {                                                                                            \
			t_print("# line %d: " #x "\n", __LINE__);                                                      \
			_exit(BROKEN);                                                                                 \
		}                                                                                                      \
	} while (0)

#define ALL_ACCESS                                                                                                     \
	((unsigned)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |                        \
		    IBV_ACCESS_REMOTE_ATOMIC))

/* ------------------------------------------------------------------ the device */

static struct {
	struct wire_port port;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	char *source;
	struct ibv_mr *source_mr;
} wire;

static char *map_new(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	MUST(p != MAP_FAILED);
	memset(p, 1, len);
	return p;
}

/* The access is not known to the compiler, as in UCX: ibv_reg_mr_iova2. */
static struct ibv_mr *reg(void *p, size_t len, unsigned access)
{
	struct ibv_mr *mr = ibv_reg_mr(wire.port.pd, p, len, access);

	MUST(mr);
	return mr;
}

static void open_all(void)
{
	MUST(wire_port_open(&wire.port));
	MUST(wire.cq = ibv_create_cq(wire.port.device, 16, NULL, NULL, 0));
	MUST(wire_join(&wire.port, wire.cq, wire.qp));
	wire.source = map_new(LEN);
	wire.source_mr = reg(wire.source, LEN, IBV_ACCESS_LOCAL_WRITE);
}

/* A peer puts a byte at p: whether it landed. */
static int put(char *p, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)wire.source, .length = 64, .lkey = wire.source_mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;
	int n;

	memset(wire.source, 0x77, LEN);
	wr.wr.rdma.remote_addr = (uintptr_t)p;
	wr.wr.rdma.rkey = rkey;
	MUST(!ibv_post_send(wire.qp[0], &wr, &bad));
	while (!(n = ibv_poll_cq(wire.cq, 1, &wc)))
		sched_yield();
	MUST(n == 1 && (wc.status == IBV_WC_SUCCESS) == (*p == 0x77));
	return wc.status == IBV_WC_SUCCESS ? LANDED : REFUSED;
}

/* ------------------------------------------------------------------ the four holes, each in a process of its own */

/* Two buffers in one page, which were one before: the key of the first does not open the second. */
static int neighbour(void)
{
	char *p = map_new(LEN);

	MUST(!ibv_dereg_mr(reg(p + 4096, 4096, ALL_ACCESS)));
	return put(p + 4096 + 2048, reg(p + 4096, 2048, ALL_ACCESS)->rkey);
}

static int after_deregistration(void)
{
	char *p = map_new(LEN);
	struct ibv_mr *mr = reg(p, LEN, ALL_ACCESS);
	uint32_t rkey = mr->rkey;

	MUST(put(p, rkey) == LANDED);
	*p = 1;
	MUST(!ibv_dereg_mr(mr));
	return put(p, rkey);
}

/* The buffer is freed, and the same memory is another's. */
static int new_owner(void)
{
	char *p = map_new(LEN), *again;
	struct ibv_mr *mr;
	uint32_t rkey;

	munmap(p, LEN);
	p = malloc(LEN);
	memset(p, 1, LEN);
	mr = reg(p, LEN, ALL_ACCESS);
	rkey = mr->rkey;
	MUST(!ibv_dereg_mr(mr));
	free(p);
	again = malloc(LEN);
	MUST(again == p);
	memset(again, 1, LEN);
	return put(again, rkey);
}

/* A buffer that only this process uses, beside one that peers may write, in the same bytes. */
static int local_only(void)
{
	char *p = map_new(LEN);
	struct ibv_mr *mr = reg(p, LEN, IBV_ACCESS_LOCAL_WRITE), *all = reg(p, LEN, ALL_ACCESS);

	MUST(!ibv_dereg_mr(mr) && !ibv_dereg_mr(all));
	mr = reg(p, LEN, IBV_ACCESS_LOCAL_WRITE);
	return put(p, mr->rkey ? mr->rkey : mr->lkey); /* some devices have no remote key for it */
}

/* ------------------------------------------------------------------ what it is good for */

static uint32_t key_of(char *p, size_t len, unsigned access)
{
	struct ibv_mr *mr = reg(p, len, access);
	uint32_t key = mr->lkey;

	MUST(mr->pd == wire.port.pd && mr->addr == p && mr->length == len && mr->context == wire.port.device);
	MUST(!ibv_dereg_mr(mr));
	return key;
}

/* As bits: a registration that only this process uses is found again; one that peers may reach; two at a time have
 * two keys; memory that was unmapped between is registered anew. */
static int found(void)
{
	char *p = map_new(LEN), *again;
	struct ibv_mr *one, *two;
	uint32_t key = key_of(p, LEN, IBV_ACCESS_LOCAL_WRITE);
	int bits = key_of(p, LEN, IBV_ACCESS_LOCAL_WRITE) == key;

	key = key_of(p, LEN, ALL_ACCESS);
	bits |= (key_of(p, LEN, ALL_ACCESS) == key) << 1;
	one = reg(p, LEN, ALL_ACCESS);
	two = reg(p, LEN, ALL_ACCESS);
	bits |= (one != two && one->rkey != two->rkey && one->lkey != two->lkey) << 2;
	MUST(put(p, one->rkey) == LANDED);
	*p = 1;
	MUST(put(p, two->rkey) == LANDED);
	MUST(!ibv_dereg_mr(one) && !ibv_dereg_mr(two));
	key = key_of(p, LEN, ALL_ACCESS);
	munmap(p, LEN);
	again = mmap(p, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	MUST(again == p);
	memset(again, 1, LEN);
	one = reg(again, LEN, ALL_ACCESS);
	MUST(put(again, one->rkey) == LANDED);
	bits |= (one->lkey != key) << 3;
	return bits;
}

/* All that is kept goes before its protection domain, and its device. */
static int closed(void)
{
	char *p = map_new(LEN);

	key_of(p, LEN, IBV_ACCESS_LOCAL_WRITE);
	key_of(p, 100, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 2; i++)
		MUST(!ibv_destroy_qp(wire.qp[i]));
	MUST(!ibv_dereg_mr(wire.source_mr));
	MUST(!ibv_dealloc_pd(wire.port.pd));
	MUST(wire.port.pd = ibv_alloc_pd(wire.port.device));
	key_of(p, LEN, IBV_ACCESS_LOCAL_WRITE);
	MUST(!ibv_close_device(wire.port.device));
	munmap(p, LEN);
	sleep_ms(200);
	return 0;
}

#ifdef HAVE_FABRIC
/* libfabric's rxm has a map of keys, into which no key goes twice. */
static int keys_of_rxm(void)
{
	void *lib = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	char *p = map_new(LEN);
	__typeof__(&fi_getinfo) getinfo;
	__typeof__(&fi_dupinfo) dupinfo;
	__typeof__(&fi_fabric) open_fabric;
	struct fi_info *hints, *info;
	struct fid_fabric *fabric;
	struct fid_domain *d;

	setenv("FI_MR_CACHE_MAX_COUNT", "0", 1);
	if (!lib)
		return MISSING;
	*(void **)&getinfo = dlsym(lib, "fi_getinfo");
	*(void **)&dupinfo = dlsym(lib, "fi_dupinfo");
	*(void **)&open_fabric = dlsym(lib, "fi_fabric");
	hints = dupinfo(NULL);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("verbs;ofi_rxm");
	if (getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info))
		return MISSING;
	MUST(!open_fabric(info->fabric_attr, &fabric, NULL));
	MUST(!fi_domain(fabric, info, &d, NULL));
	for (int round = 0; round < 3; round++) {
		struct fid_mr *mr[4];

		for (int i = 0; i < 4; i++) {
			MUST(!fi_mr_reg(d, p, LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr[i], NULL));
			for (int k = 0; k < i; k++)
				MUST(fi_mr_key(mr[i]) != fi_mr_key(mr[k]));
		}
		for (int i = 0; i < 4; i++)
			MUST(!fi_close(&mr[i]->fid));
	}
	MUST(!fi_close(&d->fid));
	return 0;
}
#else
static int keys_of_rxm(void)
{
	return MISSING;
}
#endif

/* ------------------------------------------------------------------ tests */

static int run(const char *mode, const char *what)
{
	char cache[PATH_MAX];
	pid_t pid = fork();

	if (pid == 0) {
		snprintf(cache, sizeof cache, "%s/libhugepin-verbscache.so", getenv("BUILD") ? getenv("BUILD") : "build");
		if (mode) {
			setenv("LD_PRELOAD", cache, 1);
			setenv("HUGEPIN_X_VERBS_CACHE", mode, 1);
		}
		execl("/proc/self/exe", "verbscache", what, NULL);
		_exit(127);
	}
	return child_wait(pid);
}

static void all_modes(const char *what, int without, int local, int remote)
{
	EXPECT_EQ(run(NULL, what), without);
	EXPECT_EQ(run("off", what), without);
	EXPECT_EQ(run("local", what), local);
	EXPECT_EQ(run("remote", what), remote);
}

TEST(a_put_into_the_neighbouring_buffer_is_refused)
{
	all_modes("neighbour", REFUSED, REFUSED, REFUSED);
}

TEST(a_put_after_deregistration_is_refused_unless_peers_are_trusted)
{
	NEEDS_KERNEL_THAT_WATCHES;
	all_modes("after_deregistration", REFUSED, REFUSED, LANDED);
}

TEST(an_old_key_does_not_open_a_new_owners_memory_unless_peers_are_trusted)
{
	NEEDS_KERNEL_THAT_WATCHES;
	all_modes("new_owner", REFUSED, REFUSED, LANDED);
}

TEST(a_local_buffer_is_not_writable_by_peers)
{
	all_modes("local_only", REFUSED, REFUSED, REFUSED);
}

TEST(equal_registrations_are_found_again_one_owner_at_a_time)
{
	NEEDS_KERNEL_THAT_WATCHES;
	all_modes("found", 8 | 4, 8 | 4 | 1, 8 | 4 | 2 | 1);
}

static int run_under(const char *policy, const char *what)
{
	int status;

	setenv("HUGEPIN_POLICY", policy, 1);
	status = run("remote", what);
	unsetenv("HUGEPIN_POLICY");
	return status;
}

/* On demand the key of memory that was mapped anew is the same, and opens the new memory. */
TEST(each_policy_registers_what_is_asked_for)
{
	static const char *const policies[] = { "none", "lru", "cf11", "predict" };
	const bool on_demand = wire_port_open(&wire.port) && wire_has_odp(&wire.port);
	NEEDS_KERNEL_THAT_WATCHES;

	for (unsigned i = 0; i < sizeof policies / sizeof *policies; i++) {
		EXPECT_EQ(run_under(policies[i], "found") & 4, 4);
		EXPECT_EQ(run_under(policies[i], "neighbour"), REFUSED);
		EXPECT_EQ(run_under(policies[i], "closed"), 0);
	}
	EXPECT_EQ(run_under("none", "found"), 8 | 4);
	if (on_demand) {
		EXPECT_EQ(run_under("hybrid", "found") & (4 | 2 | 1), 4 | 2 | 1);
		EXPECT_EQ(run_under("odp", "found") & (4 | 2 | 1), 4 | 2 | 1);
		EXPECT_EQ(run_under("odp", "neighbour"), REFUSED);
		EXPECT_EQ(run_under("hybrid", "closed"), 0);
	}
}

TEST(what_is_kept_goes_before_its_protection_domain_and_its_device)
{
	all_modes("closed", 0, 0, 0);
}

TEST(equal_ranges_have_different_keys_in_the_map_of_libfabrics_rxm)
{
	if (run(NULL, "keys_of_rxm") == MISSING)
		SKIP("no libfabric (libfabric-dev) with a provider rxm for rxe0");
	all_modes("keys_of_rxm", 0, 0, 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(void);
	} parts[] = { { "neighbour", neighbour },   { "after_deregistration", after_deregistration },
		      { "new_owner", new_owner },   { "local_only", local_only },
		      { "found", found },	    { "closed", closed },
		      { "keys_of_rxm", keys_of_rxm } };

	for (unsigned i = 0; argc == 2 && i < sizeof parts / sizeof *parts; i++)
		if (!strcmp(argv[1], parts[i].name)) {
			alarm(t_seconds());
			open_all();
			return parts[i].run();
		}
	return t_run(argc, argv);
}
