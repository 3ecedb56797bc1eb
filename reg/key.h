/*
 * Lookups of several keys for hugepin_sg_map(). All keys of one call are looked up first, so that the kernel is asked
 * once for all of them whether memory is changing (uffd.h), instead of once for each, as in hugepin_sg_key().
 */
#ifndef HP_REG_KEY_H
#define HP_REG_KEY_H

#include <stdbool.h>

#include "hugepin.h"

/* Whether the kernel must be asked for keys of any domain that was ever opened. */
extern bool hp_keys_asked __attribute__((visibility("hidden"))); /* relaxed: the domain's keys are made later */

/* As hugepin_sg_key(), but the key may be used only after hp_keys_stand() returned true. */
int hp_key_later(void *domain, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret_);

/* Whether the memory of these pins was still there when the first of them was looked up. The pins come from
 * hp_key_later(), and none was given back. If false, give them back and look each up by hugepin_sg_key(). Makes at most
 * one system call. */
bool hp_keys_stand(void *domain, const struct hugepin_pin *pins, int n);

#endif
