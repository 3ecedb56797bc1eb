#!/bin/bash
# The phases of a transfer that the MPI layer tells the domain of: by which call, before MPI's own function or after it.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../../../tests/live/tap.bash"
# shellcheck source=extra/mpi/tests/programs/common.bash
. "$(dirname "$0")/programs/common.bash"
mpi_or_skip 'the phases of a transfer'
compile phases -D_GNU_SOURCE -DBEHIND -shared -fPIC && mv "$t/phases" "$t/behind.so"
compile phases -D_GNU_SOURCE -Iinclude -rdynamic -ldl

phases() { run phases HUGEPIN_POLICY=lru LD_PRELOAD="$mpi_layer $t/behind.so" "$t/phases" "$@" || { cat "$t/phases.out"; return 1; }; }
if ! phases blocking >/dev/null && grep -q 'io_uring\|no domain' "$t/phases.out"; then
	skip 'the phases of a transfer' "no io_uring: $(grep -o 'nothing is registered: .*' "$t/phases.out" | head -1)"
	exit
fi
works 'a blocking call brings its buffers in before MPI sees them, small ones aside' phases blocking
works 'a nonblocking call announces its buffers once MPI has begun' phases nonblocking
works 'a wait first brings in what is not done; a wait for any of several, what was not waited for before' phases waits
works 'a test that is in vain brings the buffers in, and the next one does not' phases tests
works 'a persistent request is announced at each start, and brought in by a test of each' phases persistent
works 'who synchronises brings in the own window, and what the call closes' phases active
works 'under a lock what is read is brought in before the operation, what is written announced after it' phases passive

# The same for the cache of registrations, in place of a domain.
mv "$t/phases" "$t/phases.domain"
compile phases -DCACHE -D_GNU_SOURCE -Iinclude -rdynamic -ldl && mv "$t/phases" "$t/phases.cache" && mv "$t/phases.domain" "$t/phases"
told() { run phases LD_PRELOAD="$mpi_layer $t/behind.so" "$t/phases.cache" "$1" || { cat "$t/phases.out"; return 1; }; }
for what in blocking nonblocking waits tests persistent active passive; do
	works "the cache of registrations is told of each phase: $what" told $what
done
opens_none() { ! grep 'MPI rank' "$t/phases.out"; }
works 'and no domain is opened beside it' opens_none
pinning() { PINNED=1 phases; }
works 'a domain that pins is told of no phase' pinning
