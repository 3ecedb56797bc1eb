#!/bin/bash
# guest: pair
# The examples across two nodes: transfers between buffers of malloc, packed messages, lent keys. When a node dies, the
# other's program says so, and ends or serves those who are left.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../live/tap.bash"
# shellcheck source=tests/guest/pair.bash
. "$(dirname "$0")/pair.bash"
e=$build/examples

# A server has begun: all have such a port.
listens='for ((i = 0; i < 300; i++)); do ! ss -tlnH | grep -q ":1851[0-9] " || exit 0; sleep 0.2; done; exit 1'
# both SERVER CLIENT...: an example with its server in guest2
both()
{
	there "timeout 240 $1" >"$t/server" 2>&1 &
	local server=$!
	there "$listens" && timeout -k 5 240 "${@:2}" guest2 && wait $server && cat "$t/server"
}
# serves ROUNDS_THERE ROUNDS_HERE: kv with its server here, and two clients
serves()
{
	timeout -k 5 240 "$e/kv" &
	local server=$! status=0
	(eval "$listens")
	there "timeout 240 $e/kv -n $1 guest1" >"$t/client" 2>&1 &
	timeout -k 5 240 "$e/kv" -n "$2" guest1 || status=1
	wait $server || status=$?
	return $status
}

works 'the other node has booted' has_booted
works 'a thousand messages of verbs go there and back, whole' both 'ibv_rc_pingpong -d rxe0 -g 1 -c' ibv_rc_pingpong -d rxe0 -g 1 -c
works 'pingpong' both "$e/pingpong -n 100" "$e/pingpong" -n 100
works 'pingpong, the drop-in on one side' both "$e/pingpong -n 100" env LD_PRELOAD="$dropin" "$e/pingpong" -n 100
cache=LD_PRELOAD=$build/libhugepin-verbscache.so
works 'pingpong, the cache of registrations on both sides' both "env $cache $e/pingpong -n 100" env "$cache" "$e/pingpong" -n 100
works 'halo: short rows' both "$e/halo -e 8 -n 30" "$e/halo" -e 8 -n 30
works 'halo: long rows, and faces of several frames' both "$e/halo -e 48 -n 10" "$e/halo" -e 48 -n 10
works 'kv: a borrower here, the lender there' both "$e/kv -c 1" "$e/kv" -n 3
works 'kv: a borrower there and one here, the lender here' serves 3 3

survives 'pingpong ends when its peer dies' 1 '^pingpong: ' both "$e/pingpong" "$e/pingpong" -n 1000000
survives 'halo ends when its peer dies' 1 '^halo: ' both "$e/halo -n 1000000" "$e/halo" -n 1000000
survives 'kv: a borrower ends when the lender dies' 1 '^kv: ' both "$e/kv -c 1 -n 1000000" "$e/kv" -n 1000000
survives 'kv: when a borrower dies, the lender takes its keys back, and serves the other' 0 '^kv: client [01] has gone: ' \
	serves 1000000 10
