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
cp "$build/hugepin" "$build/hugepin-plot.py" "$t/bin"
cp "$build"/libhugepin*.so* "$t/lib"
hugepin=$t/bin/hugepin

result() { number=$((number + 1)); echo "$1 $number - $2"; }
skip() { result ok "$1 # SKIP $2"; }

# check NAME STATUS PATTERN COMMAND...: the command ends with STATUS (a pattern of the shell), and its output or errors have a line
# like PATTERN.
check()
{
	local name=$1 status=$2 pattern=$3 out got
	shift 3
	out=$(timeout 400 "$@" 2>&1)
	got=$?
	# shellcheck disable=SC2053 # a pattern
	if [[ $got == $status ]] && grep -Eq -e "$pattern" <<<"$out"; then
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
check 'an option beats the environment' 0 '^9$' env HUGEPIN_RESERVE=1 "$hugepin" run --reserve=9 printenv HUGEPIN_RESERVE
check 'keeps what was preloaded, behind its own' 0 "^$t/lib/libhugepin-malloc\.so\.0:$t/lib/libhugepin\.so\.0:libc\.so\.6\$" \
	env LD_PRELOAD=libc.so.6 "$hugepin" run printenv LD_PRELOAD

check 'preloads a library that is asked for, before its own' 0 "^$t/lib/libhugepin-verbscache\.so\.0:$t/lib/libhugepin-malloc\.so\.0:" \
	"$hugepin" run --verbs-cache printenv LD_PRELOAD
check 'passes on which registrations are kept' 0 '^remote$' "$hugepin" run --verbs-cache=remote printenv HUGEPIN_X_VERBS_CACHE
check 'with a policy it preloads the cache of registrations' 0 "^$t/lib/libhugepin-verbscache\.so\.0:$t/lib/libhugepin-malloc" \
	"$hugepin" run --policy=predict printenv LD_PRELOAD
check 'and turns off those of UCX and libfabric' 0 '^FI_MR_CACHE_MAX_COUNT=0 UCX_IB_REG_METHODS=direct UCX_RCACHE_ENABLE=n$' \
	"$hugepin" run --policy=predict sh -c 'env | sort | grep -E "^(UCX|FI)_" | xargs'
check 'unless the user has set their variables' 0 '^FI_MR_CACHE_MAX_COUNT=7 UCX_IB_REG_METHODS=direct UCX_RCACHE_ENABLE=y$' env UCX_RCACHE_ENABLE=y FI_MR_CACHE_MAX_COUNT=7 \
	"$hugepin" run --policy=predict sh -c 'env | sort | grep -E "^(UCX|FI)_" | xargs'
check 'and says so, and what is not kept' 0 \
	'--policy: .*left to it \(UCX_RCACHE_ENABLE=n UCX_IB_REG_METHODS=direct FI_MR_CACHE_MAX_COUNT=0\); what peers .*=remote alone$' \
	"$hugepin" run --policy=lru true
check 'once for all ranks' 0 '^$' env OMPI_COMM_WORLD_RANK=1 "$hugepin" run --policy=lru --verbs-cache=remote true
check 'not for a policy in the environment' 0 '^$' env HUGEPIN_POLICY=lru "$hugepin" run true
check 'says nothing of the variables of other libraries' 0 '^$' env HUGEPIN_X_MPI_MIN=few "$hugepin" run true

# ---------------------------------------------------------------- run: what is refused

mkdir "$t/few" && cp -P "$t"/lib/libhugepin{,-malloc}.so* "$t/few" && cp "$hugepin" "$t/few"
check 'refuses a library that is not installed' 125 "run: --hooks: $t/few/libhugepin-hooks\.so\.0 is not installed$" \
	"$t/few/hugepin" run --hooks true
refuses 'an unknown word for the peers' 2 '--verbs-cache=peers is not understood: it takes one of off, local, remote$' \
	--verbs-cache=peers touch
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
--reserve=-1 a number from 0 to 1073741824
--reserve=1073741825 a number from 0 to 1073741824
--reserve=4K a number from 0 to 1073741824
--pin-budget=some max or a size from 0 to 1024T
--decay=1h a time in ms or s from 0 to 1099511627776ms
--stats=yes 0, 1, 2 or file:FILE
END

refuses 'a program that is not there' 127 'no-such-program: not found' no-such-program
refuses 'a path that is not there' 127 'not found' "$t/no/such"
refuses 'an empty name' 127 "run: '': not found" ''
refuses 'a NUMA node that is not there' 2 '--numa=1023: this machine has none of that number$' --numa=1023 true
refuses 'a processor that is not there' 2 '--helper-cpu=4095: this machine has none of that number$' --helper-cpu=4095 true
check 'info takes no arguments' 2 'hugepin info: it takes no arguments$' "$hugepin" info x
check 'top takes one process' 2 'hugepin top: it takes the number of one process$' "$hugepin" top 1 2
check 'stats takes no options' 2 'hugepin stats: it takes names of files, and no options$' "$hugepin" stats --json x
echo : >"$t/plain"
refuses 'a file that may not be executed' 126 'cannot be executed: Permission denied$' "$t/plain"
check 'a file in PATH that may not be executed' 126 'plain: cannot be executed' \
	env PATH="$t:$PATH" "$hugepin" run plain
refuses 'a directory' 126 'cannot be executed: Is a directory$' "$t"
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

# ---------------------------------------------------------------- run: what does not help

cat >"$t/own.c" <<'END'
#include <stddef.h>
#include <stdlib.h>
static char arena[1 << 24];
static size_t used;
void *malloc(size_t size) { void *p = arena + used; used += (size + 15) & ~(size_t)15; return p; }
void free(void *p) { (void)p; }
int main(void) { char *p = malloc(1 << 20); return p >= arena && p < arena + sizeof arena ? 5 : 6; }
END
gcc -fno-builtin -o "$t/own" "$t/own.c"
check 'says that a program has a malloc of its own, and runs it' 5 "^hugepin run: $t/own has a malloc of its own" "$hugepin" run "$t/own"
strip "$t/own"
check 'also when it is stripped' 5 "^hugepin run: $t/own has a malloc of its own" "$hugepin" run "$t/own"
script by-own "#!$t/own"
check 'also of the interpreter of a script' 5 "^hugepin run: $t/own has a malloc of its own" "$hugepin" run "$t/by-own"
gcc -fno-builtin -fvisibility=hidden -o "$t/inside" "$t/own.c"
cp "$t/inside" "$t/inside-stripped" && strip "$t/inside-stripped"
hidden="has an allocator inside its own file \\(malloc\\), which no library replaces: "
check 'says that a program has one that it does not export' 5 "^hugepin run: $t/inside $hidden" "$hugepin" run "$t/inside"
check 'and nothing where its table of symbols is gone' 5 '^$' "$hugepin" run "$t/inside-stripped"
echo >"$t/info" && objcopy --add-section .go.buildinfo="$t/info" "$t/cat" "$t/go"
check 'says that a program is one of Go' 0 "^hugepin run: $t/go is a Go program, whose heap is not malloc's: " "$hugepin" run "$t/go" /dev/null
script by-go "#!$t/go"
check 'also of an interpreter' 0 "^hugepin run: $t/go is a Go program, " "$hugepin" run "$t/by-go"
gcc -static -o "$t/go-static" "$t/main.c" && objcopy --add-section .go.buildinfo="$t/info" "$t/go-static"
refuses 'a static one' 125 "$t/go-static is a Go program, whose heap is not malloc's: " "$t/go-static"
echo 'unsigned la_version(unsigned version) { return version; }' >"$t/audit.c"
gcc -shared -fPIC -o "$t/audit.so" "$t/audit.c"
check 'runs a program that is audited, with the tunables that it has' 0 '^glibc.malloc.check=0:glibc.rtld.optional_static_tls=4096$' \
	env LD_AUDIT="$t/audit.so" GLIBC_TUNABLES=glibc.malloc.check=0 "$hugepin" run printenv GLIBC_TUNABLES
check 'also if these leave too little room for the library' 0 '^glibc.rtld.optional_static_tls=512:glibc.rtld.optional_static_tls=4096$' \
	env LD_AUDIT="$t/audit.so" GLIBC_TUNABLES=glibc.rtld.optional_static_tls=512 "$hugepin" run printenv GLIBC_TUNABLES
sed 's/malloc/my_malloc/g' "$t/own.c" >"$t/other.c"
gcc -fno-builtin -rdynamic -o "$t/other" "$t/other.c"
check 'and nothing of a malloc by another name' 5 '^$' "$hugepin" run "$t/other"
check 'and nothing of a program that only calls malloc' 0 '^$' "$hugepin" run sort /dev/null
cp "$t/own" "$t/cut" && printf '\377\377' | dd of="$t/cut" bs=1 seek=40 conv=notrunc status=none # e_shoff
check 'survives section headers that point nowhere' 5 '^$' "$hugepin" run "$t/cut"

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
script by-odd $'#!/no\033[2J'
refuses 'and does not print what steers a terminal' 126 'its interpreter /no\?\[2J cannot be executed' "$t/by-odd"
script loop "#!$t/loop"
refuses 'a script that is its own interpreter' 126 'symbolic links|[Ee]xec' "$t/loop"

# ---------------------------------------------------------------- run: privileges

nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if [ "$(id -u)" != 0 ]; then
	skip 'setuid, setgid and capable programs' 'needs root'
elif ! "${nobody[@]}" true 2>/dev/null || grep -q '^NoNewPrivs:.*1' /proc/self/status || findmnt -no OPTIONS -T "$t" | grep -qw nosuid; then
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
if [ -e /usr/local/lib/libhugepin-malloc.so.0 ]; then
	skip 'a missing library' 'one is installed'
else
	check 'says where it looked for the library' 125 \
		"libhugepin-malloc\.so\.0 is neither .* nor in $t/far/away/\.\./lib nor in" "$t/far/away/hugepin" run true
fi
check 'refuses a path that LD_PRELOAD cannot hold' 125 'a colon or a space' "$t/a b/hugepin" run true

# ---------------------------------------------------------------- info

any='[034]' # statuses of info: the machine decides
pool=/sys/kernel/mm/hugepages/hugepages-2048kB
if [ -d $pool ]; then
	read -r total <$pool/nr_hugepages
	check 'info shows the pool' "$any" "^  2 MiB .* $total +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+\$" "$hugepin" info
	[ "$total" != 0 ] || check 'info says how to reserve one' "$any" "-> .*: echo [0-9]+ > $pool/nr_hugepages" "$hugepin" info
fi
thp=$(sed 's/.*\[\(.*\)\].*/\1/' /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null)
check 'info shows the THP setting' "$any" "^  enabled +$thp|-> this kernel has none" "$hugepin" info
check 'info shows the library' "$any" "^  library +$t/lib/libhugepin-malloc\.so\.0\$" "$hugepin" info
check 'info shows a default' "$any" '^  HUGEPIN_DECAY +10s +\(default\)$' "$hugepin" info
check 'info shows a value in force' "$any" '^  HUGEPIN_DECAY +1500ms +\(default 10s\)$' env HUGEPIN_DECAY=1500 "$hugepin" info
check 'info shows what a wrong value comes to' "$any" '^  HUGEPIN_DECAY +10s +\(default\)$' env HUGEPIN_DECAY=1x "$hugepin" info
check 'info says which value is wrong' "$any" '^hugepin: HUGEPIN_DECAY=1x is not understood: it takes a time .*; using 10s$' \
	env HUGEPIN_DECAY=1x "$hugepin" info
check 'info says which name is wrong' "$any" '^hugepin: HUGEPIN_PAGE is not known; known are HUGEPIN_PAGES, POPULATE, NUMA' \
	env HUGEPIN_PAGE=1 "$hugepin" info
check 'info shows a word for a number' "$any" '^  HUGEPIN_NUMA +interleave +\(default local\)$' env HUGEPIN_NUMA=interleave \
	"$hugepin" info
mkdir -p "$t/cache/hugepin"
check 'info says when no device has been measured' "$any" '^  measured +nothing yet; .*: hugepin calibrate$' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
cat >"$t/cache/hugepin/sg-mlx5_0_15b3_1017-16.35.3006-A_CPU" <<-END
	hugepin-sg-model 3
	device mlx5_0 15b3:1017
	firmware 16.35.3006
	cpu A CPU
	refused 4
	copy_below 256 24
	apart_below 700 96
	inline_pieces 8 2
	end
END
check 'info shows what has been measured' "$any" '^  mlx5_0 15b3:1017, firmware 16\.35\.3006, A CPU$' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
check 'with its thresholds' "$any" '^    not in the cache: pieces below 24 bytes are copied, below 96 if .*; at most 2 pieces go inline$' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
check 'and what a provider gets wrong' "$any" '^    -> this provider loses bytes of what is sent by several elements' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
sed -i 's/^refused 4/refused 0/' "$t/cache/hugepin"/sg-*
sed -i '1s/3/2/' "$t/cache/hugepin"/sg-*
check 'a file of another version is named' "$any" '^  sg-mlx5_0_15b3_1017-16\.35\.3006-A_CPU is of another version of hugepin, and is not used' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
sed -i '1s/2/3/' "$t/cache/hugepin"/sg-*
echo more >>"$t/cache/hugepin/sg-mlx5_0_15b3_1017-16.35.3006-A_CPU"
check 'a damaged file is named' "$any" '^  sg-mlx5_0_15b3_1017-16\.35\.3006-A_CPU cannot be read' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
check 'info says when no device was measured that registers on demand' "$any" \
	'^  measured +nothing yet; with a device that registers on demand: hugepin calibrate$' env XDG_CACHE_HOME="$t/cache" "$hugepin" info
cat >"$t/cache/hugepin/paging-mlx5_0_15b3_1017-16.35.3006-A_CPU" <<-END
	hugepin-paging-terms 1
	device mlx5_0 15b3:1017
	firmware 16.35.3006
	cpu A CPU
	reg 16000.000000
	reg_page 240.000000
	dereg 9000.000000
	dereg_page 80.000000
	demand 7000.000000
	demand_page 0.000000
	bring 12000.000000
	bring_page 800.000000
	fault_send 86000.000000
	fault_receive 110000.000000
	end
END
check 'info shows what registering takes' "$any" '^    registering 16 us \+ 0\.24 us/page, deregistering 9 us \+ 0\.08 us/page$' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
check 'and on demand' "$any" '^    on demand: registering 7 us \+ 0 us/page, bringing in 12 us \+ 0\.8 us/page$' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
check 'and a fault' "$any" '^    a fault: 86 us/page sent, 110 us/page received$' env XDG_CACHE_HOME="$t/cache" "$hugepin" info
sed -i 's/^fault_receive/fault_receives/' "$t/cache/hugepin"/paging-*
check 'a damaged file of these is named, too' "$any" '^  paging-mlx5_0_15b3_1017-16\.35\.3006-A_CPU cannot be read' \
	env XDG_CACHE_HOME="$t/cache" "$hugepin" info
check 'calibrate takes one device' 2 '^usage: hugepin calibrate \[DEVICE\]$' "$hugepin" calibrate a b
check 'info sees ulimit -v' "$any" '^    -> .*: ulimit -v unlimited$' bash -c "ulimit -S -v 4000000; '$hugepin' info"
check 'info sees ulimit -d' "$any" '^    -> .*: ulimit -d unlimited$' bash -c "ulimit -S -d 4000000; '$hugepin' info"
check 'info knows who may raise a hard limit' "$any" '^    -> .*: as root, prlimit --pid [0-9]+ --as=unlimited$' \
	bash -c "ulimit -v 4000000; '$hugepin' info"
check 'info shows ulimit -l' "$any" '^  locked memory +64 KiB, at most 64 KiB' bash -c "ulimit -l 64; '$hugepin' info"
check 'info has no advice about ulimit -l for who may exceed it' 1 '' \
	bash -c "ulimit -l 64; '$hugepin' info | grep -A1 '^  locked memory' | grep -e '->'"
if setpriv --bounding-set=-all --inh-caps=-all true 2>/dev/null; then
	few=(bash -c "ulimit -l \$0 && setpriv --bounding-set=-all --inh-caps=-all '$hugepin' info |
		grep -A3 '^  locked memory'")
	check 'info says that ulimit -l is less than an extent' "$any" '^    -> .*: as root, prlimit --pid [0-9]+ --memlock=' \
		"${few[@]}" 64
	check 'info is content with an extent' "$any" '^  CAP_IPC_LOCK +no' env HUGEPIN_EXTENT=2M "${few[@]}" 2048
else
	skip 'info says that ulimit -l is less than an extent' 'capabilities cannot be dropped here'
fi
if unshare -Ur true 2>/dev/null; then
	check 'info knows that a user namespace lifts no limit' "$any" '^  CAP_IPC_LOCK +in this user namespace only' \
		unshare -Ur "$hugepin" info
else
	skip 'info knows that a user namespace lifts no limit' 'user namespaces are not allowed here'
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
		check 'info sees userfaultfd' "$any" '^  userfaultfd +usable' "$hugepin" info
	else
		check 'info misses userfaultfd' "$any" '^  userfaultfd +not usable \(' "$hugepin" info
	fi
	if python3 -c "$allowed" 425 1; then
		check 'info sees io_uring' "$any" '^  io_uring +usable' "$hugepin" info
	else
		check 'info misses io_uring' "$any" '^  io_uring +not usable \(' "$hugepin" info
	fi
	check 'info says that userfaultfd is forbidden' "$any" '^  userfaultfd +not usable \(Operation not permitted\)$' \
		python3 -c "$forbid" "$hugepin" info
	check 'info says what is lost without it' "$any" '^    -> .* registered anew for each pin, except under libhugepin-malloc' \
		python3 -c "$forbid" "$hugepin" info
	check 'info says that io_uring is forbidden' "$any" '^  io_uring +not usable \(Operation not permitted\)$' \
		python3 -c "$forbid" "$hugepin" info
fi
check 'info takes no arguments' 2 '^usage: hugepin info' "$hugepin" info me

check 'info has no other options' 2 '^usage: hugepin info' "$hugepin" info --all
for sub in run check info calibrate top plot; do
	check "$sub helps" 0 "^usage: hugepin $sub " "$hugepin" $sub --help
	check "$sub refuses an unknown option" 2 "^hugepin $sub: (unrecognized option '--walk'|option --walk not recognized)" "$hugepin" $sub --walk
	check 'and shows its usage then' 2 "^usage: hugepin $sub " "$hugepin" $sub --walk
done
check 'what it has been told to tell goes to the standard output' 0 '^$' bash -c "'$hugepin' plot --help 2>&1 >/dev/null"
check 'complaints do not' 2 '^$' bash -c "'$hugepin' plot 2>/dev/null"
check 'refuses an unknown option' 2 "^hugepin: there is no option '--walk'" "$hugepin" --walk

# ---------------------------------------------------------------- info: what the kernel says

# both COMMAND...: as COMMAND; but the status is 99 if the text is not what files of the kernel say, or does not fit the status.
# shellcheck disable=SC2016 # for the shell that runs it
script both '#!/bin/bash
t=${0%/*}
"$@" >"$t/text"
status=$?
cat "$t/text"
python3 "$t/compare" "$t" $status || exit 99
exit $status'
cat >"$t/compare" <<'END'
import os, re, resource, sys
t, status = sys.argv[1], int(sys.argv[2])
text = open(t + "/text").read()
unit = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
def line(name, pattern):
    m = re.search("^  " + re.escape(name) + " +" + pattern + "$", text, re.M)
    assert m, (name, pattern)
    return m
def near(written, exact):  # rounded down, as hp_line_size() does
    n, u = written.split()
    assert 0 <= exact - int(float(n) * unit[u]) <= unit[u], (written, exact)
def number(file):  # a file that is missing counts as 0
    return int(open(file).read()) if os.path.exists(file) else 0
def choice(file):
    return re.search(r"\[(.*)\]", open(file).read())[1]

arrows = re.findall("^    -> (.*)$", text, re.M)
assert (status == 0) == (not arrows) and status in (0, 3, 4), status
near(line("base pages", "(.*)")[1], os.sysconf("SC_PAGESIZE"))
line("kernel", re.escape(os.uname().release) + ", " + os.uname().machine)
for key in "overcommit_memory", "max_map_count":
    assert int(line("vm." + key, "([0-9]+)")[1]) == number("/proc/sys/vm/" + key)

pools = "/sys/kernel/mm/hugepages"
sizes = sorted(int(re.search("[0-9]+", d)[0]) for d in os.listdir(pools))
rows = re.findall("^  ([0-9.]+ .iB) +(?:\\(default\\))? +(\\d+) +(\\d+) +(\\d+) +(\\d+) +(\\d+)$", text, re.M)
assert len(rows) == len(sizes), (rows, sizes)
for row in rows:
    n, u = row[0].split()
    pool = "%s/hugepages-%dkB/" % (pools, float(n) * unit[u] / 1024)
    assert [int(x) for x in row[1:]] == [number(pool + f) for f in (
        "nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages", "nr_overcommit_hugepages")], row
nodes = re.findall("^  node (\\d+), ([0-9.]+) (.iB) +(\\d+) pages, (\\d+) free$", text, re.M)
for node, n, u, total, free in nodes:
    pool = "/sys/devices/system/node/node%s/hugepages/hugepages-%dkB/" % (node, float(n) * unit[u] / 1024)
    assert int(total) == number(pool + "nr_hugepages") and int(free) == number(pool + "free_hugepages"), pool
assert nodes

thp = "/sys/kernel/mm/transparent_hugepage/"
if os.path.exists(thp + "enabled"):
    own = thp + "hugepages-2048kB/enabled"
    line("enabled", choice(thp + "enabled") + (", for 2 MiB: " + choice(own) if os.path.exists(own) else ""))
    line("defrag", re.escape(choice(thp + "defrag")))
    near(line("size", "(.*)")[1], number(thp + "hpage_pmd_size"))
    line("since boot", "[0-9]+ hugepages given, [0-9]+ not found .*")
pages = re.match("Large buffers get (pages of the hugetlb pool|transparent hugepages|base pages)", text)[1]
assert (status == 4) == ("There are no hugepages here." in text) and (status != 4 or pages == "base pages"), (status, pages)

for name, limit in ("address space", resource.RLIMIT_AS), ("data", resource.RLIMIT_DATA), ("locked memory", resource.RLIMIT_MEMLOCK):
    soft, hard = resource.getrlimit(limit)
    if soft == resource.RLIM_INFINITY:
        line(name, "unlimited")
    else:
        m = line(name, "(.*), at most (.*)")
        near(m[1], soft)
        assert hard == resource.RLIM_INFINITY and m[2] == "unlimited" or near(m[2], hard) is None
line("CAP_IPC_LOCK", "(yes|no|in this).*")
ceilings = re.findall("^  (.*?) +(.*), (.*) of it used, by (/.*)$", text, re.M)
for limit, most, used, file in ceilings:
    assert os.path.basename(file) == limit
    near(most, number(file))
if not ceilings:
    line("memory, hugetlb", "no ceiling")

for name in "userfaultfd", "io_uring":
    line(name, "(usable.*|not usable \\(.*\\))")
version = tuple(int(x) for x in re.match("([0-9]+)[.]([0-9]+)", os.uname().release).groups())
assert "fixed buffers cannot be" not in text or version < (5, 19)
if not os.path.isdir("/sys/class/infiniband") or not os.listdir("/sys/class/infiniband"):
    line("verbs", "no device")

line("version", "[0-9]+[.][0-9]+")
line("libhugepin-verbs.so.0", "(?!not installed).+")
options = re.findall("^  (HUGEPIN_[A-Z_]*) +(.*?) +\\(default( .*)?\\)$", text, re.M)
assert options
for name, now, default in options:
    if name in os.environ:
        assert default and now.lower() == os.environ[name].lower().replace("1500", "1500ms"), (name, now)
    else:
        assert not default, (name, now, default)
END
check 'info does not print what steers a terminal' "$any" '^  HUGEPIN_TRACE +a\?\[2J\?\?b ' \
	env HUGEPIN_TRACE=$'a\033[2J\xc2\x9bb' "$hugepin" info

# ---------------------------------------------------------------- info: advice

# as FILE=TEXT... -- NAME STATUS PATTERN COMMAND...: check, where files of the kernel say these, and the pool is all free and our own.
as()
{
	local files=("$pool/nr_hugepages=600" "$pool/free_hugepages=600" "$pool"/{resv,surplus,nr_overcommit}_hugepages=0
		"$nodes/" "$nodes"/node0/hugepages/hugepages-2048kB/{nr,free}_hugepages=600)
	while [ "$1" != -- ]; do
		files+=("$1")
		shift
	done
	check "${@:2:3}" unshare -m bash -c "$pretend" "$t" "${files[@]}" -- "${@:5}"
}
# A directory that lacks such a file is covered by an empty one first: DIRECTORY/ as a FILE.
# shellcheck disable=SC2016 # for the shell in the namespace
pretend='n=0
while [ "$1" != -- ]; do
	case $1 in
	*/) mount -t tmpfs tmpfs "$1" || exit 99 ;;
	*)
		file=${1%%=*}
		if [ -e "$file" ]; then
			n=$((n + 1))
			echo "${1#*=}" >"$0/kernel.$n" && mount --bind "$0/kernel.$n" "$file" || exit 99
		else
			mkdir -p "${file%/*}" && echo "${1#*=}" >"$file" || exit 99
		fi ;;
	esac
	shift
done
shift
exec "$@"'
thp=/sys/kernel/mm/transparent_hugepage
nodes=/sys/devices/system/node
no_pool=("$pool/nr_hugepages=0" "$pool/free_hugepages=0")
calm=/proc/vmstat=$'nr_free_pages 1\nthp_fault_alloc 9000\nthp_fault_fallback 0'
some_thp=("$thp/enabled=always [madvise] never")
if ! unshare -m bash -c "$pretend" "$t" /proc/sys/vm/max_map_count=1 -- true 2>/dev/null || [ ! -d $pool ] || [ ! -d $thp ]; then
	skip 'info gives advice' 'nothing can be mounted here, or this kernel has no hugepages'
else
	info=("$t/both" "$hugepin" info)
	as -- 'info says what the kernel says' "$any" . "${info[@]}"
	as -- 'also what differs from the defaults' "$any" . env HUGEPIN_DECAY=1500 HUGEPIN_NUMA=interleave HUGEPIN_SPAN=8G HUGEPIN_TRACE=/x \
		HUGEPIN_FORK=cow "${info[@]}"
	as -- 'also limits' "$any" . bash -c "ulimit -v 4000000; ulimit -S -d 3000000; '$t/both' '$hugepin' info"
	sed -i '/^more/d; s/^refused 0/refused 1/' "$t/cache/hugepin"/sg-*
	as -- 'also where devices were measured' "$any" . env XDG_CACHE_HOME="$t/cache" "${info[@]}"
	if python3 -c "$allowed" 323 1 && python3 -c "$allowed" 425 1; then
		content=(/proc/sys/vm/overcommit_memory=0 /proc/sys/vm/max_map_count=65530
			"$thp/defrag=always defer defer+madvise [madvise] never" "$calm")
		[ ! -d /sys/class/infiniband ] || content+=(/sys/class/infiniband/)
		[ ! -e $thp/hugepages-2048kB/enabled ] || content+=("$thp/hugepages-2048kB/enabled=always [inherit] madvise never")
		as "${some_thp[@]}" "${content[@]}" -- 'info is content' 0 '^All of this is as it should be\.$' env XDG_CACHE_HOME=/nowhere "${info[@]}"
	fi
	as "${some_thp[@]}" -- 'info begins with the pages that buffers get' "$any" '^Large buffers get pages of the hugetlb pool \(1\.1 GiB free\), then transp' \
		"${info[@]}"
	as "${no_pool[@]}" "${some_thp[@]}" -- 'without a pool those are THP' 3 '^Large buffers get transparent hugepages' "${info[@]}"
	as "${no_pool[@]}" "${some_thp[@]}" -- 'or base pages, where only the pool is asked for' 3 \
		'^Large buffers get base pages: the pool has no free page, and HUGEPIN_PAGES=hugetlb forbids THP\.$' env HUGEPIN_PAGES=hugetlb "${info[@]}"
	as $thp/enabled='always madvise [never]' -- 'or THP, and they are off' 3 \
		'^Large buffers get base pages: THP is off, and HUGEPIN_PAGES=thp forbids the pool\.$' env HUGEPIN_PAGES=thp "${info[@]}"
	as "${no_pool[@]}" "${some_thp[@]}" -- 'run says once that the pool is empty' 0 \
		'^1 hugepin run: --pages=hugetlb, and the hugetlb pool has no free page \(0 in all\): buffers get base pages' \
		bash -c "'$hugepin' run --pages=hugetlb sh -c 'true; ls / >/dev/null; true' 2>&1 | uniq -c | sed 's/^ *//'"
	as "${some_thp[@]}" -- 'and nothing where it is not' 0 '^$' "$hugepin" run --pages=hugetlb true
	as "${no_pool[@]}" "${some_thp[@]}" -- 'or not asked for alone' 0 '^$' "$hugepin" run --pages=auto true
	fragmented=/proc/vmstat=$'nr_free_pages 1\nthp_fault_alloc 9000\nthp_fault_fallback 1000'
	as "${some_thp[@]}" "$fragmented" -- 'info sees that memory is fragmented' 3 \
		'-> memory is fragmented: echo 1 > /proc/sys/vm/compact_memory$' "${info[@]}"
	as "${some_thp[@]}" "$calm" -- 'but not where hugepages are found' 1 '^$' bash -c "'$hugepin' info | grep 'fragmented'"
	as /proc/sys/vm/overcommit_memory=2 -- 'info sees that memory is not overcommitted' 3 ': sysctl vm\.overcommit_memory=0$' "${info[@]}"
	as /proc/sys/vm/max_map_count=4096 -- 'info sees that there are few mappings' 3 ': sysctl vm\.max_map_count=65530$' "${info[@]}"
	as "${no_pool[@]}" "${some_thp[@]}" -- 'info sees that there is no pool' 3 \
		"-> the heap will do with THP. To reserve 1 GiB: echo 512 > $pool/nr_hugepages\$" "${info[@]}"
	as $pool/nr_hugepages=10 $pool/free_hugepages=2 $pool/resv_hugepages=2 "${some_thp[@]}" -- 'info sees that the pool is taken' 3 \
		"-> all of them are taken. For 1 GiB more: echo 522 > $pool/nr_hugepages\$" "${info[@]}"
	as $thp/enabled='always madvise [never]' -- 'info sees that THP are off' 3 \
		"-> off: echo madvise > $thp/enabled\$" "${info[@]}"
	as $thp/enabled='always madvise [never]' "${no_pool[@]}" -- 'without a pool, too, there are no hugepages' 4 \
		'^There are no hugepages here\.$' "${info[@]}"
	[ ! -e $thp/hugepages-2048kB/enabled ] || as "${some_thp[@]}" "${no_pool[@]}" \
		$thp/hugepages-2048kB/enabled='always inherit madvise [never]' -- 'info sees that THP are off for 2 MiB' 4 \
		"-> off for the size that the heap uses: echo inherit > $thp/hugepages-2048kB/enabled\$" "${info[@]}"
	as $thp/defrag='always defer defer+madvise madvise [never]' -- 'info sees that THP are not compacted for' 3 \
		": echo madvise > $thp/defrag\$" "${info[@]}"
	as $thp/ -- 'info sees a kernel without THP' 3 '-> this kernel has none: one built with' "${info[@]}"
	as "${no_pool[@]}" "${some_thp[@]}" -- 'info sees that THP are switched off for the process' 4 '-> there is no THP in its place either' \
		python3 -c 'import ctypes, os, sys
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])' "${info[@]}"
	as $pool/nr_hugepages=10 $nodes/ $nodes/node0/hugepages/hugepages-2048kB/nr_hugepages=10 \
		$nodes/node1/hugepages/hugepages-2048kB/nr_hugepages=0 -- 'info sees a node without pages' 3 \
		"-> none on this node: echo 5 > $nodes/node1/hugepages/hugepages-2048kB/nr_hugepages\$" "${info[@]}"
	if [ -e /proc/sys/kernel/io_uring_disabled ] && python3 -c "$forbid" /bin/true 2>/dev/null; then
		as /proc/sys/kernel/io_uring_disabled=2 -- 'info sees that io_uring is switched off' 3 \
			'-> switched off: echo 0 > /proc/sys/kernel/io_uring_disabled$' python3 -c "$forbid" "${info[@]}"
		as /proc/sys/kernel/io_uring_disabled=0 -- 'or forbidden' 3 '-> forbidden by seccomp: let it pass io_uring_setup' \
			python3 -c "$forbid" "${info[@]}"
	fi
	roce=/sys/class/infiniband/roce_0 ib=/sys/class/infiniband/ib_0
	rdma=(/sys/class/ /dev/ "$roce/fw_ver=1.2.3" "$ib/fw_ver=20.1"
		/sys/class/infiniband_verbs/uverbs0/ibdev=roce_0 /dev/infiniband/uverbs0=)
	as "${rdma[@]}" -- 'info sees devices' 3 '^  roce_0 +firmware 1\.2\.3, registers on demand: unknown \(' "${info[@]}"
	check 'and one that programs cannot reach' 0 '-> programs cannot reach it; .*: modprobe ib_uverbs$' cat "$t/text"
fi

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
in_group() { check "$1" "$any" "$2" bash -c "echo \$\$ >'$above/below/cgroup.procs' && exec '$hugepin' info"; }

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
