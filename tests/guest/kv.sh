#!/bin/bash
# guest: plain
# examples/kv: clients read values while the server sleeps, and values that were replaced. The program itself compares the
# values.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
kv=$build/examples/kv

said() { sed 's/^/# /' "$t/out"; cp "$t/out" "$t/last"; }
# Each key is asked for once. Only values that were replaced meanwhile are asked for again.
asks_once() { grep -q '^client: [a-z ]*: .* asked for 0 keys' "$t/last"; }
# 2 clients of 16 keys, 7 times, two reads each: 448 reads.
sleeps() { awk '/^server: woke up/ { n = $4 } END { exit !(n > 0 && n < 200) }' "$t/last"; }
recalled() { awk '/^server: / { n = $NF } END { exit !(n > 0) }' "$t/last"; }

works 'a server and two clients in one process' timeout "$T_SECONDS" "$kv" -k 16 -s 262144 -n 3 local
said
works 'who ask once for each piece of memory' asks_once
works 'while the server sleeps' sleeps
works 'and who give keys back when their memory is freed' recalled
timeout "$T_SECONDS" "$kv" -c 1 -k 24 -n 3 >"$t/server" 2>&1 &
works 'two processes' meets $! timeout "$T_SECONDS" "$kv" -k 24 -n 3 10.0.0.1
said
wait $!
works 'and the server ends well' test $? = 0
sed 's/^/# /' "$t/server"
