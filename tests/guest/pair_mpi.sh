#!/bin/bash
# guest: pair
# Ranks on two nodes, whose messages go by verbs alone: each byte arrives, with the drop-in and under the cache of
# registrations, too. When a node dies, the rank on the other ends. MPICH of Debian 12 has UCX alone, not libfabric.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
# shellcheck source=tests/guest/pair.bash
. "$(dirname "$0")/pair.bash"
# shellcheck source=tests/guest/pair_mpi.bash
. "$(dirname "$0")/pair_mpi.bash"
cache=$build/libhugepin-verbscache.so

# ranks MPI RANKS VARIABLE=VALUE...: each pair of ranks sends 12 MiB to and fro, which come in packets of 4 KiB.
ranks()
{
	local before
	before=$(packets)
	start "${@:1:2}" UCX_TLS=rc_v,self "${@:3}" "$t/$1" 12 1024 4 >"$t/out.$1" 2>&1
	cat "$t/out.$1"
	grep -q '^ok 0' "$t/out.$1" && [ $(($(packets) - before)) -ge $(($2 * 12 * 256)) ]
}

# Who hears of it first: the rank, whose message is not answered, or the launcher, from its daemon or from ssh.
lost='retry counter exceeded|lost communication with a remote daemon|unable to reliably start one or more daemons'
for mpi in openmpi mpich; do
	if ! command -v mpirun.$mpi >/dev/null; then
		skip "$mpi" "no mpirun.$mpi: tools/setup guest"
		continue
	fi
	works "$mpi: a program compiles" "mpicc.$mpi" -O1 -o "$t/$mpi" extra/mpi/tests/programs/buffers.c
	works 'the other node has it' has_booted
	works "$mpi: a rank on each node" ranks $mpi 1
	works "$mpi: a rank on each node, the drop-in" ranks $mpi 1 LD_PRELOAD="$dropin"
	works "$mpi: two ranks on each node" ranks $mpi 2
	works "$mpi: two ranks on each node, shared memory within" ranks $mpi 2 UCX_TLS=rc_v,self,sm
	cached=(UCX_RCACHE_ENABLE=n UCX_IB_REG_METHODS=direct HUGEPIN_STATS=1 HUGEPIN_X_VERBS_CACHE=remote LD_PRELOAD="$cache")
	works "$mpi: under the cache of registrations, peers trusted" ranks $mpi 1 "${cached[@]}"
	grep '^hugepin: verbs cache' "$t/out.$mpi" | sed 's/^/# /'
	dies="$mpi: a rank ends when the other's node dies"
	if [ $mpi = mpich ]; then
		skip "$dies" 'a rank that waits for a message waits for ever: neither it nor mpiexec asks for a sign of life'
		continue
	fi
	survives "$dies" '[1-9]*' "$lost" start $mpi 1 UCX_TLS=rc_v,self "${cached[@]}" "$t/$mpi" 1000000 1024 4
done
