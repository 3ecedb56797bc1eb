#!/bin/bash
# guest: asked
# Takes minutes, so it runs only where a guest is named: tests/guest/run -g plain bench-mpi.
# Messages of large buffers over Open MPI, UCX and soft-RoCE (bench/sendrecv.c), with and without the drop-in, registered
# for each message or kept registered, printed: times decide nothing.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_hwloc_base_binding_policy=none
# By verbs alone. UCX's check of the destination GID drops what comes through the soft device.
export UCX_TLS=rc_v,self UCX_NET_DEVICES=rxe0:1 UCX_UD_VERBS_ETH_DGID_CHECK=n
export UCX_RNDV_THRESH=8k UCX_RNDV_SCHEME=get_zcopy UCX_ZCOPY_THRESH=8k # as the paper's MPI from 16 KiB on

if ! command -v mpicc.openmpi >/dev/null || ! command -v mpirun.openmpi >/dev/null; then
	skip 'Open MPI over verbs in the guest' 'no Open MPI for the guest: tools/setup guest'
	exit
fi

# run NAME METHODS PRELOADED...: to NAME.PASS
run()
{
	local to=$t/$1.$pass
	COUNTREG=$to.reg HUGEPIN_STATS=2 UCX_IB_REG_METHODS=$2 timeout -k 5 100 mpirun.openmpi -n 2 --oversubscribe --mca pml ucx \
		env LD_PRELOAD="${*:3}" "$t/sendrecv" -r 5 >"$to" 2>"$to.err" || { cat "$to.err"; return 1; }
	grep -qx 'bad 0' "$to"
}
from_hugepages() { grep -q '^hugepin.*: hugetlb_bytes [1-9]' "$t/$1.$pass.err"; }

pool=$(cat /proc/sys/vm/nr_hugepages)
echo 140 >/proc/sys/vm/nr_hugepages
works 'bench/sendrecv.c compiles' mpicc.openmpi -std=gnu11 -O2 -o "$t/sendrecv" bench/sendrecv.c
works 'a counter of registrations compiles' cc -std=gnu11 -D_GNU_SOURCE -O2 -fPIC -shared -o "$t/countreg.so" tests/live/lib/countreg.c
for pass in 1 2; do # in turn: what else the machine does changes
	for way in each kept; do
		methods=direct
		[ $way = each ] || methods=rcache,direct
		works "4 KiB pages, $way, pass $pass" run $way-4K $methods "$t/countreg.so"
		works "hugepages, $way, pass $pass" run $way-hugetlb $methods "$t/countreg.so" "$dropin"
		works "the drop-in served it" from_hugepages $way-hugetlb
	done
done
echo "$pool" >/proc/sys/vm/nr_hugepages
# each: registered for each message; kept: until the end, which the paper calls lazy deregistration
awk '
FNR == 1 { file++ }
/^[0-9]/ {
	if (!($1 in known)) { known[$1]; kib[++sizes] = $1 }
	for (i = 2; i <= 3; i++)
		if (!(($1, i, (file - 1) % 4) in least) || $i < least[$1, i, (file - 1) % 4])
			least[$1, i, (file - 1) % 4] = $i
}
END {
	print "# messages: KiB, us of an MPI_Sendrecv: each-4K each-hugetlb kept-4K kept-hugetlb; us of half a round trip: the same"
	for (k = 1; k <= sizes; k++) {
		line = "# messages " kib[k]
		for (i = 2; i <= 3; i++)
			for (n = 0; n < 4; n++)
				line = line " " least[kib[k], i, n]
		print line
	}
}' "$t"/{each,kept}-{4K,hugetlb}.1 "$t"/{each,kept}-{4K,hugetlb}.2
# Of both ranks in one pass; larger ones are pools of UCX.
for name in {each,kept}-{4K,hugetlb}; do awk '$1 == "reg" && $2 < 16777216 { n++ } END { print n + 0 }' "$t/$name.1.reg"; done | xargs echo '# registrations'
