/*
 * Between hugepin_sg_map() and hugepin_sg_key(): the keys of one call are looked up first, and the kernel is asked once
 * for all of them whether something is changing (uffd.h), not once for each.
 */
#ifndef HP_REG_KEY_H
#define HP_REG_KEY_H

#include <stdbool.h>

#include "hugepin.h"

/* A domain is open, or was, whose keys are to be asked for. */
extern bool hp_keys_asked __attribute__((visibility("hidden")));

/* As hugepin_sg_key, but what was found is good only if hp_keys_stand() says so. */
int hp_key_later(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* Whether these pins, all of hp_key_later() and none given back, are of memory that was there when the first was looked
 * up. False: give them back, and look each up by hugepin_sg_key. At most one system call. */
bool hp_keys_stand(void *domain, const struct hugepin_pin *pins, int n);

#endif
