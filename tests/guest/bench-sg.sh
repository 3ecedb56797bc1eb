#!/bin/bash
# guest: plain
# Small pieces as one message, post to completion (bench/sgverbs.c), printed: times decide nothing.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"

targets() { [ "$(grep -c '^target: .*, at \(least\|most\) ' "$t/table")" = 7 ]; }

export XDG_CACHE_HOME=$t
works 'bench/sgverbs.c compiles' cc -std=gnu11 -D_GNU_SOURCE -O2 -Iinclude -pthread -o "$t/sgverbs" bench/sgverbs.c \
	-L"$BUILD" -lhugepin-verbs -lhugepin -libverbs -Wl,-rpath,"$BUILD" -Wl,-rpath-link,"$BUILD"
works 'it measures' timeout -k 5 "$T_SECONDS" "$t/sgverbs"
cp "$t/out" "$t/table"
sed 's/^/# /' "$t/table"
works 'and compares with what is to be reached' targets
