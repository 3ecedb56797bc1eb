#!/bin/bash
# bench/simulate: what has to come out whatever the costs are, and what is refused. Costs are given, so nothing is measured.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
program=$(dirname "$0")/../../bench/simulate
free=(cas=0 looks=1000000000 line=0 sleep=0 path=0)
usual=(cas=2.5 looks=2400 line=40 sleep=25000 path=11 miss=140 program=500)
simulate() { timeout 300 "$program" --quick "$@"; }
# column NAME N ARG...: the N-th column of the rows of a workload, in one line, without per cent signs
column() { simulate "${@:3}" 2>&1 | awk -v w="$1" -v n="$2" '$1 == w && $2 ~ /^[0-9]/ { printf "%s%.1f", s, $n; s = " " }'; }
is() { if [ "$2" = "$3" ]; then pass "$1"; else fail "$1" "is: $2" "not: $3"; fi; }

# One lock that is held for 100 ns, at no other cost: 1000 / (think + hold) each, and never more than 1000 / hold.
lock() { column lock 3 -w lock -p 1 8 16 64 -c "${free[@]}" "$@"; }
is 'a lock that is always wanted passes one hold after the other' "$(lock miss=100 program=0)" '10.0 10.0 10.0 10.0'
is 'held twice as long, half as much' "$(lock miss=200 program=0)" '5.0 5.0 5.0 5.0'
is 'with three holds of other work, eight processors fill the lock' "$(lock miss=100 program=300)" '2.5 10.0 10.0 10.0'
waits=$(column lock 6 -w lock -p 16 -c "${free[@]}" miss=100 program=300)
works "and of sixteen, twelve wait: $waits %" [ "${waits%.*}" -ge 74 -a "${waits%.*}" -le 75 ]
asleep=(-w lock -p 8 -c "${usual[@]/looks=2400/looks=0}")
slowest=$(column lock 5 "${asleep[@]}") slept=$(column lock 10 "${asleep[@]}")
works "who sleeps is woken, so that no processor is lost: the slowest has $slowest %" [ "${slowest%.*}" -ge 1 ]
works "and sleeping takes time: $slept %" [ "${slept%.*}" -gt 10 ]

for w in untouched touched larson handover; do
	says "one processor has no waiting: $w" 0 "^$w +1 +[0-9.]+ +1.00 +100%( +0.0%){5}\$" simulate -w $w -p 1 -c "${usual[@]}"
done
is 'where lines and locks cost nothing, threads without misses do not wait for each other' \
	"$(column larson 8 -w larson -p 64 -c "${free[@]}" miss=0 program=500)" 0.0
counters=$(column larson 8 -w larson -p 64 -c "${usual[@]}")
works "counters that all share cost: $counters %" [ "${counters%.*}" -gt 10 ]
is 'those of each thread do not' "$(column larson 8 -w larson -p 64 --counters thread -c "${usual[@]}")" 0.0
stacks() { column handover 7 -w handover -p 16 -c "${usual[@]}" "$@"; }
heads=$(stacks) apart=$(stacks --groups 8)
works "stacks of each pair cost less than those of all: $apart, $heads %" [ "${apart/./}" -lt "${heads/./}" ]
says 'it names the first bottleneck, and what becomes of it' 0 \
	'^larson: the first bottleneck is lines of counters, from [0-9]+ processors on; --counters=thread: .*[0-9.]+ with 64,$' \
	simulate -w larson -p 2 64 -c "${usual[@]}"
says 'or that there is none' 0 '^touched: no cause takes a tenth of the time$' \
	simulate -w touched -p 1 2 -c "${usual[@]/program=500/program=90000}"

few=(-p 1 4 64 -c "${usual[@]}")
simulate "${few[@]}" >"$t/once"
simulate "${few[@]}" >"$t/again"
works 'the same seed, the same lines' cmp "$t/once" "$t/again"
is 'of all workloads and processors' "$(grep -cE '^(untouched|touched|larson|handover) +(1|4|64) ' "$t/once")" 12
simulate -s 2 "${few[@]}" >"$t/again"
works 'another seed, others' bash -c "! cmp -s '$t/once' '$t/again'"

# What is measured, by programs that say always the same: 300 ns an operation, of which the program takes 8 and a pair 11.
mkdir -p "$t/fake/bench"
printf '#!/bin/sh\necho cas=2 looks=2000 line=40 sleep=9000\n' >"$t/fake/bench/costs"
cat >"$t/fake/bench/alloc" <<'END'
#!/bin/sh
case $LD_PRELOAD$1 in *nothing.so*) n=8 ;; *batch) n=11 ;; *) n=300 ;; esac
echo "$1 $n ns"
END
chmod 755 "$t"/fake/bench/*
measures() { says "$1" 0 "$2" env BUILD="$t/fake" "$program" --quick -w untouched -p 1 "${@:3}"; }
if [ "$(nproc)" -gt 1 ]; then
	measures 'costs are those that were measured' '^# ns: cas=2 looks=2000 line=40 sleep=9000 path=11 miss=[0-9.]+ untouched=8 larson=8 '
	measures 'but for those that were given' '^# ns: line=70 cas=2 looks=2000 sleep=9000 path=11 ' -c line=70
	measures 'a miss is what makes one processor as fast as measured' \
		'check: untouched 1: simulated [0-9.]+, measured 3\.33: ratio (0\.9[89]|1\.0[0-2])$'
	measures 'two are predicted' 'check: untouched 2: simulated [0-9.]+, measured 3\.33: ratio [0-9.]+$'
fi

says 'an unknown workload' 2 "invalid choice: 'best' \(choose from '?untouched'?, '?touched'?, " simulate -w best
says 'an unknown cost' 2 '"speed=1" is not NAME=NS with a NAME of: cas looks line sleep path miss program$' simulate -c speed=1
says 'a cost that is no number' 2 '"line=x" is not NAME=NS' simulate -c line=x
says 'no processor' 2 '"0" is not a number from 1 to 4096$' simulate -p 0
says 'a number of shards that is none' 2 '"-1" is not a number from 1 to 4096$' simulate --shards=-1
says 'an unknown option' 2 'unrecognized arguments: --faster' simulate --faster
says 'where nothing is built it says what builds it' 1 \
	'cannot measure: .*; "make bench-simulate" builds it, -c gives costs instead$' env BUILD="$t/nothing" "$program" --quick
says 'on one processor nothing can be measured' 1 'measuring takes two processors; -c gives costs instead: cas looks' \
	taskset -c "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" "$program"
