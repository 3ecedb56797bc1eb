#!/bin/bash
# guest: asked
# Takes a minute or two, so it runs only where a guest is named: tests/guest/run -g odp bench-paging bench-outgrow.
# Messages from memory that is registered on demand, as Li et al. 2016 measured them (bench/pagingverbs.c), and the
# equations of the paper with the terms of this device (bench/loggp), printed: times decide nothing.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"

works 'bench/pagingverbs.c compiles' cc -std=gnu11 -D_GNU_SOURCE -O2 -o "$t/pagingverbs" bench/pagingverbs.c -libverbs
timeout -k 5 "$T_SECONDS" "$t/pagingverbs" >"$t/figures" 2>"$t/err"
status=$?
if [ $status = 2 ]; then
	skip 'messages from memory that is registered on demand' "$(cat "$t/figures")"
	exit
fi
works 'it measures' test $status = 0 || sed 's/^/# /' "$t/err"
sed 's/^/# /' "$t/figures"
figures() { [ "$(sort -u -k 2,3 "$t/figures" | wc -l)" = 114 ]; }
works 'and has a figure of each' figures

# The terms: of messages as they were measured here, the others by calibration.
export XDG_CACHE_HOME=$t/cache
works 'hugepin calibrate measures the device' "$build/hugepin" calibrate
sed -n 's/^\([a-z_]*\) \([0-9.]*\)$/# figure rxe0 term.\1 \2 ns/p' "$XDG_CACHE_HOME"/hugepin/paging-rxe0_*
term() { sed -n "s/^$1 //p" "$XDG_CACHE_HOME"/hugepin/paging-rxe0_*; }
line() { echo "$1=$(term "$2"),$(term "$2_page")"; }
of_messages()
{
	awk "$(cat bench/median.awk)"'
	$2 == "rc" { v[$3, ++n[$3]] = $4 }
	END {
		for (i = split("post latency gap byte", name, " "); i; i--) {
			split("", one)
			for (k = 1; k <= n[name[i]]; k++) one[k] = v[name[i], k]
			sort_values(one, n[name[i]])
			list = sprintf("%.3f%s%s", quantile(one, n[name[i]], 0.5), list == "" ? "" : ",", list)
		}
		print list
	}' "$t/figures"
}
if [ -x "$build/bench/paging" ]; then
	works 'the equations have these terms' env BUILD="$build" bench/loggp -l "$(of_messages)" -k "$(line pin reg)" \
		-k "$(line unpin dereg)" -k "$(line demand demand)" -k "$(line bring bring)" \
		-k "fault=$(term fault_send),$(term fault_receive)"
	sed 's/^/# /' "$t/out"
else
	skip 'the equations have these terms' "no $build/bench/paging: make bench-paging"
fi
