/* link: cmd/elf.c cmd/text.c base/base.c base/clock.c base/sys.c base/config.c base/text.c */
/*
 * Fuzzes the look at a program that hugepin run is to start: any file is judged, with a reason where it is refused; what is
 * no ELF file and no script is left for exec.
 */
#include <assert.h>
#include <stdint.h>
#include <sys/mman.h>

#include "cmd/target.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int file = -1;
	static struct hp_target t;
	char path[40];

	if (file < 0)
		file = memfd_create("program", MFD_CLOEXEC);
	assert(!ftruncate(file, 0) && pwrite(file, data, size, 0) == (ssize_t)size);
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	t = hp_target_check(path);
	assert(t.status == 0 || t.status == HP_EXIT_REFUSED || t.status == HP_EXIT_CANNOT_EXEC);
	assert(t.status == 0 || t.why[0]); /* a malloc of its own is no refusal */
	assert(!t.in_vain || t.why[0]);
	if (size < 2 || (memcmp(data, "#!", 2) && memcmp(data, "\177E", 2)))
		assert(t.status == 0);
	return 0;
}
