/* link: none */
/*
 * A program that has an allocator of its own: the four functions that the C library asks for. The other functions of
 * malloc's family are the drop-in's, and give the program its own buffers.
 */
#include "live.h"

#include <dlfcn.h>

enum { MAGIC = 0x6f776e };

static _Alignas(16) char memory[64 * MIB];
static _Atomic size_t used;

struct head {
	size_t size, magic;
};

static struct head *head_of(void *p)
{
	struct head *h = (struct head *)p - 1;

	if ((char *)p < memory || (char *)p >= memory + sizeof memory || h->magic != MAGIC)
		abort();
	return h;
}

void *malloc(size_t size)
{
	const size_t at = atomic_fetch_add(&used, ((size + 15) & ~(size_t)15) + sizeof(struct head));
	struct head *h = (struct head *)(memory + at);

	if (at + size + sizeof *h > sizeof memory)
		return NULL;
	*h = (struct head){ size, MAGIC };
	return h + 1;
}

void free(void *p)
{
	if (p)
		head_of(p)->magic = 0;
}

void *calloc(size_t count, size_t size)
{
	return malloc(count * size); /* no memory is used twice */
}

void *realloc(void *p, size_t size)
{
	void *q = malloc(size);

	if (p && q) {
		memcpy(q, p, head_of(p)->size < size ? head_of(p)->size : size);
		free(p);
	}
	return q;
}

TEST(reallocarray_calls_the_programs_realloc)
{
	char *volatile p = reallocarray(NULL, 10, 10);

	for (size_t n = 1; n < 20; n++) {
		p = reallocarray(p, n, 1000);
		EXPECT_EQ(head_of(p)->size, n * 1000);
		memset(p, 1, n * 1000);
	}
	free(p);
}

TEST(functions_that_free_a_buffer_of_known_size_call_the_programs_free)
{
	void (*sized)(void *, size_t), (*aligned)(void *, size_t, size_t);
	char *volatile p = malloc(100), *volatile q = malloc(40000);

	*(void **)&sized = dlsym(RTLD_DEFAULT, "free_sized");
	*(void **)&aligned = dlsym(RTLD_DEFAULT, "free_aligned_sized");
	if (!EXPECT(sized && aligned))
		return;
	sized(p, 100);
	aligned(q, 16, 40000);
	EXPECT_EQ(((struct head *)(void *)p)[-1].magic, 0);
	EXPECT_EQ(((struct head *)(void *)q)[-1].magic, 0);
}

int main(int argc, char **argv)
{
	return t_run(argc, argv);
}
