# Sourced behind tap.bash by tests that count instructions, by callgrind.
# shellcheck shell=bash disable=SC2154 # of tap.bash

# countable FACT: there is callgrind; else FACT is skipped, and the test ends.
countable() { command -v valgrind >/dev/null || { skip "$1" 'valgrind is not installed'; exit; }; }

# The libraries without debug information, because valgrind 3.19 cannot read what clang 14 writes.
plain=$t/plain
mkdir "$plain"
for library in "$build"/libhugepin*.so.0; do
	objcopy --strip-debug "$library" "$plain/${library##*/}" || exit 2
done

# count [OPTION OF CALLGRIND]... COMMAND...: puts the instructions of a run, more than none, into $instructions. A run that fails ends
# the test.
count()
{
	LD_LIBRARY_PATH=$plain valgrind --tool=callgrind --callgrind-out-file="$t/counts" "$@" >"$t/log" 2>&1 &&
		instructions=$(sed -n 's/^totals: //p' "$t/counts") && [ "${instructions:-0}" -gt 0 ] && return
	fail "callgrind counts: $*" "$(tail -n 15 "$t/log")"
	exit 1
}
