#!/bin/bash
# guest: plain odp
# What registering costs by kinds of pages (bench/verbs.c), printed. Under emulation only ratios mean something: they
# have to be on the right side, no more.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"

# times_cheaper COLUMN: hugetlb pages, at 64 MiB, by more than half.
times_cheaper() { awk -v c="$1" '$1 == 65536 && $c != "-" { exit !($c > 1.5) } END { if (NR < 9) exit 1 }' "$t/table"; }

pool=$(cat /proc/sys/vm/nr_hugepages)
echo 140 >/proc/sys/vm/nr_hugepages
works 'bench/verbs.c compiles' cc -std=gnu11 -D_GNU_SOURCE -O2 -o "$t/verbs" bench/verbs.c -libverbs
works 'it measures' timeout -k 5 150 "$t/verbs"
cp "$t/out" "$t/table"
sed 's/^/# /' "$t/table"
if grep -q 'not in the pool' "$t/table"; then
	skip 'memory in hugepages is cheaper to register' 'the hugetlb pool has no 128 pages'
else
	works 'memory in hugepages is cheaper to register' times_cheaper 10
	works 'and to deregister' times_cheaper 11
fi
echo "$pool" >/proc/sys/vm/nr_hugepages
