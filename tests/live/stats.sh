#!/bin/bash
# HUGEPIN_STATS: what a program tells at exit, and which programs tell nothing.
# shellcheck disable=SC2015 # show always fails, so "&& ... || show" is what it looks like
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"

cat >"$t/memory.c" <<'END'
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };
static char *volatile kept[2000]; /* the compiler must not leave the allocations out */

static char *touched(size_t mib)
{
	char *p = malloc(mib * MIB);
	return p ? memset(p, 1, mib * MIB) : NULL;
}

static void *wave(void *unused)
{
	for (int i = 0; i < 20; i++)
		free(touched(20));
	return unused;
}

static void *waits(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static int ends_at_once(void)
{
	int status;
	pid_t pid = fork();
	if (!pid)
		_exit(0);
	return waitpid(pid, &status, 0) != pid || status;
}

static int child(size_t grows, size_t mib)
{
	int status;
	pid_t pid = fork();
	if (pid)
		return waitpid(pid, &status, 0) != pid || status;
	if (grows)
		kept[1] = touched(mib);
	printf("%d\n", (int)getpid());
	return 0;
}

/* From now on a file that is opened ends the process, or nothing does. */
static int confine(int seen, int forgiving)
{
	struct sock_filter f[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
				   BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
	struct sock_fprog program = { .len = 4, .filter = f };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	if (forgiving)
		f[2].k = SECCOMP_RET_ALLOW;
	if (seen)
		return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
	long r; /* the drop-in does not see this one */
	__asm__ volatile("syscall" : "=a"(r) : "a"(SYS_seccomp), "D"(SECCOMP_SET_MODE_FILTER), "S"(0), "d"(&program) : "rcx", "r11", "memory");
	return (int)r;
}

int main(int argc, char **argv)
{
	const char *how = argv[1];
	size_t mib = argc > 2 ? (size_t)atoi(argv[2]) : 0;

	printf("%d\n", (int)getpid());
	fflush(stdout);
	if (!strcmp(how, "keep"))
		kept[0] = touched(mib);
	else if (!strcmp(how, "free"))
		free(touched(mib));
	else if (!strcmp(how, "many"))
		for (size_t i = 0; i < mib; i++)
			kept[i] = touched(1);
	else if (!strcmp(how, "many-free")) {
		for (size_t i = 0; i < mib; i++)
			kept[i] = touched(1);
		for (size_t i = 0; i < mib; i++)
			free(kept[i]);
	} else if (!strcmp(how, "grow")) {
		char *p = NULL;
		for (size_t i = 1; i <= mib; i++) {
			p = realloc(p, i * MIB);
			memset(p + (i - 1) * MIB, 1, MIB);
		}
		kept[0] = p;
	} else if (!strcmp(how, "untouched"))
		kept[0] = malloc(mib * MIB);
	else if (!strcmp(how, "decays")) { /* it goes back before the end */
		free(touched(mib));
		usleep(1500000);
	} else if (!strcmp(how, "mmap"))
		memset(mmap(NULL, mib * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, mib * MIB);
	else if (!strcmp(how, "small"))
		for (size_t i = 0; i < mib * 1024; i++)
			kept[0] = memset(malloc(1024), 1, 1024);
	else if (!strcmp(how, "_exit")) {
		kept[0] = touched(mib);
		_exit(0);
	} else if (!strcmp(how, "child")) {
		kept[0] = touched(mib);
		return child(0, 0);
	} else if (!strcmp(how, "child-grows"))
		return child(1, mib);
	else if (!strcmp(how, "confined")) {
		kept[0] = touched(mib);
		if (confine(argc > 3, 0))
			return 77;
		kept[1] = touched(mib);
	} else if (!strcmp(how, "contained")) { /* as in a container, whose filter is there before the program */
		if (confine(1, 1))
			return 77;
		execl(argv[0], argv[0], "keep", argv[2], (char *)NULL);
		return 98;
	} else if (!strcmp(how, "forks") || !strcmp(how, "forks-threads")) { /* argv[3]: so many times */
		pthread_t thread;
		if (how[5] && pthread_create(&thread, NULL, waits, NULL))
			return 98;
		for (size_t i = 0; i < mib; i++)
			kept[i] = touched(1);
		for (int i = 0; i < atoi(argv[3]); i++)
			if (ends_at_once())
				return 97;
	} else if (!strcmp(how, "threads")) {
		pthread_t thread[8];
		for (int i = 0; i < 8; i++)
			pthread_create(&thread[i], NULL, wave, NULL);
		for (int i = 0; i < 8; i++)
			pthread_join(thread[i], NULL);
	} else
		return 99;
	return 0;
}
END
works 'a program with memory compiles' cc -O1 -g -Wall -Wextra -pthread -o "$t/memory" "$t/memory.c" || exit

# told VALUE ARGUMENT...: the program under HUGEPIN_STATS=VALUE; what it prints at exit goes to $t/told, its PIDs to $t/pids.
under=() # a command that runs the program
told() { with "${under[@]}" env HUGEPIN_STATS="$1" "$t/memory" "${@:2}" >"$t/pids" 2>"$t/told"; }
# member NAME: of the lines in $t/file.
member() { sed -n "s/^$1 //p" "$t/file"; }
show() { cat "$t/told" "$t/file" 2>/dev/null; return 1; }
# between LEAST MOST ARGUMENT...: the peak of large buffers, in MiB, as the file has it. In hugepages, half of one may be added.
between()
{
	rm -f "$t/file"
	told "file:$t/file" "${@:3}" || return 1
	local large sum
	large=$(member peak.large_bytes) sum=$(($(member peak.hugetlb_bytes) + $(member peak.thp_bytes) + $(member peak.base_bytes)))
	[ $((large >> 20)) -ge "$1" ] && [ $((large >> 20)) -le "$2" ] && [ $sum = "$large" ] || show
}
works 'a buffer that stays is told' between 512 520 keep 512
works 'a buffer that was freed before the end is told' between 512 520 free 512
works 'a thousand buffers are told' between 1000 1010 many 1000
works 'and when they are all freed before the end' between 880 1010 many-free 1000
works 'a buffer that grows is told' between 200 420 grow 200
HUGEPIN_PAGES=thp works 'memory that nobody touched is not' between 0 8 untouched 512
export HUGEPIN_DECAY=300ms
works 'memory that goes back long before the end is told' between 40 48 decays 40
works 'of a large one, too' between 300 308 decays 300
if strace -qq -o /dev/null true 2>/dev/null; then
	# Each look waits for 10 ms, as on a busy machine. Whether a peak is then lost depends on when the looks come.
	under=(strace -qq -f -o /dev/null -e trace=ioctl -e inject=ioctl:delay_exit=10000)
	five() { for _ in 1 2 3 4 5; do between 300 308 decays 300 || return; done; }
	works 'and when a look has to wait' five
	under=()
else
	skip 'and when a look has to wait' 'strace cannot trace here'
fi
unset HUGEPIN_DECAY
works 'threads may be at it meanwhile' between 20 400 threads
few_files() { HUGEPIN_DECAY=300ms HUGEPIN_STATS=1 prlimit --nofile=4 env LD_PRELOAD="$dropin" "$t/memory" decays 40 3>&- >"$t/pids" 2>"$t/told" && grep 'large buffers: 4[0-9] MiB at the peak' "$t/told" || show; }
works 'a limit of open files does not matter' few_files

# Three lines, of this process.
told 1 keep 100
lines() { [ "$(wc -l <"$t/told")" = "$1" ] && ! grep -v "^hugepin\[$(head -1 "$t/pids")\] memory$2: " "$t/told" || show; }
works 'each line has the name and the number of the process' lines 3 ''
works 'memory is told with its pages' grep -E ': large buffers: 10[0-9] MiB at the peak: [0-9]+' "$t/told"
OMPI_COMM_WORLD_RANK=3 told 1 keep 100
works 'and the rank' lines 3 ' rank 3'
told 2 keep 100
works 'the list has no zeros' eval "grep -qE ': placed [1-9]' '$t/told' && ! grep -E '(: | )[a-z_]+ 0$' '$t/told'"

nothing() { told "$@" && [ ! -s "$t/told" ] || show; }
works 'little memory is not worth a word' nothing 1 keep 4
works 'nor is anything told where nobody asked' nothing 0 keep 100
works '_exit tells nothing' nothing 1 _exit 100
# shellcheck disable=SC2016 # the other shell's dollars
shell() { with env HUGEPIN_STATS=1 sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do ls / | tr a b | head -1; done; echo $(expr 1 + 1)' 2>"$t/told" >/dev/null && [ ! -s "$t/told" ] || show; }
works 'a shell and its thirty processes tell nothing' shell

# advice CODE TEXT ARGUMENT...
advice()
{
	rm -f "$t/file"
	told "file:$t/file" "${@:3}" && [ "$(member advice.code)" = "$1" ] && told 1 "${@:3}" && tail -1 "$t/told" | grep -E -e "$2" || show
}
works 'advice: memory of mmap' advice not-malloc ' 9[0-9] % of the memory \([0-9.]+ [MG]iB\) is not malloc.s; HUGEPIN_IMAGE=bss .* own if the program' mmap 512
works 'advice: small buffers' advice mostly-small ': large buffers have 0 bytes, 0 % of the memory: too little to gain' small 100
small() { [ $(($(member small_bytes) >> 20)) -ge 100 ] && [ $(($(member small_bytes) >> 20)) -le 130 ] || show; }
works 'which are told' small
HUGEPIN_PAGES=base works 'advice: base pages' advice base-pages-asked 'HUGEPIN_PAGES=base asks for that' keep 100
no_thp='import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])'
without_thp() { HUGEPIN_PAGES=thp with env HUGEPIN_STATS=1 python3 -c "$no_thp" "$t/memory" keep 100 2>&1 | grep 'THP is off for this process'; }
works 'advice: THP that the process may not have' without_thp
empty() { [ "$(cat /proc/sys/vm/nr_hugepages)" = 0 ]; }
if empty; then
	HUGEPIN_PAGES=hugetlb works 'advice: an empty pool' advice pool-short 'vm.nr_hugepages=5[0-9] would have served 100 %' keep 100
else
	skip 'advice: an empty pool' 'hugepages are free'
fi

# ---------------------------------------------------------------- children

told 1 child 100
works 'a child that takes no memory tells nothing' lines 3 ''
told 1 child-grows 100
of_child() { grep "^hugepin\[$(tail -1 "$t/pids")\] memory: large buffers: 10[0-9] MiB" "$t/told" && ! grep "^hugepin\[$(head -1 "$t/pids")\]" "$t/told" || show; }
works 'one that takes some tells of itself' of_child

# The copy that fork makes of the pool's part is memory of hugepin's. It is made once if there is one thread, and each time else.
copied()
{
	rm -f "$t/file"
	told 1 "$@" && grep -E ': large buffers: .*; a fork copied (19[0-9]|20[0-9]) MiB$' "$t/told" &&
		grep -E "memory that is not malloc's: ([0-9.]+ KiB|[1-5]?[0-9](\.[0-9])? MiB|0 bytes)$" "$t/told" &&
		tail -1 "$t/told" | grep -E ': a fork had to wait [0-9]+ ms until (19[0-9]|20[0-9]) MiB of the pool .*: HUGEPIN_PAGES=thp avoids the copy$' &&
		told "file:$t/file" "$@" && [ "$(member advice.code)" = fork-copied ] && [ $(($(member fork_peak_bytes) >> 20)) -ge 190 ] || show
}
if pool_has 150; then
	works 'what a fork copies is told as that' copied forks 200 1
	works 'once, however often the program forks' copied forks 200 3
	works 'and where there are threads' copied forks-threads 200 1
	works 'which each fork copies anew' copied forks-threads 200 3
else
	for name in '' ', of several' ', with threads' ', of several with threads'; do
		skip "what a fork copies is told as that$name" 'the pool has no 150 free pages'
	done
fi
not_copied() { HUGEPIN_PAGES=thp told 1 forks-threads 200 2 && ! grep 'fork copied\|had to wait' "$t/told" || show; }
works 'with THP nothing is copied' not_copied

# ---------------------------------------------------------------- the pin cache

cat >"$t/pins.c" <<'END'
#include <hugepin.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* A child gets a copy of registered memory, whatever pages it is in. */
static int forks(size_t len)
{
	struct hugepin_attr attr = { .size = sizeof attr };
	char *p = hugepin_malloc(len);
	struct hugepin_pin pin;
	hugepin_domain *d;
	int status;
	pid_t pid;

	memset(p, 1, len);
	if (hugepin_domain_open(hugepin_mlock(), NULL, &attr, &d) || hugepin_pin(d, p, len, 0, &pin) || pin.len < len)
		return 77;
	pid = fork();
	if (!pid)
		_exit(p[len - 1] != 1);
	return waitpid(pid, &status, 0) != pid || status;
}

int main(int argc, char **argv)
{
	struct hugepin_attr attr = { .size = sizeof attr, .policy = HUGEPIN_POLICY_LRU };
	int pins = argc > 1 ? atoi(argv[1]) : 0, each = argc > 2 ? atoi(argv[2]) : 0;

	if (argc > 3)
		return forks((size_t)pins << 20);

	for (int i = 0; i < 2; i++) { /* sums are over domains that are closed, too */
		size_t page = 4096;
		char *p = mmap(NULL, (size_t)pins * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct hugepin_pin pin;
		hugepin_domain *d;

		if (hugepin_domain_open(hugepin_mlock(), NULL, &attr, &d))
			return 77;
		for (int n = 0; n < pins; n++)
			if (hugepin_pin(d, p + (each ? (size_t)n * page : 0), page, 0, &pin) || hugepin_unpin(d, &pin))
				return 1;
		if (i == 0 && hugepin_domain_close(d))
			return 2;
	}
	return 0;
}
END
works 'a program with pins compiles' cc -O1 -g -Wall -Wextra -Iinclude -o "$t/pins" "$t/pins.c" -L"$build" -lhugepin -Wl,-rpath,"$build"
pins() { "$t/pins" "${@:3}" 2>"$t/told"; local s=$?; [ $s = 77 ] && return; [ $s = 0 ] && grep -E "$1" "$t/told" && grep -E "$2" "$t/told" || show; }
export HUGEPIN_STATS=1
traced() { HUGEPIN_TRACE=$t/trace pins ' pin cache: 99 % of 2000 pins ' . 1000; }
works 'a trace counts no pin twice' traced
works 'pins that hit are told' pins ' pins: pin cache: 99 % of 2000 pins found their memory registered; 4 KiB registered at the peak$' \
	' pins: no buffer lay in hugepages; with LD_PRELOAD=libhugepin-malloc.so.0 ' 1000
works 'and why others do not' pins ': pin cache: 0 % of 600 pins' ' 100 % of the pins had to register: ' 300 1
HUGEPIN_PAGES=thp works 'a copy of registered memory is told, but no advice to use THP' pins '; a fork copied 8[0-9] MiB$' \
	' of the large buffers lay in ' 80 0 fork
HUGEPIN_STATS=2 works 'the list has the sums' pins ': pin.pins 2000$' ': pin.misses 2$' 1000
none() { HUGEPIN_STATS=1 "$here/api" version >/dev/null 2>"$t/told" && [ ! -s "$t/told" ] || show; }
works 'a program that only has the library tells nothing' none
unset HUGEPIN_STATS

# ---------------------------------------------------------------- files

mkdir "$t/files"
named() { (cd "$t/files" && told file:of.%p.%r keep 100) && [ -s "$t/files/of.$(head -1 "$t/pids").$(head -1 "$t/pids")" ] || show; }
works 'a file is named after the process' named
# What the command makes of the file has each number of it, and null for what the file has not.
object()
{
	"$build/hugepin" stats "$t"/files/of.* | python3 -c '
import json, sys
o = json.load(sys.stdin)
lines = [line.rstrip("\n").split(" ", 1) for line in open(sys.argv[1])]
for name, value in lines:
    at = o
    for part in name.split("."): at = at[part]
    assert str(at) == value, name
assert type(o["peak"]["large_bytes"]) == int and o["rank"] is None and o["pin"] is None' "$t"/files/of.*
}
if command -v python3 >/dev/null; then
	works 'hugepin stats prints the file as JSON' object
fi
says 'another file is refused' 1 "hugepin stats: $t/memory.c: not a file of HUGEPIN_STATS$" "$build/hugepin" stats "$t/memory.c"
says 'and one that is not there' 1 "hugepin stats: $t/none: No such file or directory$" "$build/hugepin" stats "$t/none"
ln -s "$t/files/target" "$t/files/link"
refused() { told "file:$t/files/link" keep 100; [ "$(cat "$t/told")" = "hugepin: HUGEPIN_STATS: $t/files/link cannot be written: error 1" ] && [ ! -e "$t/files/target" ] || show; }
works 'a link is refused' refused
says 'a file that cannot be written is reported' 0 "^hugepin: HUGEPIN_STATS: $t/none/x cannot be written: error 2\$" with env HUGEPIN_STATS="file:$t/none/x" "$t/memory" keep 100
closed() { told "file:$t/files/closed" keep 100 <&- && [ ! -s "$t/told" ] && grep -q '^advice.text ' "$t/files/closed" || show; }
works 'a program without standard input writes it as well' closed
limited() { (ulimit -f 0; with env HUGEPIN_STATS="file:$t/files/limited" "$t/memory" keep 100); }
says 'and a limit of its size does not end the program' 0 '^hugepin: HUGEPIN_STATS: the file could not be written whole$' limited
echo 'a file that was much longer than what is going to be there, or so it seems, at least in its first line' >"$t/files/long"
for ((i = 0; i < 8; i++)); do cat "$t/files/long" "$t/files/long" >"$t/files/longer" && mv "$t/files/longer" "$t/files/long"; done
shorter() { told "file:$t/files/long" keep 100 && tail -1 "$t/files/long" | grep '^advice.text ' && ! grep 'at least' "$t/files/long"; }
works 'an old file is replaced as a whole' shorter

# ---------------------------------------------------------------- one summary for several processes

cat >"$t/sum.c" <<'END'
/* sum: the summary of this process and of another that is its like, written by the program itself. */
#include <hugepin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
	const size_t size = hugepin_summary(NULL, 0);
	char *buffer = hugepin_malloc(100 << 20), *sum = calloc(1, size), *run = malloc(size), text[2048];

	memset(buffer, 1, 100 << 20);
	memset(run, 1, size);
	if (hugepin_summary(run, size - 1) != size || run[0] != 1 || hugepin_summary(run, size) != size ||
	    hugepin_summary_text(sum, text, sizeof text) || *text)
		return 1;
	hugepin_summary_add(sum, run);
	hugepin_summary_add(sum, run);
	hugepin_summary_told();
	if (hugepin_summary_text(sum, text, sizeof text) != strlen(text))
		return 1;
	fputs(text, stdout);
	return 0;
}
END
# shellcheck disable=SC2086 # CC may be a command with options
works 'a program that writes it compiles' ${CC:-cc} -Wall -Wextra -Werror -Iinclude -o "$t/sum" "$t/sum.c" -L"$build" -Wl,-rpath,"$build" -lhugepin
sum() { env HUGEPIN_STATS="$1" "$t/sum" >"$t/told" 2>&1; }
summed() { sum 1 && grep -q '^hugepin\[2 ranks\] sum: large buffers: 200 MiB at the peak' "$t/told" && ! grep 'hugepin\[[0-9]*\]' "$t/told" || show; }
works 'two processes have one summary, and none of their own at exit' summed
unasked() { sum 0 && [ ! -s "$t/told" ] || show; }
works 'without HUGEPIN_STATS there is nothing to add' unasked

# ---------------------------------------------------------------- where the kernel does not tell

for seen in seen ''; do
	confined() { told 1 confined 100 ${seen:+"$seen"}; local s=$?; [ $s = 77 ] && return; [ $s = 0 ] && grep ': large buffers: ' "$t/told" || show; }
	works "a filter of system calls that ${seen:-nobody has }seen does not end the program" confined
done
contained() { told 1 contained 100; local s=$?; [ $s = 77 ] && return; [ $s = 0 ] && ! grep 'does not tell' "$t/told" && grep ': large buffers: 1[0-9][0-9] MiB at the peak' "$t/told" || show; }
works 'a filter that was there before the program hides nothing' contained
no_proc() { unshare -m sh -c 'mount -t tmpfs none /proc && exec "$@"' - env LD_PRELOAD="$dropin" HUGEPIN_STATS=1 "$t/memory" keep 100 >"$t/pids" 2>"$t/told"; }
if unshare -m true 2>/dev/null; then
	works 'without /proc the program runs' no_proc
	works 'and says that the kinds are not known' grep 'the kernel does not tell which pages' "$t/told"
else
	skip 'without /proc' 'no mount namespace can be made'
fi
