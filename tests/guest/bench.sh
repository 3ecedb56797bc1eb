#!/bin/bash
# guest: plain odp
# What registering costs by kinds of pages (bench/verbs.c), printed: times decide nothing.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"

rows() { [ "$(grep -cE '^ *[0-9]+ ' "$t/table")" -ge 8 ]; }

pool=$(cat /proc/sys/vm/nr_hugepages)
echo 140 >/proc/sys/vm/nr_hugepages
works 'bench/verbs.c compiles' cc -std=gnu11 -D_GNU_SOURCE -O2 -o "$t/verbs" bench/verbs.c -libverbs
works 'it measures' timeout -k 5 150 "$t/verbs"
cp "$t/out" "$t/table"
sed 's/^/# /' "$t/table"
works 'and prints a line for each size' rows
echo "$pool" >/proc/sys/vm/nr_hugepages
