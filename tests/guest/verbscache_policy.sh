#!/bin/bash
# guest: plain
# Unmodified Open MPI over UCX and libfabric with its own cache on, off, and off above libhugepin-verbscache.so by each policy:
# what the kernel registers, what is pinned over time (VmPin), and how many registrations come late. Each byte is checked.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
# shellcheck source=extra/mpi/tests/programs/common.bash
. "$(dirname "$0")/../../extra/mpi/tests/programs/common.bash"
mpi_or_skip 'policies under programs of MPI'

# shellcheck source=tests/guest/counted.bash
. "$(dirname "$0")/counted.bash"
export HUGEPIN_STATS=2
compile buffers -D_DEFAULT_SOURCE
ulimit -l unlimited # the helper has not the right to pass the limit
rounds=32 kib=4096 buffers=4 pause=400

# sample NAME: KiB that the ranks have pinned, every 20 ms, until the file NAME.end is there.
sample()
{
	while [ ! -e "$t/$1.end" ]; do
		for pid in $(pgrep -x buffers); do awk '$1 == "VmPin:" { print $2 }' "/proc/$pid/status"; done 2>/dev/null |
			awk '{ sum += $1 } END { if (NR == 2) print sum }'
		sleep 0.02
	done >"$t/$1.pinned"
}
# ranks NAME COMMAND...: the program under mpirun. NAME.count: what the kernel registers.
ranks()
{
	local before status=0
	before=$(hits)
	sample "$1" &
	timeout -k 5 "$T_SECONDS" "$mpirun" -n 2 "${@:2}" "$t/buffers" $rounds $kib $buffers $pause >"$t/$1.out" 2>&1 || status=1
	: >"$t/$1.end"
	wait $!
	echo $(($(hits) - before)) >"$t/$1.count"
	grep -q '^ok 0' "$t/$1.out" || status=1
	[ $status = 0 ] || cat "$t/$1.out"
	return $status
}
# figure NAME KEY: the sum over the ranks of a counter at exit.
figure() { sed -n "s/.*[ :.]$2[ =]\([0-9][0-9]*\)\b.*/\1/p" "$t/$1.out" | awk '{ sum += $1 } END { print sum + 0 }'; }
average() { awk '{ sum += $1 } END { print int(NR ? sum / NR : 0) }' "$t/$1.pinned"; }
peak() { sort -n "$t/$1.pinned" | tail -1; }
row()
{
	echo "# $1: $(<"$t/$1.count") registrations, $(figure "$1" late) late, $(average "$1") KiB pinned on average, $(peak "$1") at the peak;" \
		"asked $(figure "$1" asked), kept $(figure "$1" kept), again ahead $(figure "$1" repinned)"
}

# libfabric registers some of its own buffers more than once at a time.
seldom() { [ "$(<"$t/$1.lru.count")" -le $(($(<"$t/$1.own.count") + 8)) ]; }
ahead() { [ "$(figure "$1" released)" -ge $buffers ] && [ "$(figure "$1" repinned)" -ge $buffers ]; }
punctual() { [ "$(figure "$1.predict" late)" -le $(($(<"$t/$1.off.count") / 8)) ]; }

# shellcheck disable=SC2034 # used by name, below
ucx=(env OMPI_MCA_pml=ucx OMPI_MCA_osc=ucx)
# shellcheck disable=SC2034
ofi=(env OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_mtl_ofi_provider_include='verbs;ofi_rxm')
off=(UCX_RCACHE_ENABLE=n UCX_IB_REG_METHODS=direct FI_MR_CACHE_MAX_COUNT=0)
below() { printf '%s\n' "$build/hugepin" run --policy="$1" --predict-mode=save --verbs-cache=remote --mpi; }
# With its own cache on, nothing is idle below.
mapfile -t command < <(below predict)
works 'ucx: its own cache above predict' ranks ucx.both "${ucx[@]}" UCX_RCACHE_ENABLE=y UCX_IB_REG_METHODS=rcache,direct "${command[@]}"
row ucx.both
none_again() { [ "$(figure ucx.both repinned)" = 0 ]; }
works 'then predict has nothing to give back' none_again
for stack in ucx ofi; do
	declare -n set=$stack
	works "$stack: its own cache" ranks $stack.own "${set[@]}"
	works "$stack: no cache" ranks $stack.off "${set[@]}" "${off[@]}"
	for policy in lru cf11 predict; do
		mapfile -t command < <(below $policy)
		works "$stack: $policy" ranks $stack.$policy "${set[@]}" "${command[@]}"
	done
	for name in own off lru cf11 predict; do row $stack.$name; done
	works "$stack: lru registers as seldom as its own cache" seldom $stack
	works "$stack: predict gives idle buffers back and makes them again ahead" ahead $stack.predict
	works "$stack: predict is late for an eighth of the messages at most" punctual $stack
done

# Another program, whose ranks exchange their borders: what it computes must be the same.
halo() { timeout -k 5 "$T_SECONDS" "$mpirun" -n 4 "${ucx[@]}" "${@:2}" "$t/halo" 64 20 >"$t/halo.$1" 2>"$t/halo.err" || { cat "$t/halo.err"; return 1; }; }
works 'an MPI program compiles' "$mpicc" -O1 -o "$t/halo" tests/judges/halo.c
works 'four ranks of it run' halo plain
for policy in predict cf11; do
	mapfile -t command < <(below $policy)
	works "they run under $policy" halo $policy "${command[@]}"
	works 'and compute the same' cmp "$t/halo.plain" "$t/halo.$policy"
done
works 'no number arrived wrong' grep -q '^bad 0 ' "$t/halo.plain"
