#!/bin/bash
# guest: plain odp
# Verbs work there: what the other tests stand on.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
ibv_rc_pingpong -d rxe0 -g 1 -c >"$t/server" 2>&1 &
works 'a message goes there and back a thousand times, whole' meets $! ibv_rc_pingpong -d rxe0 -g 1 -c 10.0.0.1
wait $!
works 'and its server has seen the same' test $? = 0
works 'GID 1 is the address 10.0.0.1' grep -q 'ffff:0a00:0001' /sys/class/infiniband/rxe0/ports/1/gids/1
