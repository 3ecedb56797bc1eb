# Sourced by the tests of the MPI layer, after tap.bash: an MPI of this machine, $MPICC's or the first, which the layer was built
# for, and programs beside this file.
# shellcheck shell=bash disable=SC2154 # build, t: of tap.bash
mpi_layer=$build/libhugepin-mpi.so
for mpicc in ${MPICC:-} mpicc.openmpi mpicc mpicc.mpich; do ! command -v "$mpicc" >/dev/null || break; done
mpirun=${mpicc/mpicc/mpirun}
# Open MPI as root, on one machine, by shared memory only, whatever it has of processors.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
# A rank that waits leaves its processor to the one that it waits for. Otherwise, beside other programs, each message takes a turn of
# the scheduler's.
export OMPI_MCA_mpi_yield_when_idle=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe # Open MPI 5's name for the last but one
# MPICH 4.0 crashes in MPI_Reduce in place by shared memory, without the layer, too.
export MPIR_CVAR_DEVICE_COLLECTIVES=none
# Each mpirun makes its directory below one that all share in TMPDIR, and the last to end removes that one: between the two calls of
# mkdir of another, which then fails.
export TMPDIR=$t

# mpi_or_skip NAME: skip everything where there is no MPI.
mpi_or_skip()
{
	if [ ! -e "$mpi_layer" ] || ! command -v "$mpirun" >/dev/null; then
		skip "$1" 'no MPI: tools/setup check'
		exit
	fi
}

# compile NAME [FLAG...]: a program beside this file to $t/NAME. gcc takes MPICH's MPI_STATUSES_IGNORE for an array.
compile() { works "extra/mpi/tests/programs/$1.c compiles" "$mpicc" -O1 -g -Wall -Wextra -Werror -Wno-stringop-overflow "${@:2}" -o "$t/$1" "extra/mpi/tests/programs/$1.c"; }

# layer [VARIABLE=VALUE...] COMMAND...: by two ranks, under the layer, for 150 s at most.
layer() { timeout -k 5 "${limit:-150}" "$mpirun" -n 2 env LD_PRELOAD="$mpi_layer" "$@"; }

# says FILE RANK KEY: a figure of that rank's line.
says() { sed -n "s/^hugepin: MPI rank $2: .* $3=\([0-9]*\)\b.*/\1/p" "$1"; }

# run NAME [VARIABLE=VALUE...] PROGRAM...: true if the program is content, and on each rank nothing was left out or
# behind.
run()
{
	local name=$1 rank
	shift
	# apart, since mpirun may put a piece of the one within a line of the other
	layer HUGEPIN_STATS=2 "$@" >"$t/$name.told" 2>"$t/$name.errors"
	local status=$?
	cat "$t/$name.told" "$t/$name.errors" >"$t/$name.out"
	[ $status = 0 ] || { cat "$t/$name.out"; return 1; }
	for rank in 0 1; do
		echo "$(says "$t/$name.out" $rank pins) pins, $(says "$t/$name.out" $rank unpins) unpins, not pinned" \
			"$(says "$t/$name.out" $rank not_pinned), bottom $(says "$t/$name.out" $rank bottom), sparse" \
			"$(says "$t/$name.out" $rank sparse), left $(says "$t/$name.out" $rank left)"
	done >"$t/$name.sums"
	cat "$t/$name.sums"
	grep -q '^ok' "$t/$name.out"
}
# pinned NAME COUNT: the run pinned so often on each rank, and unpinned, and nothing else is said.
pinned()
{
	[ "$(sort -u "$t/$1.sums")" = "$2 pins, $2 unpins, not pinned 0, bottom 0, sparse 0, left 0" ] ||
		{ cat "$t/$1.sums"; return 1; }
}
