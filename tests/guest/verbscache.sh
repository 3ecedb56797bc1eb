#!/bin/bash
# guest: plain
# Programs of MPI under libhugepin-verbscache.so, their own cache off: they register each buffer once, in place of each message
# anew. The kernel counts. So does it for domains of the pin cache, which has its own.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
# shellcheck source=extra/mpi/tests/programs/common.bash
. "$(dirname "$0")/../../extra/mpi/tests/programs/common.bash"
cache=$build/libhugepin-verbscache.so
mpi_or_skip 'programs of MPI under the cache of registrations'

# shellcheck source=tests/guest/counted.bash
. "$(dirname "$0")/counted.bash"

# ours NAME: what a domain of the pin cache registers with the device, and whether that test of it holds
ours()
{
	local before
	before=$(hits)
	env LD_PRELOAD="${*:2}" HUGEPIN_X_VERBS_CACHE=remote "$build/tests/guest/verbs" a_pin_is_new >"$t/$1.out" || { cat "$t/$1.out"; return 1; }
	echo $(($(hits) - before)) >"$t/$1.count"
}
works 'the pin cache has its own registrations' ours plain
works 'and under this cache, too' ours below "$cache"
works 'which the device makes as before' cmp "$t/plain.count" "$t/below.count"

compile buffers
# ranks NAME VARIABLE=VALUE...: 12 rounds of 1 MiB with four buffers; NAME.count: what both ranks register
ranks()
{
	local before
	before=$(hits)
	timeout -k 5 "$T_SECONDS" "$mpirun" -n 2 env "${@:2}" "$t/buffers" 12 1024 4 >"$t/$1.out" 2>&1 || { cat "$t/$1.out"; return 1; }
	echo $(($(hits) - before)) >"$t/$1.count"
	grep -q '^ok 0' "$t/$1.out"
}
at_most() { [ "$(<"$t/$1.count")" -le "$2" ]; }
at_least() { [ "$(<"$t/$1.count")" -ge "$2" ]; }

ucx=(OMPI_MCA_pml=ucx OMPI_MCA_osc=ucx)
off=(UCX_RCACHE_ENABLE=n UCX_IB_REG_METHODS=direct)
works 'Open MPI over UCX, its own cache' ranks ucx_own "${ucx[@]}"
works 'Open MPI over UCX, no cache' ranks ucx_none "${ucx[@]}" "${off[@]}"
works 'it registers for each message' at_least ucx_none 48
works 'Open MPI over UCX, this cache, peers trusted' ranks ucx "${ucx[@]}" "${off[@]}" \
	HUGEPIN_X_VERBS_CACHE=remote LD_PRELOAD="$cache"
works 'it registers at most 17 times' at_most ucx 17

ofi=(OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_mtl_ofi_provider_include='verbs;ofi_rxm')
off=(FI_MR_CACHE_MAX_COUNT=0)
works 'Open MPI over libfabric, no cache' ranks ofi_none "${ofi[@]}" "${off[@]}"
works 'it registers for each message' at_least ofi_none 48
works 'Open MPI over libfabric, this cache, peers trusted' ranks ofi "${ofi[@]}" "${off[@]}" \
	HUGEPIN_X_VERBS_CACHE=remote LD_PRELOAD="$cache"
works 'it registers at most 20 times' at_most ofi 20
for c in ucx_own ucx_none ucx ofi_none ofi; do echo "# $c: $(<"$t/$c.count") registrations"; done
