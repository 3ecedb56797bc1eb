#!/bin/bash
# What a byte from stream to stream costs a program of one thread, with 16 MiB allocated: as without the library. A second
# thread of which the C library knew would make it six times as much.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
# shellcheck source=tests/live/counting.bash
. "$(dirname "$0")/counting.bash"
fact='a byte from stream to stream takes as many instructions as without the library'
countable "$fact"
threads=$t/threads
objcopy --strip-debug "$here/threads" "$threads" || exit 2

# a_byte PRELOADED: hundredths of an instruction a byte, between a short and a longer run, so that the start is not in it.
a_byte()
{
	local short
	LD_PRELOAD=$1 count --soname-synonyms=somalloc=nouserintercepts "$threads" --copy 100000
	short=$instructions
	LD_PRELOAD=$1 count --soname-synonyms=somalloc=nouserintercepts "$threads" --copy 300000
	instructions=$(((instructions - short) / 2000))
}
a_byte '' && without=$instructions
a_byte "$plain/libhugepin-malloc.so.0" && with=$instructions
echo "# hundredths of an instruction a byte: $without without the library, $with with it"
works "$fact" [ "$without" -gt 500 -a $((100 * with)) -le $((103 * without)) ]
