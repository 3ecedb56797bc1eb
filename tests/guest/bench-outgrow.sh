#!/bin/bash
# guest: asked
# Takes a minute or two, so it runs only where a guest is named: tests/guest/run -g odp bench-paging bench-outgrow.
# Communication and computation in 100, 120 and 140 % of the memory, pinned and on demand, as Li et al. 2016 measured it
# (bench/outgrow.c), printed: times decide nothing. The memory is that of a control group, and the swap is in memory.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
memory=32 room=2 # MiB; room is for the program itself
groups=/sys/fs/cgroup group=/sys/fs/cgroup/outgrow zram=/sys/block/zram0

swap_on()
{
	modprobe zram && echo 1 >$zram/reset && echo 256M >$zram/disksize && mkswap /dev/zram0 && swapon /dev/zram0
}
make_group()
{
	echo +memory >$groups/cgroup.subtree_control && mkdir $group && echo $((memory + room))M >$group/memory.max
}
# in_group COMMAND...
in_group() { bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' $group timeout -k 5 "$T_SECONDS" "$@"; }
# What was swapped, for who wonders at a time.
counts() { awk -v what="$1" '{ n[$1] = $2 } END { print "# " what, n["pswpin"], "pages in,", n["pswpout"], "out" }' /proc/vmstat; }

works 'bench/outgrow.c compiles' cc -std=gnu11 -D_GNU_SOURCE -O2 -o "$t/outgrow" bench/outgrow.c -libverbs
"$t/outgrow" 4 60 demand >"$t/said" 2>&1
if [ $? = 2 ]; then
	skip 'more memory than there is' "$(cat "$t/said")"
	exit
fi
works 'a swap in memory' swap_on || exit
works 'a control group' make_group || exit
for round in 1 2 3; do
	for percent in 100 120 140; do
		for way in pin demand; do # in turn: what else the machine does changes
			works "round $round: $percent %, $way" in_group "$t/outgrow" $memory $percent $way
			sed 's/^/# /' "$t/out"
			counts "so far swapped, $way, $percent %:"
		done
	done
done
rmdir $group
works 'the swap is as it was' swapoff /dev/zram0 && echo 1 >$zram/reset
