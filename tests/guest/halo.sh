#!/bin/bash
# guest: plain
# examples/halo exchanges its faces: rows that are copied, rows that are gathered, faces longer than a frame.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
halo=$build/examples/halo

said() { tail -1 "$t/out" | sed 's/^/# /'; }

works 'short rows' timeout "$T_SECONDS" "$halo" -e 8 -n 50 local
said
works 'long rows, and faces of several frames' timeout "$T_SECONDS" "$halo" -e 48 -n 10 local
said
works 'more fields than a frame has room for' timeout "$T_SECONDS" "$halo" -e 4 -f 64 -n 50 local
said
timeout "$T_SECONDS" "$halo" -n 20 >"$t/server" 2>&1 &
works 'two processes' meets $! timeout "$T_SECONDS" "$halo" -n 20 10.0.0.1
said
wait $!
works 'and the server ends well' test $? = 0
