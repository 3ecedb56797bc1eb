#!/bin/bash
# HUGEPIN_GUARD=1: what programs may do with memory works as without (tests/live/guard.c has what they may not).
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
export HUGEPIN_GUARD=1

works 'the conformance of malloc' with "$here/conformance"
works 'the functions of libhugepin.so' "$here/api"
works 'children of busy threads' with "$here/stress" children
works 'threads that free what others allocated' with "$here/stress" what_one
if [ -x "$here/stale" ]; then
	works 'pins: none is stale' "$here/stale"
	works 'nor under the drop-in' with "$here/stale_interposed"
fi
python() { with env HUGEPIN_STATS="$1" HUGEPIN_PAGES=hugetlb python3 -c 'b = [bytearray(1 << 20) for i in range(100)]' 2>"$t/python"; }
base_pages() { python 2 && grep -E ': base_bytes [0-9]{9}$' "$t/python" && ! grep -E ': (hugetlb|thp)_bytes' "$t/python"; }
works 'no other memory than base pages is taken' base_pages
why() { python 1 && grep ' lay in base pages: HUGEPIN_GUARD=1 asks for that$' "$t/python"; }
works 'and the summary at exit says why' why
says 'small memory is not pinned along' 0 'SMALL_PINNED=1 cannot be had with HUGEPIN_GUARD=1' with env HUGEPIN_SMALL_PINNED=1 true
