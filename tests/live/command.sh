#!/bin/bash
# The command: what `hugepin run` passes on and what it refuses, what `hugepin info` reports.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=${BUILD:-build}
t=$(mktemp -d) || exit 2
chmod 755 "$t"
trap 'rm -rf "$t"' EXIT
for v in LD_PRELOAD "${!HUGEPIN_@}"; do unset "$v"; done
number=0

# An installation that was moved, where others may read it too.
mkdir "$t/bin" "$t/lib"
cp "$build/hugepin" "$t/bin"
cp "$build"/libhugepin*.so* "$t/lib"
hugepin=$t/bin/hugepin

result() { number=$((number + 1)); echo "$1 $number - $2"; }
skip() { result ok "$1 # SKIP $2"; }

# check NAME STATUS PATTERN COMMAND...: the command ends with STATUS, and its output or errors have a line like PATTERN.
check()
{
	local name=$1 status=$2 pattern=$3 out got
	shift 3
	out=$(timeout 100 "$@" 2>&1)
	got=$?
	if [ $got = "$status" ] && grep -Eq -e "$pattern" <<<"$out"; then
		result ok "$name"
	else
		result 'not ok' "$name"
		printf '# status %s, expected %s; no line like: %s\n' $got "$status" "$pattern"
		printf '# %s\n' "${out//$'\n'/$'\n'# }"
	fi
}

# refuses NAME STATUS PATTERN ARG...: as check, with `hugepin run ARG...`; and nothing was started.
refuses()
{
	local name=$1 status=$2 pattern=$3
	shift 3
	rm -f "$t/started"
	check "$name" "$status" "$pattern" "$hugepin" run "$@" "$t/started"
	[ ! -e "$t/started" ] || result 'not ok' "$name: but the program was started"
}

script() { printf '%s\n' "$2" >"$t/$1"; chmod 755 "$t/$1"; }

# ---------------------------------------------------------------- itself

version=$(awk '/define HUGEPIN_VERSION_M/ { v = v "." $3 } END { print substr(v, 2) }' include/hugepin.h)
check 'tells its version' 0 "^hugepin ${version//./\\.}\$" "$hugepin" --version
check 'helps' 0 '^usage: hugepin run' "$hugepin" --help
while read -r name; do
	check "help shows --$name" 0 "^  --$name(=|\\[=)" "$hugepin" run --help
done < <(sed -n 's/^\tX(\([A-Z_]*\), .*/\1/p' base/config.h | tr 'A-Z_' 'a-z-')
check 'wants a command' 2 '^usage:' "$hugepin"
check 'refuses an unknown command' 2 "no command 'walk'" "$hugepin" walk
check 'notices that its output is lost' 1 'standard output: No space' bash -c "'$hugepin' info >/dev/full"

# ---------------------------------------------------------------- run: what is passed on

loaded="^[0-9a-f]+-.* $t/lib/libhugepin-malloc\.so"
check 'runs a program under the library' 0 "$loaded" "$hugepin" run -- cat /proc/self/maps
check 'needs no dashes before the program' 0 "$loaded" "$hugepin" run cat /proc/self/maps
check 'takes the library beside it first' 0 " $(realpath "$build")/libhugepin-malloc\.so" \
	"$build/hugepin" run cat /proc/self/maps
check 'passes the status on' 7 '^$' "$hugepin" run sh -c 'exit 7'
check 'passes arguments on untouched' 0 '^<--fork=no><><a b>$' \
	"$hugepin" run -- printf '<%s>' --fork=no '' 'a b'
check 'leaves options behind the program alone' 0 '^ *[0-9]+ /dev/null$' "$hugepin" run wc -c /dev/null
check 'sets a word' 0 '^cow$' "$hugepin" run --fork=cow -- printenv HUGEPIN_FORK
check 'sets a size' 0 '^64g$' "$hugepin" run --span=64g -- printenv HUGEPIN_SPAN
check 'takes a default outside the range' 0 '^0$' "$hugepin" run --span=0 -- printenv HUGEPIN_SPAN
check 'sets a time given apart' 0 '^500ms$' "$hugepin" run --decay 500ms -- printenv HUGEPIN_DECAY
check 'a flag alone is 1' 0 '^1$' "$hugepin" run --abort printenv HUGEPIN_ABORT
check 'a flag may be 0' 0 '^0$' "$hugepin" run --abort=0 printenv HUGEPIN_ABORT
check 'an option beats the environment' 0 '^9$' env HUGEPIN_FIT=1 "$hugepin" run --fit=9 printenv HUGEPIN_FIT
check 'keeps what was preloaded, behind its own' 0 "^$t/lib/libhugepin-malloc\.so:libc\.so\.6\$" \
	env LD_PRELOAD=libc.so.6 "$hugepin" run printenv LD_PRELOAD

# ---------------------------------------------------------------- run: what is refused

refuses 'an unknown option' 2 "unrecognized option '--speed=1'" --speed=1 touch
check 'wants a program' 2 'which program' "$hugepin" run --
while read -r option accepts; do
	refuses "a bad value: $option" 2 "$option is not understood: it takes $accepts\$" "$option" touch
done <<'END'
--pages=huge one of auto, hugetlb, thp, base, 1g
--pages= one of auto, hugetlb, thp, base, 1g
--numa=near local, interleave or a number from 0 to 1023
--numa=-1 local, interleave or a number from 0 to 1023
--fork=0 one of copy, cow
--span=1M 0 or a size from 4M to 4T
--span=-1 0 or a size from 4M to 4T
--span=18446744073717940224 0 or a size from 4M to 4T
--span=16777217T 0 or a size from 4M to 4T
--extent=3M a power of two from 2M to 1G
--fit=0 a number from 1 to 64
--fit=65 a number from 1 to 64
--fit=4K a number from 1 to 64
--decay=1h a time in ms or s from 0 to 1099511627776ms
--stats=yes 0 or 1
END

refuses 'a program that is not there' 127 'no-such-program: not found' no-such-program
refuses 'a path that is not there' 127 'not found' "$t/no/such"
refuses 'an empty name' 127 'not found' ''
echo : >"$t/plain"
refuses 'a file that may not be executed' 126 'cannot be executed' "$t/plain"
check 'a file in PATH that may not be executed' 126 'plain: cannot be executed' \
	env PATH="$t:$PATH" "$hugepin" run plain
refuses 'a directory' 126 'cannot be executed' "$t"
check 'goes on along PATH behind a file that may not be executed' 0 "$loaded" \
	env PATH="$t/no:$t/dir:$PATH" bash -c "mkdir '$t/dir'; : >'$t/dir/cat'; '$hugepin' run cat /proc/self/maps"

echo 'int main(void) { return 0; }' >"$t/main.c"
for how in -static -static-pie; do
	gcc $how -o "$t/static" "$t/main.c"
	refuses "a program linked with $how" 125 "$t/static is statically linked" "$t/static"
done
gcc -Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1 -o "$t/musl" "$t/main.c"
refuses 'a program of another C library' 125 'another C library .*ld-musl' "$t/musl"
cp "$(command -v cat)" "$t/cat"
cp "$t/cat" "$t/narrow" && printf '\1' | dd of="$t/narrow" bs=1 seek=4 conv=notrunc status=none
refuses 'a 32-bit program' 125 'another architecture \(32 bits' "$t/narrow"
cp "$t/cat" "$t/foreign" && printf '\377' | dd of="$t/foreign" bs=1 seek=18 conv=notrunc status=none
refuses 'a program for another machine' 125 'another architecture \(64 bits, ELF machine 255' "$t/foreign"
cp "$t/cat" "$t/torn" && printf '\377\377\377\377\377\377\377\177' | dd of="$t/torn" bs=1 seek=32 conv=notrunc status=none
check 'survives a header that points nowhere' 125 'statically linked' "$hugepin" run "$t/torn"

# ---------------------------------------------------------------- run: scripts

script works '#!/bin/sh
cat /proc/$$/maps'
check 'runs a script' 0 "$loaded" "$hugepin" run "$t/works"
script bare 'cat /proc/self/maps'
check 'runs a script without a first line, as a shell would' 0 "$loaded" "$hugepin" run "$t/bare"
script by-static "#! $t/static -x"
refuses 'a script with a static interpreter' 125 "$t/static is statically linked" "$t/by-static"
script by-script "#!$t/by-static"
refuses 'a script whose interpreter is one' 125 "$t/static is statically linked" "$t/by-script"
script by-env '#!/usr/bin/env static'
check 'a script with env and a static interpreter' 125 "$t/static is statically linked" \
	env PATH="$t:$PATH" "$hugepin" run "$t/by-env"
script by-none "#!$t/none"
refuses 'a script without its interpreter' 126 "its interpreter $t/none cannot be executed" "$t/by-none"
script loop "#!$t/loop"
refuses 'a script that is its own interpreter' 126 'symbolic links|[Ee]xec' "$t/loop"

# ---------------------------------------------------------------- run: privileges

nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if [ "$(id -u)" != 0 ]; then
	skip 'setuid, setgid and capable programs' 'needs root'
elif grep -q '^NoNewPrivs:.*1' /proc/self/status || findmnt -no OPTIONS -T "$t" | grep -qw nosuid; then
	skip 'setuid, setgid and capable programs' 'privileges cannot be raised here'
else
	cp "$t/cat" "$t/setuid" && chown 65534 "$t/setuid" && chmod 4755 "$t/setuid"
	refuses 'a set-user-ID program' 125 "$t/setuid is set-user-ID" "$t/setuid"
	check 'a set-user-ID program that is already that user' 0 "$loaded" \
		"${nobody[@]}" "$hugepin" run "$t/setuid" /proc/self/maps
	cp "$t/cat" "$t/setgid" && chgrp 65534 "$t/setgid" && chmod 2755 "$t/setgid"
	refuses 'a set-group-ID program' 125 "$t/setgid is set-group-ID" "$t/setgid"
	check 'ignores the bit when privileges cannot be gained' 0 "$loaded" \
		setpriv --no-new-privs "$hugepin" run "$t/setuid" /proc/self/maps
	if unshare -m true 2>/dev/null; then
		check 'ignores the bit on a mount that does' 0 "$loaded" unshare -m bash -c "mkdir '$t/mnt' &&
			mount -t tmpfs -o nosuid tmpfs '$t/mnt' && cp -p '$t/setuid' '$t/mnt' &&
			exec '$hugepin' run '$t/mnt/setuid' /proc/self/maps"
	else
		skip 'ignores the bit on a mount that does' 'nothing can be mounted here'
	fi
	cp /bin/sh "$t/secret" && chmod 711 "$t/secret"
	check 'runs what it may not read' 7 '^$' "${nobody[@]}" "$hugepin" run "$t/secret" -c 'exit 7'
	if python3 -c 'import os, struct, sys
os.setxattr(sys.argv[1], "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))' "$t/cat" 2>/dev/null; then
		check 'a program with file capabilities' 125 "$t/cat is given file capabilities" "${nobody[@]}" "$hugepin" run "$t/cat"
		check 'file capabilities give root nothing' 0 "$loaded" "$hugepin" run "$t/cat" /proc/self/maps
	else
		skip 'a program with file capabilities' 'no python3, or no such attributes here'
	fi
fi

# ---------------------------------------------------------------- run: the library

mkdir -p "$t/far/away" "$t/a b" && cp "$build/hugepin" "$t/far/away" && cp "$t/lib/"* "$build/hugepin" "$t/a b"
if [ -e /usr/local/lib/libhugepin-malloc.so ]; then
	skip 'a missing library' 'one is installed'
else
	check 'says where it looked for the library' 125 \
		"libhugepin-malloc\.so is neither .* nor in $t/far/away/\.\./lib nor in" "$t/far/away/hugepin" run true
fi
check 'refuses a path that LD_PRELOAD cannot hold' 125 'a colon or a space' "$t/a b/hugepin" run true

# ---------------------------------------------------------------- info

pool=/sys/kernel/mm/hugepages/hugepages-2048kB
if [ -d $pool ]; then
	read -r total <$pool/nr_hugepages
	check 'info shows the pool' 0 "^  2 MiB .* $total +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+\$" "$hugepin" info
	[ "$total" != 0 ] || check 'info says how to reserve one' 0 "-> .*: echo [0-9]+ > $pool/nr_hugepages" "$hugepin" info
fi
thp=$(sed 's/.*\[\(.*\)\].*/\1/' /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null)
check 'info shows the THP setting' 0 "^  enabled +$thp|-> this kernel has none" "$hugepin" info
check 'info shows the library' 0 "^  library +$t/lib/libhugepin-malloc\.so\$" "$hugepin" info
check 'info shows a default' 0 '^  HUGEPIN_DECAY +10s +\(default\)$' "$hugepin" info
check 'info shows a value in force' 0 '^  HUGEPIN_DECAY +1500ms +\(default 10s\)$' env HUGEPIN_DECAY=1500 "$hugepin" info
check 'info shows what a wrong value comes to' 0 '^  HUGEPIN_DECAY +10s +\(default\)$' env HUGEPIN_DECAY=1x "$hugepin" info
check 'info says which value is wrong' 0 '^hugepin: HUGEPIN_DECAY=1x is not understood: it takes a time .*; using 10s$' \
	env HUGEPIN_DECAY=1x "$hugepin" info
check 'info says which name is wrong' 0 '^hugepin: HUGEPIN_PAGE is not known; known are HUGEPIN_PAGES, NUMA, FORK' \
	env HUGEPIN_PAGE=1 "$hugepin" info
check 'info shows a word for a number' 0 '^  HUGEPIN_NUMA +interleave +\(default local\)$' env HUGEPIN_NUMA=interleave \
	"$hugepin" info
mkdir -p "$t/cache/hugepin"
check 'info says when no device has been measured' 0 '^  measured +nothing yet; .*: hugepin calibrate$' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
cat >"$t/cache/hugepin/sg-mlx5_0_15b3_1017-16.35.3006-A_CPU" <<-END
	hugepin-sg-model 1
	device mlx5_0 15b3:1017
	firmware 16.35.3006
	cpu A CPU
	refused 4
	wr 800.000000
	element 30.000000
	lookup 12.000000
	line 2.000000
	byte 0.100000
	piece 2.000000
	copy_byte 0.020000
	cold 100.000000
	cold_piece 12.000000
	cold_byte 0.100000
	inline_wr 700.000000
	inline_piece 1.000000
	inline_byte 0.300000
	end
END
check 'info shows what has been measured' 0 '^  mlx5_0 15b3:1017, firmware 16\.35\.3006, A CPU$' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
check 'and the cheapest modes' 0 '^ +8   i/i   i/i   i/i   c/c   c/c' env XDG_CACHE_HOME="$t/cache" "$hugepin" info
check 'and what a provider gets wrong' 0 '^    -> this provider loses bytes of what is sent by several elements' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
sed -i 's/^refused 4/refused 0/' "$t/cache/hugepin"/sg-*
check 'gathering among them' 0 '^ +4 .* c/g   c/g   c/g$' env XDG_CACHE_HOME="$t/cache" "$hugepin" info
echo more >>"$t/cache/hugepin/sg-mlx5_0_15b3_1017-16.35.3006-A_CPU"
check 'a damaged file is named' 0 '^  sg-mlx5_0_15b3_1017-16\.35\.3006-A_CPU cannot be read' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
check 'calibrate takes one device' 2 '^usage: hugepin calibrate \[DEVICE\]$' "$hugepin" calibrate a b
check 'info sees ulimit -v' 0 '^    -> .*: ulimit -v unlimited$' bash -c "ulimit -S -v 4000000; '$hugepin' info"
check 'info sees ulimit -d' 0 '^    -> .*: ulimit -d unlimited$' bash -c "ulimit -S -d 4000000; '$hugepin' info"
check 'info knows who may raise a hard limit' 0 '^    -> .*: as root, prlimit --pid [0-9]+ --as=unlimited$' \
	bash -c "ulimit -v 4000000; '$hugepin' info"
check 'info shows ulimit -l' 0 '^  locked memory +64 KiB, at most 64 KiB' bash -c "ulimit -l 64; '$hugepin' info"
check 'info has no advice about ulimit -l for who may exceed it' 1 '' \
	bash -c "ulimit -l 64; '$hugepin' info | grep -A1 '^  locked memory' | grep -e '->'"
if setpriv --bounding-set=-all --inh-caps=-all true 2>/dev/null; then
	few=(bash -c "ulimit -l \$0 && setpriv --bounding-set=-all --inh-caps=-all '$hugepin' info |
		grep -A1 '^  locked memory'")
	check 'info says that ulimit -l is less than an extent' 0 '^    -> .*: as root, prlimit --pid [0-9]+ --memlock=' \
		"${few[@]}" 64
	check 'info is content with an extent' 0 '^  CAP_IPC_LOCK +no' env HUGEPIN_EXTENT=2M "${few[@]}" 2048
else
	skip 'info says that ulimit -l is less than an extent' 'capabilities cannot be dropped here'
fi
# python3 -c "$allowed" NUMBER ARG...: whether the kernel lets us have that system call's file.
allowed='import ctypes, sys
a = [ctypes.c_long(int(x)) for x in sys.argv[1:]] + [ctypes.create_string_buffer(120)]
sys.exit(ctypes.CDLL(None).syscall(*a) < 0)'
# python3 -c "$forbid" COMMAND...: with userfaultfd and io_uring_setup forbidden by seccomp, as in many a container.
forbid='import ctypes, os, struct, sys
code = b"".join(struct.pack("HBBI", *i) for i in [
	(0x20, 0, 0, 0), (0x15, 1, 0, 323), (0x15, 0, 1, 425), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)])
text = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(text))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])'
if ! python3 -c "$forbid" /bin/true 2>/dev/null; then
	skip 'info tells what the pin cache can have' 'no python3, or no seccomp here'
else
	if python3 -c "$allowed" 323 1; then
		check 'info sees userfaultfd' 0 '^  userfaultfd +usable' "$hugepin" info
	else
		check 'info misses userfaultfd' 0 '^  userfaultfd +not usable \(' "$hugepin" info
	fi
	if python3 -c "$allowed" 425 1; then
		check 'info sees io_uring' 0 '^  io_uring +usable' "$hugepin" info
	else
		check 'info misses io_uring' 0 '^  io_uring +not usable \(' "$hugepin" info
	fi
	check 'info says that userfaultfd is forbidden' 0 '^  userfaultfd +not usable \(Operation not permitted\)$' \
		python3 -c "$forbid" "$hugepin" info
	check 'info says what is lost without it' 0 '^    -> .* registered anew for each pin, except under libhugepin-malloc' \
		python3 -c "$forbid" "$hugepin" info
	check 'info says that io_uring is forbidden' 0 '^  io_uring +not usable \(Operation not permitted\)$' \
		python3 -c "$forbid" "$hugepin" info
fi
check 'info takes no arguments' 2 '^usage: hugepin info' "$hugepin" info me

# below GROUP FILE VALUE: make a group, $above, with a ceiling, and one in it. 1 if that cannot be.
below()
{
	above=$1/hugepin-command-$$
	mkdir "$above" 2>/dev/null || return 1
	if mkdir "$above/below" 2>/dev/null && echo "$3" 2>/dev/null >"$above/$2"; then return 0; fi
	drop
	return 1
}
drop() { rmdir "$above/below" "$above"; }
in_group() { check "$1" 0 "$2" bash -c "echo \$\$ >'$above/below/cgroup.procs' && exec '$hugepin' info"; }

unified=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
memory=$(awk '$3 == "cgroup" && $4 ~ /(^|,)memory(,|$)/ { print $2; exit }' /proc/mounts)
if [ -n "$memory" ]; then
	memory+=$(sed -n 's/^[0-9]*:memory:\(.*\)/\1/p' /proc/self/cgroup) file=memory.limit_in_bytes
else
	memory=$unified file=memory.max
fi
if [ -n "$memory" ] && below "$memory" $file 200M; then
	in_group 'info shows the memory of a group above' "^  $file +200 MiB, .* of it used, by $above/$file\$"
	drop
else
	skip 'info shows the memory of a group above' 'no control group can be made here'
fi
if [ -n "$unified" ] && grep -qw hugetlb "$unified/cgroup.controllers"; then
	grep -qw hugetlb "$unified/cgroup.subtree_control"
	had=$?
	{ echo +hugetlb >"$unified/cgroup.subtree_control"; } 2>/dev/null
	file=hugetlb.2MB.rsvd.max
	if below "$unified" $file 0; then
		in_group 'info says that a group gets no hugepages' "^    -> hugepages are refused .*: echo max > $above/$file\$"
		echo 64M >"$above/$file"
		in_group 'info shows how many a group gets' "^  $file +64 MiB, 0 bytes of it used, by $above/$file\$"
		drop
	else
		skip 'info says that a group gets no hugepages' 'no control group can be made here'
	fi
	[ $had = 0 ] || { echo -hugetlb >"$unified/cgroup.subtree_control"; } 2>/dev/null
else
	skip 'info says that a group gets no hugepages' 'no hugetlb controller in version 2'
fi

echo "1..$number"
