#!/bin/bash
# guest: odp
# Programs that register once a run or a connection run under libhugepin-verbscache.so as they do without it.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
cache=$build/libhugepin-verbscache.so
modprobe rdma_ucm

# both SERVER CLIENT VARIABLE=VALUE...: the two ends of a program, in words of the shell
both()
{
	local status=0
	timeout -k 5 "$T_SECONDS" env "${@:3}" bash -c "$1" >"$t/server" 2>&1 &
	# shellcheck disable=SC2317 # meets calls it
	client() { timeout -k 5 "$T_SECONDS" env "$@" >"$t/client" 2>&1; }
	sleep 0.5
	meets $! client "${@:3}" bash -c "$2" || status=1
	wait $! || status=1
	[ $status = 0 ] || cat "$t/server" "$t/client"
	return $status
}
# run MODE SERVER CLIENT PATTERN: what both print of that, to $t/MODE
run()
{
	local variables=()
	[ "$1" = without ] || variables=(LD_PRELOAD="$cache" HUGEPIN_X_VERBS_CACHE="$1")
	both "$2" "$3" "${variables[@]}" || return 1
	grep -ohE "$4" "$t/server" "$t/client" >"$t/$1" || { cat "$t/server" "$t/client"; return 1; }
}
# same NAME SERVER CLIENT PATTERN
same()
{
	if ! command -v "${2%% *}" >/dev/null; then
		skip "$1" "no ${2%% *}: tools/setup guest"
		return
	fi
	works "$1 runs" run without "${@:2}"
	for mode in local remote; do
		works "$1 runs under the cache: $mode" run $mode "${@:2}"
		works "and its results are the same" cmp "$t/without" "$t/$mode"
	done
	sed 's/^/# /;3q' "$t/remote"
}

perftest='-d rxe0 -x 1 -F -n 64'
same 'perftest: ib_write_bw' "ib_write_bw $perftest -s 65536" "ib_write_bw $perftest -s 65536 10.0.0.1" '^ *65536 +64\b'
same 'perftest: ib_send_lat' "ib_send_lat $perftest -s 4096" "ib_send_lat $perftest -s 4096 10.0.0.1" '^ *4096 +64\b'
same rping 'rping -s -a 10.0.0.1 -C 5 -v -V' 'rping -c -a 10.0.0.1 -C 5 -v -V' 'ping data.*'
rsockets='-S 65536 -I 20 -C 1 -T v'
same 'rsockets: rstream' "rstream -b 10.0.0.1 $rsockets" "rstream -s 10.0.0.1 $rsockets" '^custom .*2[.]5m'
fio='fio --ioengine=rdma --port=8888 --bs=64k --size=2m'
same 'the engine rdma of fio' "$fio --name=receiver --rw=read --iodepth=8" \
	"until rdma resource show cm_id | grep -q LISTEN; do sleep 0.2; done; $fio --name=sender --hostname=10.0.0.1 --verb=write --rw=write --iodepth=1 --iodepth_batch_complete=1" \
	'err= *[0-9]+|issued rwts: .*'
