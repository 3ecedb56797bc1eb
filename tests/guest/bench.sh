#!/bin/bash
# guest: plain odp
# What registering costs by kinds of pages (bench/verbs.c), and at a program's start (bench/startup.c), printed: times decide
# nothing.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"

rows() { [ "$(grep -cE '^ *[0-9]+ ' "$t/table")" -ge 8 ]; }

pool=$(cat /proc/sys/vm/nr_hugepages)
echo 140 >/proc/sys/vm/nr_hugepages
works 'bench/verbs.c compiles' cc -std=gnu11 -D_GNU_SOURCE -O2 -o "$t/verbs" bench/verbs.c -libverbs
works 'it measures' timeout -k 5 "$T_SECONDS" "$t/verbs"
cp "$t/out" "$t/table"
sed 's/^/# /' "$t/table"
works 'and prints a line for each size' rows
works 'bench/startup.c compiles' cc -std=gnu11 -D_GNU_SOURCE -O2 -Iinclude -o "$t/startup" bench/startup.c -L"$build" \
	-Wl,-rpath,"$build" -lhugepin-verbs -lhugepin -libverbs
for kind in base hugetlb; do
	works "it measures, with $kind pages" env HUGEPIN_PAGES=$kind timeout -k 5 "$T_SECONDS" "$t/startup" -r 5
	sed 's/^/# /' "$t/out"
done
echo "$pool" >/proc/sys/vm/nr_hugepages
