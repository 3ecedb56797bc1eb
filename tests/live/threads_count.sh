#!/bin/bash
# What a byte from stream to stream costs a program of one thread, with 16 MiB allocated: as without the library. A second
# thread of which the C library knew would make it six times as much.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
threads=$here/threads

# count BYTES [VARIABLE=VALUE]: the instructions of a whole run.
count()
{
	env "${@:2}" valgrind --tool=callgrind --soname-synonyms=somalloc=nouserintercepts --callgrind-out-file="$t/counts" \
		"$threads" --copy "$1" >"$t/log" 2>&1 || { cat "$t/log"; return 1; }
	sed -n 's/^summary: //p' "$t/counts"
}

# Between a short and a longer run, so that the start is not in it.
a_byte() { echo $((($(count 300000 "$@") - $(count 100000 "$@")) / 2000)); }

same()
{
	local without with
	without=$(a_byte A=1) with=$(a_byte LD_PRELOAD="$dropin")
	echo "# hundredths of an instruction a byte: $without without the library, $with with it"
	[ "$without" -gt 500 ] && [ $((100 * with)) -le $((103 * without)) ]
}

if command -v valgrind >/dev/null; then
	works 'a byte from stream to stream takes as many instructions as without the library' same
else
	skip 'a byte from stream to stream takes as many instructions as without the library' 'valgrind is not installed'
fi
