#!/bin/bash
# Opening and closing a domain takes as many instructions with ten thousand others open, and with memory in many extents, as with one,
# counted by callgrind. The service thread's part is counted in tests/unit/pin_domains.c.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
# shellcheck source=tests/live/counting.bash
. "$(dirname "$0")/counting.bash"
top=$PWD
cd "$t" || exit 2
fact='a domain is opened and closed by as many instructions with ten thousand open, and with many extents'
countable "$fact"
cat >opens.c <<'EOF'
#include <stdlib.h>
#include "hugepin.h"
static int reg(void *ctx, void *addr, size_t len, unsigned access, struct hugepin_reg *ret_)
{
	(void)ctx, (void)addr, (void)len, (void)access, (void)ret_;
	return -12;
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
static hugepin_domain *open_one(void)
{
	static const struct hugepin_backend backend = {
		.size = sizeof backend, .name = "none", .reg = reg, .dereg = dereg, .limits = limits };
	static const struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	hugepin_domain *d;
	if (hugepin_domain_open(&backend, NULL, &attr, &d))
		exit(1);
	return d;
}
__attribute__((noinline)) void counted(void)
{
	for (int i = 0; i < 100; i++)
		if (hugepin_domain_close(open_one()))
			exit(1);
}
int main(int argc, char **argv)
{
	for (int i = 0; argc == 3 && i < atoi(argv[1]); i++)
		open_one();
	for (int i = 0; i < atoi(argv[2]); i++) /* each an extent of its own */
		if (!hugepin_malloc((size_t)66 << 20))
			return 1;
	counted();
	return 0;
}
EOF
# shellcheck disable=SC2086 # CC may be a command with options
works 'the program compiles' ${CC:-cc} -D_GNU_SOURCE -O1 -g -I"$top/include" -o opens opens.c -L"$build" -lhugepin \
	-Wl,-rpath,"$build" || exit
export HUGEPIN_PAGES=base
count --toggle-collect=counted ./opens 1 1 && alone=$instructions
count --toggle-collect=counted ./opens 10000 1 && many=$instructions
count --toggle-collect=counted ./opens 1 200 && extents=$instructions
echo "# 100 domains: $alone instructions, $many with ten thousand open, $extents with 200 extents"
same() { [ "$alone" -gt 100000 ] && [ $((many * 100)) -le $((alone * 101)) ] && [ $((extents * 100)) -le $((alone * 101)) ]; }
works "$fact" same
