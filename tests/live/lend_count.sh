#!/bin/bash
# A key that is borrowed already takes at most 1.25 times the instructions of a pin that finds its memory registered, each with its
# end; and so does a key of a few pages, beside memory outside the heap (bench/borrow.c, counted by callgrind).
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
# shellcheck source=tests/live/counting.bash
. "$(dirname "$0")/counting.bash"
top=$PWD
cd "$t" || exit 2
countable 'instructions of a borrowed key'
# shellcheck disable=SC2086 # CC may be a command with options
works 'the program compiles' ${CC:-cc} -D_GNU_SOURCE -O2 -I"$top/include" -o borrow "$top/bench/borrow.c" -L"$build" -lhugepin \
	-Wl,-rpath,"$build" || exit
# each WHAT: instructions of a use, between a short and a longer run, to the nearest one: the start of a process takes some thousands
# more or fewer each time, which is less than half an instruction of so many uses.
each()
{
	local short
	count ./borrow "$1" 1000
	short=$instructions
	count ./borrow "$1" 41000
	instructions=$(((instructions - short + 20000) / 40000))
}
each heap && heap=$instructions
each foreign && foreign=$instructions
each key && key=$instructions
each page && page=$instructions
works "a key: $key instructions, a pin of the heap: $heap" [ $((key * 4)) -le $((heap * 5)) ]
works "a key of some pages: $page instructions, a pin outside the heap: $foreign" [ $((page * 4)) -le $((foreign * 5)) ]
