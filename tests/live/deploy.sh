#!/bin/bash
# What docs/DEPLOY.md says of containers and jobs, by what those are made of: seccomp filters, capabilities, limits, user
# namespaces. Control groups have their tests in limits.sh. The snippets are what the programs that read them take.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
cd "$(dirname "$0")/../.." || exit 2
hugepin=$build/hugepin
pages=$(pool_free)

# Refuses the calls that a container's default profile does: userfaultfd (323), io_uring_setup (425), with EPERM (1).
# shellcheck disable=SC2016
filter='my @c = map { pack("SCCL", @$_) } [0x20, 0, 0, 0], [0x15, 1, 0, 323], [0x15, 0, 1, 425], [6, 0, 0, 0x50001], [6, 0, 0, 0x7fff0000];
my $code = join "", @c; my $p = pack("Sx6P", scalar @c, $code);
syscall(157, 38, 1, 0, 0, 0) == 0 && syscall(157, 22, 2, $p) == 0 or exit 77; exec @ARGV'
seccomp() { perl -e "$filter" -- "$@"; }
# Refuses userfaultfd alone, unless its flags (at 16) have UFFD_USER_MODE_ONLY, as the changed profile does.
# shellcheck disable=SC2016
masked='my @c = map { pack("SCCL", @$_) } [0x20, 0, 0, 0], [0x15, 0, 3, 323], [0x20, 0, 0, 16], [0x45, 1, 0, 1], [6, 0, 0, 0x50001], [6, 0, 0, 0x7fff0000];
my $code = join "", @c; my $p = pack("Sx6P", scalar @c, $code);
syscall(157, 38, 1, 0, 0, 0) == 0 && syscall(157, 22, 2, $p) == 0 or exit 77; exec @ARGV'
masked() { perl -e "$masked" -- "$@"; }
plain() { setpriv --bounding-set=-all --inh-caps=-all "$@"; } # no capabilities, CAP_IPC_LOCK among them

# A program that adds up 80 MB. Its heap's pages of the pool, in bytes, are in $t/stats.
# shellcheck disable=SC2016
sum='my @a; push @a, chr(65 + $_) x 8000000 for 1 .. 10; print length(join "", @a), "\n"'
program() { "$@" "$hugepin" run --stats=2 -- perl -e "$sum" >"$t/program" 2>"$t/stats" && grep -qx 80000000 "$t/program"; }
in_pool() { [ "$(awk '/hugetlb_bytes/ { print $NF }' "$t/stats")" -gt 80000000 ]; }
# It may not answer 0: what is refused is a fault to be mended.
info_has() { "${@:2}" "$hugepin" info 2>&1 | tee "$t/info" | grep -qE "$1"; }

# place NAME LINE COMMAND...: under COMMAND, info has LINE, if any, the program works, and has its heap in the pool.
place()
{
	local name=$1 line=$2
	shift 2
	if ! "$@" true 2>/dev/null; then
		skip "$name" 'cannot be made here'
		return
	fi
	[ -z "$line" ] || works "$name: hugepin info says so" info_has "$line" "$@"
	works "$name: a program works" program "$@"
	if [ "$pages" -lt 200 ]; then
		skip "$name: its heap is in the pool" 'needs a pool with 200 free pages'
	else
		works "$name: its heap is in the pool" in_pool
	fi
}
place "what a container's profile refuses" 'userfaultfd +not usable' seccomp
! seccomp true 2>/dev/null || works 'it refuses io_uring, too: hugepin info says so' info_has 'io_uring +not usable' seccomp
if "$hugepin" info 2>&1 | grep -qE 'userfaultfd +usable'; then
	works 'userfaultfd with UFFD_USER_MODE_ONLY alone is enough' info_has 'userfaultfd +usable' masked
	# shellcheck disable=SC2016
	says 'and what asks for more is refused' 1 'Operation not permitted' \
		masked perl -e 'my $fd = syscall(323, 0); print "$!\n"; exit($fd < 0)'
fi
place 'no CAP_IPC_LOCK and 64 KiB of locked memory' 'locked memory +64 KiB' plain prlimit --memlock=65536:65536
place 'a user namespace' '' unshare -Ur

# ---------------------------------------------------------------- the snippets

# snippet LANGUAGE N: the Nth one of docs/DEPLOY.md.
snippet() { awk -v start="^\`\`\`$1\$" -v n="$2" '/^```/ { inside = $0 ~ start && ++seen == n; next } inside' docs/DEPLOY.md; }

for n in 1 2 3 4; do
	works "shell snippet $n has no syntax error" bash -n <(snippet sh $n)
done
if command -v jq >/dev/null; then
	echo '{"syscalls": [{"names": ["userfaultfd", "vm86"], "action": "SCMP_ACT_ERRNO"}]}' >"$t/default.json"
	(cd "$t" && bash <(cd "$OLDPWD" && snippet sh 4)) 2>&1
	works 'the changed profile allows userfaultfd, and refuses what it did' jq -e \
		'.syscalls == [{names: ["vm86"], action: "SCMP_ACT_ERRNO"}, {names: ["io_uring_setup", "io_uring_enter", "io_uring_register"], action: "SCMP_ACT_ALLOW"},
			{names: ["userfaultfd"], action: "SCMP_ACT_ALLOW", args: [{index: 0, value: 1, valueTwo: 1, op: "SCMP_CMP_MASKED_EQ"}]}]' "$t/hugepin.json"
else
	skip 'the changed profile allows userfaultfd, and refuses what it did' 'no jq'
fi
if command -v systemd-analyze >/dev/null; then
	snippet ini 1 | sed -E 's|^(ExecStart=).*|\1/bin/true|' >"$t/program.service"
	verified() { systemd-analyze verify "$t/program.service" 2>&1 | grep "$t" >"$t/said"; cat "$t/said"; [ ! -s "$t/said" ]; }
	works 'systemd has nothing to say about the unit' verified
else
	skip 'systemd has nothing to say about the unit' 'no systemd-analyze'
fi
if command -v kubectl >/dev/null; then
	# What it does not know it drops: each line of ours must come out again.
	snippet yaml 1 >"$t/pod.yaml"
	decoded()
	{
		kubectl set image --local -f "$t/pod.yaml" program=other -o json >"$t/pod.json" &&
			grep -oE '[a-zA-Z0-9-]+:' "$t/pod.yaml" | tr -d : | sort -u | while read -r key; do
				grep -q "\"$key\":" "$t/pod.json" || { echo "$key is not known"; return 1; }
			done
	}
	works 'kubectl knows all of the pod' decoded
else
	skip 'kubectl knows all of the pod' 'no kubectl'
fi
