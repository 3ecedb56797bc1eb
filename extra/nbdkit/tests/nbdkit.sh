#!/bin/bash
# The plug-in of nbdkit: what it serves is what the file has, whatever clients ask for at a time, with and without the
# drop-in, on a file and on disks of two sector sizes; when requests come back short, the kernel refuses, or the server dies.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../../../tests/live/tap.bash"
here=$(cd "$(dirname "$0")" && pwd)
plugin=$build/nbdkit-hugepin-plugin.so
faults=$build/extra/nbdkit/tests/lib/faults.so
for program in nbdkit nbdcopy nbdinfo python3; do
	command -v $program >/dev/null || missing=${missing:-$program}
done
[ -e "$plugin" ] || missing=${missing:-nbdkit-plugin.h when it was built}
if [ -n "${missing:-}" ]; then
	skip 'the plug-in of nbdkit' "no $missing: tools/setup check"
	exit
fi
cd "$t" || exit 2
disks=() server=''
# quit: end the server. Its status.
quit()
{
	local status
	kill "$server" 2>/dev/null
	wait "$server"
	status=$?
	server=''
	return $status
}
leave()
{
	[ -z "$server" ] || quit
	for disk in "${disks[@]}"; do losetup -d "$disk"; done
	! mountpoint -q "$t/full" || umount "$t/full"
}
trap 'leave; echo "1..$number"; rm -rf "$t"' EXIT
head -c 9000777 /dev/urandom >file
if ! nbdkit -U "$t/socket" "$plugin" file --run true 2>said; then
	if grep -q 'io_uring: \|O_DIRECT' said; then
		skip 'the plug-in of nbdkit' "$(sed 's/.*\(io_uring\|O_DIRECT\).*/no \1/' said)"
	else
		fail 'nbdkit takes the plug-in' "$(cat said)"
	fi
	exit
fi
uri="nbd+unix:///?socket=$t/socket"

# serve PRELOADED ARGUMENT...: start a server with these libraries.
serve()
{
	[ -z "$server" ] || quit # of a test that failed
	rm -f pid socket said
	env LD_PRELOAD="$1" nbdkit -f -U "$t/socket" -P "$t/pid" "$plugin" "${@:2}" 2>errors &
	server=$!
	until [ -s pid ]; do kill -0 $server 2>/dev/null || break; sleep 0.05; done
}

# stop: end the server. False if it complained, or did not end well.
stop()
{
	if ! quit || [ -s errors ]; then
		cat errors
		return 1
	fi
}
client() { timeout -k 5 400 python3 "$here/client.py" "$1" "$t/socket" "${@:2}"; }

# modelled FILE SEED ROUNDS PRELOADED [FAULTS]: random requests, and the server ends well.
modelled()
{
	FAULTS=${5:-} FAULTS_SAID=$t/said serve "$4" "$1"
	client model "$2" "$3" "$1" && stop
}
works 'random requests: the file has what was written' modelled file 1 30 ''
works 'under the drop-in' modelled file 2 30 "$dropin"

# copied PRELOADED: there and back, by four connections.
copied()
{
	truncate -s "$(stat -c %s file)" copy && serve "$1" copy || return
	nbdcopy --connections=4 --requests=16 file "$uri" && nbdcopy --connections=4 "$uri" back && nbdcopy "$uri" again && stop &&
		cmp file copy && cmp file back && cmp file again
}
works 'nbdcopy: what is copied there is copied back' copied ''
works 'nbdcopy: under the drop-in' copied "$dropin"
holes()
{
	truncate -s 16M sparse && dd if=file of=sparse bs=1M seek=5 count=1 conv=notrunc status=none && serve '' sparse &&
		nbdinfo --map "$uri" >map && nbdcopy "$uri" back && stop && cmp sparse back &&
		[ "$(awk '{ print $1, $2, $3 }' map)" = $'0 5242880 3\n5242880 1048576 0\n6291456 10485760 3' ]
}

# trimmed WHETHER COMMAND [FLAG]: 4 MiB become zeros, and take WHETHER (-lt: less, -ge: as much) of the disk.
trimmed()
{
	cp file thin && sync thin && serve '' thin || return
	local had
	had=$(stat -c %b thin)
	[ "$(client ask "$2" 4096 4194304 "${@:3}")" = ok ] && stop && test "$(stat -c %b thin)" "$1" "$had" &&
		cmp -n 4194304 <(tail -c +4097 thin) /dev/zero
}
if [ "$(stat -f -c %T .)" = ext2/ext3 ]; then
	works 'holes are told of' holes
	works 'what is trimmed becomes one' trimmed -lt trim
	works 'what is zeroed, too' trimmed -lt zero
	works 'unless the client wants none' trimmed -ge zero no-hole
else
	skip 'holes' 'not on ext4'
fi

# under FAULTS PATTERN PRELOADED: whole blocks come and go by registered buffers; what was done matches the pattern.
under()
{
	truncate -s 8M whole
	FAULTS=$1 FAULTS_SAID=$t/said serve "$faults $3" whole
	head -c 8M /dev/urandom >8m && nbdcopy 8m "$uri" && nbdcopy "$uri" back && stop && cmp 8m whole && cmp 8m back &&
		grep -qE "$2" said
	local status=$?
	[ $status = 0 ] || cat said
	return $status
}
works 'whole blocks go by index' under '' '^by index [1-9][0-9]*, by address 0,' ''
works 'under the drop-in nothing is copied' under '' '^by index [1-9][0-9]*, by address 0, buffers 0,' "$dropin"
works 'without clones each lane has its domain' under no-clones '^by index [1-9][0-9]*, by address 0,' ''
works 'without pins the same goes by address' under no-pins '^by index 0, by address [1-9]' ''
works 'one lane serves all' under one-ring '^by index [1-9]' ''
# What goes through the page cache reads and writes whole pages: a direct write that meets it would be lost.
apart() { modelled file 3 10 "$faults" meet && grep -q 'met 0,' said; }
works 'no direct write is under way beside the page cache' apart
# Many requests at a time.
crowded()
{
	FAULTS="crowd $1" FAULTS_SAID=$t/said serve "$faults" file
	client crowd file && stop && grep -E 'by index 24, by address 0, .* rings 2[1-5],' said
}
works 'many lanes share a domain' crowded ''
works 'a domain for each lane' crowded no-clones
works 'requests that come back short are continued' modelled file 4 20 "$faults" short
works 'within a block, too' modelled file 5 20 "$faults" odd
works 'under the drop-in' modelled file 6 20 "$faults $dropin" 'short odd'
works 'refused for now, they are made again' modelled file 7 20 "$faults" again
works 'without pins, clones and further rings' modelled file 8 20 "$faults" 'no-pins no-clones one-ring'

# forced FORCED FLUSHED REQUEST...: so many direct writes with RWF_DSYNC, and calls of fdatasync.
forced()
{
	FAULTS_SAID=$t/said serve "$faults" file
	[ "$(client ask write 0 4096)$(client ask "${@:3}")" = okok ] && stop && grep "forced $1, flushed $2$" said
}
works 'FUA: a whole block by its request' forced 1 0 write 8192 4096 fua
works 'FUA: a part of one by fdatasync' forced 0 1 write 8191 100 fua
works 'FUA: zeros, too' forced 0 1 zero 8192 4096 fua
works 'a flush is fdatasync' forced 0 1 flush 0 0
works 'others force nothing' forced 0 0 write 8191 4097

broken()
{
	FAULTS=$1 serve "$faults" file
	[ "$(client ask "$2" 4096 8192)" = "$3" ] && [ "$(client ask "$2" 1 100)" = ok ] && kill -0 "$server" && grep -q "$4" errors
	local status=$?
	quit
	return $status
}
works 'an error of the device reaches the client' broken broken write EIO "file: writing 8192 bytes at 4096: Input/output error"
works 'and that of a read' broken broken read EIO "file: reading 8192 bytes at 4096: Input/output error"
works 'so does the want of memory' broken no-memory write ENOMEM 'Cannot allocate memory'

# The kernel kills, or the user stops, in the middle of writes.
ended()
{
	serve "$2" file
	client end "$1" "$server" file || return
	quit
	[ $? = "$3" ]
}
for i in 1 2 3; do works "killed in the middle, nothing is lost that was answered ($i)" ended KILL '' 137; done
works 'under the drop-in' ended KILL "$dropin" 137
works 'stopped in the middle, neither' ended TERM '' 0

# The file becomes shorter, or is full.
shorter() { serve '' file && [ "$(client shorten file)" = 'ok EIO EIO' ]; }
works 'a file that became shorter is an error, not zeros' shorter
mkdir full
full()
{
	truncate -s 8M full/file && serve '' full/file
	[ "$(client ask write 0 65536)" = ok ] && [ "$(client ask write 1048576 2000000)" = ENOSPC ] &&
		[ "$(client ask write 1048577 2000001)" = ENOSPC ] && [ "$(client ask read 0 65536)" = ok ] &&
		grep -q 'full/file: writing 2000000 bytes at 1048576: No space left on device' errors
	local status=$?
	quit
	return $status
}
if ! mount -t tmpfs -o size=1m hugepin "$t/full" 2>/dev/null; then
	skip 'a full disk is an error' 'no permission to mount'
elif ! dd if=/dev/zero of=full/file oflag=direct bs=4096 count=1 2>/dev/null; then
	skip 'a full disk is an error' 'tmpfs refuses O_DIRECT before Linux 6.6'
else
	works 'a full disk is an error' full
fi

# Disks. One with sectors of 4096 bytes refuses parts of them.
for sector in 512 4096; do
	head -c $((2200 * 4096 + sector)) /dev/urandom >disk
	if disk=$(losetup -f -b $sector --show disk 2>/dev/null); then
		disks+=("$disk")
		works "a disk with sectors of $sector bytes" modelled "$disk" 9 20 ''
		works 'under the drop-in, with faults' modelled "$disk" 10 20 "$faults $dropin" 'short odd'
	else
		skip "a disk with sectors of $sector bytes" 'no loop device'
	fi
done

# What nbdkit and its clients are told.
hints() { serve '' file; [ "$(client hints)" = '1 4096 4294967295' ] && stop; }
works 'block sizes are told of' hints
# nbdkit -U - leaves a directory where it ends with an error, or as nobody.
flags()
{
	rm -f socket
	nbdkit -U "$t/socket" "$plugin" "$@" file --run "nbdinfo \$uri" >info &&
		[ "$(grep -cE 'can_(multi_conn|fua|flush|trim|zero): true' info)" = "$count" ]
}
count=5
works 'FUA, flush, trim, zero, several connections' flags
count=2
works 'with -r it is read, by several connections' flags -r
if [ "$(id -u)" = 0 ]; then
	works 'a file that only root may write is read, too' flags -u nobody -g nogroup
else
	skip 'a file that only root may write is read, too' 'not root'
fi
refuses() { says "$1" 1 "$2" nbdkit -U "$t/socket" "$plugin" "${@:3}" --run true; }
refuses 'no parameter' 'error: file=PATH is missing: a regular file or a block device$'
refuses 'another parameter' 'error: size: no such parameter, there is file=PATH alone$' size=1
refuses 'no such file' 'error: .*/nowhere/file: No such file or directory$' nowhere/file
refuses 'a directory' "error: $t is neither a regular file nor a block device$" "$t"
refuses 'a terminal, or the like' 'error: /dev/null is neither a regular file nor a block device$' /dev/null
refuses 'a file system without O_DIRECT' 'error: /proc/version: its file system has no direct requests \(O_DIRECT\)\.' \
	/proc/version
FAULTS=no-ring LD_PRELOAD=$faults refuses 'no io_uring' 'error: io_uring: Operation not permitted. It needs Linux 5.19,' file

# Whoever comes and goes leaves no descriptor; the server that goes to the background serves, too.
background()
{
	local i
	rm -f pid socket
	nbdkit -U "$t/socket" -P "$t/pid" "$plugin" file || return
	for ((i = 0; i < 6000; i++)); do [ ! -s pid ] || break; sleep 0.05; done # the child writes it
	server=$(cat pid) && nbdcopy "$uri" back && cmp file back || return
	for i in 1 2 3 4 5 6 7 8; do nbdcopy --connections=4 "$uri" back || return; done
	until [ "$(find "/proc/$server/fd" -lname 'socket:*' | wc -l)" = 1 ]; do sleep 0.05; done
	[ "$(find "/proc/$server/fd" -lname "$t/file" | wc -l)" = 0 ] && kill "$server" || return
	while kill -0 "$server" 2>/dev/null; do sleep 0.05; done
}
works 'in the background, clients come and go without a trace' background
server=''

# With little memory to lock and a user that may not lock more.
little()
{
	rm -f socket
	ulimit -l 64 && chmod 666 file && nbdkit -U "$t/socket" -u nobody -g nogroup "$plugin" file --run "nbdcopy \$uri $t/back" &&
		cmp file back
}
if [ "$(id -u)" = 0 ]; then works 'with 64 KiB to lock' little; else skip 'with 64 KiB to lock' 'not root'; fi
