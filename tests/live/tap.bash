# Sourced by shell tests: TAP, a directory of their own ($t), and programs with and without the drop-in.
# shellcheck shell=bash disable=SC2034 # used by those who source it
set -u
build=${BUILD:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/build}
dropin=$build/libhugepin-malloc.so
here=$build/tests/live
t=$(mktemp -d) || exit 2
chmod 755 "$t"
number=0

result() { number=$((number + 1)); echo "$1 $number - $2"; }
pass() { result ok "$1"; }
fail() { result 'not ok' "$1"; [ $# = 1 ] || printf '%s\n' "${@:2}" | sed 's/^/# /'; }
skip() { result ok "$1 # SKIP $2"; }

trap 'echo "1..$number"; rm -rf "$t"' EXIT

# with COMMAND...: under the drop-in, for as long as a test may take at most (tests/t.h).
with() { timeout -k 5 "${limit:-${T_SECONDS:-600}}" env LD_PRELOAD="$dropin" "$@"; }

# meets SERVER COMMAND...: the command succeeds; it is tried again as long as the process that it connects to is there.
meets()
{
	until "${@:2}"; do
		kill -0 "$1" 2>/dev/null || return 1
		sleep 0.2
	done
}

# works NAME COMMAND...: the command ends with status 0.
works()
{
	local name=$1 status
	shift
	"$@" >"$t/out" 2>&1 </dev/null
	status=$?
	if [ $status = 0 ]; then pass "$name"; else fail "$name" "status $status: $*" "$(tail -15 "$t/out")"; fi
	return $status
}

# says NAME STATUS PATTERN COMMAND...: the command ends so (a pattern of the shell), and its output or errors have a line like
# PATTERN.
says()
{
	local name=$1 status=$2 pattern=$3 out got
	shift 3
	out=$("$@" 2>&1 </dev/null)
	got=$?
	# shellcheck disable=SC2053 # a pattern
	if [[ $got == $status ]] && grep -Eq -e "$pattern" <<<"$out"; then pass "$name"; else
		fail "$name" "status $got, expected $status; no line like: $pattern" "$(tail -n 30 <<<"$out")"
	fi
}

# pool_has PAGES: whether a mapping can get so many. A process that has just ended may still be giving its pages back.
pool_has()
{
	local tries=0
	while [ "$(pool_free)" -lt "$1" ]; do
		[ "$(cat /proc/sys/vm/nr_hugepages)" -ge "$1" ] && [ $((tries++)) -lt 100 ] || return 1
		sleep 0.05
	done
}

# pool_free: pages of 2 MiB that a mapping can still get.
pool_free()
{
	local d=/sys/kernel/mm/hugepages/hugepages-2048kB
	[ -d $d ] || { echo 0; return; }
	echo $(($(cat $d/free_hugepages) - $(cat $d/resv_hugepages)))
}
