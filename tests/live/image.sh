#!/bin/bash
# HUGEPIN_IMAGE: bss, data and text of tests/image/program.c and of a library in hugepages.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
top=$(cd "$(dirname "$0")/../.." && pwd)
cc=${CC:-cc}
# shellcheck disable=SC2086 # CC may have options
compile()
{
	$cc -O1 -g -fPIC -shared -o "$t/liblibrary.so" "$top/tests/image/library.c" &&
		$cc -O1 -g -fPIC -shared -o "$t/early.so" "$top/tests/image/early.c" -pthread &&
		for kind in pie no-pie; do
			$cc -O1 -g -f$kind -$kind -Wl,-z,relro -o "$t/$kind" "$top/tests/image/program.c" \
				-L"$t" -llibrary -Wl,-rpath,"$t" -pthread -rdynamic || return
		done
}
works 'the programs compile' compile || exit
export HUGEPIN_STATS=2
# as IMAGE PROGRAM ARGUMENT...
as() { HUGEPIN_IMAGE=$1 with "$t/$2" "${@:3}"; }
thp=$(sed -nE 's/.*\[(.*)\].*/\1/p' /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null)
for kind in pie no-pie; do
	if [ "${thp:-never}" = never ]; then
		skip "$kind: what is asked for lies in hugepages" 'transparent hugepages are off'
		continue
	fi
	# THP=always gives bss hugepages anyway.
	[ "$thp" = always ] || says "$kind: without the option nothing does" 0 '^bss 0 data 0 text [046] library 0$' as off $kind kinds
	says "$kind: bss lies in hugepages" 0 '^bss (1[6-9]|2[0-9]) data 0 text [046] library (8|1[0-9])$' as bss $kind kinds
	says "$kind: and data" 0 '^bss (1[6-9]|2[0-9]) data [4-8] text [046] library (8|1[0-9])$' as data $kind kinds
	says "$kind: and text" 0 '^bss (1[6-9]|2[0-9]) data [4-8] text [46] library (8|1[0-9])$' as all $kind kinds
	says "$kind: the statistics count it" 0 ': image_bytes [0-9]{8}$' as all $kind kinds
	for what in fork threads protect; do
		says "$kind: all in hugepages: $what" 0 '^fine$' as all $kind $what
	done
done
says 'where other threads run, data is left alone, and a line says so' 0 \
	'HUGEPIN_IMAGE: data of the program \(.*\) is left alone: other threads run already$' \
	env EARLY=thread HUGEPIN_IMAGE=data LD_PRELOAD="$dropin $t/early.so" timeout 400 "$t/pie" kinds
says 'and bss is not' 0 '^bss (1[6-9]|2[0-9]) data 0 text [046] library (8|1[0-9])$' \
	env EARLY=thread HUGEPIN_IMAGE=data LD_PRELOAD="$dropin $t/early.so" timeout 400 "$t/pie" kinds
says 'data whose protection was changed is left alone' 0 'data of the program \(.*\) is left alone: its protection was changed$' \
	env EARLY=protect HUGEPIN_IMAGE=data LD_PRELOAD="$dropin $t/early.so" timeout 400 "$t/pie"
for what in lock dontfork; do
	says "and data with a part that a constructor treats: $what" 0 'data of the program \(.*\) is left alone: a part is locked, sealed or advised$' \
		env EARLY=$what HUGEPIN_IMAGE=data LD_PRELOAD="$dropin $t/early.so" timeout 400 "$t/pie"
done
says 'no line without HUGEPIN_STATS' 0 '^fine$' \
	bash -c "EARLY=protect HUGEPIN_STATS=0 HUGEPIN_IMAGE=data LD_PRELOAD='$dropin $t/early.so' timeout 400 '$t/pie' | grep -v HUGEPIN_IMAGE"
says 'a value that is not known is refused' 0 'HUGEPIN_IMAGE=huge is not understood: it takes one of off, bss, data, all; using off' as huge pie
echo 'static char data[96 << 20] = { 1 }; int main(void) { return ((volatile char *)data)[95 << 20]; }' >"$t/large.c"
# shellcheck disable=SC2086 # CC may have options
works 'a program with more data compiles' $cc -o "$t/large" "$t/large.c"
if [ "${thp:-never}" = never ]; then
	skip 'the copy does not double the peak of memory' 'transparent hugepages are off'
else
	says 'the copy does not double the peak of memory' 0 ' large: small buffers: .*; memory that is not malloc.s: (9[0-9]|1[01][0-9]) MiB$' \
		env HUGEPIN_STATS=1 HUGEPIN_IMAGE=data LD_PRELOAD="$dropin" timeout 400 "$t/large"
fi
rm "$t/large"
# Eighteen segments of a hugepage each.
parts()
{
	local i
	for i in {0..17}; do echo "__attribute__((section(\".part$i\"))) char part${i}[2 << 20] = { 1 };"; done >"$t/parts.c"
	echo 'int main(void) { return part17[5]; }' >>"$t/parts.c"
	# shellcheck disable=SC2086,SC2046 # CC may have options
	$cc -fno-pie -no-pie -o "$t/parts" "$t/parts.c" $(for i in {0..17}; do printf -- '-Wl,--section-start=.part%d=0x%x ' "$i" $((0x10000000 + (i << 22))); done)
}
works 'a program of many parts compiles' parts
if [ "${thp:-never}" = never ]; then
	skip 'all parts of a program lie in hugepages' 'transparent hugepages are off'
else
	says 'all parts of a program lie in hugepages' 0 ' parts: image_bytes 37748736$' env HUGEPIN_IMAGE=data LD_PRELOAD="$dropin" timeout 400 "$t/parts"
fi
rm "$t/parts"
no_thp() { python3 -c 'import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])' "$@"; }
says 'without transparent hugepages all is left alone' 0 'bss of the program \(.*\) is left alone: transparent hugepages are off' \
	no_thp env HUGEPIN_IMAGE=bss LD_PRELOAD="$dropin" "$t/pie"
later()
{
	HUGEPIN_STATS=1 HUGEPIN_IMAGE=$1 with python3 -c '
import ctypes, os, sys
ctypes.CDLL(sys.argv[1]).library_call(1)
if os.fork() == 0: sys.exit()
os.wait()' "$t/liblibrary.so" 2>&1 | grep -o '[a-z]* of [^ ]*liblibrary.so .*' | sed 's|/.*/||' | sort | uniq -c
}
says 'a library that is opened later is left alone: the process that opened it says so, at its end' 0 \
	'^ *1 bss of liblibrary.so \(1[46] MiB\) is left alone: it was opened later$' later bss
says 'not without the option' 0 '^$' later off
deep=$t/$(printf 'a%.0s' {1..120})/$(printf 'b%.0s' {1..120})
mkdir -p "$deep" && cp "$t/liblibrary.so" "$deep/far.so"
far() { HUGEPIN_STATS=1 HUGEPIN_IMAGE=bss with python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$deep/far.so"; }
says 'a line names a library in a deep directory, and the reason' 0 'bss of far.so \(1[46] MiB\) is left alone: it was opened later$' far
says 'hugepin run has the option' 0 ': image_bytes [0-9]{8}$' timeout 400 "$build/hugepin" run --image=bss --stats=2 "$t/pie"

if command -v gdb >/dev/null; then
	# shellcheck disable=SC2016 # gdb's
	says 'a debugger stops in moved text, and sees moved data' 0 '^data 11 33$' timeout 400 gdb -q -batch -ex 'set startup-with-shell off' \
		-ex "set environment LD_PRELOAD $dropin" -ex 'set environment HUGEPIN_IMAGE all' -ex 'break main' -ex run -ex 'delete' \
		-ex 'break *((char *)much_text + 0x300000)' -ex continue \
		-ex 'printf "data %d %d\n", data[0], data[2097151]' -ex kill "$t/no-pie"
	dump()
	{
		HUGEPIN_IMAGE=all LD_PRELOAD=$dropin "$t/pie" sleep >"$t/ready" &
		local pid=$! tries=0
		until grep -q ready "$t/ready" || [ $((tries++)) = 200 ]; do sleep 0.1; done
		gdb -q -batch -p $pid -ex "generate-core-file $t/core" >/dev/null 2>&1
		kill $pid
		gdb -q -batch -ex 'printf "core %d %d\n", data[0], bss[5000000]' -ex 'x/2i much_text' "$t/pie" "$t/core" 2>&1
		ls -s --block-size=M "$t/core"
	}
	says 'a core has the data, and the file the text' 0 '^core 11 1$' dump
	says 'and it can be disassembled' 0 'much_text>:[[:space:]]*nop$' dump
else
	skip 'a debugger stops in moved text' 'gdb is not installed'
fi
perf_names()
{
	perf record -q -e cpu-clock -F 2000 -o "$t/perf" env HUGEPIN_IMAGE=all LD_PRELOAD="$dropin" "$t/pie" >/dev/null 2>&1 &&
		perf report -i "$t/perf" --stdio --sort symbol 2>/dev/null
}
if perf record -q -e cpu-clock -o "$t/perf" true >/dev/null 2>&1; then
	says 'perf names functions in moved text' 0 '\] (much_text|check)' perf_names
else
	skip 'perf names functions in moved text' 'perf cannot record here'
fi
# A uprobe in text that would be moved. The instance is this test's.
tracing=/sys/kernel/tracing probe=hugepin_image_$$
probed()
{
	local status
	echo 1 >$tracing/events/$probe/nop/enable
	HUGEPIN_IMAGE=all with "$t/pie"
	status=$?
	echo 0 >$tracing/events/$probe/nop/enable
	return $status
}
offset=$(readelf -sW "$t/pie" | awk '$8 == "much_text" { print $2; exit }')
if [ "${thp:-never}" != never ] && { echo "p:$probe/nop $t/pie:$((0x$offset + (3 << 20)))" >>$tracing/uprobe_events; } 2>/dev/null; then
	says 'a uprobe in text hits no copy' 0 '^fine$' probed
	says 'for such text is left alone' 0 'text of the program \(.*\) is left alone: probes, a debugger or the loader changed it$' probed
	echo "-:$probe/nop" >>$tracing/uprobe_events
else
	skip 'a uprobe in text hits no copy' 'this takes THP, root and tracefs'
fi

# ---------------------------------------------------------------------------------- bench/run-image
# tests/image/samples: a run of `bench/run-image 5 fortran`, and a program of our own with two rounds and with one.
table() { awk -f "$top/bench/median.awk" -f "$top/bench/image.awk" "$top/tests/image/samples"; }
has_row() { says "the table of make bench-image has the medians: $1" 0 "^$2\$" table; }
has_row 'the program alone in seconds' 'fortran +alone +0\.65 s +0\.66 s +131198 +0\.0 +0\.0'
has_row 'others as ratios' ' +bss +0\.63 +0\.63 +1034 +510\.0 +0\.0'
has_row 'between two rounds' 'made +alone +2\.50 s +3\.00 s +250 +0\.0 +0\.0'
has_row 'the pool beside THP' ' +libhugetlbfs +0\.84 +0\.33 +100 +1\.0 +256\.0'
has_row 'a loss is marked' ' +malloc +1\.04 +1\.00 +250 +0\.0 +0\.0 <'
