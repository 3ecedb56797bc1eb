#!/bin/bash
# HUGEPIN_SMALL: small requests go to the next malloc of the process, or to a library that is loaded for them. The heap serves
# the rest.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
hugepin=$build/hugepin

# under ALLOCATOR COMMAND...: with small requests there.
under() { HUGEPIN_SMALL=$1 with "${@:2}"; }

# serves ALLOCATOR: programs for the built-in jemalloc find no difference.
serves()
{
	works "$1: the conformance tests hold" under "$1" "$here/conformance"
	works "$1: buffers go back to whom they came from" under "$1" env STRESS_SECONDS=1 "$here/stress"
	works "$1: a program may allocate before the constructors, after the destructors, and while threads end" under "$1" "$here/early"
	works "$1: threads allocate while others fork" under "$1" "$here/forkthreads"
	works "$1: a signal handler may fork" under "$1" "$here/handler"
	works "$1: a program may be confined before its first small request" under "$1" "$here/first" behind_a_filter
	works "$1: a program may run out of memory" under "$1" "$here/oom"
}

serves next
next=$(ldconfig -p | awk '/libmimalloc.so/ { print $NF; exit }')
if [ -n "$next" ]; then
	# shellcheck disable=SC2016 # perl's
	works 'the next malloc may be a preloaded one' env HUGEPIN_SMALL=next LD_PRELOAD="$dropin $next" perl -e 'my @a = map { "x" x $_ } 1 .. 2000'
else
	skip 'the next malloc may be a preloaded one' 'libmimalloc is not installed'
fi

# The limit leaves 8 MiB, which jemalloc's arenas would take.
cat >"$t/limited.c" <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
int main(void)
{
	struct rlimit limit;
	unsigned long pages;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%lu", &pages) != 1)
		return 2;
	limit.rlim_cur = limit.rlim_max = pages * (unsigned long)sysconf(_SC_PAGESIZE) + (8 << 20);
	setrlimit(RLIMIT_AS, &limit);
	for (int i = 0; i < 20; i++) {
		char *volatile p = malloc(20000);

		if (!p)
			return 1;
		memset(p, 1, 20000);
	}
	return 0;
}
END
# shellcheck disable=SC2086 # CC may have options
works 'a program that limits its addresses compiles' ${CC:-cc} -O1 -fno-builtin -o "$t/limited" "$t/limited.c"
works 'next: jemalloc, which serves nothing, takes no part of what a limit leaves' under next "$t/limited"

# A module with the C library's malloc: each of the two frees what the other has allocated.
cat >"$t/deep.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#ifdef MODULE
void *make(void) { return malloc(100); }
void drop(void *p) { free(p); }
#else
int main(int argc, char **argv)
{
	void *module = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND) : NULL, *(*make)(void), *volatile p;
	void (*drop)(void *);

	if (!module)
		return 1;
	*(void **)&make = dlsym(module, "make");
	*(void **)&drop = dlsym(module, "drop");
	p = malloc(100);
	drop(p);
	free(make());
	return 0;
}
#endif
END
# shellcheck disable=SC2086
works 'a program that opens a module compiles' ${CC:-cc} -O1 -fno-builtin -o "$t/deep" "$t/deep.c"
# shellcheck disable=SC2086
works 'its module compiles' ${CC:-cc} -O1 -fno-builtin -DMODULE -shared -fPIC -o "$t/deep.so" "$t/deep.c"
works 'next: small buffers may cross to a module opened with RTLD_DEEPBIND' under next "$t/deep" "$t/deep.so"

cat >"$t/whose.cpp" <<'END'
#include <dlfcn.h>
#include <hugepin.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
/* Prints whether the small and the large buffers of new and of malloc are where they should be. */
int main()
{
	auto extent = reinterpret_cast<decltype(&hugepin_extent)>(dlsym(RTLD_DEFAULT, "hugepin_extent"));
	auto stats = reinterpret_cast<decltype(&hugepin_stats)>(dlsym(RTLD_DEFAULT, "hugepin_stats"));
	struct hugepin_extent e;
	struct hugepin_stats s;
	char *large = new char[1 << 20], *grown = static_cast<char *>(malloc(100));

	for (int i = 0; i < 400000; i++)
		memset(new char[100], 1, 100);
	grown = static_cast<char *>(realloc(grown, 1 << 20));
	stats(&s, sizeof s);
	printf("new %d, grown %d, jemalloc %d\n", extent(large, &e, sizeof e) > 0, extent(grown, &e, sizeof e) > 0,
	       s.small_bytes > 40000000);
	delete[] large;
	grown = static_cast<char *>(realloc(grown, 100));
	printf("shrunk %d\n", extent(grown, &e, sizeof e) > 0);
	free(grown);
}
END
if ! command -v g++ >/dev/null; then
	skip "a C++ program's buffers" 'no C++ compiler: tools/setup check'
else
	works "a C++ program compiles" g++ -fno-builtin -I"$(dirname "$0")/../../include" -o "$t/whose" "$t/whose.cpp"
	says "jemalloc: large buffers of new are the heap's, small ones jemalloc's" 0 'new 1, grown 1, jemalloc 1' under jemalloc "$t/whose"
fi

# loads ALLOCATOR FILE PACKAGE
loads()
{
	local library
	library=$(ldconfig -p | awk -v file="$2" '$1 ~ file { print $NF; exit }')
	if [ -z "$library" ]; then
		skip "$1" "$3 is not installed"
		return
	fi
	serves "$1"
	says "$1: \`hugepin run\` loads it" 0 "${library##*/}" "$hugepin" run --small="$1" cat /proc/self/maps
	says "$1: a child of fork and exec has it, too" 0 "${library##*/}" "$hugepin" run --small="$1" sh -c 'cat /proc/self/maps; :'
	if [ -x "$t/whose" ]; then
		says "$1: large buffers of new are the heap's, small ones not jemalloc's" 0 'new 1, grown 1, jemalloc 0' under "$1" "$t/whose"
		says "$1: a buffer that shrinks goes there" 0 'shrunk 0' under "$1" "$t/whose"
	fi
	says "$1: small buffers are not pinned" 0 'SMALL_PINNED=1 can be had with HUGEPIN_SMALL=jemalloc alone' \
		env HUGEPIN_SMALL_PINNED=1 HUGEPIN_SMALL="$1" LD_PRELOAD="$dropin" true
	if ! unshare -m true 2>/dev/null; then
		skip "$1: a library that is missing" 'no mount namespace'
		return
	fi
	# An empty file stands in for the missing one.
	# shellcheck disable=SC2016 # of the shells inside, and perl's
	local missing=(unshare -m bash -c 'mount --bind /dev/null "$1" && shift && "$@"' sh "$(readlink -f "$library")")
	says "$1: the command names the package of a missing library" 125 "hugepin run: --small=$1: .*apt install .*$3" \
		"${missing[@]}" "$hugepin" run --small="$1" true
	says "$1: so does hugepin check" 1 "hugepin check: --small=$1: .*apt install .*$3" "${missing[@]}" "$hugepin" check --small="$1" true
	# shellcheck disable=SC2016
	says "$1: so does the library, and jemalloc serves" 0 "HUGEPIN_SMALL=$1 cannot be had: .*$3.*; using jemalloc" \
		"${missing[@]}" env HUGEPIN_SMALL="$1" LD_PRELOAD="$dropin" perl -e 'my @a = map { "x" x $_ } 1 .. 2000'
}

loads mimalloc 'libmimalloc[.]so[.]' libmimalloc2.0
loads tcmalloc 'libtcmalloc_minimal[.]so[.]' libtcmalloc-minimal4
