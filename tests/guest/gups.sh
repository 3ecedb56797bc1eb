#!/bin/bash
# guest: plain
# examples/gups updates a peer's table by keys that it asks for, that it borrows, and that it was told once. The program
# itself compares the table.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
gups=$build/examples/gups

said() { sed 's/^/# /' "$t/out"; cp "$t/out" "$t/last"; }
handshakes() { awk -v way="$1" '$1 == way { print $(NF - 1) }' "$t/last"; }
# At most so many for the borrowed keys, of as many as there are updates.
few() { [ "$(handshakes ask)" = "$1" ] && [ "$(handshakes pinned)" = 0 ] && [ "$(handshakes borrow)" -le "$2" ]; }

works 'both sides in one process' timeout "$T_SECONDS" "$gups" -n 200 local
said
works 'which asks once for each piece that is lent' few 400 100
works 'less is lent than the table has' timeout "$T_SECONDS" "$gups" -n 100 -t 4194304 -m 1048576 local
said
timeout "$T_SECONDS" "$gups" -n 100 -t 1048576 >"$t/server" 2>&1 &
works 'two processes' meets $! timeout "$T_SECONDS" "$gups" -n 100 -t 1048576 10.0.0.1
said
wait $!
works 'and the owner of the table ends well' test $? = 0
