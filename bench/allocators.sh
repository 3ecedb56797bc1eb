# Sourced by the run-* scripts: the allocators by name, the hugetlb pool, THP, and memory that is touched beforehand.
# shellcheck shell=bash disable=SC2034
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-build}
unset LD_PRELOAD GLIBC_TUNABLES "${!HUGEPIN_@}" MALLOC_CONF "${!MALLOC_@}" "${!MIMALLOC_@}" "${!TCMALLOC_@}"

# What a page of figures says of the machine. The kernel's number is its version: what its builder adds says nothing to others.
kernel_version() { uname -r | cut -d - -f 1; }
processor() { sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1; }
this_machine() { echo "$(uname -s) $(kernel_version) $(uname -m), $(nproc) processors, $(processor)"; }

# What there is by itself, besides what is hugepin's.
known="glibc glibc-thp glibc-always glibc-hugetlb jemalloc mimalloc mimalloc-large tcmalloc"

# Further peers, with blanks between them: PEERS='NAME=FILE[,VARIABLE=VALUE]... ...'. A directory is where a UCX is installed.
declare -A peer_path=() peer_set=()
peers=() ucxs=()
refuse() {
	echo "PEERS: $word: $1; a peer is NAME=FILE[,VARIABLE=VALUE]..., where FILE is an allocator's library, or the directory" \
		"where a UCX is installed" >&2
	exit 2
}
read_peers() {
	local word words name path set part
	read -r -a words <<<"${PEERS:-}"
	PEERS=''
	for word in "${words[@]}"; do
		name=${word%%=*} path=${word#*=} set=''
		[[ $path != *,* ]] || set=${path#*,}
		path=$(readlink -m "${path%%,*}")
		[[ $word == *=* ]] || refuse 'it has no ='
		[[ $name =~ ^[a-z][a-z0-9._-]*$ ]] || refuse "a name has small letters, digits, dots, _ and -, and begins with a letter"
		# best and itself: bench/targets; thp: hugepin-NAME is hugepin over that
		[[ " $known ucx nothing base best itself thp ${!peer_path[*]} " != *" $name "* && $name != hugepin* ]] ||
			refuse "the name $name is in use"
		for part in ${set//,/ }; do [[ $part == [A-Za-z_]*=* ]] || refuse "$part is no VARIABLE=VALUE"; done
		[ -e "$path" ] || refuse "there is no $path"
		peer_path[$name]=$path peer_set[$name]=${set//,/ }
		if [ -d "$path" ]; then
			[ -e "$path/lib/pkgconfig/ucx-ucs.pc" ] || refuse 'no UCX is installed there, which has lib/pkgconfig/ucx-ucs.pc'
			[[ $name == ucx* && -z $set ]] || refuse "a UCX's name begins with ucx, and it takes no variables"
			ucxs+=("$name")
		else
			[[ $name != ucx* ]] || refuse "the name of an allocator does not begin with ucx"
			[ -x "$build/bench/version" ] || refuse "no $build/bench/version to try it with: make bench"
			[ "$(served "$name" file)" = "$path" ] || refuse "$path is not a library that can be preloaded as malloc"
			peers+=("$name")
		fi
		PEERS+=" $name=$path${set:+,$set}" # a script that this one starts may be in another directory
	done
	export PEERS
}

# library NAME: what has to be preloaded, in this order; nothing for glibc.
library() {
	case $1 in
	glibc | glibc-thp | glibc-always | glibc-hugetlb) ;;
	jemalloc) echo libjemalloc.so.2 ;;
	mimalloc | mimalloc-large) /sbin/ldconfig -p | awk '/libmimalloc[.]so/ { so = $1 } END { print so ? so : "libmimalloc.so" }' ;;
	tcmalloc) echo libtcmalloc_minimal.so.4 ;;
	# As `hugepin run` and ld.so.cache name them: the loader would look for the second in twelve directories beside the first.
	hugepin | hugepin-thp | hugepin-mimalloc) readlink -f "$build"/libhugepin{-malloc,}.so | xargs ;;
	hugepin-*) echo "$(library hugepin) $(library "${1#hugepin-}")" ;;
	base) readlink -f "$build"/compare/build/libhugepin{-malloc,}.so | xargs ;; # of another commit: bench/compare
	nothing) readlink -f "$build/bench/nothing.so" ;;
	*) echo "${peer_path[$1]:-none}" ;;
	esac
}

# settings NAME: its part of the environment.
settings() {
	case $1 in
	glibc-thp) echo GLIBC_TUNABLES=glibc.malloc.hugetlb=1 ;;
	glibc-hugetlb) echo GLIBC_TUNABLES=glibc.malloc.hugetlb=2 ;;
	mimalloc-large) echo MIMALLOC_LARGE_OS_PAGES=1 MIMALLOC_ALLOW_LARGE_OS_PAGES=1 ;; # before 2.1, and since
	hugepin-thp) echo HUGEPIN_PAGES=thp ;;
	hugepin-mimalloc) echo HUGEPIN_SMALL=mimalloc ;;
	hugepin-*) echo "HUGEPIN_SMALL=next ${peer_set[${1#hugepin-}]:-}" ;;
	*) echo "${peer_set[$1]:-}" ;;
	esac
}

# with NAME COMMAND...: run it on this allocator, two minutes at most. The allocator is the command's alone: timeout
# must work where it does not.
with() {
	local lib set
	lib=$(library "$1")
	read -r -a set <<<"$(settings "$1")"
	shift
	timeout -k 5 120 env ${lib:+LD_PRELOAD="$lib"} "${set[@]}" "$@"
}

# served NAME file|version: the file that has malloc in a program on this allocator, or the allocator's version.
served() { with "$1" "$build/bench/version" 2>/dev/null | sed -n "$([ "$2" = file ] && echo 1 || echo 2)p"; }

# present NAME: can the loader load it? (It only warns when it cannot, and the program would run on glibc.)
present() {
	local lib file
	lib=$(library "$1")
	case $1 in
	glibc-always) [ -w "$thp" ] ;;
	glibc*) ;;
	*)
		[[ $1 != hugepin-* || $1 == hugepin-thp ]] || present "${1#hugepin-}" || return
		file=$(served "$1" file)
		[ "${file##*/}" = "$(basename "${lib%% *}")" ] ;;
	esac
}

# peer_rows NAME...: of these, other software by version, as rows of the samples: bench/judge.awk compares with these.
peer_rows() {
	local a
	for a; do [[ $a == @(hugepin*|base|nothing) ]] || echo "0,$a,peer,$(served "$a" version),"; done
}

# over_peers: hugepin with the small requests of each further mimalloc.
over_peers() {
	local a
	for a in "${peers[@]}"; do
		[[ -n ${peer_set[$a]} || $(served "$a" version) != mimalloc* ]] || echo "hugepin-$a"
	done
}

# absent NAME: it, and why it is not measured.
absent() { if [ "$1" = glibc-always ]; then echo "$1 ($thp may not be written)"; else echo "$1 (not installed, or not built)"; fi; }

# THP_SETTING is a file of tests.
thp=${THP_SETTING:-/sys/kernel/mm/transparent_hugepage/enabled} thp_before=''
# thp_for NAME: for glibc-always the machine's setting of THP is "always" from now on. thp_restore puts back what was set.
thp_for() { [ "$1" != glibc-always ] || { thp_before=$(sed 's/.*\[\(.*\)\].*/\1/' "$thp") && echo always >"$thp"; }; }
thp_restore() {
	[ -z "$thp_before" ] || echo "$thp_before" >"$thp"
	thp_before=''
}

pool=/sys/kernel/mm/hugepages/hugepages-2048kB
pool_added=0 pool_before=''
# pool_reserve PAGES: so many free hugepages, if we may and they are to be had. pool_restore takes away what was added,
# whatever others have changed meanwhile. Finding pages may take seconds: after a signal during that, pool_before tells.
pool_reserve() {
	local free before
	free=$(cat $pool/free_hugepages) && before=$(cat $pool/nr_hugepages) && [ "$free" -lt "$1" ] || return 0
	pool_before=$before
	{ echo 1 >/proc/sys/vm/compact_memory && echo $((before + $1 - free)) >$pool/nr_hugepages; } 2>/dev/null
	pool_added=$(($(cat $pool/nr_hugepages) - before))
	pool_before=''
}
pool_restore() {
	[ -z "$pool_before" ] || pool_added=$(($(cat $pool/nr_hugepages) - pool_before))
	pool_before=''
	[ "$pool_added" = 0 ] || echo $(($(cat $pool/nr_hugepages) - pool_added)) >$pool/nr_hugepages
	pool_added=0
}

# in_turn KEY NAME...: the names in an order that depends on KEY, so that none follows the same one each time. For what one
# program leaves behind decides how fast the next one gets memory. Two or three names had better alternate.
in_turn() {
	local key=$1 one
	shift
	for one; do echo "$(md5sum <<<"$key $one") $one"; done | sort | awk '{ print $3 }'
}

# In a virtual machine whose host takes idle memory back, the first touch of a page costs milliseconds, whoever makes it.
# Touch the pool and ordinary memory, and say how much of each, or that it was not done.
warm() {
	local said rc=0
	said=$("$build/bench/warm" 2>&1) || rc=$?
	[ $rc = 0 ] || echo "not touched beforehand: $(tail -n 1 <<<"$said")"
	sed -n 's/^warm.pool-pages \([0-9]*\) n$/touched beforehand: \1 pages of the pool/p
		s/^warm.ordinary \([0-9]*\) MiB$/touched beforehand: \1 MiB of ordinary memory/p' <<<"$said"
}

read_peers
