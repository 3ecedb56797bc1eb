#!/bin/bash
# The scripts for bpftrace print what is known of tests/probes/known.c, as root. Each reads the probes of the library.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../../../tests/live/tap.bash"
fact='the scripts print what is known'
# shellcheck source=tests/probes/known.bash
. "$(dirname "$0")/../../../tests/probes/known.bash"
run_known

# within SECONDS COMMAND...: whether the command succeeds by then; tried each tenth of a second.
within()
{
	local tries=0
	until "${@:2}"; do
		[ $((tries++)) -lt $(($1 * 10)) ] || return 1
		sleep 0.1
	done
}
has_ended() { ! kill -0 "$1" 2>/dev/null; }
traces_or_ended() { grep -q '^Tracing' "$t/$1" || has_ended "$2"; }
# trace_once SCRIPT: its output while the program ran, in $t/SCRIPT. 3: bpftrace began or ended too late.
trace_once()
{
	local tracer program ended status=0
	bpftrace "$top/extra/bpftrace/$1.bt" "$library" >"$t/$1" 2>"$t/$1.errors" &
	tracer=$!
	if ! within 30 traces_or_ended "$1" $tracer || ! grep -q '^Tracing' "$t/$1"; then
		has_ended $tracer || { echo 'bpftrace does not begin'; status=3; }
		kill -KILL $tracer 2>/dev/null
		wait $tracer
		cat "$t/$1.errors"
		return $((status ? status : 1))
	fi
	# The program waits until the tracer has ended: call sites have names while it runs.
	rm -f "$t/$1.fifo" "$t/$1.known"
	mkfifo "$t/$1.fifo"
	"$t/known" wait <"$t/$1.fifo" >"$t/$1.known" &
	program=$!
	exec 3>"$t/$1.fifo"
	within 60 grep -q '^again closed' "$t/$1.known" || { echo 'the program does not come to its end'; status=1; }
	kill -INT $tracer
	if ! within 30 has_ended $tracer; then
		echo 'bpftrace does not end'
		[ $status != 0 ] || status=3
		kill -KILL $tracer
	fi
	wait $tracer
	ended=$?
	if [ $status = 0 ] && [ $ended != 0 ]; then
		echo "bpftrace ended with status $ended"
		cat "$t/$1.errors"
		status=1
	fi
	exec 3>&-
	if ! within 30 has_ended $program; then
		echo 'the program does not end'
		! command -v gdb >/dev/null ||
			timeout -s KILL 400 gdb -batch -nx -p $program -ex 'thread apply all backtrace' 2>&1 | tail -40
		kill -KILL $program
		status=1
	fi
	wait $program
	return $status
}
# Under load bpftrace 0.17 loses descriptors of its own maps, now and then, before it prints them. It prints a part only, and may
# say so or not. That tells nothing of the library, and the trace is made again: a map that the library leaves empty stays absent.
is_partial()
{
	local map
	grep -qE 'look(ing)? up|Bad file descriptor' "$t/$1.errors" && return
	for map in "${@:2}"; do grep -q "^@${map}[:[]" "$t/$1" || return 0; done
	return 1
}
# trace SCRIPT MAP...: again while the trace lacks one of these maps, or bpftrace was late.
trace()
{
	local tries=0 status
	while :; do
		trace_once "$1"
		status=$?
		[ $status = 0 ] || [ $status = 3 ] || return $status
		[ $status = 3 ] || is_partial "$@" || return 0
		[ $((tries++)) -lt 3 ] || return $status
	done
}
# values SCRIPT MAP...: "MAP WORD VALUE", or "MAP VALUE" of a map without words.
values()
{
	local map
	for map in "${@:2}"; do
		sed -n "s/^@$map\(\[\([a-zA-Z]*\)\]\)\{0,1\}: \(-\{0,1\}[0-9]*\)\$/$map \2 \3/p" "$t/$1" | tr -s ' '
	done | sort
}
# as NAME TO: lines of the expected counts, by other names.
as() { sed -n "s/^$1 /$2 /p" "$t/expected"; }
agrees() { diff <(sort "$1") "$2"; }

if ! command -v bpftrace >/dev/null || [ "$(id -u)" != 0 ] ||
	! timeout 400 bpftrace -e "usdt:$library:hugepin:miss { } BEGIN { printf(\"%s\n\", \"begun\"); exit(); }" 2>"$t/why" | grep -q begun; then
	why='only for root'
	[ "$(id -u)" != 0 ] || why='the kernel does not let bpftrace trace'
	command -v bpftrace >/dev/null || why='no bpftrace: tools/setup check'
	for script in pins again heap; do skip "$script.bt prints what is known" "$why"; done
	exit
fi

if works 'pins.bt runs' trace pins miss miss_at registered deregistered uncached uncached_at; then
	{ as miss miss; as registration registered; as deregistration deregistered; as uncached uncached; } >"$t/wanted"
	values pins miss registered deregistered uncached >"$t/counted"
	works 'pins.bt counts misses, registrations and pins that are not cached' agrees "$t/wanted" "$t/counted"
	# at MAP: whether each of its stacks has the caller of hugepin_pin().
	at() { awk -v map="@$1[known" '
		index($0, map) == 1 { stacks++; inside = 1 }
		inside && / use_buffer\+/ { named++; inside = 0 }
		END { exit !(stacks && stacks == named) }' "$t/pins"; }
	for map in miss_at uncached_at; do works "it names the call sites of @$map" at $map; done
fi
if works 'again.bt runs' trace again evicted invalidated again; then
	{ as eviction evicted; as invalidation invalidated; as again again; } >"$t/wanted"
	values again evicted invalidated again >"$t/counted"
	works 'again.bt counts why memory is registered again' agrees "$t/wanted" "$t/counted"
fi
if works 'heap.bt runs' trace heap copied_bytes fork took_bytes gave_bytes; then
	# Not the extents: the child dissolves one of its own, too.
	{ as copied copied_bytes; as fork fork; as memory memory; } >"$t/wanted"
	{
		values heap copied_bytes fork
		values heap took_bytes gave_bytes | awk '{ sum += $1 == "took_bytes" ? $3 : -$3 } END { print "memory", sum }'
	} | sort >"$t/counted"
	works 'heap.bt sums what the heap takes and gives back, and what a fork copies' agrees "$t/wanted" "$t/counted"
	# The lines, in KiB: what was taken less what was given back, and what was copied.
	lines() { awk -v copied="$(as copied '' | tr -d ' ')" -v memory="$(as memory '' | tr -d ' ')" '
		/^[0-9][0-9]:/ { m += $2 + $3 + $4 - $5 - $6 - $7; c += $10; f += $9; n++ }
		END { exit !(n && m * 1024 == memory && c * 1024 == copied && f == 1) }' "$t/heap"; }
	works 'its lines have the same sums' lines || sed 's/^/# /' "$t/heap"
fi
