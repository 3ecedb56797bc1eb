/* link: hugepin preload uring */
/*
 * UCX's registration cache over the heap, with libhugepin-hooks.so and without. Registering is done with io_uring,
 * whose fixed buffers are pinned: with a stale key, the device writes to memory that the program no longer sees. UCX is
 * loaded late and into a scope of its own, as a component of Open MPI would load it.
 */
#include "live/live.h"

#if __has_include(<ucs/memory/rcache.h>)

#include <dlfcn.h>
#include <liburing.h>
#include <sys/mman.h>
#include <ucm/api/ucm.h>
#include <ucp/api/ucp_version.h>
#include <ucs/memory/rcache.h>

#include "live/other_cache.h"
#include "tests/ring.h"

/* UCX 1.17 moved the alignment from the cache to each get, and reports the regions that it merges. */
#define ALIGNS_EACH (UCP_API_VERSION >= UCP_VERSION(1, 17))

enum { PIECE = 64 << 10, SLOTS = 4096 };

/* ------------------------------------------------------------------ the device, and the cache of registrations */

struct region {
	ucs_rcache_region_t super;
	int slot;
};

static struct io_uring ring;
static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;
static bool slot_used[SLOTS];
static int file[THREADS + 1];
static ucs_rcache_t *cache;
static __typeof__(&ucs_rcache_create) create;
static __typeof__(&ucs_rcache_get) get;
static __typeof__(&ucs_rcache_region_put) put;

static bool set_slot(int slot, void *p, size_t len)
{
	struct iovec v = { p, len };
	__u64 tag = 0;

	return io_uring_register_buffers_update_tag(&ring, (unsigned)slot, &v, &tag, 1) == 1;
}

static ucs_status_t mem_reg(void *context, ucs_rcache_t *rcache, void *arg, ucs_rcache_region_t *region, uint16_t flags)
{
	ucs_status_t status = UCS_ERR_NO_RESOURCE;
	int slot = 0;

	(void)context, (void)rcache, (void)arg, (void)flags;
	pthread_mutex_lock(&ring_lock);
	while (slot < SLOTS && slot_used[slot])
		slot++;
	if (slot < SLOTS && set_slot(slot, (void *)region->super.start, region->super.end - region->super.start)) {
		slot_used[slot] = true;
		((struct region *)region)->slot = slot;
		status = UCS_OK;
	}
	pthread_mutex_unlock(&ring_lock);
	return status;
}

static void mem_dereg(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *region)
{
	int slot = ((struct region *)region)->slot;

	(void)context, (void)rcache;
	pthread_mutex_lock(&ring_lock);
	set_slot(slot, NULL, 0);
	slot_used[slot] = false;
	pthread_mutex_unlock(&ring_lock);
}

static void dump_region(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *region, char *buf, size_t max)
{
	(void)context, (void)rcache, (void)region;
	snprintf(buf, max, "-");
}

#if ALIGNS_EACH
static void merge(void *context, ucs_rcache_t *rcache, void *arg, ucs_rcache_region_t *region)
{
	(void)context, (void)rcache, (void)arg, (void)region;
}
#endif

static ucs_status_t get_region(void *p, size_t len, ucs_rcache_region_t **ret_)
{
#if ALIGNS_EACH
	return get(cache, p, len, UCS_RCACHE_MIN_ALIGNMENT, PROT_READ | PROT_WRITE, NULL, ret_);
#else
	return get(cache, p, len, PROT_READ | PROT_WRITE, NULL, ret_);
#endif
}

/* external: without UCX's own patches of the C library, as for programs that have their own hooks. */
static void open_all(bool external)
{
	static const ucs_rcache_ops_t rcache_ops = {
		.mem_reg = mem_reg,
		.mem_dereg = mem_dereg,
#if ALIGNS_EACH
		.merge = merge,
#endif
		.dump_region = dump_region,
	};
	ucs_rcache_params_t params = {
		.region_struct_size = sizeof(struct region),
#if !ALIGNS_EACH
		.alignment = UCS_RCACHE_MIN_ALIGNMENT,
		.max_alignment = 4096,
#endif
		.ucm_events = UCM_EVENT_VM_UNMAPPED,
		.ucm_event_priority = 1000,
		.ops = &rcache_ops,
		.max_regions = ULONG_MAX,
		.max_size = SIZE_MAX,
		.max_unreleased = SIZE_MAX,
	};
	void *ucs, *ucm;
	__typeof__(&ucm_set_external_event) set_external;

	if (external)
		setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 1);
	ucs = dlopen("libucs.so.0", RTLD_NOW | RTLD_LOCAL);
	ucm = dlopen("libucm.so.0", RTLD_NOW | RTLD_LOCAL);
	if (!ucs || !ucm || io_uring_queue_init(4, &ring, 0) || io_uring_register_buffers_sparse(&ring, SLOTS))
		_exit(MISSING);
	*(void **)&create = dlsym(ucs, "ucs_rcache_create");
	*(void **)&get = dlsym(ucs, "ucs_rcache_get");
	*(void **)&put = dlsym(ucs, "ucs_rcache_region_put");
	*(void **)&set_external = dlsym(ucm, "ucm_set_external_event");
	if (external)
		set_external(UCM_EVENT_VM_UNMAPPED);
	if (create(&params, "test", NULL, &cache) != UCS_OK)
		_exit(4);
	for (int i = 0; i <= THREADS; i++)
		file[i] = memfd_create("file", MFD_CLOEXEC);
}

/* The device writes to [p, p + PIECE). */
static int device_reaches(int who, char *p, size_t len)
{
	static _Thread_local char text[PIECE];
	static _Atomic unsigned tag;
	ucs_rcache_region_t *region;
	int done;

	memset(text, (int)(++tag % 255 + 1), PIECE);
	if (pwrite(file[who], text, PIECE, 0) != PIECE || get_region(p, len, &region) != UCS_OK)
		_exit(5);
	pthread_mutex_lock(&ring_lock);
	io_uring_prep_read_fixed(io_uring_get_sqe(&ring), file[who], p, PIECE, 0, ((struct region *)region)->slot);
	io_uring_submit_and_wait(&ring, 1);
	done = ring_result(&ring);
	pthread_mutex_unlock(&ring_lock);
	put(cache, region);
	return done == PIECE && memcmp(p, text, PIECE) == 0 ? REACHED : STALE;
}

/* ------------------------------------------------------------------ tests */

/* Run this program again, with or without the hook and the drop-in preloaded. */
static int run_with(bool hook, bool dropin, const char *what)
{
	char preload[2 * PATH_MAX + 2];

	snprintf(preload, sizeof preload, "%s %s", hook ? HOOKS : "", dropin ? built("libhugepin-malloc.so") : "");
	return run_preloaded(preload, what);
}

#define NEED(status)                                                                                                   \
	do {                                                                                                           \
		if ((status) == MISSING)                                                                               \
			SKIP("no UCX (libucx0) or no io_uring");                                                       \
		if (access(HOOKS, R_OK))                                                                               \
			SKIP("libhugepin-hooks.so was not built");                                                     \
	} while (0)

/* If this test fails, UCX learns of the heap's unmappings without the library. */
TEST(without_the_hook_and_its_patches_ucx_keeps_the_key_of_memory_that_left)
{
	int r = run_with(false, false, "--leave-external");

	NEED(r);
	EXPECT_EQ(r, STALE);
}

TEST(with_the_hook_ucx_registers_memory_anew_that_left)
{
	int r = run_with(true, false, "--leave-external");

	NEED(r);
	EXPECT_EQ(r, REACHED);
}

TEST(so_it_does_under_the_drop_in)
{
	int r = run_with(true, true, "--leave-external");

	NEED(r);
	EXPECT_EQ(r, REACHED);
}

TEST(the_hook_and_the_patches_get_on)
{
	int r = run_with(true, true, "--leave");

	NEED(r);
	EXPECT_EQ(r, REACHED);
}

TEST(no_key_is_stale_while_threads_allocate_register_and_give_back)
{
	int r = run_with(true, true, "--threads-external");

	NEED(r);
	EXPECT_EQ(r, REACHED);
	EXPECT_EQ(run_with(true, true, "--threads"), REACHED);
}

TEST(a_program_without_ucx_and_libfabric_does_not_notice)
{
	int r = run_with(true, false, "--nothing");

	NEED(r);
	EXPECT_EQ(r, 0);
}

static int nothing_to_attach(void)
{
	void *hooks = dlopen(HOOKS, RTLD_NOW);
	int (*ucx)(void), (*fabric)(void);

	*(void **)&ucx = hooks ? dlsym(hooks, "hugepin_ucx_attach") : NULL;
	*(void **)&fabric = hooks ? dlsym(hooks, "hugepin_fabric_attach") : NULL;
	return !ucx || !fabric || ucx() != -ENOENT || fabric() != -ENOENT || dlopen("libucm.so.0", RTLD_LAZY | RTLD_NOLOAD) ||
	       dlopen("libfabric.so.1", RTLD_LAZY | RTLD_NOLOAD);
}

static void *attach(void *over_)
{
	int (*ucx)(void), (*fabric)(void);
	const _Atomic bool *end = over_;

	*(void **)&ucx = dlsym(RTLD_DEFAULT, "hugepin_ucx_attach");
	*(void **)&fabric = dlsym(RTLD_DEFAULT, "hugepin_fabric_attach");
	while (!*end && (ucx() == -ENOENT || fabric() == -ENOENT)) {
	}
	return NULL;
}

/* As libraries do that attach while they are loaded, under the loader's lock. */
static int attach_at_once(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, attach, &over))
		return 8;
	for (int i = 0; i < 300; i++) {
		void *library = dlopen(built("extra/hooks/tests/lib/attach.so"), RTLD_NOW);

		if (!library)
			return 9;
		dlclose(library);
	}
	over = true;
	pthread_join(thread, NULL);
	return 0;
}

TEST(a_library_may_attach_as_it_is_loaded_while_another_thread_does)
{
	int r = run_with(true, false, "--attach");

	NEED(r);
	EXPECT_EQ(r, 0);
}

int main(int argc, char **argv)
{
	if (argc != 2 || strncmp(argv[1], "--", 2))
		return t_run(argc, argv);
	if (!strcmp(argv[1], "--nothing"))
		return nothing_to_attach();
	if (!strcmp(argv[1], "--attach"))
		return attach_at_once();
	open_all(strstr(argv[1], "external"));
	return strstr(argv[1], "leave") ? memory_leaves_and_comes_back() : threads_come_and_go(2 * PIECE, 2);
}

#else

int main(void)
{
	t_print("1..0 # SKIP no headers of UCX (libucx-dev)\n");
	return 0;
}

#endif
