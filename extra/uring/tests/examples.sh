#!/bin/bash
# The programs that show messages on io_uring do what they say: examples/log.c, and that in hugepin_sg_uring(3).
top=$(cd "$(dirname "$0")/../../.." && pwd)
# shellcheck source=tests/live/tap.bash
. "$top/tests/live/tap.bash"
# shellcheck source=tests/live/failing.bash
. "$top/tests/live/failing.bash"
log=$build/examples/log
cd "$t" || exit 2

"$log" records 1 >said 2>&1
if grep -qE '^log: io_uring: (Function not implemented|Operation not permitted)' said; then
	skip 'the examples of messages' 'no io_uring'
	exit
fi

# 10000 records are 625 messages of 16.
logs() { [[ $("${@:2}" "$log" "$1" 2>&1) == '10000 records, 625 messages' ]]; }
works 'log: the records are in the log' logs records
works 'log: under the drop-in' logs records env LD_PRELOAD="$dropin"
log_gone() { "$@" >said 2>&1; [ $? = 1 ] && grep -qx "log: $why" said; }
why='nowhere/log: No such file or directory'
works 'log: says where it cannot write' log_gone "$log" nowhere/log
why='the log: No space left on device'
works 'log: says that the disk is full' log_gone "$log" /dev/full
cp "$top/examples/log.c" .
leaves_nothing 'log' log.c records 50

"$top/tools/examples" "$top/extra/uring/hugepin_sg_uring.3" page
# shellcheck disable=SC2086,SC2046 # CC may be a command with options
if works 'the program of the page compiles' ${CC:-cc} -Wall -Wextra -Werror -I"$top/include" -I"$top/extra/uring/include" -o page \
	page-1.c -L"$build" -Wl,-rpath,"$build" -Wl,-rpath-link,"$build" $(libraries page-1.c); then
	{ printf 'head '; head -c 10000 /dev/zero | tr '\0' x; echo ' tail'; } >expected
	writes() { rm -f to; [ "$("$@" ./page to 2>&1)" = '10011 bytes' ] && cmp to expected; }
	works 'it writes three pieces' writes
	works 'under the drop-in, too' writes env LD_PRELOAD="$dropin"
	page_gone() { "$@" >said 2>&1; [ $? = 1 ] && grep -q "^$2: $why" said; }
	why='No such file or directory'
	works 'it says where it cannot write' page_gone ./page nowhere/to
	why='No space left on device'
	works 'and that the disk is full' page_gone ./page /dev/full
	leaves_nothing 'it' page-1.c to
fi
