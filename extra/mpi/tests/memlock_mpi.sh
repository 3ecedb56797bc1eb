#!/bin/bash
# A program that communicates with more memory than `ulimit -l' allows, each call with less: a cache that keeps all of
# it registered fails, one that gives back finishes (Li et al. 2011, Figure 11f). As a user without CAP_IPC_LOCK of
# whom nothing else is pinned. POLICIES: those that have to finish.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../../../tests/live/tap.bash"
# shellcheck source=extra/mpi/tests/programs/common.bash
. "$(dirname "$0")/programs/common.bash"
mpi_or_skip 'the proof by limit'
compile transpose
policies=${POLICIES:-predict lru none}

# Two ranks, of one user, have the limit together: 32 MiB each in arrays of 1 MiB, two of them in a call.
limit_kib=8192
uid=$((61000 + $$ % 4000))
ordinary() { setpriv --reuid=$uid --clear-groups --bounding-set=-all --inh-caps=-all "$@"; }
chmod 777 "$t"
if ! ordinary true 2>/dev/null; then
	skip 'the proof by limit' 'the user cannot be changed here'
	exit
fi
# transpose BUDGET POLICY
transpose()
{
	(
		export HOME=$t HUGEPIN_STATS=2 HUGEPIN_X_MPI_STRICT=1 HUGEPIN_PIN_BUDGET=$1 HUGEPIN_POLICY=$2
		ulimit -l $limit_kib && ordinary timeout -k 5 400 "$mpirun" -n 2 \
			env LD_PRELOAD="$mpi_layer" "$t/transpose" 16 1024 10 1
	) >"$t/$2.$1.out" 2>&1
}
figure() { sed -n "s/^hugepin: MPI rank [01]: .* $2=\([0-9]*\)\b.*/\1/p" "$t/$1.out" | sort -n; }

transpose 0 none
if grep -q 'no domain, nothing is registered' "$t/none.0.out"; then
	skip 'the proof by limit' "no io_uring: $(grep -o 'nothing is registered: .*' "$t/none.0.out" | head -1)"
	exit
fi
fails() { ! transpose max lru && ! grep '^ok' "$t/lru.max.out" && grep 'cannot be registered for MPI_Alltoall: ' "$t/lru.max.out"; }
works 'with all that was ever used kept registered it fails' fails
for policy in $policies; do
	finishes() { transpose 0 "$policy" || { cat "$t/$policy.0.out"; return 1; }; grep '^ok' "$t/$policy.0.out"; }
	works "$policy with the default budget: it finishes, and its numbers are right" finishes
	sound() { [ "$(figure "$policy.0" not_pinned | xargs)" = '0 0' ] && [ "$(figure "$policy.0" pins | xargs)" = '320 320' ]; }
	works "$policy: every buffer was pinned in every call" sound
	within() { figure "$policy.0" pinned_peak_bytes | awk '{ sum += $1 } END { print sum; exit NR != 2 || sum > 8388608 }'; }
	works "$policy: at no time more than the limit" within
	echo "# $policy: $(figure "$policy.0" misses | xargs) misses of $(figure "$policy.0" pins | xargs) pins," \
		"$(figure "$policy.0" average_bytes | xargs) bytes pinned on average"
done
