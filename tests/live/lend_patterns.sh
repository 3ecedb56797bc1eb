#!/bin/bash
# Lent keys in virtual time (bench/lend.c): what a put costs by the patterns of its table, which a change of lend/ may not make
# worse. All of it is counted, so it is the same everywhere.
# shellcheck source-path=SCRIPTDIR source=tap.bash
. "$(dirname "$0")/tap.bash"
lend=$build/bench/lend
cd "$(dirname "$0")/../.." || exit

# holds NAME CONDITION: each line, and there is one, of which WHERE is true satisfies CONDITION, both on v["KEY"].
holds()
{
	local name=$1 where=$2 condition=$3 bad
	bad=$(awk '{
		delete v
		for (i = 1; i <= NF; i++) { split($i, a, "="); v[a[1]] = a[2] }
		if (!('"$where"')) next
		seen++
		if (!('"$condition"')) print
	} END { if (!seen) print "no line" }' "$t/once")
	if [ -z "$bad" ]; then pass "$name"; else fail "$name" "$bad"; fi
}
# asks PATTERN LIMIT: so many questions a put, at most, with policy pool.
asks() { holds "$1: at most $2 questions a put" "v[\"pattern\"] == \"$1\" && v[\"policy\"] == \"pool\"" "v[\"handshakes\"] <= $2"; }

works 'each key opens what it should, until it is given back' bash -c "'$lend' -q >'$t/once'" || { cat "$t/out"; exit; }
"$lend" -q gups-256M-3of3 blocks-256K-4of63 >"$t/again"
works 'the same patterns, the same lines' diff <(grep -E 'pattern=(gups-256M-3of3|blocks)' "$t/once") "$t/again"
holds 'no run lends and keeps more than M + MAXVICTIM' 1 'v["peak_bytes"] <= v["limit_bytes"]'
asks gups-256M-4of63 0.007
asks gups-256M-3of3 0.002
asks gups-256M-all4 0.002
asks gups-4G-3of3 0.96
asks blocks-256K-4of63 0.055
asks halo-256-4of63 0
asks vectors-300K-4of63 0
asks sweep-1G-2of63 0.01
for trace in cg lammps hpcg; do asks trace-$trace 0; done
holds 'what does not fit is registered by small pieces' 'v["pattern"] == "gups-4G-3of3" && v["policy"] == "pool"' \
	'v["registered_bytes"] <= 131072'
holds 'nothing is refused' 'v["policy"] == "pool"' 'v["refused"] <= 0.001'
# A question and its answer: with a share, a peer gives back what it needs room for in the question.
holds 'with shares a miss is two messages' 'v["policy"] == "static" && v["bucket"] == "128K" && v["handshakes"] > 0 && v["pattern"] !~ /blocks/' \
	'v["messages"] <= 2.01 * v["handshakes"]'
holds 'a share below a bucket lends nothing' 'v["share"] == 0' 'v["refused"] >= 1 && v["registrations"] == 0'
worse=$(awk '{
	for (i = 1; i <= NF; i++) { split($i, a, "="); v[a[1]] = a[2] }
	if (v["policy"] == "pool") pool[v["pattern"]] = v["handshakes"]
	else if (!(v["pattern"] in least) || v["handshakes"] < least[v["pattern"]]) least[v["pattern"]] = v["handshakes"]
} END { for (p in pool) if (pool[p] + 0 > least[p] + 0) print p, pool[p], least[p] }' "$t/once")
if [ -z "$worse" ]; then pass 'the pool never asks more than shares do'; else fail 'the pool never asks more than shares do' "$worse"; fi
awk -f bench/lend.awk "$t/once" >"$t/table"
works 'the table has a verdict for each' bash -c "grep -q ' ok, at most' '$t/table' && ! grep -q MISSED '$t/table'"

# Bonachea and Bell 2003: memory that is put to at random, M = 400 MiB, MAXVICTIM = 50 MiB.
"$lend" paper.random.425M.myrinet paper.cannon.2.myrinet >>"$t/once"
random='v["pattern"] ~ /^paper.random.*myrinet/'
holds 'a put by rendezvous waits for a message and its answer' "$random && v[\"policy\"] == \"rendezvous\"" 'v["put_us"] == 34'
holds 'one that unpins waits for registering and deregistering, too' "$random && v[\"policy\"] == \"rendezvous-unpin\"" 'v["put_us"] == 6074'
holds 'within M every put hits' "$random && v[\"policy\"] ~ /static|pool/ && v[\"pattern\"] !~ /425M/" \
	'v["missed_pct"] == 0 && v["put_us"] == 14'
holds 'within M + MAXVICTIM what a miss asks for is registered' "$random && v[\"bucket\"] == \"page\" && v[\"pattern\"] ~ /425M/" \
	'v["missed_pct"] > 5 && v["missed_pct"] < 7 && v["found_pct"] == 100 && v["missed_us"] == 34'
holds 'pages that both nodes use are registered once' 'v["pattern"] ~ /^paper.cannon/ && v["bucket"] == "page"' \
	'v["found_pct"] == 50 && v["missed_us"] == 54 && v["hit_us"] == 14'
awk -f bench/lend.awk "$t/once" >"$t/table"
works 'their numbers are lines for the report' grep -qx 'figure static-page found.cannon.2.myrinet 50 %' "$t/table"

# The tables of a node grow with the number of nodes, by bytes.
"$lend" tables-1024 tables-4096 >"$t/once"
holds 'a node has at most 512 bytes for each other' 'v["nodes"] == 4096' 'v["target_tables"] / v["nodes"] <= 512'
