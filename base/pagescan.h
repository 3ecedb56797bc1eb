/* /proc/PID/pagemap: its entries, and PAGEMAP_SCAN, an ioctl since Linux 6.7. The names are those of <linux/fs.h>,
 * which is not included because Debian 12 has the header of Linux 6.1. */
#ifndef HP_BASE_PAGESCAN_H
#define HP_BASE_PAGESCAN_H

#include <stdint.h>
#include <sys/ioctl.h>

struct hp_pagescan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

struct hp_pagescan_region {
	uint64_t start, end, categories;
};

/* Bits of the entries, which have 8 bytes for each base page: Documentation/admin-guide/mm/pagemap.rst. */
#define HP_PAGEMAP_PRESENT ((uint64_t)1 << 63)
#define HP_PAGEMAP_SWAPPED ((uint64_t)1 << 62)
#define HP_PAGEMAP_FILE ((uint64_t)1 << 61) /* or shared */
#define HP_PAGEMAP_EXCLUSIVE ((uint64_t)1 << 56)

#define HP_PAGESCAN _IOWR('f', 16, struct hp_pagescan)

enum { /* flags */
	HP_PAGESCAN_WP_MATCHING = 1 << 0,
	HP_PAGESCAN_CHECK_WPASYNC = 1 << 1,
};

enum { /* categories */
	HP_PAGESCAN_WRITTEN = 1 << 1,
	HP_PAGESCAN_PRESENT = 1 << 3,
	HP_PAGESCAN_SWAPPED = 1 << 4, /* or on the way to another place in memory */
	HP_PAGESCAN_ZERO = 1 << 5,
	HP_PAGESCAN_HUGE = 1 << 6,
};

#endif
