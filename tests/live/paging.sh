#!/bin/bash
# On-demand paging in virtual time: what follows from hand-made traces, what holds for the recorded ones, what is refused.
# shellcheck source-path=SCRIPTDIR source=traces.bash
. "$(dirname "$0")/traces.bash"
program=$build/bench/paging

# ---------------------------------------------------------------- by hand

# Two pages, used for 1000 us each time, 4000 us apart: sent, received, sent. Pinning takes 100 + 2 * 10 us, registering on
# demand 50 + 2 * 5, bringing in 20 + 2 * 10, a fault 100 at the sender and 200 at the receiver. A round trip takes 30.
k=(-c 0 -r 30000 -k "pin=100000,10000" -k "unpin=10000,5000" -k "demand=50000,5000" -k "bring=20000,10000" -k "fault=100000,200000")
trace three '0 1000000 0 S 10000 8192' '5000000 6000000 4000000 R 10000 8192' '10000000 11000000 8000000 S 10000 8192'
line 'pin registers once' 'faults=0 brought=0 pinned_peak_kib=8 us=11120' -o "${k[@]}" -p pin "$t/three.csv"
line 'native faults each page once' 'faulting=1 faults=2 us=11260' "${k[@]}" -p native "$t/three.csv"
line 'and again each time it was paged out' 'faulting=3 faulting_pct=100.00 faults=6 us=11860' \
	-o "${k[@]}" -p native "$t/three.csv"
line 'enhanced brings in what it registers' 'faulting=0 brought=2 us=11100' "${k[@]}" -p enhanced "$t/three.csv"
line 'and nothing later' 'faulting=2 faults=4 brought=2 us=11700' -o "${k[@]}" -p enhanced "$t/three.csv"
# 10 us of the 40 remain of each.
line 'optimal brings in while control messages are under way' 'faulting=0 brought=6 us=11090' \
	-o "${k[@]}" -p optimal "$t/three.csv"
line 'where the device has it already, too, for it cannot know' 'brought=2 asked=6' "${k[@]}" -p optimal "$t/three.csv"
line 'enhanced asks once' 'brought=2 asked=2' "${k[@]}" -p enhanced "$t/three.csv"
line 'a long round trip hides all of it' 'brought=6 us=11060' -o "${k[@]}" -r 40000 -p optimal "$t/three.csv"
line 'hybrid pins what it knows nothing of' 'pinned_peak_kib=8 us=11120' -o "${k[@]}" -p hybrid "$t/three.csv"
# Where a fault takes less than the call, hybrid leaves it to the device.
trace faults '0 10 0 S 10000 4096' '0 10 0 S 20000 4096' '9000000 9000010 9000000 S 30000 4096' \
	'19000000 19000010 19000000 S 30000 4096'
line 'hybrid leaves cheap faults to the device' 'faults=2 brought=0' -o "${k[@]}" -k fault=1000,1000 -b 8192 \
	-p hybrid "$t/faults.csv"
# Two buffers in turn, one fits.
trace turns '0 10 0 S 10000 4096' '20 30 1000000 S 20000 4096' '40 50 2000000 S 10000 4096' '60 70 3000000 S 20000 4096'
line 'within a budget pin registers again' 'pinned_peak_kib=4 budget_kib=4 us=3485' -o "${k[@]}" -b 4096 -p pin "$t/turns.csv"
line 'a budget holds what is in use at once' 'budget_kib=8' -o "${k[@]}" -b 1 -p pin "$t/faults.csv"
works 'what operations take is shown as it is' "$program" -t -o -k pin=1,2 -p pin "$t/three.csv"
mv "$t/out" "$t/terms"
works 'as the options and -o have it' grep -qx 'pin=1,2 unpin=19000,880 demand=49000,1580 bring=32000,17580 fault=86000,86000' "$t/terms"

# One message of four pages. All but registering, faulting and bringing in takes 6 + 16.576 + 4 + 3 us, and the round trip 6.128.
loggp=$(dirname "$0")/../../bench/loggp
message=(-l "1000,2000,3000,1" -k "pin=10000,1000" -k "demand=20000,2000" -k "bring=5000,500" -k "fault=10000,20000")
works 'one message is computed by the equations, and replayed' "$loggp" "${message[@]}"
mv "$t/out" "$t/messages"
number() { sed -n "s/^figure $1 $2\.16K \(.*\) us$/\1/p" "$t/messages"; }
# SCHEME EQUATION REPLAYED. Replayed, enhanced brings in on both sides, and optimal what a round trip does not hide.
while read -r scheme equation replayed; do
	works "$scheme by its equation" [ "$(number "$scheme" equation)" = "$equation" ]
	works "$scheme replayed" [ "$(number "$scheme" replayed)" = "$replayed" ]
done <<-END
	pin 57.6 58
	native 205.6 206
	enhanced 212.6 220
	optimal 99.6 89
	pinned-put 19.4 19
	put 64.4 106
END
works 'the worst of all sizes is shown' grep -q '^figure worst equation.optimal-by-native 0\.[0-9]* x$' "$t/messages"

# ---------------------------------------------------------------- what holds for recorded programs

few=("$traces"/lu.B40.4.r0.csv.gz "$traces"/lammps-lj.2.r1.csv.gz)
timeout 400 "$program" -o -b 25% "${few[@]}" >"$t/once"
timeout 400 "$program" -o -b 25% "${few[@]}" >"$t/again"
works 'the same trace, the same lines' bash -c "[ -s '$t/once' ] && cmp '$t/once' '$t/again'"

# judge NAME MOST ARG...: on every trace hybrid takes at most MOST times what the better of pin and optimal takes, at most 1 % of its
# uses fault, and it is within its budget.
judge()
{
	local name=$1 most=$2 bad
	shift 2
	bad=$(timeout 300 "$program" -p pin -p optimal -p hybrid -o "$@" "$traces"/*.csv.gz 2>&1 | awk -v most="$most" '{
		for (i = 1; i <= NF; i++) { split($i, a, "="); v[a[1]] = a[2] }
		us[v["scheme"]] = v["us"]
		if (v["scheme"] != "hybrid") next
		best = us["pin"] < us["optimal"] ? us["pin"] : us["optimal"]
		if (v["us"] > most * best) print v["trace"] ": " v["us"] " us, " best
		if (v["faulting"] > 0.01 * v["uses"]) print v["trace"] ": " v["faulting"] " faulting"
		if ("budget_kib" in v && v["pinned_peak_kib"] > v["budget_kib"]) print v["trace"] ": above the budget"
		n++
	} END { if (n < 20) print n " traces" }')
	if [ -z "$bad" ]; then pass "$name"; else fail "$name" "$bad"; fi
}
fast=(-k "pin=3600,2500" -k "unpin=2400,86" -k "demand=4500,160" -k "bring=2400,1760" -k "fault=8600,8600")
judge 'hybrid is as fast as the better of pin and optimal' 1.05
judge 'and within a budget' 1.15 -b 25% # where only the caller tells uses apart, the helper is late more often
judge 'and on a device ten times as fast' 1.05 "${fast[@]}"
judge 'and there within a budget' 1.05 "${fast[@]}" -b 25%
works 'the tables can be made, and nothing is missed' "$(dirname "$0")/../../bench/run-paging" "$traces"/cg.A.2.r0.csv.gz
mv "$t/out" "$t/printed"
faults=$("$program" -o -p native "$traces"/cg.A.2.r0.csv.gz | sed 's/.* faults=\([0-9]*\) .*/\1/')
works 'and they have the numbers of the lines' grep -q "^cg\.A\.2\.r0  *$faults " "$t/printed"
works 'as figures, too' grep -qx "figure native faults.swapped.cg.A.2 $faults pages" "$t/printed"
works 'a transfer has a figure' grep -qE '^figure optimal put.64K [0-9.]+ us$' "$t/printed"

# ---------------------------------------------------------------- what the pages say of it

# The tables of docs/PERFORMANCE.md, of rank 0 of some programs and of two shapes.
of=("$traces"/{cg.A.2,cg.B.4,lammps-lj.2,lammps-lj.4,hpcg48.2}.r0.csv.gz)
for s in halo transpose; do "$build/bench/shapes" $s >"$t/$s.csv"; done
table()
{
	{ "$program" -o "$@" "${of[@]}"; "$program" -o -c 0 "$@" "$t/halo.csv" "$t/transpose.csv"; } | awk '{
		for (i = 1; i <= NF; i++) { split($i, a, "="); v[a[1]] = a[2] }
		sub(/\.r0$/, "", v["trace"])
		if (v["scheme"] == "pin") { line = "| " v["trace"]; pinned = "" }
		line = line sprintf(" | %.1f", v["us"] / 1000)
		if (v["scheme"] == "pin" || v["scheme"] == "hybrid") pinned = pinned sprintf(" | %d", v["pinned_kib"])
		if (v["scheme"] == "hybrid") print line pinned " |"
	}'
}
table >"$t/tables"
table -b 25% >>"$t/tables"
sed -n '/^### hybrid in virtual time/,/^## /p' "$traces/../../docs/PERFORMANCE.md" | grep '^| ' | grep -v '^| trace' >"$t/page"
works 'docs/PERFORMANCE.md has what hybrid comes to' diff "$t/page" "$t/tables"

# ---------------------------------------------------------------- what is refused

refuses 'an unknown scheme' 'not known: best' -p best "$t/three.csv"
refuses 'a budget that is none' 'not understood: 25x' -b 25x "$t/three.csv"
refuses 'an unknown term' 'not known: speed' -k speed=1,2 "$t/three.csv"
refuses 'a term without a value' 'not known: pin' -k pin "$t/three.csv"
refuses 'a term with one number' 'not understood: 1' -k pin=1 "$t/three.csv"
refuses 'no trace' '[Uu]sage' -p pin
if "$loggp" -l 1,2,3 >"$t/out" 2>&1; then fail 'three of four terms are refused'; else pass 'three of four terms are refused'; fi
