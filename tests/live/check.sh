#!/bin/bash
# hugepin check: real programs that gain, that do not, that fail with it, that do not end; what it leaves behind.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
cd "$(dirname "$0")/../.." || exit 2
for v in LD_PRELOAD "${!HUGEPIN_@}"; do unset "$v"; done
check=("$build/hugepin" check)
mkdir "$t/tmp"
export TMPDIR=$t/tmp

# waves N MIB: allocates, fills and frees so many MiB, N times. glibc maps and unmaps each, and without the library has base pages,
# also where the kernel gives THP to all.
cat >"$t/waves.c" <<'END'
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
int main(int argc, char **argv)
{
	if (!getenv("LD_PRELOAD"))
		prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	const size_t len = (size_t)atol(argv[2]) << 20;
	for (int i = 0; argc && i < atoi(argv[1]); i++) {
		char *volatile p = malloc(len);
		if (!p)
			return 1;
		memset(p, i + 1, len);
		free(p);
	}
	return 0;
}
END
gcc -O1 -o "$t/waves" "$t/waves.c" || exit 2
script() { printf '#!/bin/sh\n%s\n' "$2" >"$t/$1"; chmod 755 "$t/$1"; }

# ---------------------------------------------------------------- verdicts

# hugepages N: whether N MiB that this shell maps now would be in hugepages: the pool, or THP.
hugepages() { pool_has $(($1 / 2)) || grep -Eq '\[(always|madvise)\]' /sys/kernel/mm/transparent_hugepage/enabled; }

for own in '-t SECONDS' '-n ROUNDS' --against=LIST --json; do
	says "its help has a line for $own" 0 "^  $own$" "${check[@]}" --help
done

# Misses of the TLB, by a PAPI that has a counter: so many more in each run.
mkdir "$t/papi"
cat >"$t/papi.c" <<'END'
#include <fcntl.h>
#include <papi.h>
#include <stdio.h>
#include <string.h>
static int inherited, added, runs;
int PAPI_library_init(int version) { return version; }
int PAPI_create_eventset(int *set) { *set = 7; return PAPI_OK; }
int PAPI_assign_eventset_component(int set, int component) { return set == 7 && !component ? PAPI_OK : PAPI_EINVAL; }
int PAPI_set_opt(int option, PAPI_option_t *o)
{
	inherited = option == PAPI_INHERIT && o->inherit.eventset == 7 && o->inherit.inherit == PAPI_INHERIT_ALL;
	return inherited ? PAPI_OK : PAPI_EINVAL;
}
int PAPI_add_named_event(int set, const char *name)
{
	added = inherited && set == 7 && !strcmp(name, "PAPI_TLB_DM");
	return added ? PAPI_OK : PAPI_ENOEVNT;
}
int PAPI_start(int set) { open("/dev/null", O_RDONLY); return added && set == 7 ? PAPI_OK : PAPI_EINVAL; }
int PAPI_stop(int set, long long *values) { *values = 1000000LL * ++runs; return set == 7 ? PAPI_OK : PAPI_EINVAL; }
END
# shellcheck disable=SC2016
version=$(printf '#include <papi.h>\n@ PAPI_VERSION_MAJOR(PAPI_VERSION) @ PAPI_VERSION_MINOR(PAPI_VERSION)\n' | cc -E -P - 2>/dev/null |
	sed -n 's/^@ \(.*\) @ \(.*\)/echo $((\1)).$((\2))/p' | sh)
if [ -n "$version" ]; then
	works 'a PAPI with a counter compiles' cc -shared -fPIC -o "$t/papi/libpapi.so.$version" "$t/papi.c"
	# A first run of each kind is not told.
	says 'misses of the TLB are those that PAPI counts' '*' 'TLB misses 3,000,000 -> 4,000,000' \
		env LD_LIBRARY_PATH="$t/papi" "${check[@]}" -n 1 "$t/waves" 1 1
	# shellcheck disable=SC2016
	script descriptors 'ls /proc/self/fd >>"$0.list"'
	hidden()
	{
		"${check[@]}" -n 1 "$t/descriptors"
		mv "$t/descriptors.list" "$t/without"
		LD_LIBRARY_PATH="$t/papi" "${check[@]}" -n 1 "$t/descriptors"
		cmp "$t/without" "$t/descriptors.list"
	}
	works 'and the program finds no descriptor of it' hidden
	uncounted() { "${check[@]}" --json -n 1 "$t/waves" 1 1 >"$t/json"; grep -q '"tlb_misses": null' "$t/json"; }
	if [ -e "/sys/devices/cpu/events" ]; then skip 'without a counter nothing is told' 'this machine has counters'; else
		works 'without a counter nothing is told' uncounted
	fi
else
	skip 'misses of the TLB are those that PAPI counts' 'no papi.h: tools/setup build'
fi

# Programs whose time hangs on the library by design: they move the clock of hugepin check (lib/ticks.c). What the verdict is where
# it depends on what else the machine does is for tests/unit/judge.c.
export TICKS=$t/ticks
: >"$TICKS"
ticks=(env LD_PRELOAD="$here/ticks.so" "${check[@]}")
# shellcheck disable=SC2016
script gains 'printf . >>"$TICKS"; [ -n "$LD_PRELOAD" ] || printf .... >>"$TICKS"'
# shellcheck disable=SC2016
script loses 'printf . >>"$TICKS"; [ -z "$LD_PRELOAD" ] || printf .... >>"$TICKS"'
# shellcheck disable=SC2016
script waits 'printf ... >>"$TICKS"'
says 'a program that takes less time with it gains: status 0' 0 '^use hugepin: yes, it is [0-9.]* times as fast' \
	"${ticks[@]}" -n 4 "$t/gains"
says 'and is told how' 0 '^how: hugepin run --decay=5s -- ' "${ticks[@]}" -n 4 --decay=5s -- "$t/gains"
# shellcheck disable=SC2016
says 'in words that a shell reads as they were' 0 "^how: hugepin run --trace='a b' -- $t/gains 'it'\\\\''s \\\$\\(x\\)'\$" \
	"${ticks[@]}" -n 4 --trace='a b' -- "$t/gains" 'it'"'"'s $(x)'
says 'one that takes more does not: status 5' 5 '^use hugepin: no, it is [0-9.]* times as slow' "${ticks[@]}" -n 4 "$t/loses"

# Beside what costs nothing.
thp=$(sed -n 's/.*\[\(.*\)\].*/\1/p' /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null)
# shellcheck disable=SC2016
script enough 'printf . >>"$TICKS"; [ -n "$LD_PRELOAD$GLIBC_TUNABLES" ] || printf .... >>"$TICKS"'
if [ "$thp" = madvise ] && ldd --version | awk 'NR == 1 { exit !($NF >= 2.35) }'; then
	says 'what the tunable does as well needs no hugepin: status 5' 5 "^use hugepin: no, glibc's tunable is enough: " \
		"${ticks[@]}" -n 5 --against=tunable "$t/enough"
	says 'and is told how' 5 "^how: GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $t/enough\$" "${ticks[@]}" -n 5 --against=tunable "$t/enough"
	says 'what hugepin does better is a yes beside it: status 0' 0 '^use hugepin: yes, it is [0-9.]* times as fast' \
		"${ticks[@]}" -n 5 --against=tunable "$t/gains"
	says 'and the tunable is named' 0 "^beside glibc's tunable: .*; with hugepin it is [0-9.]* times as fast, sure: " \
		"${ticks[@]}" -n 5 --against=tunable "$t/gains"
else
	says 'why the tunable is not measured' 0 "^beside glibc's tunable: not measured, it " "${ticks[@]}" -n 5 --against=tunable "$t/gains"
fi
says 'THP for all memory are the machine'"'"'s' 0 '^beside THP for all memory: not measured, .* have them' \
	"${ticks[@]}" -n 5 --against=thp "$t/gains"
mimalloc=$(/sbin/ldconfig -p | awk '$1 ~ /^libmimalloc[.]so[.][23]$/ { print $NF; exit }')
# shellcheck disable=SC2016
script no-mimalloc 'printf . >>"$TICKS"; [ -n "$LD_PRELOAD" ] || printf .... >>"$TICKS"; case $LD_PRELOAD in *mimalloc*) exit 3; esac'
if [ "$mimalloc" ]; then
	says 'mimalloc is enough where it is as fast' 5 '^use hugepin: no, mimalloc is enough: ' "${ticks[@]}" -n 5 --against=mimalloc "$t/enough"
	says 'and not where the program fails with it' 0 '^beside mimalloc: the program fails with it: exit status 3$' \
		"${ticks[@]}" -n 5 --against=mimalloc "$t/no-mimalloc"
fi
if [ -z "$mimalloc" ]; then
	says 'a mimalloc that is not there is named' 0 '^beside mimalloc: not measured, the loader finds no libmimalloc' \
		"${ticks[@]}" -n 5 --against=mimalloc "$t/gains"
elif unshare -m true 2>/dev/null; then # an empty file stands in for it
	# shellcheck disable=SC2016
	says 'a mimalloc that is not there is named' 0 '^beside mimalloc: not measured, the loader finds no libmimalloc.*apt install' \
		unshare -m bash -c 'mount --bind /dev/null "$1" && shift && "$@"' sh "$(readlink -f "$mimalloc")" \
		"${ticks[@]}" -n 5 --against=mimalloc "$t/gains"
else
	skip 'a mimalloc that is not there is named' 'no mount namespace'
fi
if command -v jq >/dev/null; then
	against() { "${ticks[@]}" --json -n 3 --against=thp,tunable "$t/gains" | jq -e '.busy >= 0 and (.against | keys == ["thp", "tunable"] and
		(.thp.absent | length > 0) and (.tunable | has("absent") or (.runs | length == 3)))'; }
	works 'all this is in the JSON' against
fi
says 'an alternative that is none' 2 "^hugepin check: --against takes tunable, thp and mimalloc, with commas between, not 'glibc'" \
	"${check[@]}" --against=glibc true

if hugepages 128; then
	faults()
	{
		"${check[@]}" --json -t 600 -n 3 "$t/waves" 12 48 >"$t/json"
		python3 - "$t/json" <<-'END'
			import json, sys
			j = json.load(open(sys.argv[1]))
			a, b = (sorted(r["minor_faults"] for r in j[k])[1] for k in ("without", "with"))
			assert len(j["without"]) == len(j["with"]) == 3, j
			assert a > 12 * 48 * 256 > 20 * b, (a, b)
			for r in j["without"] + j["with"]:
			    assert r["seconds"] > 0 and r["user_seconds"] + r["system_seconds"] > 0, r
			    assert r["ended"] and r["exit_status"] == 0 and r["signal"] is None, r
			assert min(r["rss_bytes"] for r in j["without"]) > 48 << 20, j
			assert j["time"]["ratio"] > 0 and j["text"][0].startswith("use hugepin: "), j
			assert j["status"] in (0, 5, 6), j
		END
	}
	if command -v python3 >/dev/null; then works 'its faults are those of the kernel, in JSON' faults; else
		skip 'its faults are those of the kernel, in JSON' 'no python3'
	fi
else
	skip 'its faults are those of the kernel, in JSON' 'no hugepages here'
fi
cat >"$t/sparse.c" <<'END'
#include <stdlib.h>
#include <string.h>
int main(void)
{
	for (int i = 0; i < 400; i++) {
		char *volatile p = malloc(1 << 20);
		if (!p)
			return 1;
		memset(p, 1, 128);
	}
	return 0;
}
END
gcc -O1 -o "$t/sparse" "$t/sparse.c" || exit 2
if hugepages 128; then
	says 'a program that touches little of its buffers is told so' '[056]' '^why: .*the program touches little of its large buffers: ' \
		"${check[@]}" -n 2 "$t/sparse"
else
	skip 'a program that touches little of its buffers is told so' 'no hugepages here'
fi
says 'a program that waits does not gain: status 5 or 6' '[56]' '^use hugepin: (no, nothing to gain|cannot tell)' \
	"${ticks[@]}" -n 2 "$t/waits"
# shellcheck disable=SC2016
says 'one that fails with it is told so: status 7' 7 '^use hugepin: no, .* fails with it: exit status 9, without it exit status 0$' \
	\
	"${check[@]}" -- sh -c '[ -z "$LD_PRELOAD" ] || { echo before; echo broken by it >&2; exit 9; }'
# shellcheck disable=SC2016
says 'with its last lines' 7 '^its output ended: broken by it$' \
	"${check[@]}" -- sh -c '[ -z "$LD_PRELOAD" ] || { echo before; echo broken by it >&2; exit 9; }'
# shellcheck disable=SC2016
says 'one that is killed with it, too' 7 ' fails with it: killed by signal 11 ' \
	"${check[@]}" -- sh -c '[ -z "$LD_PRELOAD" ] || kill -SEGV $$'
says 'one that fails without it, too, gets no verdict: status 6' 6 \
	'^use hugepin: cannot tell, .* fails, also without it: exit status 3$' "${check[@]}" -- sh -c 'echo why; exit 3'
runs_plain() { rm -f "$t/ran"; "${check[@]}" -n 9 -- sh -c "echo >>'$t/ran'; exit 3"; [ "$(wc -l <"$t/ran")" = 2 ]; }
works 'and is run no more than once each' runs_plain
says 'with its last lines, too' 6 '^its output ended: why$' "${check[@]}" -- sh -c 'echo why; exit 3'
# how_fails WHEN STATUS COMMAND: what the JSON has of a failure.
how_fails() { "${check[@]}" --json -n 2 -- sh -c "$3" | jq -e ".failure | .when == \"$1\" and .exit_status == $2 and .signal == null"; }
if command -v jq >/dev/null; then
	works 'JSON says that it fails' how_fails both 3 'exit 3'
	# shellcheck disable=SC2016
	works 'and that another one fails with it alone' how_fails with 9 '[ -z "$LD_PRELOAD" ] || exit 9'
	none() { "${check[@]}" --json -n 2 true | jq -e 'has("failure") and .failure == null'; }
	works 'and that a third one does not fail' none
else
	skip 'failures in JSON' 'no jq'
fi
script flaky "echo >>'$t/runs'; exit \$((\$(wc -l <'$t/runs') % 2))"
says 'a status that changes by itself is told: status 6' 6 '^use hugepin: cannot tell, .* (does not always end|fails)' \
	"${check[@]}" "$t/flaky"

# ---------------------------------------------------------------- what is refused

gcc -static -o "$t/static" "$t/waves.c"
says 'a static program: status 125' 125 "^use hugepin: no, $t/static is statically linked" "${check[@]}" "$t/static" 1 1
says 'one that a script starts is why nothing is known: status 5 or 6' '[56]' '^why: its largest process has not told where its memory lay' \
	"${check[@]}" -n 1 sh -c "$t/static 1 32; true"
says 'also for scripts' 125 '"verdict": "refused"' "${check[@]}" --json "$t/static" 1 1
cat >"$t/own.c" <<'END'
#include <stddef.h>
static char arena[1 << 20];
void *malloc(size_t size) { return size < sizeof arena ? arena : NULL; }
void free(void *p) { (void)p; }
int main(void) { return 0; }
END
gcc -fno-builtin -o "$t/own" "$t/own.c"
says 'a program with its own malloc: status 125' 125 "^use hugepin: no, $t/own has a malloc of its own" \
	"${check[@]}" "$t/own"
gcc -fno-builtin -fvisibility=hidden -o "$t/inside" "$t/own.c"
says 'one with an allocator that is hidden is measured, and noted' '[56]' "^note: $t/inside has an allocator inside its own file" \
	"${check[@]}" -n 2 "$t/inside"
says 'a program that is not there: status 127' 127 '^hugepin check: no-such-program: not found$' \
	"${check[@]}" no-such-program
says 'no program' 2 '^hugepin check: which program' "${check[@]}"
says 'a time that is none' 2 "^hugepin check: -t takes seconds, 1 to 86400, not 'x'" "${check[@]}" -t x true
says 'rounds that are none' 2 "^hugepin check: -n takes a number from 1 to 100, not '0'" "${check[@]}" -n 0 true
says 'a wrong option of run' 2 '^hugepin check: --pages=huge is not understood: it takes one of ' \
	"${check[@]}" --pages=huge true
says 'being preloaded already' 2 '^hugepin check: LD_PRELOAD has hugepin already' \
	env LD_PRELOAD="$dropin" "${check[@]}" true

# ---------------------------------------------------------------- what each run gets

printf 'four\n' >"$t/input"
# shellcheck disable=SC2016
each_gets() { "${check[@]}" -n 3 --json -- sh -c '[ "$(cat)" = four ]' | grep -q '"exit_status": 1' && return 1; return 0; }
from_file() { each_gets <"$t/input"; }
# shellcheck disable=SC2016
from_middle() { { read -r -n 4; "${check[@]}" -n 2 --json -- sh -c '[ "$(cat)" = x ]'; } <<<'abc
x' | grep -q '"exit_status": 0'; }
# shellcheck disable=SC2002 # a pipe is wanted
from_pipe() { cat "$t/input" | each_gets; }
works 'each run gets the whole file' from_file
works 'from where it stood' from_middle
works 'each run gets all of a pipe' from_pipe
mkfifo "$t/endless"
exec {endless}<>"$t/endless" # so that it has a writer
endless() { "${check[@]}" -t 1 cat <"$t/endless"; }
says 'a pipe that does not end is refused' 1 '^hugepin check: the standard input has not ended within the 1 s' endless
exec {endless}>&-
# shellcheck disable=SC2016
says 'both get the variables of options' 7 'fails with it: exit status 4,' "${check[@]}" --fork=cow -- \
	sh -c '[ "$HUGEPIN_FORK" = cow ] || exit 8; [ -z "$LD_PRELOAD" ] || exit 4'
says 'what the program prints is not mixed with the verdict' '[056]' '^use hugepin' \
	"${check[@]}" -n 2 sh -c 'echo noise; echo noise >&2'
quiet() { ! "${check[@]}" -n 2 sh -c 'printf no; echo ise; printf no >&2; echo ise >&2' 2>&1 | grep -q noise; }
works 'not a line of it' quiet
says 'much output does not block' '[056]' '^use hugepin: ' "${check[@]}" -n 1 sh -c 'head -c 30000000 /dev/zero'

# The heap's own statistics, of a run that is not timed.
told()
{
	HUGEPIN_STATS=file:$t/stats with "$t/waves" 1 48 2>/dev/null
	[ -s "$t/stats" ]
}
if ! told; then
	skip 'where the memory lay is told' 'the library writes no statistics'
elif ! hugepages 128; then
	skip 'where the memory lay is told' 'no hugepages here'
else
	memory() { "${check[@]}" --json -n 1 "$t/waves" 4 48 | jq -e '.memory | .large_bytes >= 48 * 1048576 and
		.hugetlb_bytes + .thp_bytes >= 40 * 1048576 and .other_bytes < 40 * 1048576'; }
	if command -v jq >/dev/null; then works 'where the memory lay is told' memory; else skip 'where the memory lay is told' 'no jq'; fi
	# Where the kernel gives THP to all, a small heap has some, too.
	printf '%s\n' '#include <sys/prctl.h>' '#include <unistd.h>' \
		'int main(int n, char **argv) { prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); return n && execv(argv[1], argv + 1); }' >"$t/base.c"
	gcc -o "$t/base" "$t/base.c" || exit 2
	says 'why little can be gained is told' '[56]' '^why: .*too little to gain from hugepages' "$t/base" "${check[@]}" -n 1 sh -c 'ls >/dev/null'
fi

# ---------------------------------------------------------------- the tree of processes

if command -v python3 >/dev/null; then
	tree()
	{
		"${check[@]}" --json -n 2 sh -c \
			"rm -f '$t/orphans'
			for i in 1 2 3 4 5 6; do '$t/waves' 1 8; (('$t/waves' 1 8; echo >>'$t/orphans') &); done
			until [ \"\$(wc -l <'$t/orphans')\" = 6 ]; do sleep 0.05; done" >"$t/json" 2>"$t/said"
		python3 - "$t/json" <<-'END'
			import json, sys
			j = json.load(open(sys.argv[1]))
			for r in j["without"]:  # orphans, too
			    assert r["minor_faults"] > 12 * 8 * 256, r
		END
	}
	works 'all processes of the program count' tree
fi
# The programs that are looked for sleep for times that no other run of this test has.
times=$((1000000 + $$ * 10))
gone() { ! pgrep -f "^sleep $1\$" >/dev/null; }
says 'what the program leaves running is told' '[056]' '; it left 2 processes running' "${check[@]}" -n 2 \
	sh -c "sleep $((times + 1)) & setsid sleep $((times + 1)) & sleep 0.2"
works 'and is ended' gone $((times + 1))
says 'what does not end is ended: status 6' 6 '^use hugepin: cannot tell, a run of .* takes longer than half of the 1.0 s' \
	"${check[@]}" -t 1 \
	sh -c "trap '' TERM; sleep $((times + 2)) & sleep $((times + 2)); sleep $((times + 2))"
works 'with all its processes' gone $((times + 2))
interrupted()
{
	"${check[@]}" -t 60 sh -c "setsid sleep $((times + 3)) & sleep $((times + 3))" >"$t/said" 2>&1 &
	local pid=$! i
	for ((i = 0; i < 1200; i++)); do
		[ "$(pgrep -c -f "^sleep $((times + 3))\$")" != 2 ] || break
		sleep 0.05
	done
	kill -"$1" $pid
	wait $pid
	[ $? = "$2" ] && [ ! -s "$t/said" ] && gone $((times + 3))
}
works 'SIGTERM ends it and the program' interrupted TERM 143
# An interactive shell's children do not ignore it; those of this one do.
works 'as Ctrl-C does' env -C / python3 -c 'import signal, subprocess, sys, time
p = subprocess.Popen(sys.argv[1:], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
time.sleep(1)
p.send_signal(signal.SIGINT)
sys.exit(p.wait() != -signal.SIGINT)' "${check[@]}" sleep $((times + 4))
works 'and leaves nothing' gone $((times + 4))
killed()
{
	"${check[@]}" -t 60 sleep $((times + 5)) >/dev/null 2>&1 &
	local pid=$! i
	for ((i = 0; i < 1200; i++)); do
		gone $((times + 5)) || break
		sleep 0.05
	done
	kill -KILL $pid
	wait $pid
	for ((i = 0; i < 1200; i++)); do
		! gone $((times + 5)) || break
		sleep 0.05
	done
	rm -rf "$t/tmp"/*
	gone $((times + 5))
}
works 'even when it is killed' killed
empty() { [ -z "$(ls -A "$t/tmp")" ]; }
works 'no file stays behind' empty
in_input() { sleep 3 | timeout 1 "${check[@]}" cat; empty; }
works 'nor if a signal ends it while it reads a pipe' in_input
mkfifo "$t/closed"
unread()
{
	{ read -r _ <"$t/closed"; "${check[@]}" --json -n 1 true; echo $? >"$t/status"; } | { exec <&-; echo >"$t/closed"; }
	[ "$(cat "$t/status")" = 141 ] && empty
}
works 'nor if nobody reads what it prints' unread
