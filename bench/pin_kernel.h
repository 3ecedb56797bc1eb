/*
 * What the kernel takes for registering, with and without a heap, and for a fork of registered memory.
 */
#ifndef BENCH_PIN_KERNEL_H
#define BENCH_PIN_KERNEL_H

#include <stdbool.h>
#include <stddef.h>

/* The workloads `register`, `cycle` and `fork` of pin. */
void registering(const char *size_name, size_t size, const char *subject, bool quick);
void cycling(const char *size_name, size_t size, const char *subject, bool quick);
void forking(const char *which, const char *subject);

#endif
