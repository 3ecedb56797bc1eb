#!/bin/bash
# guest: odp
# A real client of verbs, unchanged: tests/judges/halo.c over Open MPI, UCX and soft-RoCE, with and without the drop-in.
# What it computes must be the same and right; what it registers is printed.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_hwloc_base_binding_policy=none
# By verbs alone. UCX's check of the destination GID drops what comes through the soft device.
export UCX_TLS=rc_v,self UCX_NET_DEVICES=rxe0:1 UCX_UD_VERBS_ETH_DGID_CHECK=n

if ! command -v mpicc.openmpi >/dev/null || ! command -v mpirun.openmpi >/dev/null; then
	skip 'Open MPI over verbs in the guest' 'no Open MPI for the guest: tools/setup guest'
	exit
fi

# halo NAME PRELOADED...
halo()
{
	COUNTREG=$t/$1.reg HUGEPIN_STATS=2 \
		timeout -k 5 "$T_SECONDS" mpirun.openmpi -n 2 --oversubscribe --mca pml ucx --mca osc ucx \
		env LD_PRELOAD="${*:2}" "$t/halo" 64 50 2>"$t/$1.err" >"$t/$1" || { cat "$t/$1.err"; return 1; }
}
# registered NAME: a comment on both ranks. Registrations of more than 4 MiB are UCX's pools, which it maps itself.
registered()
{
	awk -v name="$1" '
	$1 == "reg" { c = $2 > 4194304; n[c]++; bytes[c] += $2; ms[c] += $3 / 1e6 }
	$1 == "dereg" { d++; dms += $2 / 1e6 }
	END {
		printf "# %s: ibv_reg_mr of buffers %d times, %.1f MiB, %.1f ms; ", name, n[0], bytes[0] / 1048576, ms[0]
		printf "of pools %d times, %.0f MiB, %.1f ms; ", n[1], bytes[1] / 1048576, ms[1]
		printf "ibv_dereg_mr %d times, %.1f ms\n", d, dms
	}' "$t/$1.reg"
}
heap_was_used() { grep -q '^hugepin.*: hugetlb_bytes [1-9]' "$t/heap.err" && grep -q '^reg' "$t/heap.reg"; }
# UCX patches the C library's functions, and its mremap() before version 1.14 drops the new address: the heap goes without.
none_denied() { ! grep '^hugepin.*: pool_denied ' "$t/heap.err"; }

works 'an MPI program compiles' mpicc.openmpi -O1 -o "$t/halo" tests/judges/halo.c
works 'it runs over verbs' halo plain "$here/countreg.so"
works 'it runs over verbs with the drop-in' halo heap "$here/countreg.so" "$dropin"
works 'the drop-in served it, from hugepages' heap_was_used
works 'no page of the pool was denied' none_denied
works 'no number arrived wrong' grep -q '^bad 0 ' "$t/plain"
works 'its results are the same with the drop-in' cmp "$t/plain" "$t/heap"
registered plain
registered heap
