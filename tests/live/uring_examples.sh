#!/bin/bash
# The programs that show io_uring do what they say: examples/copy.c, and that in hugepin_uring(3).
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
# shellcheck source=tests/live/failing.bash
. "$(dirname "$0")/failing.bash"
top=$(cd "$(dirname "$0")/../.." && pwd)
copy=$build/examples/copy
cd "$t" || exit 2

head -c 3000001 /dev/urandom >whole
timeout -k 5 400 "$copy" whole target >said 2>&1
if grep -qE '^copy: io_uring: (Function not implemented|Operation not permitted)' said; then
	skip 'the examples of io_uring' 'no io_uring'
	exit
fi

# copies NAME [COMMAND...]: the copier, run by the command, makes a copy and says how fast, and nothing else.
copies()
{
	local name=$1 status
	shift
	rm -f target
	timeout -k 5 400 "$@" "$copy" file target >said 2>&1
	status=$?
	if [ $status = 0 ] && cmp file target >>said 2>&1 &&
		[[ $(cat said) =~ ^[0-9]+\ MiB/s\ with\ ordinary\ buffers,\ [0-9]+\ MiB/s\ with\ pinned\ ones$ ]]; then
		pass "$name"
	else
		fail "$name" "status $status" "$(cat said)"
	fi
}

for size in 0 1 4095 4096 262144 262145 3000001; do
	head -c $size whole >file
	copies "copy: a file of $size bytes"
done
copies 'copy: under the drop-in' env LD_PRELOAD="$dropin"

says() { "${@:2}" >said 2>&1; [ $? = 1 ] && grep -qx "copy: $1" said; }
works 'copy: says what is missing' says 'missing: No such file or directory' "$copy" missing target
works 'copy: says where it cannot write' says 'nowhere/out: No such file or directory' "$copy" file nowhere/out
works 'copy: says that the disk is full' says '/dev/full: No space left on device' "$copy" file /dev/full
works 'copy: does not destroy its source' says 'file and file are the same file' "$copy" file file
works 'copy: has not destroyed it' cmp file whole

# Root without capabilities, as a user of whom nobody else has memory pinned: one buffer of 256 KiB fits at most.
chmod 777 .
uid=$((61000 + $$ % 4000))
if setpriv --reuid=$uid --bounding-set=-all --inh-caps=-all true 2>/dev/null; then
	# shellcheck disable=SC2016
	setpriv --reuid=$uid --bounding-set=-all --inh-caps=-all bash -c \
		'ulimit -l 300; exec timeout -k 5 400 "$0" file limited' "$copy" >said 2>&1
	status=$?
	if grep -q '^copy: io_uring' said; then
		skip 'copy: with little locked memory' "$(cat said)"
	elif [ $status = 0 ] && grep -q '^copy: hugepin_pin: .*; going on without$' said && cmp -s file limited; then
		pass 'copy: goes on without pins when locked memory runs out'
	else
		fail 'copy: goes on without pins when locked memory runs out' "status $status" "$(cat said)"
	fi
else
	skip 'copy: with little locked memory' 'the user cannot be changed here'
fi

head -c 600001 whole >file
cp "$top/examples/copy.c" .
failing_tolerates='hugepin_pin open' leaves_nothing 'copy' copy.c file target

# The program that the page displays.
"$top/tools/examples" "$top/man/hugepin_uring.3" page
# shellcheck disable=SC2086,SC2046 # CC may be a command with options
if works 'hugepin_uring(3): the program compiles' ${CC:-cc} -Wall -Wextra -Werror -I"$top/include" -o page page-1.c \
	-L"$build" -Wl,-rpath,"$build" $(libraries page-1.c); then
	head -c 3000001 whole >file
	# page_copies LINE [COMMAND...]: it says how many buffers it has pinned, and makes a copy.
	page_copies() { rm -f to; [[ $("${@:2}" ./page file to 2>&1) =~ ^$1$ ]] && cmp file to; }
	works 'hugepin_uring(3): the program copies a file' page_copies '16 of 16 blocks are pinned'
	works 'hugepin_uring(3): under the drop-in, too' page_copies '16 of 16 blocks are pinned' env LD_PRELOAD="$dropin"
	# A hugepage is charged as a whole, and so is the ring.
	unprivileged=(setpriv --reuid=$((uid + 1)) --bounding-set=-all --inh-caps=-all)
	if "${unprivileged[@]}" true 2>/dev/null; then
		works 'hugepin_uring(3): with 8 MiB of locked memory, some blocks go without a pin' \
			page_copies '[1-7] of 16 blocks are pinned' "${unprivileged[@]}" prlimit --memlock=$((8 << 20))
	else
		skip 'hugepin_uring(3): with 8 MiB of locked memory' 'the user cannot be changed here'
	fi
	gone() { "$@" >said 2>&1; [ $? = 1 ] && grep -qx "./page: $why" said; }
	why='No such file or directory'
	works 'hugepin_uring(3): the program says that a file is missing' gone ./page missing to
	why='No space left on device'
	works 'hugepin_uring(3): and that the disk is full' gone ./page file /dev/full
	head -c 1500001 whole >file
	leaves_nothing 'hugepin_uring(3): the program' page-1.c file to
fi
