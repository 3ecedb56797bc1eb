# Sourced by the tests of MPI across two nodes, after pair.bash.
# shellcheck shell=bash
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_pml=ucx OMPI_MCA_osc=ucx
# mpirun asks the other node for a sign of life, as ssh does.
export OMPI_MCA_oob_tcp_if_include=eth0 OMPI_MCA_oob_tcp_keepalive_time=5 OMPI_MCA_oob_tcp_keepalive_intvl=5 \
	OMPI_MCA_oob_tcp_keepalive_probes=4
# UCX's check of the destination GID drops what comes through the soft device, which takes 7 retries for without end.
ucx=(UCX_NET_DEVICES=rxe0:1 UCX_UD_VERBS_ETH_DGID_CHECK=n UCX_RC_RETRY_COUNT=6)

# start MPI RANKS VARIABLE=VALUE... PROGRAM...: so many on each node
start()
{
	local hosts=(-hosts 'guest1,guest2' -ppn "$2" -iface eth0)
	[ "$1" = mpich ] || hosts=(--host "guest1:$2,guest2:$2")
	timeout -k 5 200 "mpirun.$1" "${hosts[@]}" -n $((2 * $2)) env "${ucx[@]}" "${@:3}"
}
