#!/bin/bash
# extra/nbdkit/bench.sh [DIRECTORY [MIB [ROUNDS]]]: the plug-in beside nbdkit's own for files, on a file of MIB (1024) in
# DIRECTORY (.), which should be on the disk that is to be judged. The servers come in turn, ROUNDS (5) times:
#   file     nbdkit's plug-in, as it is
#   none     the same with cache=none
#   hugepin  this plug-in
#   dropin   the same under libhugepin-malloc.so
# Prints medians of the time and of the server's processor time, each with its ratio to `file`: below 1 is better. Where
# the file is in the page cache (warm), `file` should win. What the kernel's own threads do for a server is in no column.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-$top/build} mib=${2:-1024} rounds=${3:-5}
dir=$(mktemp -d "${1:-.}/hugepin-nbdkit.XXXXXX") && dir=$(cd "$dir" && pwd) || exit 2
trap 'rm -rf "$dir"' EXIT
uri="nbd+unix:///?socket=$dir/socket" requests=$((mib * 50))
for program in nbdkit nbdcopy; do
	command -v $program >/dev/null || { echo "bench.sh: no $program" >&2; exit 2; }
done
[ -e "$build/nbdkit-hugepin-plugin.so" ] || { echo 'bench.sh: make nbdkit' >&2; exit 2; }
command -v fio >/dev/null || echo 'bench.sh: no fio: rows of random requests are left out' >&2

seconds() { date +%s.%N; }

# Past all caches: what is dirty is written, what is cached is dropped.
cold() { sync "$dir/file" && dd if="$dir/file" iflag=nocache count=0 status=none; }
warm() { cat "$dir/file" >/dev/null; }

# Each prints seconds.
copy()
{
	local begin
	begin=$(seconds)
	nbdcopy --connections=2 --flush "$1" "$2" || return
	awk -v begin="$begin" -v end="$(seconds)" 'BEGIN { print end - begin }'
}
at_random() { fio --minimal --name=x --ioengine=nbd --uri="$uri" --rw="$1" --bs="$2" --iodepth=16 --randseed=1 \
	--norandommap --size="${mib}m" --number_ios=$requests --end_fsync=1 | awk -F';' '/^3;/ { print ($9 + $50) / 1000 }'; }

run()
{
	case $1 in
	read-cold | read-warm) copy "$uri" null: ;;
	write) cat "$dir/source" >/dev/null && copy "$dir/source" "$uri" ;;
	randread-*) at_random randread 4k ;;
	randwrite-*) at_random randwrite 4k ;;
	esac
}

# measure WORKLOAD SERVER: start it, run, print both names, the seconds and the seconds of processor.
measure()
{
	local preload='' took before after server
	local plugin=("$build/nbdkit-hugepin-plugin.so" "$dir/file")
	case $2 in
	file) plugin=(file "$dir/file") ;;
	none) plugin=(file "$dir/file" cache=none) ;;
	dropin) preload=$build/libhugepin-malloc.so ;;
	esac
	case $1 in *warm) warm ;; *) cold ;; esac
	rm -f "$dir/pid" "$dir/socket"
	LD_PRELOAD=$preload nbdkit -f -U "$dir/socket" -P "$dir/pid" "${plugin[@]}" &
	server=$!
	until [ -s "$dir/pid" ]; do kill -0 $server 2>/dev/null || exit 1; sleep 0.02; done
	before=$(cpu $server)
	took=$(run "$1")
	after=$(cpu $server)
	kill $server
	wait $server
	echo "$1 $2 ${took:-0} $(((after - before) * 1000 / ticks))"
}
cpu() { sed 's/.*) //' "/proc/$1/stat" | awk '{ print $12 + $13 }'; }
ticks=$(getconf CLK_TCK)

head -c "${mib}M" /dev/urandom >"$dir/file" && cp "$dir/file" "$dir/source" || exit
workloads=(read-cold read-warm write)
! command -v fio >/dev/null || workloads+=(randread-cold randread-warm randwrite-cold)
for ((i = 0; i < rounds; i++)); do
	for workload in "${workloads[@]}"; do
		for server in file none hugepin dropin; do measure "$workload" $server; done
	done
done >"$dir/measured"
awk -f "$top/bench/median.awk" -f <(cat <<'EOF'
function median(name, key,	n, i, v)
{
	n = split(values[name, key], v, " ")
	for (i = 1; i <= n; i++)
		v[i] += 0
	sort_values(v, n)
	return quantile(v, n, 0.5)
}
{
	if (!(($1, $2) in seen)) { order[++rows] = $1 " " $2; seen[$1, $2] }
	values["time", $1 " " $2] = values["time", $1 " " $2] " " $3
	values["cpu", $1 " " $2] = values["cpu", $1 " " $2] " " $4 / 1000
}
function ratio(a, b) { return b > 0 ? sprintf("%.2f", a / b) : "-" }
END {
	printf "%-15s %-8s %9s %6s %9s %6s\n", "workload", "server", "s", "/file", "cpu s", "/file"
	for (i = 1; i <= rows; i++) {
		split(order[i], name, " ")
		time = median("time", order[i])
		cpu = median("cpu", order[i])
		printf "%-15s %-8s %9.3f %6s %9.3f %6s\n", name[1], name[2], time, ratio(time, median("time", name[1] " file")), cpu,
			ratio(cpu, median("cpu", name[1] " file"))
	}
}
EOF
) "$dir/measured"
