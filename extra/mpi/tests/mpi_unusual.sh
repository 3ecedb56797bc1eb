#!/bin/bash
# The MPI layer where things are not as usual: calls that an error handler leaves, other tools beside it, MPI in a scope of its
# own, another MPI, and very much that is open.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../../../tests/live/tap.bash"
# shellcheck source=extra/mpi/tests/programs/common.bash
. "$(dirname "$0")/programs/common.bash"
mpi_or_skip 'the MPI layer'
compile all -pthread
if ! run probe HUGEPIN_POLICY=lru "$t/all" types >/dev/null && grep -q 'io_uring\|no domain' "$t/probe.out"; then
	skip 'the MPI layer' "no io_uring: $(grep -o 'nothing is registered: .*' "$t/probe.out" | head -1)"
	exit
fi

compile left
works 'calls that an error handler leaves by longjmp are let go, and later ones seen' \
	run left HUGEPIN_POLICY=lru HUGEPIN_X_MPI_MIN=16K "$t/left"
works 'each of them' pinned left 19
quiet() { ! grep '^hugepin\[' "$t/left.out"; }
works 'HUGEPIN_STATS: a heap that nobody has used has no statistics' quiet

compile refused
refused()
{
	timeout -k 5 400 "$mpirun" -n 2 "$t/refused" >"$t/plain.out" && grep -q '^ok' "$t/plain.out" || return 1
	run refused HUGEPIN_POLICY=lru HUGEPIN_X_MPI_TRACE="$t/refused" "$t/refused" && diff "$t/plain.out" "$t/refused.told"
}
works 'a call that MPI refuses gets the same error, by the same handler, as without the layer' refused
released() { ! awk '$1 != $3 || $NF' "$t/refused.sums" | grep .; }
works 'and its buffers are let go' released
# With the heap, too: the command preloads both.
chosen() { timeout -k 5 400 "$mpirun" -n 2 "$build/hugepin" run --mpi "$t/refused" | diff "$t/plain.out" -; }
works 'so it does under hugepin run --mpi' chosen

# shellcheck disable=SC2016
differ() { layer HUGEPIN_STATS=1 HUGEPIN_POLICY=lru sh -c '[ "${OMPI_COMM_WORLD_RANK-$PMI_RANK}" = 0 ] || unset HUGEPIN_STATS; exec "$@"' - "$t/all" point_to_point >"$t/differ.out" 2>"$t/differ"; }
works 'ranks end of which only one has HUGEPIN_STATS' differ
works 'and this one tells of itself' grep -E '^hugepin\[[0-9]+\] all rank 0: pin cache' "$t/differ"

compile tool -shared -fPIC && mv "$t/tool" "$t/tool.so"
behind() { run behind HUGEPIN_POLICY=lru LD_PRELOAD="$mpi_layer $t/tool.so" "$t/all" point_to_point; }
works 'a tool that is preloaded behind the layer does not disturb it' behind
works 'nor is it blind' grep 'tool: sends 2,' "$t/behind.out"
both() { pinned behind 20; }
works 'and both see the program once' both
front() { run front HUGEPIN_POLICY=lru LD_PRELOAD="$t/tool.so $mpi_layer" "$t/all" point_to_point && pinned front 20 && grep 'tool: sends 2,' "$t/front.out"; }
works 'nor one in front of it' front

# MPI is in nobody's sight but the plugin's.
works 'extra/mpi/tests/programs/host.c compiles' cc -O1 -g -Wall -Wextra -Werror -o "$t/host" extra/mpi/tests/programs/host.c -ldl
compile plugin -shared -fPIC
local_scope() { layer HUGEPIN_STATS=2 HUGEPIN_X_MPI_STRICT=1 "$t/host" "$t/plugin" >"$t/host.out" 2>&1; cat "$t/host.out"; grep -q '^ok' "$t/host.out"; }
works 'a host that loads its MPI with RTLD_LOCAL computes what it should' local_scope

for another in openmpi mpich ''; do
	theirs=$mpicc
	[ -z "$another" ] || [ "$("$mpicc" -show 2>/dev/null)" = "$("mpicc.$another" -show 2>/dev/null)" ] || theirs=mpicc.$another
	[ "$theirs" = "$mpicc" ] || ! command -v "$theirs" >/dev/null || break
	theirs=''
done
another() { timeout -k 5 400 "${theirs/mpicc/mpirun}" -n 2 env LD_PRELOAD="$mpi_layer" "$@"; }
foreigner()
{
	"$theirs" -O1 -Wall -Wextra -DPROGRAM -o "$t/foreigner" extra/mpi/tests/programs/plugin.c && another "$t/foreigner" >"$t/foreigner.out" 2>&1
	cat "$t/foreigner.out"
	grep -q '^ok' "$t/foreigner.out" && [ "$(grep -c '^hugepin' "$t/foreigner.out")" = 1 ] &&
		grep '^hugepin: .* the program has another MPI: nothing is registered' "$t/foreigner.out"
}
if [ -n "$theirs" ]; then
	works 'a program of another MPI runs as without the layer, which says one line' foreigner
	plugged() { "$theirs" -O1 -shared -fPIC -o "$t/theirs" extra/mpi/tests/programs/plugin.c && another "$t/host" "$t/theirs" | grep '^ok'; }
	works 'in a host that loads it with RTLD_LOCAL, too' plugged
else
	skip 'a program of another MPI' 'there is one MPI here'
fi

# 16,000 operations cost a flush that has nothing to do with them 50 us, when it looked at each.
compile many
open_puts() { run many HUGEPIN_X_MPI_MIN=1 HUGEPIN_POLICY=lru "$t/many" flush && cat "$t/many.out" && awk '/^flush/ { exit $7 > 8 * $2 + 2000 }' "$t/many.out"; }
works 'a flush finds what it closes, however much is open' open_puts
works 'extra/mpi/tests/programs/tool.c compiles' "$mpicc" -D_GNU_SOURCE -DCOUNT_TESTS -O1 -shared -fPIC -o "$t/tests.so" extra/mpi/tests/programs/tool.c
# 500 requests, and some 2,600 calls while they are under way or done, which test two of those that are not.
freed() { run freed HUGEPIN_X_MPI_MIN=1 HUGEPIN_POLICY=lru LD_PRELOAD="$mpi_layer $t/tests.so" "$t/many" freed && pinned freed 1000; }
works 'requests that were freed while under way are let go' freed
tested() { grep '^tool' "$t/freed.out" && [ "$(sed -n 's/^tool.*tests //p' "$t/freed.out")" -lt 8000 ]; }
works 'and no call tests them all' tested
