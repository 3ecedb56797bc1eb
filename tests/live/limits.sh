#!/bin/bash
# The drop-in under limits of every kind: programs work, or get NULL and ENOMEM; nothing crashes, nothing is lost.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
exhaust=$here/exhaust
# shellcheck disable=SC2016
text='my @a; for my $i (1..20) { push @a, chr(64 + $i) x 300000 } my $s = join "", @a; print length($s), unpack("%32C*", $s), "\n"'

# ---------------------------------------------------------------- address space and data

# Each test in a program of its own: jemalloc keeps the addresses that it has had, each of its arenas for itself, and a
# limit on them leaves little when many threads have been through.
each="for t in threads_run what_was a_realloc after_a limit_its_data limit_its_address; do LD_PRELOAD=$dropin $exhaust \$t || exit; done"
least=100000
[ -z "${COV:-}" ] || least=130000 # the libraries that count coverage are larger
for kilobytes in $least 200000 600000 4000000; do
	works "ulimit -v $kilobytes: memory runs out in order" bash -c "ulimit -v $kilobytes; $each"
	works "ulimit -v $kilobytes: a program that fits works" \
		bash -c "ulimit -v $kilobytes; LD_PRELOAD=$dropin perl -e '$text' | grep -q ^6000000"
done
for kilobytes in 50000 200000; do
	works "ulimit -d $kilobytes: memory runs out in order" bash -c "ulimit -d $kilobytes; $each"
	works "ulimit -d $kilobytes: a program that fits works" \
		bash -c "ulimit -d $kilobytes; LD_PRELOAD=$dropin perl -e '$text' | grep -q ^6000000"
done
works 'ulimit -s 256 and ulimit -n 8: memory as usual' bash -c "ulimit -s 256 -n 8; LD_PRELOAD=$dropin $exhaust freed"

# ---------------------------------------------------------------- locked memory

plain() { setpriv --bounding-set=-all --inh-caps=-all "$@"; } # root without capabilities, CAP_IPC_LOCK among them
if plain true 2>/dev/null; then
	works 'ulimit -l 0 without CAP_IPC_LOCK: memory as usual' \
		plain bash -c "ulimit -l 0; LD_PRELOAD=$dropin $exhaust"
	# MCL_FUTURE: every mapping over the limit is refused, with EAGAIN; malloc must say ENOMEM
	works 'mlockall(MCL_FUTURE) under ulimit -l 6000: memory runs out in order' \
		plain bash -c "ulimit -l 6000; EXHAUST_MLOCK=2 LD_PRELOAD=$dropin $exhaust freed || [ \$? = 77 ]"
else
	skip 'ulimit -l without CAP_IPC_LOCK' 'capabilities cannot be dropped here'
fi
for flags in 1 2 3; do # MCL_CURRENT 1, MCL_FUTURE 2
	EXHAUST_MIB=100 EXHAUST_MLOCK=$flags with "$exhaust" freed >"$t/out" 2>&1
	case $? in
	0) pass "mlockall($flags): memory as usual" ;;
	77) skip "mlockall($flags)" "$(sed 's/.*SKIP //' "$t/out")" ;;
	*) fail "mlockall($flags): memory as usual" "$(cat "$t/out")" ;;
	esac
done

# ---------------------------------------------------------------- hugetlb cgroup

# in_group LIMIT_V1 LIMIT_V2 COMMAND...: in a new group with at most 8 pages of 2 MiB by that limit. 77: not possible here.
in_group()
{
	local v1=$1 v2=$2 dir file status
	shift 2
	for dir in /sys/fs/cgroup/hugetlb /sys/fs/cgroup /sys/fs/cgroup/unified; do
		file=$v2
		[ "$dir" != /sys/fs/cgroup/hugetlb ] || file=$v1
		[ -e $dir/cgroup.procs ] || continue
		if [ -e $dir/cgroup.controllers ] && ! grep -qw hugetlb $dir/cgroup.subtree_control; then
			{ echo +hugetlb >$dir/cgroup.subtree_control; } 2>/dev/null || continue
			enabled=$dir
		fi
		dir=$dir/hugepin-test-$$
		mkdir $dir 2>/dev/null || continue
		if { echo 16777216 >"$dir/$file"; } 2>/dev/null; then
			# shellcheck disable=SC2016
			timeout -k 5 400 bash -c 'echo $$ >"$0/cgroup.procs" || exit 77; LD_PRELOAD=$1 "${@:2}"' "$dir" "$dropin" "$@"
			status=$?
		else
			status=77
		fi
		for _ in {1..200}; do rmdir $dir 2>/dev/null && break; sleep 0.1; done
		return $status
	done
	return 77
}

group()
{
	local name=$1 status
	shift
	in_group "$@" >"$t/out" 2>&1
	status=$?
	case $status in
	0) pass "$name" ;;
	77) skip "$name" 'no hugetlb cgroup can be made' ;;
	*) fail "$name" "status $status" "$(tail -15 "$t/out")" ;;
	esac
}

enabled=
if ! pool_has 20; then
	skip 'hugetlb cgroup limits' "hugetlb pool: 20 free pages needed, $(pool_free) there"
else
	# a limit on faults: mmap grants, and the touch would kill
	group 'hugetlb cgroup, fault limit: nobody dies' hugetlb.2MB.limit_in_bytes hugetlb.2MB.max "$exhaust"
	group 'hugetlb cgroup, fault limit: children live' hugetlb.2MB.limit_in_bytes hugetlb.2MB.max "$here/fork" a_child_has
	group 'hugetlb cgroup, rsvd limit: nobody dies' hugetlb.2MB.rsvd.limit_in_bytes hugetlb.2MB.rsvd.max "$exhaust"
	group 'hugetlb cgroup, rsvd limit: children live' hugetlb.2MB.rsvd.limit_in_bytes hugetlb.2MB.rsvd.max "$here/fork" a_child_has
fi
[ -z "$enabled" ] || { echo -hugetlb >"$enabled/cgroup.subtree_control"; } 2>/dev/null

# ---------------------------------------------------------------- a pool that others drain

if ! pool_has 20; then
	skip 'a pool drained at any moment' "hugetlb pool: 20 free pages needed, $(pool_free) there"
else
	(
		until [ -e "$t/over" ]; do
			for leave in 0 3 1 7; do sleep 0.05 | "$exhaust" --drain $leave >/dev/null; done
		done
	) &
	drainer=$!
	works 'a pool drained at any moment: nobody dies' env STRESS_SECONDS=2 STRESS_THREADS=3 LD_PRELOAD="$dropin" "$here/stress"
	: >"$t/over"
	wait $drainer
fi

# ---------------------------------------------------------------- dumps

# A program with 50 MB in use and a span of many gigabytes. Its dump must hold the one and not the other.
# shellcheck disable=SC2016
holder='$| = 1; $x = "a" x 50e6; print "ready\n"; kill ABRT => $$ if $ARGV[0]; sleep 1000'
bounded()
{
	local name=$1 file=$2 size
	size=$(stat -c %s "$file" 2>/dev/null)
	if [ -n "$size" ] && [ "$size" -gt 50000000 ] && [ "$size" -lt 400000000 ]; then
		pass "$name"
	else
		fail "$name" "${size:-no} bytes"
	fi
}
if command -v gcore >/dev/null; then
	LD_PRELOAD=$dropin perl -e "$holder" >"$t/ready" &
	held=$!
	for _ in {1..1000}; do [ -s "$t/ready" ] && break; sleep 0.1; done
	gcore -o "$t/gcore" $held >"$t/out" 2>&1 </dev/null
	if grep -q 'Operation not permitted' "$t/out"; then
		skip 'gcore of a process is as large as what it uses' 'no process may be traced here'
	else
		bounded 'gcore of a process is as large as what it uses' "$t/gcore.$held"
	fi
	kill $held
	wait $held 2>/dev/null
else
	skip 'gcore of a process is as large as what it uses' 'gdb is not installed'
fi
pattern=$(cat /proc/sys/kernel/core_pattern)
case $pattern in
core | core.%p | core_%p)
	mkdir "$t/core"
	bash -c "cd '$t/core'; ulimit -c unlimited; LD_PRELOAD=$dropin perl -e '$holder' 1; true" >/dev/null 2>&1
	bounded 'a core dump is as large as what the process used' "$(echo "$t"/core/core*)"
	;;
*) skip 'a core dump is as large as what the process used' "core_pattern is $pattern" ;;
esac

# ---------------------------------------------------------------- setuid

# A setuid program linked with the library obeys no variable; the same program without the bit does.
cp "$here/api" "$t/plain"
cp "$here/api" "$t/setuid"
says() { HUGEPIN_STATS=2 HUGEPIN_RESERVE=nonsense HUGEPIN_NONSENSE=1 "$@" one_family 2>&1 >/dev/null | grep -c '^hugepin'; }
if ! { chown 65534 "$t/setuid" && chmod 4755 "$t/setuid"; } 2>/dev/null; then
	skip 'setuid programs ignore the variables' 'no setuid program can be made'
elif ! "$t/setuid" one_family >/dev/null 2>&1; then
	skip 'setuid programs ignore the variables' 'such a program may not read the library here'
elif [ "$(says "$t/plain")" -gt 2 ] && [ "$(says "$t/setuid")" = 0 ]; then
	pass 'setuid programs ignore the variables'
else
	fail 'setuid programs ignore the variables' "$(says "$t/plain") lines without the bit, $(says "$t/setuid") with"
fi
