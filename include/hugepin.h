/*
 * hugepin: large buffers in hugepages, and a cache of their registrations.
 *
 * Rules for every function of these headers, unless its comment says otherwise:
 *  - `int` functions return 0 or more, or -errno. On failure errno, stderr and every ret_ argument are left alone.
 *    Functions shaped like malloc return NULL and set errno.
 *  - Sizes are bytes. Any thread may call. Handles and buffers may be handed between threads.
 *  - A struct that shares its name with a function has a second name in _t, for C++: there `hugepin_stats s;` would
 *    name the function, and `hugepin_stats_t s;` names the struct.
 *  - Nothing prints or exits, with three exceptions: a malformed HUGEPIN_ variable (one line), HUGEPIN_STATS at exit,
 *    and a heap found misused (one line, then abort; HUGEPIN_ABORT=0 makes it a reported no-op).
 *
 * The guide is hugepin(7). Each header below has one group of functions, and names its pages.
 */
#ifndef HUGEPIN_H
#define HUGEPIN_H

#include "hugepin_domain.h"
#include "hugepin_key.h"
#include "hugepin_lend.h"
#include "hugepin_malloc.h"
#include "hugepin_pin.h"
#include "hugepin_sg.h"
#include "hugepin_stats.h"

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

#define HUGEPIN_VERSION_MAJOR 0
#define HUGEPIN_VERSION_MINOR 1
#define HUGEPIN_VERSION ((HUGEPIN_VERSION_MAJOR << 16) | HUGEPIN_VERSION_MINOR)

/* The version of the library that runs. HUGEPIN_VERSION is the version compiled against. Never blocks. */
unsigned hugepin_version(void);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
