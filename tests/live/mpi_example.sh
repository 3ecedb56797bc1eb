#!/bin/bash
# examples/mpi_indexed makes elements of an MPI datatype, with the bytes that MPI packs.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
# shellcheck source=extra/mpi/tests/programs/common.bash
. "$(dirname "$0")/../../extra/mpi/tests/programs/common.bash"
mpi_or_skip 'an MPI datatype as elements'

works 'an MPI datatype becomes elements, with the bytes of MPI_Pack' \
	timeout -k 5 400 "$mpirun" -n 1 "$build/examples/mpi_indexed"
cp "$t/out" "$t/said"
# Of its 24 blocks four are empty, and three begin where another ends.
works 'fewer than it has blocks' grep '^24 blocks are 17 elements of 376 bytes' "$t/said"
