/* link: hugepin uring */
/*
 * Two buffers of the heap in one hugepage. One thread repeatedly discards pages of its own buffer (MADV_DONTNEED, a
 * correct program) and has the device write there. The other thread only has the device write to its buffer. The kernel
 * tells of discarded pages before they go. So the second thread may register in between, and the first thread must not
 * find that registration afterwards.
 */
#include "live.h"

#include <liburing.h>
#include "hugepin_uring.h"
#include "tests/ring.h"

enum { SIZE = 256 << 10, ROUNDS = 3000 };

static struct io_uring ring;
static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;
static hugepin_domain *domain;
static int file;
static _Atomic long wrong;

/* Whether the device writes the file's bytes to the memory that the program reads. */
static bool device_reaches(char *p)
{
	struct hugepin_pin pin;
	int r;

	memset(p, 0, 4096);
	if (!EXPECT_EQ(hugepin_pin(domain, p, SIZE, 0, &pin), 0))
		return false;
	pthread_mutex_lock(&ring_lock);
	io_uring_prep_read_fixed(io_uring_get_sqe(&ring), file, p, 4096, 0, (int)pin.lkey);
	io_uring_submit_and_wait(&ring, 1);
	r = ring_result(&ring);
	pthread_mutex_unlock(&ring_lock);
	EXPECT_EQ(hugepin_unpin(domain, &pin), 0);
	return r == 4096 && memcmp(p, "\177ELF", 4) == 0;
}

static void *write_only(void *p)
{
	/* the other thread's calls take the registration away, so this thread may make it again at any moment */
	for (int i = 0; i < ROUNDS; i++)
		wrong += !device_reaches(p);
	return NULL;
}

static void *discard_and_write(void *p)
{
	for (int i = 0; i < ROUNDS; i++) {
		EXPECT_EQ(madvise(p, SIZE, MADV_DONTNEED), 0);
		wrong += !device_reaches(p);
	}
	return NULL;
}

static void run(uint32_t policy)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = policy };
	char *p = hugepin_aligned_alloc(PAGE, SIZE), *q = hugepin_malloc(SIZE);
	pthread_t t[2];
	int e = io_uring_queue_init(4, &ring, 0);

	if (e)
		SKIP("no io_uring: %s", strerror(-e));
	EXPECT_EQ((uintptr_t)p / PAGE, (uintptr_t)q / PAGE);
	wrong = 0;
	EXPECT_EQ(hugepin_uring_open(&ring, 0, 64, &attr, &domain), 0);
	pthread_create(&t[0], NULL, write_only, p);
	pthread_create(&t[1], NULL, discard_and_write, q);
	pthread_join(t[0], NULL);
	pthread_join(t[1], NULL);
	EXPECT_EQ(wrong, 0);
	EXPECT_EQ(hugepin_domain_close(domain), 0);
	io_uring_queue_exit(&ring);
	hugepin_free(p);
	hugepin_free(q);
}

TEST_CASE(under_arena_the_device_writes_where_each_of_them_reads, run(HUGEPIN_POLICY_ARENA))
TEST_CASE(under_lru_the_device_writes_where_each_of_them_reads, run(HUGEPIN_POLICY_LRU))

/* Pages of the pool cannot be discarded in parts. */
int main(int argc, char **argv)
{
	if (!getenv("HUGEPIN_PAGES")) {
		setenv("HUGEPIN_PAGES", "base", 1);
		execv("/proc/self/exe", argv);
		return 2;
	}
	file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	return t_run(argc, argv);
}
