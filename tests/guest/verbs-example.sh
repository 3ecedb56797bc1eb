#!/bin/bash
# guest: plain odp
# examples/pingpong moves its messages, and registers its buffers as often as they are new to the device.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
pingpong=$build/examples/pingpong

said() { tail -1 "$t/out" | sed 's/^/# /'; }
# Of a hundred buffers and the one that is written to: hardly more than two at a time.
few_registrations() { awk '/ registrations$/ { n = $(NF - 1) } END { exit !(n >= 1 && n <= 3) }' "$t/last"; }

works 'both sides in one process' timeout "$T_SECONDS" "$pingpong" -n 100 local
said
works 'both sides in one process, with buffers of the drop-in' with "$pingpong" -n 100 local
said
cp "$t/out" "$t/last"
works 'which are registered once' few_registrations
timeout "$T_SECONDS" "$pingpong" -n 100 >"$t/server" 2>&1 &
works 'two processes' meets $! timeout "$T_SECONDS" "$pingpong" -n 100 10.0.0.1
said
wait $!
works 'and the server ends well' test $? = 0
