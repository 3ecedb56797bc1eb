/* link: hugepin-verbs hugepin ibverbs */
/* guest: plain odp */
/*
 * hugepin_sg_calibrate on a device: what it measures is kept, and found again; what is damaged is measured anew; nothing is left
 * with the device. That it measured is told by the time: no file is read so slowly.
 */
#include "hugepin_verbs.h"
#include "live/live.h"
#include "guest/wire.h"

#include <dirent.h>
#include <time.h>

#define MEASURED_MS 300.0

static struct ibv_context *device;
static struct ibv_pd *pd;
static char cache[] = "/tmp/sg_calibrate.XXXXXX", file[4096];

static bool open_device(void)
{
	device = wire_device();
	pd = device ? ibv_alloc_pd(device) : NULL;
	return pd && mkdtemp(cache) && !setenv("XDG_CACHE_HOME", cache, 1);
}

#define NEEDS_DEVICE                                                                                                   \
	do {                                                                                                           \
		if (!pd && !open_device())                                                                             \
			SKIP("no verbs device: made for the guest");                                                   \
	} while (0)

/* The only file in the cache, if there is one. */
static bool find_file(void)
{
	char dir[4096];
	snprintf(dir, sizeof dir, "%s/hugepin", cache);
	DIR *d = opendir(dir);
	bool found = false;
	for (struct dirent *e; d && (e = readdir(d));)
		if (!strncmp(e->d_name, "sg-", 3)) {
			found = EXPECT(!found);
			snprintf(file, sizeof file, "%s/%s", dir, e->d_name);
		}
	if (d)
		closedir(d);
	return found;
}

static double calibrate(unsigned flags, struct hugepin_sg_model *m)
{
	struct timespec a, b;
	*m = (struct hugepin_sg_model){ 0 };
	clock_gettime(CLOCK_MONOTONIC, &a);
	EXPECT_EQ(hugepin_sg_calibrate(pd, flags, m, sizeof *m), 0);
	clock_gettime(CLOCK_MONOTONIC, &b);
	return (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
}

static struct hugepin_sg_model first;

TEST(a_device_is_measured_and_what_was_measured_is_kept)
{
	NEEDS_DEVICE;
	EXPECT(!find_file());
	errno = 4711;
	double first_ms = calibrate(0, &first);
	EXPECT_EQ(errno, 4711);
	t_print("# %.0f ms: copy_below %u %u apart_below %u %u inline_pieces %u %u refused %u\n", first_ms, first.copy_below[0],
		first.copy_below[1], first.apart_below[0], first.apart_below[1], first.inline_pieces[0],
		first.inline_pieces[1], first.refused);
	EXPECT(first_ms > MEASURED_MS);
	EXPECT_EQ(first.source, HUGEPIN_SG_MODEL_DEVICE);
	EXPECT_EQ(first.size, sizeof first);
	EXPECT_EQ(first.refused, 0);
	EXPECT(find_file());
}

TEST(the_second_time_it_comes_from_the_cache)
{
	NEEDS_DEVICE;
	struct hugepin_sg_model again;
	double ms = calibrate(0, &again);
	t_print("# %.1f ms\n", ms);
	EXPECT(!memcmp(&again, &first, sizeof first));
	EXPECT_EQ(again.source, HUGEPIN_SG_MODEL_DEVICE);
}

TEST(when_asked_it_measures_anew)
{
	NEEDS_DEVICE;
	struct hugepin_sg_model again;
	EXPECT(calibrate(HUGEPIN_SG_ANEW, &again) > MEASURED_MS);
	first = again;
}

TEST(a_damaged_cache_is_measured_anew_and_mended)
{
	NEEDS_DEVICE;
	struct hugepin_sg_model again;
	EXPECT(find_file());
	EXPECT(!truncate(file, 100));
	EXPECT(calibrate(0, &again) > MEASURED_MS);
	double ms = calibrate(0, &first);
	EXPECT(!memcmp(&again, &first, sizeof first));
	t_print("# mended: %.1f ms\n", ms);
}

TEST(a_model_of_another_device_in_its_place_is_not_believed)
{
	NEEDS_DEVICE;
	char text[4096], *at;
	struct hugepin_sg_model again;
	EXPECT(find_file());
	EXPECT(file_read(file, text, sizeof text) > 0);
	at = strstr(text, "device ");
	if (!EXPECT(at))
		return;
	at[7] = '#';
	FILE *f = fopen(file, "w");
	EXPECT(f && fputs(text, f) >= 0 && !fclose(f));
	EXPECT(calibrate(0, &again) > MEASURED_MS);
	EXPECT_EQ(again.source, HUGEPIN_SG_MODEL_DEVICE);
}

TEST(without_a_place_for_the_cache_it_measures_each_time)
{
	NEEDS_DEVICE;
	struct hugepin_sg_model m;
	setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
	EXPECT(calibrate(0, &m) > MEASURED_MS);
	EXPECT_EQ(m.source, HUGEPIN_SG_MODEL_DEVICE);
	setenv("XDG_CACHE_HOME", cache, 1);
}

TEST(what_is_measured_is_good_for_planning)
{
	NEEDS_DEVICE;
	static char pieces[30][64];
	struct iovec iov[30];
	struct hugepin_sg_caps caps = { .max_sge = 30, .max_recv_sge = 30, .max_wr = 16, .max_recv_wr = 16, .max_msg = 1 << 20 };
	struct hugepin_sg_plan plan;
	for (int i = 0; i < 30; i++)
		iov[i] = (struct iovec){ pieces[i], 32 };
	EXPECT_EQ(hugepin_sg_plan(&first, &caps, iov, 30, 0, &plan), 0);
	EXPECT(plan.wrs == 1 && plan.bytes == 30 * 32);
}

TEST(nothing_is_left_with_the_device)
{
	NEEDS_DEVICE;
	char command[128];
	EXPECT_EQ(ibv_dealloc_pd(pd), 0); /* EBUSY, if a queue pair or a region were left */
	EXPECT_EQ(ibv_close_device(device), 0);
	snprintf(command, sizeof command, "rm -r %s", cache);
	EXPECT_EQ(system(command), 0);
}

T_MAIN
