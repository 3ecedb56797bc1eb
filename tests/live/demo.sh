#!/bin/bash
# shellcheck disable=SC2016 # nothing is to be expanded
# make demo: the verdict on measurements that are made up, and the demo itself, on a small array; the pool is put back.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
top=$(cd "$(dirname "$0")/../.." && pwd)
pool=/proc/sys/vm/nr_hugepages
is() { if [ "$2" = "$3" ]; then pass "$1"; else fail "$1" "is: $2" "not: $3"; fi; }
has() { if grep -qF -- "$2" "$t/said"; then pass "$1"; else fail "$1" "no line has: $2" "$(cat "$t/said")"; fi; }
last() { is "$1" "$(tail -n 1 "$t/said")" "$2"; }

# program NAME KIB-IN-HUGEPAGES-WITHOUT KIB-WITH FACTOR-OF-USER FACTOR-OF-SYS...: five rounds, 1 s in the program and 0.2 s in the
# kernel without; with, so many times that. A round whose factors are not given has those of the first. With the tunable it is
# as without, or `tunable` times that, and `tunable_late` times in the last two rounds.
program() {
	local name=$1 before=$2 after=$3 round user sys other
	local -a factors=("${@:4}")
	for round in 0 1 2 3 4 5; do
		user=${factors[round > 0 ? (round - 1) * 2 : 0]:-${factors[0]}} sys=${factors[round > 0 ? (round - 1) * 2 + 1 : 1]:-${factors[1]}}
		other=${tunable:-1}
		[ $round -lt 4 ] || other=${tunable_late:-$other}
		printf '%s\t%d\twithout\twall=9 user=1.0 sys=0.2 faults=5000 tlb=800 hugetlb=0 thp=%d base=1024\n' "$name" $round "$before"
		awk -v n="$name" -v r=$round -v u="$user" -v s="$sys" -v o="$other" -v huge="$after" 'BEGIN { OFS = "\t"
			print n, r, "tunable", "wall=9 user=" o " sys=" 0.2 * o " faults=60 tlb=70 hugetlb=0 thp=51200 base=2048"
			print n, r, "with", "wall=9 user=" u " sys=" 0.2 * s " faults=50 tlb=30 hugetlb=0 thp=" huge " base=1024" }'
	done
}
# told OFFERED: the words on the samples at standard input. A status other than 0 is kept.
told() {
	cat >"$t/samples"
	awk -v offered="$1" -f "$top/bench/median.awk" -f "$top/bench/demo.awk" "$t/samples" >"$t/said" 2>&1
	echo $? >"$t/status"
}
ended() { is "$1" "status $(cat "$t/status")" "status $2"; }

{ program one 0 102400 0.5 0.5; program two 0 102400 0.5 0.1; } | told THP
last 'where all gain, nobody does not' 'Who gains here: one (50 % less processor time; 50 % less than with the tunable), '\
'two (57 % less processor time; 57 % less than with the tunable). Who does not: nobody.'
has 'and where the time came from is told' 'one gains 50 % of its processor time: the program itself saves 0.50 s, since it waits less'
has 'of both, if both matter' 'two gains 57 % of its processor time: the kernel saves 0.18 s (50 page faults instead of 5000), and the program itself'
has 'TLB misses that are counted are there' '800           70           30'
ended 'and that is no failure' 0
{ program one 0 102400 0.99 0.9; program two 0 1024 1.01 1; program three 102400 102400 1 1; } | told THP
last 'where all are level, nobody gains' 'Who gains here: nobody. Who does not: one (level), two (level), three (level).'
has 'level, with hugepages' '100 MiB of it are in hugepages (50 page faults instead of 5000), but the kernel took only 17 % of its time'
has 'level, without' 'two is level (1.01 of the time): 1 MiB of it are in hugepages, since it has few large buffers'
has 'level, as it has hugepages anyway' 'the kernel gives it 100 MiB in hugepages without hugepin, too'
has 'memory that it costs is told' 'It takes 101 MiB of memory instead of 1.'
{ program one 0 102400 1 3; program two 0 102400 1.5 1; } | told THP
last 'where all lose, that is said' 'Who gains here: nobody. Who does not: one (33 % more; 33 % more than with the tunable), '\
'two (42 % more; 42 % more than with the tunable).'
has 'by the kernel' 'one loses 33 % of processor time: the kernel takes 0.40 s more, with 50 page faults instead of 5000'
has 'or by themselves' 'two loses 42 % of processor time: the program itself takes 0.50 s more.'
program one 0 102400 0.5 1 1.9 1 0.6 1 1.8 1 0.7 1 | told THP
last 'runs that differ are no verdict' 'Who gains here: nobody. Who does not: nobody. No verdict: one.'
program one 0 102400 0.8 1 0.8 1 1.4 1 0.8 1 0.8 1 | told THP
last 'one disturbed round of five changes nothing' 'Who gains here: one (17 % less processor time; 17 % less than with the tunable). '\
'Who does not: nobody.'
program one 0 102400 0.92 1 | told THP
last 'more than five per cent are a gain' 'Who gains here: one (7 % less processor time; 7 % less than with the tunable). Who does not: nobody.'
program one 0 102400 0.95 1 | told THP
last 'less is level' 'Who gains here: nobody. Who does not: one (level).'
program one 0 102400 0.95 1 | sed 's/tlb=[0-9]*/tlb=-/' | told THP
has 'TLB misses that are not counted are not made up' 'not counted         here'
purpose='Where the tunable alone is enough, hugepin is for what the tunable lacks: pages of a pool'
if grep -q "^$purpose" "$t/said"; then fail 'what hugepin is for otherwise is not told without need'; else
	pass 'what hugepin is for otherwise is not told without need'
fi
tunable=0.51 program one 0 102400 0.5 0.5 | told THP
last 'what gains as much by the tunable' \
	'Who gains here: one (50 % less processor time; the tunable alone is enough). Who does not: nobody.'
has 'is told so' 'With hugepin it takes 0.98 times what it takes with the tunable: the tunable alone is enough for it.'
has 'with what hugepin is for then' "$purpose"
tunable=0.4 program one 0 102400 0.5 0.5 | told THP
last 'what gains more by the tunable' \
	'Who gains here: one (50 % less processor time; 25 % more than with the tunable). Who does not: nobody.'
has 'is told so, too' 'With hugepin it takes 1.25 times what it takes with the tunable: the tunable is better for it.'
tunable=0.8 program one 0 102400 1 1 | told THP
last 'what is level, and gains by the tunable, is told so' \
	'Who gains here: nobody. Who does not: one (level; 25 % more than with the tunable).'
tunable=0.4 tunable_late=0.7 program one 0 102400 0.5 0.5 | told THP
last 'runs with the tunable that differ are no verdict on it' \
	'Who gains here: one (50 % less processor time; unclear beside the tunable). Who does not: nobody.'
has 'the table has all three ways, and both ratios' 'with / without: 0.50 (0.50 to 0.50); with / tunable: 1.25 (0.71 to 1.25)'
program one 0 0 0.5 0.5 | told THP
last 'a gain without hugepages is not hugepin'"'"'s' \
	'Who gains here: nobody. The machine has THP, but no memory came to lie in hugepages. `hugepin info` may say why.'
ended 'and where there are some, that is a failure' 1
program one 0 0 0.5 0.5 | told none
last 'nor where the machine has none' \
	'Who gains here: nobody. This machine has no hugepages for hugepin. `hugepin info` says what to change.'
ended 'which is no failure' 0

says 'an option that is none is refused' 2 '^usage: demo' "$top/tools/demo" -x
says 'and a number that is none' 2 '-r takes a number from 1 to 999999, not "0"' "$top/tools/demo" -r 0
BUILD=$t/nothing says 'without a build it says what to type' 2 'nothing is built: make demo' "$top/tools/demo"
if [ ! -x "$build/bench/counted" ]; then
	skip 'the demo itself' 'bench/counted is not built here'
	exit
fi
"$build/bench/counted" "$t/line" sh -c 'exit 3'
is 'a program ends as it does alone' $? 3
works 'the programs are measured' env BUILD="$build" "$top/tools/demo" -r 1 -m 32 -k "$t/samples"
cp "$t/out" "$t/said"
has 'what the machine offers comes first' 'This machine offers hugepin: '
has 'who gains comes last' 'Who gains here: '
faults=$(sed -n 's/^Random.*\t1\twithout\t.* faults=\([0-9]*\).*/\1/p' "$t/samples")
# The array and two vectors are touched page by page, and the vectors of ten rounds; four kilobytes each.
if [ "${faults:-0}" -ge $(((32 + 10 * 38) * 256)) ]; then pass 'page faults are those of the program'; else
	fail 'page faults are those of the program' "${faults:-none}"
fi
base=$(sed -n 's/^Random.*\t0\twith\t.* base=\([0-9]*\).*/\1/p' "$t/samples")
huge=$(sed -n 's/^Random.*\t0\twith\t.* hugetlb=\([0-9]*\) thp=\([0-9]*\).*/\1 + \2/p' "$t/samples")
if [ "$(pool_free)" = 0 ] && grep -q '\[never\]' /sys/kernel/mm/transparent_hugepage/enabled; then
	skip 'the kernel counts its hugepages' 'this machine has none'
elif [ $((huge)) -gt $((100 << 10)) ] && [ "${base:-999999}" -lt 16384 ]; then pass 'the kernel counts its hugepages'; else
	fail 'the kernel counts its hugepages' "hugepages: $huge KiB, base pages: $base KiB"
fi

of_thp() { sed -n "s/^Random.*\t0\t$1\t.* thp=\([0-9]*\).*/\1/p" "$t/samples"; }
if ! grep -q '\[madvise\]' /sys/kernel/mm/transparent_hugepage/enabled; then
	skip 'the tunable is set for its own runs alone' 'THP is not for those that ask'
else
	is 'the tunable is set for its own runs alone' "$(of_thp without) $(($(of_thp tunable) > 8 << 10))" '0 1'
fi

# An array that needs more pages than are free makes the demo reserve some.
mib=$(($(pool_free) * 2 + 128))
if [ ! -w $pool ] || [ "$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)" -lt $(((mib * 3 + 300) << 10)) ]; then
	skip 'an interrupted demo puts the pool back' 'the hugetlb pool may not be resized here'
	exit
fi
# begun COMMAND...: in the background as $demo; returns when it is what runs there, no copy of this shell with its traps.
# A shell ignores SIGINT and SIGQUIT for what it runs in the background.
begun()
{
	before=$(cat $pool)
	rm -f "$t/out"
	env --default-signal=INT,QUIT BUILD="$build" "$@" >"$t/out" 2>&1 &
	demo=$!
	until tr '\0' ' ' <"/proc/$demo/cmdline" | grep -q '^/bin/bash .*tools/demo'; do sleep 0.001; done
}
for signal in INT TERM HUP QUIT PIPE; do
	begun "$top/tools/demo" -m "$mib"
	for _ in {1..1000}; do
		grep -q 'Running Random' "$t/out" && break
		sleep 0.05
	done
	during=$(cat $pool)
	kill -$signal $demo
	wait $demo
	status=$?
	is "SIG$signal: the pool was larger, and is put back" "$((during > before)) $(cat $pool) $status" "1 $before 1"
done
sleep 0.2
if pgrep -f "^$build/bench/gather $mib " >"$t/left"; then fail 'and no program is left' "$(cat "$t/left")"; else pass 'and no program is left'; fi
# A program that has pages of the pool when the demo ends would give them back later: until then they are surplus pages, which
# a demo that begins now would keep.
begun "$top/tools/demo" -m "$mib"
for ((i = 0; i < 2000; i++)); do
	program=$(pgrep -nf "^$build/bench/gather $mib ") && grep -q 'Private_Hugetlb: *[1-9]' "/proc/$program/smaps_rollup" && break
	sleep 0.005
done 2>/dev/null
kill $demo
wait $demo
is 'its programs are gone before it is' "$(cat $pool) $([ -d "/proc/$program" ] && cat "/proc/$program/wchan")" "$before "

# The moment after the kernel has found the pages, several times: the demo may not know yet that it has them. Many take long.
mib=$((mib + 3000))
if [ "$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)" -lt $(((mib * 3 + 300) << 10)) ]; then
	skip 'a signal while pages are reserved: the pool is put back' 'there is too little memory'
	exit
fi
wrong=''
for _ in 1 2 3; do
	begun "$top/tools/demo" -m "$mib"
	for ((i = 0; i < 100000; i++)); do
		read -r during <$pool
		[ "$during" = "$before" ] || break
	done
	kill $demo
	wait $demo
	[ "$(cat $pool)" = "$before" ] || wrong+="$before, $during, $(cat $pool); "
	echo "$before" >$pool
done
is 'a signal while pages are reserved: the pool is put back' "$wrong" ''
