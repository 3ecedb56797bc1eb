# Sourced by the tests of the MPI layer, after tap.bash: an MPI of this machine, $MPICC's or the first, which the layer was built
# for, and programs of tests/mpi.
# shellcheck shell=bash disable=SC2154 # build, t: of tap.bash
mpi_layer=$build/libhugepin-mpi.so
for mpicc in ${MPICC:-} mpicc.openmpi mpicc mpicc.mpich; do ! command -v "$mpicc" >/dev/null || break; done
mpirun=${mpicc/mpicc/mpirun}
# Open MPI as root, on one machine, by shared memory only, whatever it has of processors.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

# mpi_or_skip NAME: skip everything where there is no MPI.
mpi_or_skip()
{
	if [ ! -e "$mpi_layer" ] || ! command -v "$mpirun" >/dev/null; then
		skip "$1" 'no MPI: tools/setup check'
		exit
	fi
}

# compile NAME [FLAG...]: a program of tests/mpi to $t/NAME. gcc takes MPICH's MPI_STATUSES_IGNORE for an array.
compile() { works "tests/mpi/$1.c compiles" "$mpicc" -O1 -g -Wall -Wextra -Werror -Wno-stringop-overflow "${@:2}" -o "$t/$1" "tests/mpi/$1.c"; }

# layer [VARIABLE=VALUE...] COMMAND...: by two ranks, under the layer, for 150 s at most.
layer() { timeout -k 5 "${limit:-150}" "$mpirun" -n 2 env LD_PRELOAD="$mpi_layer" "$@"; }
