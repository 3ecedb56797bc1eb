#!/bin/bash
# guest: asked
# Takes minutes, so it runs only where a guest is named: tests/guest/run -g plain bench-policies.
# Real registrations over soft-RoCE by policies (Li et al. 2011): two ranks of Open MPI over UCX play the communication of BT, SP,
# LU, CG and FT (bench/play.c, by bench/shapes.c), and HPCC runs. What is pinned over time, on average and at most, how many
# registrations there are and how many come late, and the run time, printed: times decide nothing.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
# shellcheck source=extra/mpi/tests/programs/common.bash
. "$(dirname "$0")/../../extra/mpi/tests/programs/common.bash"
mpi_or_skip 'policies on real registrations'

# shellcheck source=tests/guest/counted.bash
. "$(dirname "$0")/counted.bash"
export HUGEPIN_STATS=2 OMPI_MCA_pml=ucx OMPI_MCA_osc=ucx
ulimit -l unlimited # the helper has not the right to pass the limit
works 'bench/play.c compiles' "$mpicc" -std=gnu11 -D_GNU_SOURCE -O2 -o "$t/play" bench/play.c

# ranks NAME SUBJECT COMMAND...: two ranks of a command; registrations and what comes late are figures of SUBJECT and NAME.
ranks()
{
	local before status=0 out=$t/$1.$2
	before=$(hits)
	timeout -k 5 "$T_SECONDS" "$mpirun" -n 2 "${@:3}" >"$out" 2>"$out.err" || status=1
	echo "figure $2 registrations.$1 $(($(hits) - before)) registrations" >>"$out"
	echo "figure $2 late.$1 $(summed late "$out.err") registrations" >>"$out"
	[ $status = 0 ] || cat "$out" "$out.err"
	return $status
}
# summed KEY FILE: a counter at exit, over the ranks.
summed() { sed -n "s/.*[ :.]$1[ =]\([0-9][0-9]*\)\b.*/\1/p" "$2" | awk '{ sum += $1 } END { print sum + 0 }'; }
# told WHAT NAME SUBJECT: KiB of both ranks.
told() { sed -n "s/^figure $3 $1\.$2 \([0-9]*\) KiB/\1/p" "$t/$2.$3"; }
plays() { ranks "$1" "$2" "${@:3}" "$t/play" "$2" "$1" "$shrink" "$slow" "$t/$1.csv" && grep -qx 'ok 0' "$t/$1.$2"; }
figures() { grep -E '^(figure|series) ' "$t/$1.$2" | sed 's/^/# /'; }

off=(env UCX_RCACHE_ENABLE=n UCX_IB_REG_METHODS=direct)
# below POLICY MODE [OPTION...]: a command line of hugepin, a word a line
below() { printf '%s\n' "$build/hugepin" run --policy="$1" --predict-mode="$2" "${@:3}" --verbs-cache=remote --mpi; }

# each_policy NAME RUN...: by all policies; the budget has room for what MPI pins itself, and for half of the program's own.
each_policy()
{
	local name=$1 policy budget
	local -a command
	works "$name: UCX's own cache" "${@:2}" "$name" own env
	works "$name: no cache" "${@:2}" "$name" none "${off[@]}"
	for policy in lru cf11 predict; do
		mapfile -t command < <(below $policy save)
		works "$name: $policy" "${@:2}" "$name" $policy "${command[@]}"
	done
	budget=$(($(told base "$name" lru) / 2 + $(told peak "$name" lru) / 4))K
	for policy in lru cf11 predict; do
		mapfile -t command < <(below $policy budget --pin-budget=$budget)
		works "$name: $policy within $budget a rank" "${@:2}" "$name" $policy-budget "${command[@]}"
	done
	for policy in own none {lru,cf11,predict}{,-budget}; do figures "$name" "$policy"; done
}

# The lengths are a sixteenth of those of class D; ft computes for a fifth of its time.
shrink=16
for shape in bt:8:1 sp:16:1 lu:8:1 cg:3:1 ft:10:0.2; do
	IFS=: read -r name iterations slow <<<"$shape"
	"$build/bench/shapes" -n "$iterations" "$name" >"$t/$name.csv"
	each_policy "$name" plays
done

# A program that is not made for this: what its ranks have pinned is looked at from outside.
sampled()
{
	local status=0
	rm -f "$t/end"
	while [ ! -e "$t/end" ]; do
		for pid in $(pgrep -x hpcc); do awk '$1 == "VmPin:" { print $2 }' "/proc/$pid/status"; done 2>/dev/null |
			awk '{ sum += $1 } END { if (NR == 2) print sum }'
		sleep 0.1
	done >"$t/pinned" &
	ranks "$1" "$2" "${@:3}" hpcc || status=1
	: >"$t/end"
	wait $!
	grep -q '^Success=1' hpccoutf.txt || status=1
	mv hpccoutf.txt "$t/hpcc.$2.told"
	awk -v subject="$2" -v name="$1" -v base="$(told base bt own)" '
	{ v[NR] = $1 = $1 > base ? $1 - base : 0; sum += $1; if ($1 > peak) peak = $1 }
	END {
		for (k = 1; k <= 60; k++) {
			part = n = 0
			for (i = int((k - 1) * NR / 60) + 1; i <= int(k * NR / 60); i++) { part += v[i]; n++ }
			list = list (k > 1 ? "," : "") (n ? int(part / n) : v[int((k - 1) * NR / 60) + 1] + 0)
		}
		print "series", subject, "pinned." name, "KiB", NR * 100, list
		print "figure", subject, "average." name, int(sum / (NR ? NR : 1)), "KiB"
		print "figure", subject, "peak." name, peak + 0, "KiB"
		print "figure", subject, "base." name, base, "KiB"
	}' "$t/pinned" >>"$t/$1.$2"
	return $status
}
if command -v hpcc >/dev/null; then
	cd "$t" || exit
	awk 'NR == 6 { $1 = size } NR == 11 { $1 = 1 } { print }' size=600 /usr/share/doc/hpcc/examples/_hpccinf.txt >hpccinf.txt
	each_policy hpcc sampled
else
	skip 'HPCC' 'no hpcc for the guest: tools/setup guest'
fi
