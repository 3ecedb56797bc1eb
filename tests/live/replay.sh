#!/bin/bash
# Replay in virtual time: what follows from hand-made traces, what holds for every trace, what is refused.
# shellcheck source-path=SCRIPTDIR source=traces.bash
. "$(dirname "$0")/traces.bash"
program=$build/bench/replay
shapes=$build/bench/shapes

# all NAME AWK-CONDITION ARG...: every line, and there is one, satisfies the condition on v["KEY"].
all()
{
	local name=$1 condition=$2 bad
	shift 2
	bad=$(timeout 400 "$program" "$@" 2>&1 | awk '{
		delete v
		for (i = 1; i <= NF; i++) { split($i, a, "="); v[a[1]] = a[2] }
		if (!("trace" in v) || !('"$condition"')) print
	} END { if (!NR) print "no line" }')
	if [ -z "$bad" ]; then pass "$name"; else fail "$name" "$bad"; fi
}

# ---------------------------------------------------------------- by hand

# A registration takes 1000 ns and a deregistration 500. The first use lasts from 1000, when it is registered, to 2000;
# the second from 10000 to 11000. In between the bound is without it from 2500 to 9000.
k='-k 1000,0,0.5'
trace two '0 1000 0 S 10000 4096' '50000 51000 8000 S 10000 4096'
# shellcheck disable=SC2086 # $k is an option and its argument
{
line 'leave-pinned keeps it' 'reuses=1 avg_pct=100.00 peak_pct=100.00 misses=0 time_pct=100.00' $k "$t/two.csv"
line 'the bound has it in time' 'bound_pct=40.91 bound_peak_pct=100.00 inuse_pct=100.00' $k "$t/two.csv" # 4500 of 11000
# Two of them at once, idle for 1700: for one of them there is time, 200 of 10600.
trace both '0 3000 0 S 10000 4096' '10 2010 0 S 20000 4096' '4000 4100 1700 S 10000 4096' '4010 4090 1700 S 20000 4096'
line 'the bound has one helper' 'bound_pct=98.11' $k "$t/both.csv"
# One after the other: deregistering the first takes 500.
for next in '300 100.00' '1000 50.00'; do
	trace turns '0 1000 0 S 10000 4096' "2000 3000 ${next% *} S 20000 4096"
	line "the bound's peak, ${next% *} ns apart" "bound_peak_pct=${next#* } inuse_pct=50.00" $k "$t/turns.csv"
done
# Registered to 2500 and from 10500 to 13000, for 2000 ns of cost more.
line 'none pays at each use' 'avg_pct=38.46 misses=1 miss_pct=100.00 time_pct=118.18' $k -p none "$t/two.csv"
# 1 MiB, in parts of 1000 ns: from 2500 to 10000 it is not registered.
trace large '0 1000 0 S 100000 1048576' '50000 51000 8000 S 100000 1048576'
line 'the timeline has the most of each part' \
	'ms=0.013 avg_mib=0.38 peak_mib=1.00 timeline=1.00,1.00,1.00,0.00,0.00,0.00,0.00,0.00,0.00,0.00,1.00,1.00,1.00' \
	$k -p none -l 13 "$t/large.csv"
# cf11 gives it back at first sight, without a time to have it again.
line 'cf11 gives back beside the program' 'avg_pct=37.50 misses=1 time_pct=109.09 helper_busy_pct=4.17' \
	$k -p cf11 "$t/two.csv"
# It arrives 200 ns after the helper began to deregister, and waits for the other 300.
trace soon '0 1000 0 S 10000 4096' '2000 3000 200 S 10000 4096'
line 'who meets the helper waits for it' 'misses=1 time_pct=140.62' $k -p cf11 "$t/soon.csv"
# The third and the fourth use tell cf11 its period, so the fifth is expected: the helper registers from 1720 ns before
# it to 720.
early() { trace "$1" '0 1000 0 S 10000 4096' '2000 3000 100000 S 10000 4096' '4000 5000 200000 S 10000 4096' \
	'6000 7000 300000 S 10000 4096' "8000 9000 $((400000 - $2)) S 10000 4096"; }
early expected 0
line 'what is registered in time is a hit' 'misses=3 hidden_pct=25.00' $k -p cf11 "$t/expected.csv"
early early 1710
line 'to wait a microsecond for the helper is none' 'misses=3 hidden_pct=25.00' $k -p cf11 "$t/early.csv"
early earlier 1730
line 'before the helper begins it is a miss' 'misses=4 hidden_pct=0.00' $k -p cf11 "$t/earlier.csv"
early long_wait 4500 # from 7720 before to 2720
line 'to wait longer is a miss' 'misses=4 hidden_pct=0.00' -k 5000,0,0.5 -p cf11 "$t/long_wait.csv"
line 'the wall clock has what was waited, too' 'bound_pct=8.65' $k -t wall "$t/two.csv" # 4500 of 52000
trace back '0 1000 8000 S 10000 4096' '50000 51000 0 S 10000 4096'
line 'a clock that goes back measures nothing' 'time_pct=166.67' $k -p none "$t/back.csv" # 5000 of 3000
trace long '0 9000000 0 S 10000 4096' '9000000 9000100 0 S 10000 4096'
line 'calls last 2 ms at most' 'time_pct=100.05 misses=1' $k -p none -c 2 -k 1000,0,0 "$t/long.csv"
line 'or as long as they did' 'time_pct=100.01' -p none -c 0 -k 1000,0,0 "$t/long.csv"
trace overlap '0 1000 0 S 10000 4096' '10 1000 0 S 20000 4096' '20 3000 0 S 10800 4096' '5000 5010 0 S 30000 100'
line 'ranges that share a page are a region' 'regions=3 reuses=1' $k "$t/overlap.csv"
line 'with large pages more do' 'regions=1 reuses=3' $k -u 2m "$t/overlap.csv"
trace at_once '0 1000 0 S 10000 4096' '10 1000 0 S 20000 8192' '2000 2010 0 S 30000 4096'
line 'what overlaps is in use at once' 'inuse_pct=75.00' $k "$t/at_once.csv"
line 'a budget holds what is in use at once' 'budget_pct=75.00 peak_pct=75.00 misses=0' $k -p lru -b 1% "$t/at_once.csv"
line 'and the largest regions, if asked for' 'budget_pct=75.00' $k -p lru -b 1% -g 2 "$t/at_once.csv"
line 'or as many bytes as are asked for' 'budget_pct=100.00' $k -p lru -b 100000 "$t/at_once.csv"
trace turns '0 1 0 S 10000 4096' '10 11 5000 S 20000 4096' '20 21 10000 S 10000 4096' '30 31 15000 S 20000 4096'
line 'lru has room for one of two' 'misses=2 budget_pct=50.00 peak_pct=50.00' $k -p lru -b 1% "$t/turns.csv"
}

# ---------------------------------------------------------------- what holds for every trace

few=("$traces"/lu.B40.2.r0.csv.gz "$traces"/lammps-lj.2.r1.csv.gz)
for p in leave none lru cf11 predict; do
	timeout 400 "$program" -p $p -b 25% "${few[@]}" >"$t/once"
	timeout 400 "$program" -p $p -b 25% "${few[@]}" >"$t/again"
	works "$p: the same trace, the same line" bash -c "[ -s '$t/once' ] && cmp '$t/once' '$t/again'"
done
for p in none lru cf11 predict; do
	all "$p never has more than the budget" 'v["peak_pct"] <= v["budget_pct"]' -p $p -b 25% "$traces"/*.csv.gz
done
gzip -dc "${few[0]}" >"$t/lu.B40.2.r0.csv"
works 'a trace may be compressed' diff <("$program" -p cf11 "${few[0]}") <("$program" -p cf11 "$t/lu.B40.2.r0.csv")
all 'leave-pinned is the measure' 'v["avg_pct"] == 100 && v["peak_pct"] == 100 && v["misses"] == 0' "$traces"/*.csv.gz
all 'without overlaps, none misses each' 'v["miss_pct"] == 100' -p none "$traces"/lu.*.csv.gz "$traces"/hpcg*.csv.gz
# The bounds, within what their summation may do, are known from another program, too.
for known in bt.A.4.r0=22.8 cg.A.2.r0=32.7 cg.A.2.r1=44.3 cg.B.4.r0=14.4 lammps-lj.4.r0=19.8 lu.B40.4.r0=1.9; do
	b=${known#*=}
	all "the bound of ${known%=*}" \
		"v[\"bound_pct\"] > $b - 0.1 && v[\"bound_pct\"] < $b + 0.1" "$traces/${known%=*}.csv.gz"
done
line 'cf11 on lammps' 'misses=336 avg_pct=50.40' -p cf11 "$traces/lammps-lj.2.r0.csv.gz"
# LRU's misses depend on the order of calls alone; these are known from another program.
for known in cg.A.2.r0=61 cg.B.4.r1=301 hpcg48.2.r0=1823 lammps-lj.4.r1=389 lu.B40.4.r0=174 lu.B40.4.r1=87; do
	line "LRU on ${known%=*}" "misses=${known#*=}" -p lru -b 25% "$traces/${known%=*}.csv.gz"
done

made=()
for s in bt sp lu cg ft zipf noreuse fig1 nested phase thrash halo transpose; do
	made+=("$t/$s.csv")
	"$shapes" $s >"$t/$s.csv"
	works "the shape $s is the same twice" cmp "$t/$s.csv" <("$shapes" $s)
done
all 'shapes are traces' 'v["misses"] == v["reuses"] && v["avg_pct"] < 20' -p none -c 0 "${made[@]}"
line 'bt has 24 buffers' 'regions=24 reuses=1416 inuse_pct=5.13' -c 0 "$t/bt.csv"
"$shapes" -s 1 bt >"$t/other.csv"
works 'another seed is another trace' bash -c "! cmp '$t/other.csv' '$t/bt.csv'"

# ---------------------------------------------------------------- what is refused

bad() { printf '%s\n' "$header" "$1" >"$t/bad.csv"; }
row='1,0,10,0,Send,S,1000,4096,4096,0,1,0,0,0'
echo 'hello,world' >"$t/bad.csv"
refuses 'another file' 'bad.csv:1: no trace: column 1 should be seq' "$t/bad.csv"
: >"$t/bad.csv"
refuses 'an empty file' 'bad.csv:1: .*without calls' "$t/bad.csv"
bad "# nothing"
refuses 'a trace of remarks' 'bad.csv:3: .*without calls' "$t/bad.csv"
refuses 'no file' 'nowhere.csv: No such file' "$t/nowhere.csv"
refuses 'a directory' 'Is a directory' "$t"
head -c 1000 "${few[0]}" >"$t/cut.csv.gz"
refuses 'a compressed file cut short' 'cut.csv.gz:[0-9]+: unexpected end of file' "$t/cut.csv.gz"
{ head -c 1000 "${few[0]}"; head -c 1000 /dev/urandom; } >"$t/cut.csv.gz"
refuses 'a compressed file overwritten' 'cut.csv.gz:[0-9]+: ' "$t/cut.csv.gz"
bad "${row/,10,/,-10,}"
refuses 'a negative time' "bad.csv:2: t_end is no number from 0 up: '-10'" "$t/bad.csv"
bad "${row/,10,/,99999999999999999999,}"
refuses 'a number too large' 'bad.csv:2: t_end' "$t/bad.csv"
bad "${row/1000/xyz}"
refuses 'an address that is none' 'bad.csv:2: addr' "$t/bad.csv"
bad "${row/1,0,10/1,20,10}"
refuses 'a call that ends before it starts' 'bad.csv:2: it ends before' "$t/bad.csv"
bad "${row/4096/0}"
refuses 'a range of no bytes' 'bad.csv:2: no range' "$t/bad.csv"
bad "${row%,*}"
refuses 'a field too few' 'bad.csv:2: not 14 fields' "$t/bad.csv"
bad "$row,5"
refuses 'a field too many' 'bad.csv:2: not 14 fields' "$t/bad.csv"
bad "$(printf '%s\n%s' "${row/1,0,/1,5,}" "$row")"
refuses 'lines out of order' 'bad.csv:3: it starts before the line above' "$t/bad.csv"
bad "$(printf '%05000d' 0)"
refuses 'a line without end' 'bad.csv:2: too long a line' "$t/bad.csv"
refuses 'an unknown policy' 'not known: best' -p best "$t/two.csv"
refuses 'a budget that is none' 'not understood: 25x' -b 25x "$t/two.csv"
refuses 'a timeline of words' 'not understood: all' -l all "$t/two.csv"
refuses 'no trace' '[Uu]sage' -p lru

# ---------------------------------------------------------------- what the pages say of it

# The tables of docs/PERFORMANCE.md, of the lines of replay on all recorded traces.
cat >"$t/tables.awk" <<'EOF'
{
	for (i = 1; i <= NF; i++) { split($i, pair, "="); f[pair[1]] = pair[2] }
	name = f["trace"]
	rank = substr(name, length(name))
	sub(/\.r[0-9]$/, "", name)
	policy = f["policy"]
	if (!(name in seen)) { seen[name]; order[++count] = name }
	n[name, policy]++
	reuses[name, policy] += f["reuses"]
	bound[name] += f["bound_pct"] / 4
	avg[name, policy] += f["avg_pct"]
	miss_pct[name, policy] += f["miss_pct"]
	misses[name, policy] += f["misses"]
	last_rank[name] = rank
	all[policy]++
	all_avg[policy] += f["avg_pct"]
	all_bound += f["bound_pct"]
	all_misses[policy] += f["misses"]
	all_reuses[policy] += f["reuses"]
}
END {
	for (k = 1; k <= count; k++) {
		name = order[k]
		if (budget)
			printf "| %s | %d | %d | %d | %d |\n", (n[name, "lru"] > 1 ? name : name " rank " last_rank[name]),
				reuses[name, "lru"], misses[name, "lru"], misses[name, "cf11"], misses[name, "predict"]
		else
			printf "| %s | %d | %.1f | %.1f (%.1f) | %.1f (%.2f) |\n", name, reuses[name, "cf11"] / 2, bound[name],
				avg[name, "cf11"] / 2, miss_pct[name, "cf11"] / 2, avg[name, "predict"] / 2, miss_pct[name, "predict"] / 2
	}
	if (budget)
		printf "| sum |  | %d | %d | %d |\n", all_misses["lru"], all_misses["cf11"], all_misses["predict"]
	else
		printf "| all |  | %.1f | %.1f (%.1f) | %.1f (%.2f) |\n", all_bound / all["cf11"] / 2,
			all_avg["cf11"] / all["cf11"], 100 * all_misses["cf11"] / all_reuses["cf11"],
			all_avg["predict"] / all["predict"], 100 * all_misses["predict"] / all_reuses["predict"]
}
EOF
page() { sed -n "/^### $1/,/^| \(all\|sum\) /p" "$traces/../../docs/PERFORMANCE.md" | grep '^| ' | grep -v '^| trace'; }
for policy in cf11 predict; do "$program" -p $policy "$traces"/*.csv.gz; done | awk -f "$t/tables.awk" >"$t/save"
for policy in lru cf11 predict; do "$program" -p $policy -b 25% "$traces"/*.csv.gz; done | grep -v ' budget_pct=100.00 ' |
	awk -v budget=1 -f "$t/tables.awk" >"$t/budget"
for policy in cf11 predict; do "$program" -c 0 -p $policy "$t"/{bt,sp,lu,cg,ft}.csv; done | awk '{
	for (i = 1; i <= NF; i++) { split($i, pair, "="); f[pair[1]] = pair[2] }
	name = f["trace"]
	if (!(name in line)) order[++count] = name
	if (!(name in line)) line[name] = sprintf("| %s | %d | %.1f |", name, f["reuses"], f["bound_peak_pct"])
	line[name] = line[name] sprintf(" %.1f (%d) |", f["peak_pct"], f["misses"])
} END { for (k = 1; k <= count; k++) print line[order[k]] }' >"$t/peak"
page 'Mode save' >"$t/save.page"
sed -n '/^### Peak/,/^### Mode/p' "$traces/../../docs/PERFORMANCE.md" | grep '^| ' | grep -v '^| trace' >"$t/peak.page"
page 'Mode budget' >"$t/budget.page"
works 'docs/PERFORMANCE.md has what predict and cf11 come to' diff "$t/save.page" "$t/save"
works 'and which peaks they have on shapes' diff "$t/peak.page" "$t/peak"
works 'and within a budget' diff "$t/budget.page" "$t/budget"
# hugepin_policy(7) has the last lines of both.
awk -F'[ |()]+' '$2 == "all" { printf "keeps %s %% of the bytes of\nat %s %% misses\n%s %%, at %s %%\n", $6, $7, $4, $5 }' "$t/save" >"$t/sums"
awk -F'[ |]+' '$2 == "sum" { printf "misses %s times\n%s times\n%s times\n", $3, $4, $5 }' "$t/budget" >>"$t/sums"
manual=$(tr '\n' ' ' <"$traces/../../man/hugepin_policy.7")
while IFS= read -r line; do [[ $manual == *"$line"* ]] || echo "$line"; done <"$t/sums" >"$t/absent"
works 'hugepin_policy(7) has the sums' diff "$t/absent" /dev/null

