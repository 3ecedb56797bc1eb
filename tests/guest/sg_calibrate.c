/* link: hugepin-verbs hugepin ibverbs */
/* guest: plain odp */
/*
 * hugepin_sg_calibrate on a device: what it measures is kept, and found again; what is damaged is measured anew; nothing is left
 * with the device.
 */
#include "hugepin_verbs.h"
#include "live/live.h"
#include "guest/wire.h"

#include <dirent.h>
#include <sys/stat.h>
#include <time.h>

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
	t_print("# %.0f ms: wr %.0f element %.0f lookup %.1f line %.2f byte %.4f piece %.2f copy_byte %.4f cold %.1f "
		"cold_piece %.2f cold_byte %.4f inline_wr %.0f inline_piece %.1f inline_byte %.4f refused %u\n", first_ms,
		(double)first.wr, (double)first.element, (double)first.lookup, (double)first.line, (double)first.byte,
		(double)first.piece, (double)first.copy_byte, (double)first.cold, (double)first.cold_piece,
		(double)first.cold_byte, (double)first.inline_wr, (double)first.inline_piece, (double)first.inline_byte,
		first.refused);
	EXPECT_EQ(first.source, HUGEPIN_SG_MODEL_DEVICE);
	EXPECT_EQ(first.size, sizeof first);
	EXPECT_EQ(first.refused, 0);
	EXPECT(first.wr > 500); /* a message through the kernel, and back */
	EXPECT(first.piece > 0 && first.copy_byte > 0);
	EXPECT(find_file());
}

TEST(the_second_time_it_comes_from_the_cache)
{
	NEEDS_DEVICE;
	struct hugepin_sg_model again;
	double ms = calibrate(0, &again);
	t_print("# %.1f ms\n", ms);
	EXPECT_EQ((int)(again.wr * 100), (int)(first.wr * 100)); /* measured anew it would be another */
	EXPECT_EQ(again.source, HUGEPIN_SG_MODEL_DEVICE);
}

TEST(when_asked_it_measures_anew)
{
	NEEDS_DEVICE;
	struct hugepin_sg_model again;
	EXPECT(calibrate(HUGEPIN_SG_ANEW, &again) > 4);
	EXPECT((int)(again.wr * 100) != (int)(first.wr * 100));
	first = again;
}

TEST(a_damaged_cache_is_measured_anew_and_mended)
{
	NEEDS_DEVICE;
	struct hugepin_sg_model again;
	EXPECT(find_file());
	EXPECT(!truncate(file, 100));
	EXPECT(calibrate(0, &again) > 4);
	EXPECT((int)(again.wr * 100) != (int)(first.wr * 100));
	double ms = calibrate(0, &first);
	EXPECT_EQ((int)(again.wr * 100), (int)(first.wr * 100));
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
	EXPECT(calibrate(0, &again) > 4);
	EXPECT_EQ(again.source, HUGEPIN_SG_MODEL_DEVICE);
}

TEST(without_a_place_for_the_cache_it_measures_each_time)
{
	NEEDS_DEVICE;
	struct hugepin_sg_model m;
	setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
	EXPECT(calibrate(0, &m) > 4);
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
	EXPECT((float)plan.cost_ns > first.wr / 2 && (float)plan.cost_ns < 100 * first.wr);
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

TEST(without_a_device_it_takes_milliseconds_once)
{
	struct hugepin_sg_model m, again;
	pd = NULL;
	double ms = calibrate(0, &m), kept = calibrate(0, &again);
	t_print("# %.1f ms, then %.3f ms\n", ms, kept);
	EXPECT_EQ(m.source, HUGEPIN_SG_MODEL_CPU);
	EXPECT(!memcmp(&m, &again, sizeof m));
	EXPECT(m.wr > 0 && m.element > 0 && m.lookup > 0 && m.piece > 0 && m.copy_byte > 0 && m.inline_wr > 0);
	EXPECT(m.line == 0 && m.byte == 0);
	EXPECT_EQ(hugepin_sg_calibrate(NULL, 1, &m, sizeof m), -EINVAL);
	EXPECT_EQ(hugepin_sg_calibrate(NULL, 0, NULL, sizeof m), -EINVAL);
	EXPECT_EQ(hugepin_sg_calibrate(NULL, 0, &m, 4), -EINVAL);
}

T_MAIN
