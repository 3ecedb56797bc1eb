#!/bin/bash
# guest: plain odp
# hugepin calibrate and hugepin info, with a device. What it takes to register on demand is measured where the device can.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"

export XDG_CACHE_HOME=$t/cache
works 'hugepin calibrate measures a device' "$BUILD/hugepin" calibrate
cp "$t/out" "$t/shown"
works 'and shows what it found' grep -q '^  rxe0 .*firmware' "$t/shown"
"$BUILD/hugepin" info >"$t/info"
works 'hugepin info shows it, too' grep -q '^  rxe0 .*firmware' "$t/info"
odp=no
! ibv_devinfo -v -d rxe0 | sed -n '/rc_odp_caps/,/ud_odp_caps/p' | grep -q SUPPORT_READ || odp=yes
works "and that it registers on demand: $odp" grep -q "^  rxe0 .*, registers on demand: $odp\$" "$t/info"
sed -n '/^Packing/,/^$/s/^/# /p; /^Paging/,/^$/s/^/# /p' "$t/info"
works 'with its thresholds' grep -Eq '^ +not in the cache: pieces below [0-9]+ bytes are copied, ' "$t/info"

# A number of the first device's terms.
term() { sed -n "s/^$1 //p" "$XDG_CACHE_HOME"/hugepin/paging-rxe0_*; }
some() { awk -v a="$(term "$1")" 'BEGIN { exit !(a > 0) }'; }
if [ $odp = yes ]; then
	works 'the terms of on-demand paging are shown' grep -Eq \
		'^    a fault: [0-9.]+ us/page sent, [0-9.]+ us/page received$' "$t/info"
	for operation in reg dereg demand bring fault_send fault_receive; do
		works "$operation takes time" some $operation
	done
else
	works 'no terms of on-demand paging are claimed' grep -q \
		'^  measured  *nothing yet; with a device that registers on demand: hugepin calibrate$' "$t/info"
fi

works 'by its name' "$BUILD/hugepin" calibrate rxe0
"$BUILD/hugepin" calibrate rxe7 >"$t/shown" 2>&1
works 'there is no rxe7' grep -q 'no verbs device rxe7' "$t/shown"
