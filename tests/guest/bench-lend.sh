#!/bin/bash
# guest: plain
# A put by a borrowed key beside other ways to put (bench/lendverbs.c), printed: times decide nothing.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"

rows() { [ "$(grep -c ' rendezvous [0-9.]* (Bonachea' "$t/table")" = 6 ]; }
# The memory is asked for before the measurement, by one question or two, and is not asked for again.
asked_once() { awk '/^questions/ { n = $NF } END { exit !(n >= 1 && n <= 16) }' "$t/table"; }

works 'bench/lendverbs.c compiles' cc -std=gnu11 -D_GNU_SOURCE -O2 -Iinclude -pthread -o "$t/lendverbs" bench/lendverbs.c \
	-L"$BUILD" -lhugepin-verbs -lhugepin -libverbs -Wl,-rpath,"$BUILD" -Wl,-rpath-link,"$BUILD"
works 'it measures' timeout -k 5 "$T_SECONDS" "$t/lendverbs"
cp "$t/out" "$t/table"
sed 's/^/# /' "$t/table"
works 'and prints a line for each size' rows
works 'measured puts ask for no key' asked_once
