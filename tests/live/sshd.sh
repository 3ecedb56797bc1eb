#!/bin/bash
# OpenSSH's server under the drop-in: what it hears of a client before that is known is read by a child behind a filter of
# system calls, which ends the child for any other call. Needs root, because the server enters an empty directory for that.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
sshd=$(PATH=$PATH:/usr/sbin command -v sshd)
if [ -z "$sshd" ] || ! command -v ssh >/dev/null; then
	skip 'sshd under the drop-in' 'openssh-server or openssh-client is not installed'
	exit 0
fi
if ! command -v pgrep >/dev/null; then
	skip 'sshd under the drop-in' 'procps is not installed'
	exit 0
fi
if [ "$(id -u)" != 0 ]; then
	skip 'sshd under the drop-in' 'not root'
	exit 0
fi
if [[ $(getent shadow root) == root:!* ]]; then
	skip 'sshd under the drop-in' 'root may not log in'
	exit 0
fi
server=
made=
mkdir /run/sshd 2>/dev/null && made=/run/sshd # Debian's empty directory, which is there while its unit runs
leave()
{
	[ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null
	[ -z "$made" ] || rmdir "$made"
	echo "1..$number"
	rm -rf "$t"
}
trap leave EXIT

for key in host user; do ssh-keygen -q -t ed25519 -N '' -f "$t/$key" || exit 2; done
cp "$t/user.pub" "$t/authorized"
cat >"$t/config" <<EOF
HostKey $t/host
AuthorizedKeysFile $t/authorized
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
LogLevel VERBOSE
EOF

# serve: start the server, which is $server, on a port that is free, $port.
serve()
{
	for port in $(shuf -i 20000-32000 -n 20); do
		LD_PRELOAD=$dropin "$sshd" -D -e -f "$t/config" -o "ListenAddress=127.0.0.1:$port" 2>"$t/log" &
		server=$!
		until grep -q '^Server listening' "$t/log"; do
			kill -0 $server 2>/dev/null || continue 2
			sleep 0.05
		done
		return
	done
	return 1
}

# confined: the number of the server's child that has a filter. It is there from a client's first line on.
confined()
{
	local child
	for child in $(pgrep -P "$server") $(pgrep -P "$(pgrep -d, -P "$server")"); do
		! grep -q '^Seccomp:.2' "/proc/$child/status" || echo "$child"
	done 2>/dev/null
}

if ! serve; then
	fail 'the server starts' "$(cat "$t/log")"
	exit 1
fi

login()
{
	timeout -k 5 "${T_SECONDS:-600}" ssh -F none -p "$port" -i "$t/user" -o IdentitiesOnly=yes -o BatchMode=yes \
		-o UserKnownHostsFile="$t/known" -o StrictHostKeyChecking=no root@127.0.0.1 "$@"
}
for key_exchange in $(ssh -Q kex | grep -xE "curve25519-sha256|(sntrup|mlkem)[a-z0-9]*-sha[0-9]*|diffie-hellman-group-exchange-sha256"); do
	login -o KexAlgorithms="$key_exchange" seq 400000 >"$t/out" 2>"$t/err" </dev/null
	if cmp -s "$t/out" <(seq 400000); then pass "a client logs in and gets what its command prints: $key_exchange"; else
		fail "a client logs in and gets what its command prints: $key_exchange" "$(cat "$t/err")" "$(tail -15 "$t/log")"
		exit 1
	fi
done
seq 400000 >"$t/in"
login cat <"$t/in" >"$t/echo" 2>"$t/err"
works 'and what it sends' cmp "$t/in" "$t/echo"

exec 3<>"/dev/tcp/127.0.0.1/$port"
printf 'SSH-2.0-test\r\n' >&3
is_confined() { child=$(confined) && [ -n "$child" ]; }
meets "$server" is_confined
works 'the child that reads what a client sends has a filter and the library' grep -q libhugepin-malloc "/proc/$child/maps"
exec 3>&-
