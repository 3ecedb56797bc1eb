#!/bin/bash
# guest: plain
# hugepin calibrate and hugepin info, with a device.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"

export XDG_CACHE_HOME=$t/cache
works 'hugepin calibrate measures a device' "$BUILD/hugepin" calibrate
cp "$t/out" "$t/shown"
works 'and shows what it found' grep -q '^  rxe0 .*firmware' "$t/shown"
works 'hugepin info shows it, too' "$BUILD/hugepin" info
cp "$t/out" "$t/info"
sed -n '/^Packing/,/^$/s/^/# /p' "$t/info"
works 'with a table of modes' grep -Eq '^ +30( +[cgi]/[cgi]){8}$' "$t/info"
works 'by its name' "$BUILD/hugepin" calibrate rxe0
"$BUILD/hugepin" calibrate rxe7 >"$t/shown" 2>&1
works 'there is no rxe7' grep -q 'no verbs device rxe7' "$t/shown"
