# Sourced by the tests of two nodes, after tap.bash. A test runs in guest1, and starts its other half in guest2.
# shellcheck shell=bash disable=SC2154 # t, build: of tap.bash
mkdir -p ~/.ssh
# Who has died says nothing. Nor does one whose processor stands still for a while, so there is some patience.
printf '%s\n' 'IdentityFile /run/guest/key' 'StrictHostKeyChecking no' 'UserKnownHostsFile /dev/null' 'LogLevel ERROR' \
	'KexAlgorithms curve25519-sha256' 'ControlMaster auto' 'ControlPath /tmp/%h' 'ControlPersist yes' \
	'ConnectTimeout 5' 'ServerAliveInterval 5' 'ServerAliveCountMax 4' >~/.ssh/config

# there COMMAND: in words of the shell, in guest2.
# shellcheck disable=SC2029 # here
there() { ssh guest2 "cd ${PWD@Q} && export BUILD=${build@Q} && $*" </dev/null; }

# has_booted: guest2 runs commands, and has the files of this test's directory.
has_booted()
{
	local tries=0
	until there true 2>"$t/ssh"; do
		[ $((tries++)) -lt 200 ] || { cat "$t/ssh"; return 1; }
		sleep 0.5
	done
	tar -C / -c "${t#/}" | ssh guest2 tar -C / -x
}

packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts; }

# dies STATUS PATTERN COMMAND...: guest2, in the middle of what the command exchanges with it. The command ends with such a status,
# which is not timeout's, and says such a line.
dies()
{
	local status before pid
	before=$(packets)
	"${@:3}" >"$t/lost" 2>&1 &
	pid=$!
	until [ $(($(packets) - before)) -ge 2000 ]; do
		kill -0 $pid || { cat "$t/lost"; return 1; }
		sleep 0.2
	done
	there 'echo b >/proc/sysrq-trigger' &
	wait $pid
	status=$?
	cat "$t/lost"
	# shellcheck disable=SC2053 # a pattern
	[[ $status == $1 && $status != 124 && $status != 137 ]] && grep -Eq -e "$2" "$t/lost"
}
none_registered() { rdma resource show mr | tee "$t/mr"; [ ! -s "$t/mr" ]; }

# survives NAME STATUS PATTERN COMMAND...: its other half dies with its node.
survives()
{
	works "$1" dies "${@:2}"
	grep -Em1 -e "$3" "$t/lost" | sed 's/^/# /'
	works 'which leaves nothing registered' none_registered
	works 'and the other node boots again' has_booted
}
