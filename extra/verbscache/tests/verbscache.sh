#!/bin/bash
# libhugepin-verbscache.so before a libibverbs that needs no device: what is preloaded where, the variable, the line at exit.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../../../tests/live/tap.bash"
cache=$build/libhugepin-verbscache.so
fake=$build/extra/verbscache/tests/lib/verbsfake.so
cp "$fake" "$t/libibverbs.so.1"
cat >"$t/user.c" <<'END'
/* user register|file|quiet: register a buffer three times, by each of the functions; print how often libibverbs did. */
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
extern unsigned fake_made, fake_gone;

int main(int argc, char **argv)
{
	struct ibv_context context = { 0 };
	struct ibv_pd pd = { .context = &context };
	char *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (argc > 1 && !strcmp(argv[1], "quiet"))
		return 0;
	if (argc > 1 && !strcmp(argv[1], "file")) {
		close(2);
		open("data", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	}
	ibv_dereg_mr(ibv_reg_mr(&pd, p, 65536, IBV_ACCESS_LOCAL_WRITE));
	ibv_dereg_mr(ibv_reg_mr_iova(&pd, p, 65536, (uintptr_t)p, IBV_ACCESS_LOCAL_WRITE));
	ibv_dereg_mr(ibv_reg_mr_iova2(&pd, p, 65536, (uintptr_t)p, IBV_ACCESS_LOCAL_WRITE));
	printf("made %u gone %u\n", fake_made, fake_gone);
	fflush(stdout);
	if (argc > 1 && !strcmp(argv[1], "wait"))
		getchar();
	ibv_dealloc_pd(&pd);
	printf("left %u\n", fake_made - fake_gone);
	return 0;
}
END
works 'a program of libibverbs compiles' cc -Wall -Wextra -Werror -o "$t/user" "$t/user.c" -L"$t" -l:libibverbs.so.1
user() { (cd "$t" && env LD_LIBRARY_PATH="$t" "${@:2}" ./user "$1"); }
cached() { user "$1" LD_PRELOAD="$cache" "${@:2}"; }

says 'without the cache all three functions register' 0 '^made 3 gone 3$' user register
kept='kept=0 made=3'
if cached register | grep -q '^made 1 '; then
	says 'the three functions have one registration of equal bytes' 0 '^made 1 gone 0$' cached register
	kept='kept=2 made=1'
	says 'none is left when the protection domain is freed' 0 '^left 0$' cached register
else
	skip 'the three functions have one registration of equal bytes' 'no userfaultfd: memory outside the heap is not kept'
fi
says 'off: nothing is kept' 0 '^made 3 gone 3$' cached register HUGEPIN_X_VERBS_CACHE=off
says 'a malformed value is named, with what is accepted' 0 \
	'HUGEPIN_X_VERBS_CACHE=peers is not understood: it takes one of off, local, remote; using local' cached register HUGEPIN_X_VERBS_CACHE=peers
silent() { ! cached register HUGEPIN_X_VERBS_CACHE=remote 2>&1 | grep hugepin; }
works 'a good one is known to all libraries' silent
says 'a line at exit has the counts' 0 "^hugepin: verbs cache\[[0-9]+\]: asked=3 $kept given_back=3$" cached register HUGEPIN_STATS=1
untold() { ! cached quiet HUGEPIN_STATS=1 2>&1 | grep 'verbs cache'; }
works 'a program that registers nothing gets none' untold
clean() { cached file HUGEPIN_STATS=1 && [ -e "$t/data" ] && ! grep 'verbs cache' "$t/data"; }
works 'no file in the place of stderr gets it' clean

# A library may have libibverbs in itself.
mkdir "$t/within"
cp "$fake" "$t/within/libdriver.so"
works 'a program of such a library compiles' cc -o "$t/within/user" "$t/user.c" -L"$t/within" -l:libdriver.so
within() { LD_LIBRARY_PATH="$t/within" LD_PRELOAD="$cache" "$t/within/user" register; }
says 'libibverbs within another library is found' 0 '^made [13] gone [03]$' within

# A program may register what it maps, wherever that is.
cat >"$t/hook.c" <<'END'
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#undef ibv_reg_mr

static struct ibv_context context;
static struct ibv_pd pd = { .context = &context };
static int armed, calls;

void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t at)
{
	void *p = (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, at);

	if (armed) {
		armed = 0;
		calls++;
		ibv_dereg_mr(ibv_reg_mr(&pd, p, len, IBV_ACCESS_LOCAL_WRITE));
		armed = 1;
	}
	return p;
}

int main(void)
{
	void *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	armed = 1;
	ibv_dereg_mr(ibv_reg_mr(&pd, p, 65536, IBV_ACCESS_LOCAL_WRITE));
	armed = 0;
	ibv_dealloc_pd(&pd);
	printf("hooked %s\n", calls ? "yes" : "no");
	return 0;
}
END
works 'a program with a hook on mmap compiles' cc -rdynamic -o "$t/hook" "$t/hook.c" -L"$t" -l:libibverbs.so.1
hooked() { LD_LIBRARY_PATH="$t" LD_PRELOAD="$cache" timeout -k 5 "${T_SECONDS:-60}" "$t/hook"; }
says 'a hook on mmap registers in the middle of a call' 0 '^hooked yes$' hooked

# A protection domain is a domain of the pin cache: as others see it.
seen()
{
	local status=0
	mkfifo "$t/go"
	(cd "$t" && exec env LD_LIBRARY_PATH="$t" LD_PRELOAD="$cache" HUGEPIN_POLICY=predict HUGEPIN_PIN_BUDGET=1M HUGEPIN_TRACE="$t/trace.csv" \
		./user wait <go >seen) &
	exec 9>"$t/go"
	until grep -q made "$t/seen"; do kill -0 $! || break; sleep 0.05; done
	timeout 60 "$build/hugepin" top --once -d 0.1 --json $! >"$t/top"
	exec 9>&-
	wait $! || status=1
	cat "$t/top"
	return $status
}
works 'a program waits with a registration that is kept' seen
works 'hugepin top shows the domain and its budget' grep -Eq '"backend":"verbscache".*"bytes_max":1048576' "$t/top"
works 'the trace has its registrations' grep -q , "$t/trace.csv"

# The place in the program that asks, by which a policy tells uses apart.
cat >"$t/spy.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
int hugepin_pin_at(void *domain, const void *addr, size_t len, unsigned access, void *pin, uintptr_t site)
{
	int (*next)(void *, const void *, size_t, unsigned, void *, uintptr_t) = dlsym(RTLD_NEXT, "hugepin_pin_at");
	Dl_info i = { 0 };
	printf("from %s\n", site && dladdr((void *)(site - 1), &i) && i.dli_sname ? i.dli_sname : "nowhere");
	return next(domain, addr, len, access, pin, site);
}
END
cat >"$t/stack.c" <<'END'
#include <infiniband/verbs.h>
void deep(struct ibv_pd *pd, void *p) { ibv_dereg_mr(ibv_reg_mr(pd, p, 65536, IBV_ACCESS_LOCAL_WRITE)); }
void send_all(struct ibv_pd *pd, void *p) { deep(pd, p); }
END
cat >"$t/caller.c" <<'END'
#include <infiniband/verbs.h>
#include <sys/mman.h>
void send_all(struct ibv_pd *, void *);
__attribute__((noinline)) void one_place(struct ibv_pd *pd, void *p) { send_all(pd, p); __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void another_place(struct ibv_pd *pd, void *p) { send_all(pd, p); __asm__ volatile("" ::: "memory"); }
int main(void)
{
	struct ibv_context context = { 0 };
	struct ibv_pd pd = { .context = &context };
	void *p = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	one_place(&pd, p);
	another_place(&pd, p);
	return 0;
}
END
cat >"$t/mpi.c" <<'END'
#include <stdint.h>
void place_of_mpi(void) { __asm__ volatile("nop; nop; nop"); }
uintptr_t hugepin_mpi_site(void) { return (uintptr_t)place_of_mpi + 1; }
END
asks()
{
	cc -shared -fPIC -o "$t/spy.so" "$t/spy.c" && cc -shared -fPIC -O1 -fno-optimize-sibling-calls -o "$t/libstack.so" "$t/stack.c" \
		-L"$t" -l:libibverbs.so.1 && cc -shared -fPIC -o "$t/mpi.so" "$t/mpi.c" &&
		cc -O1 -rdynamic -o "$t/caller" "$t/caller.c" -L"$t" -l:libstack.so -l:libibverbs.so.1 -Wl,-rpath-link,"$t"
}
works 'a stack below a program compiles' asks
# from PRELOADED VARIABLE...
from() { LD_LIBRARY_PATH=$t env "${@:2}" LD_PRELOAD="$t/spy.so $1" "$t/caller" | xargs; }
says 'a use is known by the caller of the library that registers' 0 '^from one_place from another_place$' from "$cache" HUGEPIN_POLICY=predict
says 'or by the call of MPI, whose library stands before' 0 '^from place_of_mpi from place_of_mpi$' \
	from "$t/mpi.so $cache" HUGEPIN_POLICY=cf11
says 'or behind' 0 '^from place_of_mpi from place_of_mpi$' from "$cache $t/mpi.so" HUGEPIN_POLICY=cf11
says 'a policy that predicts nothing asks for none' 0 '^from nowhere from nowhere$' from "$cache $t/mpi.so" HUGEPIN_POLICY=lru

asan=$(cc -print-file-name=libasan.so)
if [ -e "$asan" ] && cc -fsanitize=address -o "$t/checked" "$t/user.c" -L"$t" -l:libibverbs.so.1; then
	sound() { ! (cd "$t" && LD_LIBRARY_PATH="$t" LD_PRELOAD="$asan $cache" ./checked register) 2>&1 | grep 'memory leaks'; }
	works 'what is kept is no leak' sound
else
	skip 'what is kept is no leak' 'no AddressSanitizer'
fi
