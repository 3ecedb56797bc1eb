#!/bin/bash
# guest: asked
# What calibration finds that on-demand paging takes, compared: tests/guest/run -g odp paging_times. A busy machine may turn it round,
# so it runs only where it is named.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"

export XDG_CACHE_HOME=$t/cache
works 'hugepin calibrate measures a device' "$BUILD/hugepin" calibrate
sed 's/^/# /' "$XDG_CACHE_HOME"/hugepin/paging-rxe0_*
term() { sed -n "s/^$1 //p" "$XDG_CACHE_HOME"/hugepin/paging-rxe0_*; }
less() { awk -v a="$(term "$1")" -v b="$(term "$2")" 'BEGIN { exit !(a > 0 && b > a) }'; }
works 'bringing a page in takes less than a fault at the sender' less bring_page fault_send
works 'and than one at the receiver' less bring_page fault_receive
