#!/bin/bash
# bench/run-programs on what a user could set instead of hugepin: THP is set to "always" for its own runs alone, and put back. THP is
# a file of the test here, so nothing on the machine changes.
# shellcheck disable=SC2016 # nothing is to be expanded
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
top=$(cd "$(dirname "$0")/../.." && pwd)
export BUILD=$t THP_SETTING=$t/thp WARM=no
is() { if [ "$2" = "$3" ]; then pass "$1"; else fail "$1" "is: $2" "not: $3"; fi; }
has() { if grep -qF -- "$2" "$t/out"; then pass "$1"; else fail "$1" "no line has: $2" "$(cat "$t/out")"; fi; }
run() { timeout -k 5 60 "$top/bench/run-programs" -p 0 -w zstd "$@" >"$t/out" 2>&1; }

if ! command -v zstd >/dev/null; then
	skip 'whole programs on what a user could set' 'zstd is not installed'
	exit
fi
mkdir "$t/bin"
# The program writes what THP is set to while it runs, and its PID.
printf '#!/bin/sh\ncat "$THP_SETTING" >>"$THP_SETTING.seen"\necho $$ >"$THP_SETTING.pid"\nexec %s "$@"\n' "$(command -v zstd)" >"$t/bin/zstd"
chmod +x "$t/bin/zstd"
PATH=$t/bin:$PATH
echo 'always defer [madvise] never' >"$THP_SETTING"
LINES_IN=2000 run -r 2 -a 'glibc glibc-thp glibc-always'
is 'programs run on each' $? 0
is 'THP is "always" for the runs of glibc-always alone' "$(grep -cx always "$THP_SETTING.seen") of $(wc -l <"$THP_SETTING.seen")" '2 of 6'
is 'and put back' "$(cat "$THP_SETTING")" madvise
has 'each has a row' 'zstd       glibc-always '

chmod a-w "$THP_SETTING"
if [ -w "$THP_SETTING" ]; then # root may write it all the same
	export THP_SETTING=$t/none
fi
LINES_IN=200 run -r 1 -a 'glibc glibc-always none-such'
is 'where THP may not be set, the others run' $? 0
has 'and the reason is told' "not measured: glibc-always ($THP_SETTING may not be written), none-such (not installed, or not built)"

export THP_SETTING=$t/thp
chmod u+w "$THP_SETTING"
for signal in INT TERM HUP QUIT PIPE; do
	rm -f "$THP_SETTING.seen"
	echo 'always defer [madvise] never' >"$THP_SETTING"
	LINES_IN=300000 env --default-signal=INT,QUIT "$top/bench/run-programs" -p 0 -w zstd -r 1 -a glibc-always >"$t/out" 2>&1 &
	for _ in {1..400}; do
		[ ! -s "$THP_SETTING.seen" ] || break
		sleep 0.05
	done
	kill -$signal $!
	wait $!
	is "SIG$signal: THP was \"always\", and is put back" "$? $(cat "$THP_SETTING.seen") $(cat "$THP_SETTING")" '1 always madvise'
	for _ in {1..200}; do
		# Neither one that init has not waited for yet, nor another of this number.
		grep -qs '^[0-9]* (zstd) [^Z]' "/proc/$(cat "$THP_SETTING.pid")/stat" || continue 2
		sleep 0.05
	done
	fail 'and the program ends'
done
