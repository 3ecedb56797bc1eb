#!/bin/bash
# How well registrations are predicted: what follows from hand-made traces, what holds for every trace, and the scripts
# that print the figures of papers.
# shellcheck source-path=SCRIPTDIR source=traces.bash
. "$(dirname "$0")/traces.bash"
program=$build/bench/accuracy
papers=$traces/../../bench/papers

# at NAME START-BUFFER...: calls of 10 ns in those buffers, and computing in between.
at()
{
	local name=$1 call
	local -a calls=()
	shift
	for call; do calls+=("${call%-*} $((${call%-*} + 10)) ${call%-*} S ${call#*-}0000 4096"); done
	trace "$name" "${calls[@]}"
}
# predicts NAME TRACE PREDICTOR "KEY=VALUE..."
predicts()
{
	local name=$1 line pair missing=
	line=$("$program" -t wall "$t/$2.csv" 2>&1 | grep " predictor=$3 ")
	for pair in $4; do [[ " $line " == *" $pair "* ]] || missing+=" $pair"; done
	if [ -z "$missing" ]; then pass "$name"; else fail "$name" "no$missing in:" "$line"; fi
}
even=()
for ((i = 0; i < 20; i++)); do even+=($((i * 1000))-1); done
at even "${even[@]}"
predicts 'what is periodic is predicted from the second period on' even last0 'uses=20 predictions=18 covered=90.00 within_0.1=100.00'
predicts 'a longer context is known later' even last2 'predictions=16 within_0.1=100.00'
# The last eight equal those before them from the ninth on; what the twentieth predicts, the trace does not have.
predicts 'a pattern is known after a window' even period8 'predictions=11 within_0.1=100.00'
predicts 'or never' even period32 'predictions=0 covered=0.00 within_50=0.00'
# Periods of 1000, 960, 1000: the error is 40 of 960, then 40 of 1000, or none by the shortest.
at varied 0-1 1000-1 1960-1 2960-1 3920-1
predicts 'the last period' varied last0 'predictions=3 within_2=0.00 within_5=100.00'
predicts 'or the shortest' varied shortest0 'predictions=3 within_0.1=33.33 within_2=33.33 within_5=100.00'
# Two uses of buffer 1 in a row, then one of buffer 2: by itself the site has two periods, in its context one.
loop=()
for ((i = 0; i < 10; i++)); do loop+=($((i * 1000))-1 $((i * 1000 + 100))-1 $((i * 1000 + 300))-2); done
at loop "${loop[@]}"
predicts 'a site with two periods is not predicted' loop last0 'predictions=26 within_50=30.77' # the 8 of buffer 2
predicts 'but in its context' loop last1 'predictions=23 within_0.1=100.00'
# 1 2 1 2... is a pattern from the tenth call on. That one and the two after it predict, then another buffer comes twice.
broken=()
for ((i = 0; i < 12; i++)); do broken+=($((i * 1000))-$((1 + i % 2))); done
at broken "${broken[@]}" 12000-3 13000-3
predicts 'a pattern that breaks was predicted wrongly' broken period8 'predictions=3 within_50=33.33'

"$program" "$traces"/lu.*.csv.gz >"$t/once"
works 'the same traces, the same lines' cmp "$t/once" <("$program" "$traces"/lu.*.csv.gz)
# shellcheck disable=SC2016 # awk's
works 'shares do not shrink with the error' awk '{
	before = 0
	for (i = 1; i <= NF; i++)
		if ($i ~ /^within_/) { split($i, part, "="); if (part[2] < before) exit failed = 1; before = part[2] }
} END { exit failed || NR != 6 * 17 }' "$t/once"
refuses 'an unknown clock' 'not known: sun' -t sun "$t/even.csv"
refuses 'no trace' '[Uu]sage' -t cpu

# ---------------------------------------------------------------- the papers' figures

# printed NAME LINES AWK-CONDITION: all lines of the file have the form that bench/report gathers, and the last value, v[NAME.SUBJECT],
# satisfies the condition.
printed()
{
	local bad
	bad=$(awk '
	$1 == "figure" && NF == 5 && $4 ~ /^-?[0-9.]+$/ { v[$3 ":" $2] = $4; next }
	$1 == "series" && NF == 6 && $5 ~ /^[0-9.]+$/ && $6 ~ /^[0-9.]+(,[0-9.]+)*$/ { points[$3 ":" $2] = split($6, at, ","); next }
	{ print }
	END { if (!('"$3"')) print "does not hold: " NR " lines" }' "$2")
	if [ -z "$bad" ]; then pass "$1"; else fail "$1" "${bad:0:500}"; fi
}
BUILD=$build "$papers/accuracy" "$traces"/lu.*.csv.gz >"$t/accuracy"
printed 'figures of accuracy' "$t/accuracy" 'v["covered.lu:last2"] > 0 && v["within.5.all:last2"] == v["within.5.lu:last2"] &&
	v["within.50.nested:best"] == 100 && v["within.5.shapes:last2"] > 90 && !(("within.5.lu:period512") in v)'
BUILD=$build "$papers/timelines" >"$t/timelines"
works 'the same timelines' cmp "$t/timelines" <(BUILD=$build "$papers/timelines")
printed 'figures over time' "$t/timelines" 'v["peak.fig1:leave"] == 15 && points["registered.fig1:leave"] == 600 &&
	v["peak.noreuse:leave"] == 120 && v["peak.ft.B:leave"] == 288 && v["peak.ft.B:cf11"] == 192 &&
	v["peak.ft.D.limit:lru"] * 1048576 <= 3e9 && v["peak.ft.D:leave"] * 1048576 > 3e9 && v["misses.ft.B:leave"] == 0'
# A rank sends nothing to itself, nor to those of its node.
blocks() { awk "$@" -v mib=8 -v iterations=1 -f "$papers/ft.awk" | awk -F, 'NR > 1 { n++; bytes += $8 } END { print n, bytes / 1048576 }'; }
works 'blocks of a transform' [ "$(blocks -v layout=1x4)" = '18 36' ]
works 'in two dimensions' [ "$(blocks -v layout=2x4)" = '24 60' ]
works 'and on a node' [ "$(blocks -v layout=2x4 -v rank=1 -v node='1 2 5')" = '12 24' ]
