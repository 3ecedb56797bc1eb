#!/bin/bash
# guest: plain
# vm.overcommit_memory=2: all that is mapped counts, unless it is reserved address space only. In a guest, since the setting is
# the whole machine's, and other programs there would be refused memory.
# shellcheck disable=SC2016 # dollars are awk's and perl's
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"

# KiB that could be committed, as /proc/meminfo has it on standard input.
room='/^CommitLimit:/ { l = $2 } /^Committed_AS:/ { print l - $2 }'
echo 100 >/proc/sys/vm/overcommit_ratio
strict() { echo 2 >/proc/sys/vm/overcommit_memory && grep -x 2 /proc/sys/vm/overcommit_memory; }
works 'the setting is made' strict
works 'memory as usual' with "$here/exhaust"
works 'forks as usual' with "$here/fork" a_child_has
free=$(awk "$room" /proc/meminfo)
after=$(with perl -e '$x = "a" x 50e6; open F, "/proc/meminfo"; print <F>' | awk "$room")
if [ -n "$after" ] && [ $((free - after)) -lt 1000000 ]; then
	pass 'the span is not committed'
else
	fail 'the span is not committed' "$free kB could be committed, $after with a program"
fi
