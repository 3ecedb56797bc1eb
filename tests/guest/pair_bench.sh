#!/bin/bash
# guest: asked
# Takes minutes, so it runs only where a guest is named: tests/guest/run -g pair pair_bench.
# Messages of large buffers from node to node over Open MPI, UCX and soft-RoCE (bench/sendrecv.c), printed: times decide nothing.
# In 4 KiB pages, or in hugepages by the drop-in; registered for each message (each), kept registered by UCX's own cache (kept:
# lazy deregistration), or by libhugepin-verbscache.so, UCX's cache being off (cached).
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
# shellcheck source=tests/guest/pair.bash
. "$(dirname "$0")/pair.bash"
# shellcheck source=tests/guest/pair_mpi.bash
. "$(dirname "$0")/pair_mpi.bash"
cache=$build/libhugepin-verbscache.so
if ! command -v mpicc.openmpi >/dev/null || ! command -v mpirun.openmpi >/dev/null; then
	skip 'Open MPI across two nodes' 'no Open MPI for the guest: tools/setup guest'
	exit
fi
# shellcheck source=tests/guest/counted.bash
. "$(dirname "$0")/counted.bash"

# run WAY PRELOADED...: to WAY.PASS, with the registrations of the rank on this node
run()
{
	local to=$t/$1.$pass before set=(UCX_IB_REG_METHODS=direct UCX_RCACHE_ENABLE=n)
	case $1 in
	kept-*) set=('UCX_IB_REG_METHODS=rcache,direct') ;;
	cached-*) set+=(HUGEPIN_X_VERBS_CACHE=remote HUGEPIN_PIN_BUDGET=max) ;;
	esac
	set+=(UCX_RNDV_THRESH=8k UCX_RNDV_SCHEME=get_zcopy UCX_ZCOPY_THRESH=8k) # as the paper's MPI from 16 KiB on
	before=$(hits)
	start openmpi 1 UCX_TLS=rc_v,self "${set[@]}" HUGEPIN_STATS=2 LD_PRELOAD="${*:2}" \
		"$t/sendrecv" -a -r 5 4 16 64 256 1024 2048 4096 >"$to" 2>"$to.err" || { cat "$to" "$to.err"; return 1; }
	echo "registrations $(($(hits) - before))" >>"$to"
	grep -qx 'bad 0' "$to"
}
from_hugepages() { [ "$(grep -o ': hugetlb_bytes [1-9]' "$t/$1.$pass.err" | wc -l)" -ge 2 ]; }

works 'bench/sendrecv.c compiles' mpicc.openmpi -std=gnu11 -O2 -o "$t/sendrecv" bench/sendrecv.c
works 'the other node has it' has_booted
pool=$(cat /proc/sys/vm/nr_hugepages)
echo 140 >/proc/sys/vm/nr_hugepages
works 'which gets pages for its pool, too' there 'echo 140 >/proc/sys/vm/nr_hugepages'
for pass in 1 2; do # in turn: what else the machine does changes
	for way in each kept; do
		works "4 KiB pages, $way, pass $pass" run $way-4K
		works "hugepages, $way, pass $pass" run $way-hugetlb "$dropin"
		works 'the drop-in served both ranks' from_hugepages $way-hugetlb
	done
	works "hugepages, cached, pass $pass" run cached-hugetlb "$dropin" "$cache"
	works 'the drop-in served both ranks' from_hugepages cached-hugetlb
done
echo "$pool" >/proc/sys/vm/nr_hugepages
# Of both passes the faster. The bandwidth is that of the Intel MPI benchmarks: both messages, 2^20 bytes a MB.
for way in {each,kept}-{4K,hugetlb} cached-hugetlb; do
	awk -v way="$way" '
	$1 == "registrations" { print "# figure", way, "registrations", $2, "registrations" }
	/^[0-9]/ {
		if (!($1 in known)) { known[$1]; kib[++sizes] = $1 }
		for (i = 2; i <= 4; i++)
			if (!(($1, i) in least) || $i < least[$1, i])
				least[$1, i] = $i
	}
	END {
		for (k = 1; k <= sizes; k++) {
			size = kib[k] < 1024 ? kib[k] "K" : kib[k] / 1024 "M"
			print "# figure", way, "sendrecv." size, least[kib[k], 2], "us"
			print "# figure", way, "bandwidth." size, 2 * kib[k] / 1024 / least[kib[k], 2] * 1e6, "MB/s"
			print "# figure", way, "pingpong." size, least[kib[k], 3], "us"
			print "# figure", way, "allreduce." size, least[kib[k], 4], "us"
		}
	}' "$t/$way.1" "$t/$way.2"
done
