/* link: hugepin */
/* guest: plain */
/*
 * libfabric's registration cache, with libhugepin-hooks.so and without. Its provider for verbs has the cache; the
 * device receives datagrams of ours into the buffer whose key the cache gave: with a stale key, it writes where the
 * program does not read. libfabric is loaded as a component of Open MPI would load it, late and into a scope of its
 * own.
 */
#include "live/live.h"

#if __has_include(<rdma/fi_ext.h>)

#include <dlfcn.h>
#include <fcntl.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_ext.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "live/other_cache.h"

enum { PIECE = 2048, PREFIX = 40 };

/* ------------------------------------------------------------------ the device, and the cache of registrations */

static struct {
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_ep *ep;
	fi_addr_t self;
	struct fid_mr *source_mr;
	uint64_t key; /* of the last buffer */
} net;
static char source[PIECE] __attribute__((aligned(4096)));
static pthread_mutex_t wire_lock = PTHREAD_MUTEX_INITIALIZER;

/* What fails ends the process, and says so. */
#define MUST(x)                                                                                                        \
	do {                                                                                                           \
		long must_ = (x);                                                                                      \
		if (must_ != 0) {                                                                                      \
			t_print("# " #x ": %ld\n", must_);                                                             \
			_exit(4);                                                                                      \
		}                                                                                                      \
	} while (0)

static struct fi_info *choose(void *lib)
{
	__typeof__(&fi_getinfo) getinfo;
	__typeof__(&fi_dupinfo) dupinfo;
	struct fi_info *hints, *info;

	*(void **)&getinfo = dlsym(lib, "fi_getinfo");
	*(void **)&dupinfo = dlsym(lib, "fi_dupinfo");
	hints = dupinfo(NULL);
	hints->ep_attr->type = FI_EP_DGRAM;
	hints->caps = FI_MSG;
	hints->mode = FI_CONTEXT | FI_MSG_PREFIX;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("verbs");
	return getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == 0 ? info : NULL;
}

/* A monitor that hears nothing of mmap(), as Open MPI's, and is imported before the fabric is opened, as by Open MPI. */
static int start_deaf(struct fid_mem_monitor *m)
{
	(void)m;
	return 0;
}

static void stop_deaf(struct fid_mem_monitor *m)
{
	(void)m;
}

static int subscribe_deaf(struct fid_mem_monitor *m, const void *addr, size_t len)
{
	(void)m, (void)addr, (void)len;
	return 0;
}

static void unsubscribe_deaf(struct fid_mem_monitor *m, const void *addr, size_t len)
{
	(void)m, (void)addr, (void)len;
}

static bool valid_deaf(struct fid_mem_monitor *m, const void *addr, size_t len)
{
	(void)m, (void)addr, (void)len;
	return true;
}

static void import_deaf(void *lib)
{
	static struct fi_ops_mem_monitor ops = {
		sizeof ops, start_deaf, stop_deaf, subscribe_deaf, unsubscribe_deaf, valid_deaf,
	};
	static struct fid_mem_monitor monitor = { .fid.fclass = FI_CLASS_MEM_MONITOR, .export_ops = &ops };
	__typeof__(&fi_open) open_service;
	void *in_front = dlsym(RTLD_DEFAULT, "fi_open");
	struct fid *cache;
	int r;

	*(void **)&open_service = in_front ? in_front : dlsym(lib, "fi_open");
	MUST(open_service(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &cache, NULL));
	r = fi_import_fid(cache, &monitor.fid, 0);
	MUST(r && r != -FI_EBUSY);
}

static void open_all(bool other_monitor)
{
	void *lib, *in_front = dlsym(RTLD_DEFAULT, "fi_fabric");
	struct fi_cq_attr cq_attr = { .size = 64, .format = FI_CQ_FORMAT_CONTEXT };
	struct fi_av_attr av_attr = { .type = FI_AV_UNSPEC, .count = 1 };
	__typeof__(&fi_fabric) open_fabric;
	struct fi_info *info;
	char name[256];
	size_t len = sizeof name;

	setenv("FI_VERBS_GID_IDX", "1", 1);
	setenv("FI_VERBS_DGRAM_USE_NAME_SERVER", "0", 1);
	lib = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	info = lib ? choose(lib) : NULL;
	if (!info)
		_exit(MISSING);
	if (other_monitor)
		import_deaf(lib);
	*(void **)&open_fabric = in_front ? in_front : dlsym(lib, "fi_fabric");
	MUST(open_fabric(info->fabric_attr, &net.fabric, NULL));
	MUST(fi_domain(net.fabric, info, &net.domain, NULL));
	MUST(fi_cq_open(net.domain, &cq_attr, &net.cq, NULL));
	MUST(fi_av_open(net.domain, &av_attr, &net.av, NULL));
	MUST(fi_endpoint(net.domain, info, &net.ep, NULL));
	MUST(fi_ep_bind(net.ep, &net.cq->fid, FI_TRANSMIT | FI_RECV));
	MUST(fi_ep_bind(net.ep, &net.av->fid, 0));
	MUST(fi_enable(net.ep));
	MUST(fi_getname(&net.ep->fid, name, &len));
	MUST(fi_av_insert(net.av, name, 1, &net.self, 0, NULL) != 1);
	MUST(info->ep_attr->msg_prefix_size != PREFIX);
	MUST(fi_mr_reg(net.domain, source, PIECE, FI_SEND, 0, 0, 0, &net.source_mr, NULL));
}

static void await(void)
{
	struct fi_cq_entry done;
	struct fi_cq_err_entry error = { 0 };
	ssize_t r;

	while ((r = fi_cq_read(net.cq, &done, 1)) == -FI_EAGAIN) {
	}
	if (r != 1) {
		fi_cq_readerr(net.cq, &error, 0);
		t_print("# completion: %zd, %d, %d\n", r, error.err, error.prov_errno);
		_exit(5);
	}
}

/* The device writes to [p + PREFIX, p + PREFIX + PIECE). One thread at a time has the wire, so nobody asks who. */
static int device_reaches(int who, char *p, size_t len)
{
	static unsigned tag;
	struct fi_context sent, received;
	struct fid_mr *mr;
	int same;

	(void)who;
	MUST(fi_mr_reg(net.domain, p, len, FI_RECV, 0, 0, 0, &mr, NULL));
	pthread_mutex_lock(&wire_lock);
	memset(source, (int)(++tag % 255 + 1), PIECE);
	MUST(fi_recv(net.ep, p, PREFIX + PIECE, fi_mr_desc(mr), FI_ADDR_UNSPEC, &received));
	MUST(fi_send(net.ep, source, PIECE, fi_mr_desc(net.source_mr), net.self, &sent));
	await();
	await();
	same = memcmp(p + PREFIX, source, PIECE) == 0;
	net.key = fi_mr_key(mr);
	pthread_mutex_unlock(&wire_lock);
	MUST(fi_close(&mr->fid));
	return same ? REACHED : STALE;
}

/* ------------------------------------------------------------------ what is done, in a process of its own */

static char *map_at(char *at)
{
	char *p = mmap(at, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);

	MUST(p == MAP_FAILED || (at && p != at));
	return p;
}

/* Memory that is not the heap's, gone by a system call and by the C library. */
static int foreign(void)
{
	char *p = map_at(NULL);

	memset(p, 1, SIZE);
	MUST(device_reaches(0, p, SIZE));
	MUST(syscall(SYS_munmap, p, SIZE));
	memset(map_at(p), 2, SIZE);
	if (device_reaches(0, p, SIZE) != REACHED)
		return STALE;
	MUST(munmap(p, SIZE));
	memset(map_at(p), 3, SIZE);
	return device_reaches(0, p, SIZE);
}

static bool found_twice(char *p, size_t len)
{
	uint64_t key;

	memset(p, 1, len);
	MUST(device_reaches(0, p, len));
	key = net.key;
	MUST(device_reaches(0, p, len));
	return net.key == key;
}

/* A key that stays is one that was found again: each registration gets another. As bits. */
static int found_again(void)
{
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	char *of_file = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);

	MUST(of_file == MAP_FAILED);
	return found_twice(hugepin_malloc(SIZE), SIZE) | found_twice(map_at(NULL), SIZE) << 1 |
	       found_twice(of_file, 2 * PREFIX + PIECE) << 2;
}

static int threads(void)
{
	return threads_come_and_go(HUGEPIN_LARGE_MIN, 4);
}

/* ------------------------------------------------------------------ tests */

/* Run this program again, with the hooks preloaded, or without. */
static int run_with(bool hook, const char *what)
{
	return run_preloaded(hook ? HOOKS : "", what);
}

#define NEED(status)                                                                                                   \
	do {                                                                                                           \
		if ((status) == MISSING)                                                                               \
			SKIP("the guest has no libfabric (libfabric1) with a provider for rxe0");                      \
		if (access(HOOKS, R_OK))                                                                               \
			SKIP("libhugepin-hooks.so was not built");                                                     \
	} while (0)

TEST(without_the_monitor_libfabric_keeps_the_key_of_memory_unmapped_by_system_call)
{
	int r = run_with(false, "foreign");

	NEED(r);
	EXPECT_EQ(r, STALE);
}

TEST(with_the_monitor_libfabric_registers_it_anew)
{
	int r = run_with(true, "foreign");

	NEED(r);
	EXPECT_EQ(r, REACHED);
}

/* Patches of mmap, as libfabric's own monitor has, hear of the heap as well. */
TEST(with_one_that_does_not_hear_of_mmap_libfabric_keeps_the_key_of_heap_memory_that_left)
{
	int r = run_with(false, "heap after other");

	NEED(r);
	EXPECT_EQ(r, STALE);
}

TEST(the_monitor_goes_before_it)
{
	int r = run_with(true, "heap after other");

	NEED(r);
	EXPECT_EQ(r, REACHED);
}

TEST(with_the_monitor_libfabric_registers_heap_memory_anew_that_left)
{
	int r = run_with(true, "heap");

	NEED(r);
	EXPECT_EQ(r, REACHED);
}

TEST(under_the_monitor_heap_and_anonymous_memory_is_cached_and_that_of_a_file_is_not)
{
	int r = run_with(true, "found_again");

	NEED(r);
	EXPECT_EQ(r, 3);
}

TEST(no_key_is_stale_while_threads_allocate_register_and_give_back)
{
	int r = run_with(true, "threads");

	NEED(r);
	EXPECT_EQ(r, REACHED);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(void);
	} parts[] = { { "heap", memory_leaves_and_comes_back },
		    { "foreign", foreign },
		    { "found_again", found_again },
		    { "threads", threads } };

	for (unsigned i = 0; argc == 2 && i < sizeof parts / sizeof *parts; i++)
		if (!strncmp(argv[1], parts[i].name, strlen(parts[i].name))) {
			alarm(t_seconds());
			open_all(strstr(argv[1], "other"));
			return parts[i].run();
		}
	return t_run(argc, argv);
}

#else

int main(void)
{
	t_print("1..0 # SKIP no headers of libfabric (libfabric-dev)\n");
	return 0;
}

#endif
