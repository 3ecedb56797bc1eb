/* Features of the kernel and of devices for the pin cache: userfaultfd(2), io_uring, and verbs devices in
 * /sys/class/infiniband. If there is a device, libibverbs is asked for facts that only libibverbs knows. */
#include "cmd/devices.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cmd/facts.h"
#include "cmd/models.h"
#include "cmd/text.h"

#define INFINIBAND "/sys/class/infiniband"

/* ------------------------------------------------------------------ the kernel */

/* The first Linux that tells of unmapping, here. */
#ifdef __aarch64__
#define WATCHES_SINCE "6.10"
#else
#define WATCHES_SINCE "5.11"
#endif

/* Ask for the features that reg/uffd.c needs. */
static void tell_userfaultfd(void)
{
	struct uffdio_api api = { .api = UFFD_API,
				  .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_UNMAP |
					      UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP };
	const int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

	if (fd >= 0 && !ioctl(fd, UFFDIO_API, &api)) {
		hp_facts_add("userfaultfd", "usable: the kernel tells when memory that is not the heap's goes away");
	} else {
		const char *const reason = strerror(errno);
		hp_facts_add("userfaultfd", "not usable (%s)", reason);
		hp_facts_lack(
			"all memory is registered anew for each pin, except under libhugepin-malloc.so, which sees the "
			"calls that unmap memory: use Linux " WATCHES_SINCE " or newer, and let seccomp pass userfaultfd");
	}
	if (fd >= 0)
		close(fd);
}

/* Open a ring, with a table of one empty slot for a fixed buffer. -1: there is no ring. */
static int ring_with_table(bool *ret_table)
{
	struct io_uring_params params = { 0 };
	struct io_uring_rsrc_register table = { .nr = 1, .flags = IORING_RSRC_REGISTER_SPARSE };
	const int fd = (int)syscall(SYS_io_uring_setup, 1, &params);

	if (fd >= 0)
		*ret_table = !syscall(SYS_io_uring_register, fd, IORING_REGISTER_BUFFERS2, &table, sizeof table);
	return fd;
}

static void tell_io_uring(void)
{
	const char *const file = "/proc/sys/kernel/io_uring_disabled"; /* since Linux 6.6 */
	bool fixed = false;
	const int fd = ring_with_table(&fixed);

	if (fd < 0) {
		const int err = errno;
		hp_facts_add("io_uring", "not usable (%s)", strerror(err));
		if (hp_read_number(file, 0))
			hp_facts_advise("switched off", "echo 0 > %s", file);
		else if (err == EPERM)
			hp_facts_lack("forbidden by seccomp: let it pass io_uring_setup, io_uring_enter and "
				      "io_uring_register");
		else
			hp_facts_lack("use Linux 5.19 or newer, built with CONFIG_IO_URING");
		return;
	}
	close(fd);
	hp_facts_add("io_uring", "usable");
	if (!fixed)
		hp_facts_lack("fixed buffers cannot be registered one by one, so it is of no use for pins: use Linux "
			      "5.19 or newer");
}

/* ------------------------------------------------------------------ RDMA */

/* Open the character device by which programs reach the device. 0 or errno. */
static int try_uverbs(const char *device)
{
	char path[512], name[64];
	struct dirent *e;
	int err = ENOENT;
	DIR *d = opendir("/sys/class/infiniband_verbs");

	while (d && err && (e = readdir(d))) {
		snprintf(path, sizeof path, "/sys/class/infiniband_verbs/%.100s/ibdev", e->d_name);
		if (strcmp(hp_read_line(path, name, sizeof name), device))
			continue;
		snprintf(path, sizeof path, "/dev/infiniband/%.100s", e->d_name);
		err = access(path, R_OK | W_OK) ? errno : 0;
		break;
	}
	if (d)
		closedir(d);
	return err;
}

static void tell_device(const char *device)
{
	char path[512], firmware[64], why[256];
	const int err = try_uverbs(device);
	const int odp = hp_models_odp(device, why, sizeof why);

	snprintf(path, sizeof path, INFINIBAND "/%s/fw_ver", device);
	hp_read_line(path, firmware, sizeof firmware);
	hp_facts_add(device, "%s%s, registers on demand: %s%s%s%s", *firmware ? "firmware " : "no firmware", firmware,
		     odp < 0 ? "unknown"
		     : odp   ? "yes"
			     : "no",
		     odp < 0 ? " (" : "", odp < 0 ? why : "", odp < 0 ? ")" : "");
	if (err == ENOENT)
		hp_facts_advise(
			"programs cannot reach it; in a container it has to be given with --device=/dev/infiniband",
			"modprobe ib_uverbs");
	else if (err)
		hp_facts_advise("this user may not open it", "chmod a+rw /dev/infiniband/uverbs*");
}

static void tell_rdma(void)
{
	struct dirent **list = NULL;
	const int n = scandir(INFINIBAND, &list, NULL, alphasort);
	int shown = 0;

	hp_facts_section("RDMA devices");
	for (int i = 0; i < n; i++) {
		if (list[i]->d_name[0] != '.') {
			tell_device(list[i]->d_name);
			shown++;
		}
		free(list[i]);
	}
	free(list);
	if (!shown)
		hp_facts_add("verbs", "no device");
}

void hp_devices_facts(void)
{
	hp_facts_section("Pin cache");
	tell_userfaultfd();
	tell_io_uring();
	tell_rdma();
}
