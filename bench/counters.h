/* Count what the program does between the two calls; the second prints it for each of so many operations. Weak: access
 * is linked without them, access-counters with counters.c. */
#ifndef BENCH_COUNTERS_H
#define BENCH_COUNTERS_H

void counters_start(void) __attribute__((weak));
void counters_stop(const char *name, double operations) __attribute__((weak));

#endif
