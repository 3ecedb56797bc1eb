/* link: */
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
	char path[40], why[3 * PATH_MAX] = "";
	int status;

	if (file < 0)
		file = memfd_create("program", MFD_CLOEXEC);
	assert(!ftruncate(file, 0) && pwrite(file, data, size, 0) == (ssize_t)size);
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	status = hp_target_check(path, why, sizeof why);
	assert(status == 0 || status == HP_EXIT_REFUSED || status == HP_EXIT_CANNOT_EXEC);
	assert(status == 0 || why[0]); /* a malloc of its own is no refusal */
	if (size < 2 || (memcmp(data, "#!", 2) && memcmp(data, ELFMAG, 2)))
		assert(status == 0);
	return 0;
}
