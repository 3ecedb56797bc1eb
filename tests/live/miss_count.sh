#!/bin/bash
# A miss outside the heap takes as many instructions with sixty threads that pin as with one, where nothing is evicted, counted by
# callgrind: no miss adds up what each thread has counted.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
# shellcheck source=tests/live/counting.bash
. "$(dirname "$0")/counting.bash"
top=$PWD
cd "$t" || exit 2
fact='a miss takes as many instructions with sixty threads that pin as with one'
countable "$fact"
cat >misses.c <<'EOF'
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "hugepin.h"
static int reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)addr, (void)len, (void)access;
	memset(ret_, 0, sizeof *ret_);
	return 0;
}
static int dereg(void *ctx, struct hugepin_reg *r)
{
	(void)ctx, (void)r;
	return 0;
}
static int limits(void *ctx, struct hugepin_limits *ret_)
{
	(void)ctx;
	ret_->access = HUGEPIN_READ | HUGEPIN_WRITE;
	return 0;
}
static hugepin_domain *d;
static char *memory;
static pthread_barrier_t all;
static void pin_page(size_t i)
{
	struct hugepin_pin pin;
	if (hugepin_pin(d, memory + i * 8192, 4096, 0, &pin) || hugepin_unpin(d, &pin))
		_exit(1);
}
static void *pin_once(void *arg)
{
	pin_page(0);
	pthread_barrier_wait(&all);
	for (;;)
		pause();
	return arg;
}
__attribute__((noinline)) void counted(void)
{
	for (size_t i = 1; i <= 200; i++)
		pin_page(i);
}
int main(int argc, char **argv)
{
	static const struct hugepin_backend backend = {
		.size = sizeof backend, .name = "none", .reg = reg, .dereg = dereg, .limits = limits };
	static const struct hugepin_attr attr = {
		.size = sizeof attr, .policy = HUGEPIN_POLICY_LRU, .watch = HUGEPIN_WATCH_PROGRAM };
	const unsigned threads = argc > 1 ? (unsigned)atoi(argv[1]) : 1;
	pthread_t t;
	memory = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_barrier_init(&all, NULL, threads);
	if (hugepin_domain_open(&backend, NULL, &attr, &d))
		return 1;
	for (unsigned i = 1; i < threads; i++)
		pthread_create(&t, NULL, pin_once, NULL);
	pin_page(0);
	pthread_barrier_wait(&all);
	counted();
	_exit(0);
}
EOF
# shellcheck disable=SC2086 # CC may be a command with options
works 'the program compiles' ${CC:-cc} -D_GNU_SOURCE -O1 -g -pthread -I"$top/include" -o misses misses.c -L"$build" -lhugepin \
	-Wl,-rpath,"$build" || exit
count --toggle-collect=counted ./misses 1 && alone=$instructions
count --toggle-collect=counted ./misses 60 && many=$instructions
echo "# 200 misses: $alone instructions, $many with sixty threads"
same() { [ "$alone" -gt 100000 ] && [ $((many * 100)) -le $((alone * 102)) ]; }
works "$fact" same
