/* link: cmd/look.c */
/*
 * Fuzzes what hugepin top makes of another process: whatever stands there, a look ends, stays within what it read, and says the
 * same twice. The memory is one entry over and over again, which is a registration, its domain and all else. The input's first
 * half changes the description's members, the second the entry, each where a byte is large. Parts of the memory may not be read.
 */
#include <assert.h>
#include <string.h>

#include "cmd/look.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PAGE UINT64_C(0x10000)
#define TABLE UINT64_C(0x20000)

/* start, end, domain, state and kind, the table, how many, two pages */
static const uint64_t entry[8] = { 0x100000, 0x300000, TABLE, UINT64_C(2) << 32 | 1, TABLE, 20, 0x0203, 0x0103 };

struct memory {
	struct hp_exposed page;
	const uint8_t *data;
	size_t size;
	long budget; /* bytes that may be read */
};

static bool read_memory(void *memory, uint64_t addr, void *buf, size_t len)
{
	struct memory *m = memory;

	if ((m->budget -= (long)len) <= 0 || addr % 4096 == 4095)
		return false;
	if (addr == PAGE && len <= sizeof m->page) {
		memcpy(buf, &m->page, len);
		return true;
	}
	for (size_t i = 0; i < len; i++) {
		const uint8_t change = m->data[(addr + i) % m->size];
		((uint8_t *)buf)[i] = ((const uint8_t *)entry)[(addr + i) % sizeof entry] ^ (change < 128 ? 0 : change * 2 + change / 64);
	}
	return true;
}

static void look(const struct memory *memory, const struct hp_look *before, struct hp_look *ret_, int *ret_status)
{
	struct memory m = *memory;

	*ret_status = hp_look(&(struct hp_source){ read_memory, &m }, PAGE, before ? 2 : 1, 4, before, ret_);
}

static void check(const struct hp_look *l)
{
	uint32_t regions = 0;

	for (unsigned i = 0; i < l->domains; i++) {
		const struct hp_look_domain *d = &l->domain[i];
		const double hits = hp_look_hit_rate(d);

		assert(memchr(d->backend, 0, sizeof d->backend));
		for (const char *c = d->backend; *c; c++)
			assert(*c >= ' ' && *c <= '~');
		assert(hits <= 1 && (hits >= 0) == (d->pins != 0));
		for (uint32_t r = 0; r < d->regions; r++) {
			assert(d->region[r].domain == d->number && d->region[r].start < d->region[r].end);
			assert(d->region[r].index < l->used && d->region[r].backing >= -1 && d->region[r].backing <= HUGEPIN_KIND_HUGETLB);
		}
		regions += d->regions;
		assert(d->peers_shown <= HP_LOOK_PEERS && d->peers_shown <= d->peers && (d->lends || !d->peers));
	}
	assert(regions < l->used + !l->used);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct memory m = { .page = { .page = { .magic = HUGEPIN_STATS_MAGIC, .size = sizeof(struct hugepin_stats) } }, .budget = 8000 };
	uint32_t *const word = (uint32_t *)&m.page.view;
	struct hp_look first, second, third;
	int status, again;

	if (size < 2)
		return 0;
	m.data = data + size / 2;
	m.size = size - size / 2;
	m.page.view = (struct hp_view){
		.magic = HP_VIEW_MAGIC,
		.version = HP_VIEW_VERSION,
		.size = sizeof(struct hp_view),
		.heap = { .size = UINT64_MAX, .pages = TABLE + 48, .page_shift = 20, .stride = 8, .kind = 1, .state_min = 2 },
		.domain = { .domains = TABLE + 16, .open = TABLE + 24, .used = TABLE + 28, .size = 600, .policy = 16, .helper = 24, .stats = 80,
			    .stats_size = 300 },
		.region = { .regions = TABLE + 32, .used = TABLE + 40, .stride = 64, .end = 8, .domain = 16, .state = 24, .kind = 28 },
		.counts = { .first = TABLE + 56, .counts = 8, .stride = 8, .unpins = 4 },
		.helper = { .places = 8, .stride = 32, .site = 16 },
		.lend = { .hooks = 32, .lend = 40, .table = 8, .lent = 16, .idle = 24, .stride = 200, .stats = 16, .stats_size = 168 },
	};
	for (size_t i = 0; i < size / 2 && i < sizeof m.page.view / sizeof *word - 4; i++)
		if (data[i] >= 160)
			word[4 + i] = data[i] < 240 ? data[i] - 160 : (uint32_t)data[i] << 24;

	look(&m, NULL, &first, &status);
	look(&m, NULL, &second, &again);
	assert(status == again);
	if (status)
		return 0;
	check(&first);
	assert(first.domains == second.domains && first.used == second.used);
	hp_look_free(&second);
	look(&m, &first, &third, &again);
	assert(!again);
	check(&third);
	for (unsigned i = 0; i < third.domains; i++) /* nothing has happened */
		assert(third.domain[i].pins == 0);
	hp_look_free(&third);
	hp_look_free(&first);
	return 0;
}
