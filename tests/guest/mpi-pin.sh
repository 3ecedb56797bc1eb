#!/bin/bash
# guest: plain odp
# The MPI layer on real registrations, ibv_reg_mr, beside Open MPI that communicates by UCX and soft-RoCE: both
# register the same buffers with the same device. What the programs compute must be right, and nothing may be left
# registered by the layer.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
# shellcheck source=extra/mpi/tests/programs/common.bash
. "$(dirname "$0")/../../extra/mpi/tests/programs/common.bash"
mpi_or_skip 'the MPI layer with verbs'
# By verbs alone. UCX's check of the destination GID drops what comes through the soft device.
export OMPI_MCA_pml=ucx OMPI_MCA_osc=ucx UCX_TLS=rc_v,self UCX_NET_DEVICES=rxe0:1 UCX_UD_VERBS_ETH_DGID_CHECK=n
unset OMPI_MCA_btl
compile transpose

# run POLICY: four pairs of arrays of 512 KiB, three times, two buffers a call
run()
{
	COUNTREG=$t/$1.reg layer HUGEPIN_X_MPI_BACKEND=verbs HUGEPIN_STATS=2 HUGEPIN_X_MPI_STRICT=1 HUGEPIN_POLICY="$1" \
		LD_PRELOAD="$here/countreg.so $mpi_layer" "$t/transpose" 4 512 3 1 >"$t/$1.out" 2>&1 || { cat "$t/$1.out"; return 1; }
	grep '^ok' "$t/$1.out"
}
figure() { sed -n "s/^hugepin: MPI rank [01]: .* $2=\([0-9]*\)\b.*/\1/p" "$t/$1.out" | xargs; }
for policy in ${POLICIES:-lru none predict}; do
	works "$policy: it runs over verbs, and its numbers are right" run "$policy"
	all() { [ "$(figure "$policy" pins) $(figure "$policy" unpins) $(figure "$policy" not_pinned)" = '24 24 24 24 0 0' ]; }
	works "$policy: each buffer of each call was pinned and unpinned" all
	echo "# $policy: $(figure "$policy" registered) registered by the ranks' layers, in $(figure "$policy" registered_ns) ns;" \
		"$(grep -c '^reg' "$t/$policy.reg") by all"
done
few() { [ "$(figure lru registered)" = '8 8' ]; }
works 'lru registers each array once' few
many() { [ "$(figure none registered)" = '24 24' ] && [ "$(figure none deregistered)" = '24 24' ]; }
works 'none registers for each call' many

# Where the device registers on demand, the layer's phases bring the buffers in.
if ! run odp >"$t/odp.log"; then
	grep -q 'no domain' "$t/odp.out" || cat "$t/odp.log"
	skip 'the phases of a transfer on a device' "$(grep -o -m1 'nothing is registered: .*' "$t/odp.out")"
	exit
fi
arrays() { [ "$(figure odp registered)" = '8 8' ] && [ "$(figure odp pins) $(figure odp not_pinned)" = '24 24 0 0' ]; }
works 'odp registers each array once' arrays
brought_in() { for n in $(figure odp prefetched); do [ "$n" -ge 8 ] || return 1; done; }
works 'and each is brought in' brought_in
echo "# odp: $(figure odp prefetched) prefetches carried out by the ranks' layers, $(figure odp prefetched_otherwise) by touching pages"
