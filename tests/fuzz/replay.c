/* link: base/base.c base/clock.c base/sys.c -lz */
/*
 * Fuzzes what the replay reads: a trace of communication is refused, or its uses are in order and each lies in its region.
 * The first byte says whether the header is put right.
 */
#include <assert.h>
#include <err.h>
#include <setjmp.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

static jmp_buf refused;
static gzFile opened; /* errx() does not return to who would close it */

#define gzopen(path, mode) (opened = gzopen(path, mode))
#define gzclose(f) (opened = NULL, gzclose(f))
#undef errx
#define errx(...) longjmp(refused, 1)
#include "bench/trace.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct trace t; /* nor to who would free it */

static void forget(void)
{
	free(t.use);
	free(t.bytes);
	t = (struct trace){ 0 };
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char head[] = "seq,t_start,t_end,cpu_app,op,dir,addr,len,payload,peer,f0,f1,f2,f3\n";
	static int file = -1;
	char path[40];

	if (size < 1)
		return 0;
	if (file < 0)
		file = memfd_create("trace", 0);
	assert(!ftruncate(file, 0) && !lseek(file, 0, SEEK_SET));
	if (data[0] & 1)
		assert(write(file, head, sizeof head - 1) == sizeof head - 1);
	assert(write(file, data + 1, size - 1) == (ssize_t)size - 1);
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	const uint64_t unit = data[0] & 2 ? 2 << 20 : 4096;
	opened = NULL;
	if (setjmp(refused)) {
		if (opened)
			gzclose(opened);
		forget();
		return 0;
	}
	read_file(path, unit, &t);
	find_regions(path, &t);
	for (size_t i = 0; i < t.uses; i++) {
		const struct use *u = &t.use[i];

		assert(u->end >= u->start && (!i || u->start >= t.use[i - 1].start));
		assert(u->limit > u->addr && u->addr % unit == 0 && u->limit % unit == 0);
		assert(u->region >= 1 && u->region <= t.regions && t.bytes[u->region] >= u->limit - u->addr);
		/* What overlaps is of one region, what is apart is not. */
		for (size_t k = 0; k < i && k < 64; k++)
			assert(t.use[k].addr >= u->limit || u->addr >= t.use[k].limit || t.use[k].region == u->region);
	}
	forget();
	return 0;
}
