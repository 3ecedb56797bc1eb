#!/bin/bash
# bench/run-programs on what a user could set instead of hugepin: THP is set to "always" for its own runs alone, and put back. THP is
# a file of the test here, so nothing on the machine changes. And on further allocators, which PEERS names.
# shellcheck disable=SC2016 # nothing is to be expanded
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
top=$(cd "$(dirname "$0")/../.." && pwd)
export BUILD=$t THP_SETTING=$t/thp WARM=no
unset PEERS
is() { if [ "$2" = "$3" ]; then pass "$1"; else fail "$1" "is: $2" "not: $3"; fi; }
has() { if grep -qF -- "$2" "$t/out"; then pass "$1"; else fail "$1" "no line has: $2" "$(cat "$t/out")"; fi; }
run() { timeout -k 5 60 "$top/bench/run-programs" -p 0 -w zstd "$@" >"$t/out" 2>&1; }

ln -s "$build/bench" "$t/bench" # bench/version
# refused NAME PEERS MESSAGE: before anything runs.
refused() {
	LINES_IN=100 PEERS=$2 run -r 1 -a glibc
	is "refused: $1" "$? $(grep -cF "PEERS: $3; a peer is NAME=FILE[,VARIABLE=VALUE]..., where FILE is an allocator" "$t/out") $(wc -l <"$t/out")" '2 1 1'
}
peer=$here/peer.so
echo text >"$t/text"
mkdir "$t/empty"
refused 'a peer without a name' "$peer" "$peer: it has no ="
refused 'an empty name' "=$peer" "=$peer: a name has small letters, digits, dots, _ and -, and begins with a letter"
refused 'a name that is not one' "M3=$peer" "M3=$peer: a name has small letters, digits, dots, _ and -, and begins with a letter"
refused 'a name twice' "m3=$peer m3=$peer" "m3=$peer: the name m3 is in use"
for name in jemalloc glibc-always hugepin hugepin-m3 nothing best ucx; do
	refused "a name that is there: $name" "$name=$peer" "$name=$peer: the name $name is in use"
done
refused 'a file that is not there' "m3=$t/none.so" "m3=$t/none.so: there is no $t/none.so"
refused 'a file that is no library' "m3=$t/text" "m3=$t/text: $t/text is not a library that can be preloaded as malloc"
other=$(readlink -f "$build/libhugepin-uring.so")
refused 'a library without malloc' "m3=$other" "m3=$other: $other is not a library that can be preloaded as malloc"
refused 'a variable without a value' "m3=$peer,LARGE" "m3=$peer,LARGE: LARGE is no VARIABLE=VALUE"
refused 'a directory without a UCX' "ucx-new=$t/empty" "ucx-new=$t/empty: no UCX is installed there, which has lib/pkgconfig/ucx-ucs.pc"
refused 'a good one with a bad one' "m3=$peer m4=$t/none.so" "m4=$t/none.so: there is no $t/none.so"
says 'refused: a peer that cannot be tried' 2 "m3=$peer: no $t/empty/bench/version to try it with: make bench; a peer is" \
	env BUILD="$t/empty" PEERS="m3=$peer" "$top/bench/run-programs" -p 0
mkdir -p "$t/ucx/lib/pkgconfig" && : >"$t/ucx/lib/pkgconfig/ucx-ucs.pc"
refused 'a UCX by another name' "new=$t/ucx" "new=$t/ucx: a UCX's name begins with ucx, and it takes no variables"
refused 'a UCX with variables' "ucx-new=$t/ucx,A=1" "ucx-new=$t/ucx,A=1: a UCX's name begins with ucx, and it takes no variables"
refused 'an allocator by the name of a UCX' "ucx-new=$peer" "ucx-new=$peer: the name of an allocator does not begin with ucx"
# asked COMMAND...: in a shell that has read PEERS, from another directory than the peer's.
asked() { (cd "$(dirname "$peer")" && PEERS="m3=peer.so m3-large=$peer,A=1,B=two ucx-new=$t/ucx" bash -c '. "$1" && cd / && eval "$2"' "$top/bench/x" \
	"$top/bench/allocators.sh" "$1"); }
is 'allocators and UCXs are told apart' "$(asked 'echo "${peers[*]}; ${ucxs[*]}"')" 'm3 m3-large; ucx-new'
is 'each has its variables' "$(asked 'settings m3; settings m3-large')" "$(printf '\nA=1 B=two')"
is 'and its version' "$(asked 'peer_rows glibc m3-large hugepin base nothing' | sed 's/glibc [0-9].*,/glibc N,/')" \
	"$(printf '0,glibc,peer,glibc N,\n0,m3-large,peer,mimalloc 3.4.3,')"
is 'small requests of hugepin go to a mimalloc' "$(asked over_peers)" hugepin-m3
is 'which is preloaded behind' "$(asked 'library hugepin-m3; settings hugepin-m3')" \
	"$(printf '%s %s %s\nHUGEPIN_SMALL=next ' "$(readlink -f "$t"/libhugepin-malloc.so)" "$(readlink -f "$t"/libhugepin.so)" "$(readlink -f "$peer")")"
is 'a program of the list reads the same peers' "$(asked "bash -c '. $top/bench/allocators.sh; echo \"\$PEERS\"'")" \
	" m3=$(readlink -f "$peer") m3-large=$(readlink -f "$peer"),A=1,B=two ucx-new=$t/ucx"

# Further UCXs. make, pkg-config and the programs are fakes: what a program prints depends on the directory of its libraries.
mkdir -p "$t/fakes" "$t/pins/bench"
cat >"$t/pins/bench/pin" <<'END'
#!/bin/sh
echo "$3.$4.$5.$6 $([ -z "${LD_LIBRARY_PATH:-}" ] && echo 8 || echo 4) ns"
END
cp "$t/pins/bench/pin" "$t/pins/bench/pin-ucx"
printf '#!/bin/sh\nfor last; do :; done\n[ "$PKG_CONFIG_PATH" = %s ] && [ -z "${FAILS:-}" ] && cp %s "$last"\n' "$t/ucx/lib/pkgconfig" \
	"$t/pins/bench/pin" >"$t/fakes/make"
printf '#!/bin/sh\n[ -z "$PKG_CONFIG_PATH" ] && echo 1.2 || echo 9.8\n' >"$t/fakes/pkg-config"
chmod +x "$t"/fakes/* "$t"/pins/bench/*
pins() { BUILD=$t/pins PATH=$t/fakes:$PATH PEERS="ucx-new=$t/ucx" timeout 60 "$top/bench/run-pin" -p 0 -r 5 -w hits.heap.10.t1 >"$t/out" 2>&1; }
pins
is 'a further UCX runs with its own libraries' "$? $(grep -c '^[1-5],ucx-new,hits.heap.10.t1,4,ns$' "$t/pins/bench/pin.csv")" '0 5'
has 'both have their versions' 'Peers: ucx (1.2), ucx-new (9.8)'
has 'the best of them judges' 'arena/ucx-new 2 (2 to 2) MISS'
rm "$t"/pins/bench/pin.{csv,txt}
FAILS=1 pins
is 'one that cannot be compiled with is refused before anything runs' "$? $(cat "$t/out") $(ls "$t/pins/bench")" \
	"2 run-pin: ucx-new: bench/rcache.c does not compile with $t/ucx $(printf 'pin\npin-ucx')"

if ! command -v zstd >/dev/null; then
	skip 'whole programs on what a user could set' 'zstd is not installed'
	exit
fi
mkdir "$t/bin"
# The program writes what THP is set to while it runs, and its PID.
printf '#!/bin/sh\ncat "$THP_SETTING" >>"$THP_SETTING.seen"\necho $$ >"$THP_SETTING.pid"\n
	[ -z "$LARGE" ] || echo "$LD_PRELOAD $LARGE" >"$THP_SETTING.peer"\nexec %s "$@"\n' "$(command -v zstd)" >"$t/bin/zstd"
chmod +x "$t/bin/zstd"
PATH=$t/bin:$PATH
echo 'always defer [madvise] never' >"$THP_SETTING"
LINES_IN=2000 run -r 2 -a 'glibc glibc-thp glibc-always'
is 'programs run on each' $? 0
is 'THP is "always" for the runs of glibc-always alone' "$(grep -cx always "$THP_SETTING.seen") of $(wc -l <"$THP_SETTING.seen")" '2 of 6'
is 'and put back' "$(cat "$THP_SETTING")" madvise
has 'each has a row' 'zstd       glibc-always '
PEERS="m3=$peer,LARGE=1" LINES_IN=200 run -r 1 -a 'glibc m3'
is 'programs run on a further peer' $? 0
has 'which has a row' 'zstd       m3 '
has 'and its version' 'm3 (mimalloc 3.4.3)'
is 'its library and its variables reach the program' "$(cat "$THP_SETTING.peer")" "$peer 1"

is 'unless allocators are named, hugepin runs with the pool and without it' \
	"$("$top/bench/run-programs" --help | grep -c 'which allocators, of: .* hugepin hugepin-thp$')" 1

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
