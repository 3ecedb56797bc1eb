#!/bin/bash
# hugepin top: what it shows of a program that says itself what is to be seen (tests/top/pinner.c), and what it says of processes
# that it cannot look at.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
hugepin=$build/hugepin
top=$PWD
cd "$t" || exit 2

# compile NAME OPTION...: the pinner.
# shellcheck disable=SC2086 # CC may be a command with options
compile() { ${CC:-cc} -D_GNU_SOURCE -O1 -fno-omit-frame-pointer -I"$top/include" -o "$1" "$top/tests/top/pinner.c" "${@:2}"; }

# pinner COMMAND...: start it, as $job; $pid is the process to look at, $line what it said. stop: end it.
pinner()
{
	mkfifo "in$number" "out$number"
	timeout -k 5 500 "$@" <"in$number" >"out$number" 2>err &
	job=$!
	exec {input}>"in$number"
	read -r -t 150 line <"out$number" || { line=none; fail "the program begins: $*" "$(cat err)"; }
	read -r _ pid _ <<<"$line"
}
stop() { exec {input}>&-; wait "$job"; }
word() { sed -n "s/.*$1 \([^ ]*\).*/\1/p" <<<"$line"; }

# sees NAME EXPRESSION: of the JSON in file `json`, as o; the domains' by policy, as d.
sees()
{
	works "$1" python3 -c '
import json, sys
o = json.loads(open("json").readline())
d = {x["policy"]: x for x in o["domains"]}
def first(policy): return d[policy]["registrations"][0]
foreign, buffer, again = sys.argv[2:]
if not eval("(" + sys.argv[1] + ")"): print(json.dumps(o, indent=1)); sys.exit(1)' "$2" "$(word foreign)" "$(word buffer)" "$(word again)"
}
# where PROGRAM: the function that the call site in `json` lies in.
where()
{
	addr2line -f -e "$1" "$(python3 -c 'import json; print(json.load(open("json"))["domains"][2]["registrations"][0]["site"].split("+")[1])')"
}
once() { timeout -k 5 150 "$hugepin" top --once -d 0.3 "$@"; }
# until_true COMMAND...: so that nothing is decided by how fast the machine is; for a minute.
until_true()
{
	local i
	for ((i = 0; i < 600; i++)); do
		! "$@" || return 0
		sleep 0.1
	done
	return 1
}
# seen COMMAND...: the pinner has had the processor between the looks of `once COMMAND...`, and its helper too.
seen() { once "$@" >text 2>&1 && grep -q 'hits 100' text; }
seen_json() { once --json "$@" >json 2>err && grep -q '"hit_rate":1' json && grep -q '"helper_ns":[1-9]' json; }

if ! works 'the program compiles' compile pinner -L"$build" -lhugepin -luring -Wl,-rpath,"$build"; then exit 1; fi

# ---------------------------------------------------------------- a process

./pinner many </dev/null >text 2>&1
if grep -q 'no pin$' text; then
	skip 'hugepin top' "ulimit -l: $(ulimit -l) KiB are too few"
	exit
fi
pinner ./pinner
why=$(once "$pid" 2>&1 | grep 'keeps others out\|may not be looked at')
if [ -n "$why" ]; then
	skip 'hugepin top' "$why"
	stop
	exit
fi
ring=$(word ring)
until_true seen "$pid"
# A buffer in the cache of its thread counts as live: pinner has freed one of 1 MiB.
for what in "^hugepin top: $pid \(\./pinner\)" '^heap +hugetlb .*THP .*base pages .*in [0-9]+ extents' 'live [89] MiB ' \
	'^domain 0  mlock, arena$' '^domain 1  mlock, lru$' '^domain 2  mlock, predict$' "^domain 3  $ring, lru\$" \
	'^  pinned  256 KiB of 512 MiB, peak 256 KiB; out 3; regions 1, extents 0, retired 0$' \
	'hits 100\.00 %, misses 0/s$' '^  helper  [0-9.]+ % of a core' ' released [0-9]+ .*records lost [0-9]+$'; do
	works "shows: $what" grep -Eq -e "$what" text
done
until_true seen_json "$pid"
works 'says no more than one object' awk 'END { exit NR != 1 }' json
sees 'who: the process and how it was started' "o['pid'] == $pid and o['command'] == './pinner'"
sees 'the time between the looks' '0.29 < o["interval"] < 60'
sees 'the heap by kind of page' 'o["heap"]["used"] and
	o["heap"]["hugetlb_bytes"] + o["heap"]["thp_bytes"] + o["heap"]["base_bytes"] >= 8 << 20'
sees 'four domains, and that is all' 'len(o["domains"]) == 4 and o["complete"]'
sees 'backend and policy' '[(x["backend"], x["policy"]) for x in o["domains"]] ==
	[("mlock", "arena"), ("mlock", "lru"), ("mlock", "predict"), ("'"$ring"'", "lru")]'
sees 'an extent by its kind of page' 'first("arena")["kind"] == "extent" and first("arena")["heap"] and
	first("arena")["pages"] in ("hugetlb", "THP", "base pages")'
sees 'which is where the buffer is' 'int(first("arena")["address"], 16) <= int(buffer, 16) and
	int(buffer, 16) + (8 << 20) <= int(first("arena")["address"], 16) + first("arena")["length"]'
sees 'other memory with its address and length' '[(r["address"], r["length"]) for r in o["domains"][1]["registrations"]] ==
	[(foreign, 256 << 10)]'
sees 'the pins that are out' 'o["domains"][1]["pins_out"] == 3 and o["domains"][1]["registrations"][0]["pins_out"] == 3'
sees 'pins since the last look' 'd["arena"]["interval"]["pins"] > 0 and d["arena"]["interval"]["pins"] ==
	first("arena")["pins"]'
sees 'and how many found their memory registered' 'd["arena"]["interval"]["hit_rate"] == 1'
sees 'none where there were no pins' 'o["domains"][1]["interval"]["pins"] == 0 and
	o["domains"][1]["interval"]["hit_rate"] is None'
sees 'the helper, only where there is one' '[x["helper"] for x in o["domains"]] == [False, False, True, False]'
# A run that the other programs of the machine interrupt takes longer, and may have begun before the interval.
sees 'its load' 'd["predict"]["helper_ns"] > 0 and
	0 <= d["predict"]["interval"]["helper_load"] * o["interval"] * 1e9 <= d["predict"]["helper_ns"] * 1.001 + 1000'
sees 'the call site' 'first("predict")["address"] == again and first("predict")["site"].startswith("pinner+0x")'
says 'which is in the function that pins' 0 '^use$' where pinner
sees 'a mapping by its name' 'o["domains"][3]["registrations"][0]["mapping"].startswith("/memfd:mapped")'
"$hugepin" top --json -d 0.1 "$pid" >lines 2>err &
watcher=$!
objects() { [ "$(wc -l <lines)" -ge "$1" ]; }
until_true objects 4
kill -TERM $watcher
wait $watcher
status=$?
works 'without --once there is an object each interval' awk -v status=$status 'END { exit NR < 4 || status != 143 }' lines
works 'each of which is whole' python3 -c 'import json; [json.loads(l) for l in open("lines")]'
: >lines
"$hugepin" top --json -d 1 "$pid" >lines 2>err &
watcher=$!
until_true objects 1
for _ in 1 2 3; do kill -WINCH $watcher; sleep 0.1; done
until_true objects 3
kill -TERM $watcher
wait $watcher
works 'another size of the terminal is no interval' python3 -c '
import json
o = [json.loads(l) for l in open("lines")]
assert len(o) > 2 and all(x["interval"] > 0.99 for x in o), o'
: >lines
nohup "$hugepin" top --json -d 0.1 "$pid" >lines 2>err </dev/null &
watcher=$!
until_true objects 1
kill -HUP $watcher
works 'under nohup it goes on' until_true objects $(($(wc -l <lines) + 3))
kill -TERM $watcher
wait $watcher
# ended SIGNAL COMMAND...: by that signal, when the command runs, and has made the file `stuck` if $STUCK names it. A command in the
# background ignores SIGINT.
begun() { [ "$(readlink "/proc/$1/exe")" = "$(readlink -f "$hugepin")" ]; }
# shellcheck disable=SC2317 # says calls it
ended()
{
	rm -f stuck
	env --default-signal="$1" "${@:2}" &
	until_true begun $!
	[ -z "${STUCK:-}" ] || until_true test -e "$STUCK"
	kill -"$1" $!
	wait $!
}
says 'ended before there is anything to see it has failed' 143 '' ended TERM "$hugepin" top --once -d 60 "$pid"

# ---------------------------------------------------------------- a process that lends

stop
pinner ./pinner lend
once "$pid" >text 2>&1
for what in '^domain 4  nothing, lru$' '^  lend    lent 4 MiB, idle [^;]*; peers 1$' \
	'^          2: lent 4 MiB, borrowed 4 MiB; asked 1, waited 0, refused 0, recalls 0, recalled 0$'; do
	works "shows: $what" grep -Eq -e "$what" text
done
once --json "$pid" >json 2>err
sees 'what is lent, and to whom' 'o["domains"][4]["lend"]["lent_bytes"] == 4 << 20 and o["domains"][4]["lend"]["peers"] == 1 and
	o["domains"][4]["lend"]["most"][0]["peer"] == 2 and o["domains"][4]["lend"]["most"][0]["borrowed"] == 1'
sees 'nothing of domains that do not lend' 'o["domains"][0]["lend"] is None'
stop
pinner ./pinner

# ---------------------------------------------------------------- the screen

screens=0
# tm COMMAND...: of a server for each screen, since one that ends may still take the next command. It must not keep the pinner's
# input open.
tm() { LC_ALL=C.UTF-8 timeout -k 5 60 tmux -S "$t/tmux$screens" -f /dev/null "$@" {input}>&-; }
# screen COLUMNS ROWS VARIABLES OPTION...: top in such a terminal, which says at the end what became of it.
screen()
{
	rm -f top.pid
	screens=$((screens + 1))
	tm new-session -d -x "$1" -y "$2" "stty -g >before
		sh -c 'echo \$\$ >top.pid; exec env LC_ALL=C.UTF-8 TERM=screen ${3:-} $hugepin top -d 0.2 ${*:4} $pid'
		echo status \$?
		stty -g | cmp - before && echo settings kept
		exec sleep 1000"
}
closed() { tm kill-server; }
# shows PATTERN: the screen has a line like it.
shows() { tm capture-pane -p >shot 2>&1 && LC_ALL=C.UTF-8 grep -Eq -e "$1" shot; }
displays() { if until_true shows "$2"; then pass "$1"; else fail "$1" "no line like: $2" "$(cat shot)"; fi; }
# fits COLUMNS: the last shot begins with the title, and nothing is in its last row and its last column.
fits()
{
	LC_ALL=C.UTF-8 python3 -c '
import sys
rows = open("shot", encoding="utf-8").read().split("\n")[:-1]
assert rows[0].startswith("hugepin top: " + sys.argv[2]) and not rows[-1] and max(map(len, rows)) < int(sys.argv[1]), rows' "$1" "$pid"
}
# in_colour VARIABLES: whether a bar is.
in_colour()
{
	local status
	screen 80 24 "$1"
	until_true shows 'hits \[█+\] 100 %'
	tm capture-pane -pe | grep -q $'\[\033\[3[23]m█'
	status=$?
	closed
	return $status
}

if command -v tmux >/dev/null; then
	screen 80 24
	displays '80 columns: two bars in a row, and their numbers' '^0 arena    pinned \[no budget      \]            hits \[█{15}\] 100 %$'
	works 'and no line is too long' fits 80
	works 'the heap has them, too' shows '^heap    hugepages \[[█▌ ]{15}\] .* %  +live \[[█▌]+ +\] [0-9]+ %$'
	works 'a little is not nothing' shows '^1 lru      pinned \[▌ {14}\] under 1 %  hits \[no pins        \]$'
	works 'the text follows' shows '^heap      hugetlb '
	works 'and that there is more' shows '^\.\.\.$'
	tm resize-window -x 40 -y 12
	displays '40 columns: one bar in a row' '^             hits \[█{9}\] 100 %$'
	works 'and no line is too long' fits 40
	works 'to the last' shows '^3 lru      pinned \[no budget\]$'
	tm resize-window -x 130 -y 70
	displays '130 columns: wide bars' '^0 arena    pinned \[no budget {31}\]            hits \[█{40}\] 100 %$'
	works 'and no line is too long' fits 130
	works 'and the registrations' shows '^ +[0-9a-f]+ +256 KiB +3 '
	works 'and nothing is left out' sh -c '! grep -q "^\.\.\.$" shot'
	tm resize-window -x 20 -y 4
	displays 'a tiny one has the title' "^hugepin top: $pid *"
	tm resize-window -x 2 -y 2
	displays 'or what there is room for' '^h$'
	closed

	screen 80 24 '' -d 3600
	until_true shows '^0 arena .* hits '
	at=$(sed -n 's/.* \([0-9:]*\), over .*/\1/p' shot)
	tm resize-window -x 70 -y 30
	until_true shows '^0 arena +pinned \[no budget *\] +hits \[█{10}\]'
	works 'another size is drawn at once, of the same look' shows "$at, over"
	closed

	screen 80 24 LC_ALL=C
	displays 'without UTF-8 bars are ASCII' 'hits \[#{15}\] 100 %$'
	works 'all of it' sh -c '! grep -q "█" shot'
	closed
	works 'bars have a colour' in_colour ''
	fails() { if "${@:2}"; then fail "$1"; else pass "$1"; fi; }
	fails 'but none on a terminal without' in_colour TERM=vt220
	fails 'nor where nobody wants them' in_colour NO_COLOR=1
	screen 80 50 TERM=dumb
	displays 'a terminal that cannot place text has one after the other' '^domain 3 '
	works 'without bars' sh -c '! grep -q "\[" shot'
	closed

	for how in TERM:143 INT:130; do
		screen 80 24
		until_true shows '^0 arena '
		kill -"${how%:*}" "$(cat top.pid)"
		displays "SIG${how%:*} ends it" "^status ${how#*:}"
		displays 'and leaves the terminal as it was' '^settings kept$'
		closed
	done
	screen 80 24
	until_true shows '^0 arena '
	stop
	displays 'the end of the process ends it, too' "^hugepin top: process $pid has ended$"
	displays 'which is no failure' '^status 0$'
	closed

	long=$'\033[2Jé\n'$(printf 'x%.0s' {1..70})
	ln -s pinner "$long"
	pinner "./$long"
	screen 40 12
	displays 'a long name with odd bytes is cut, and text' "^hugepin top: $pid \(\./\?\[2J[?]+x+$"
	displays 'and the bars have their rows' '^heap    hugepages \['
	works 'and no line is too long' fits 40
	closed
	stop

	pinner ./pinner many
	screen 80 50
	displays 'of many registrations as many as fit are shown' '^  and 199[89][0-9] more$'
	works 'and the other domains' shows '^domain 3 '
	works 'and nothing is left out' sh -c '! grep -q "^\.\.\.$" shot'
	closed
	stop
else
	skip 'the screen' 'tmux is not installed'
	stop
fi

# ---------------------------------------------------------------- other processes

pinner ./pinner many
once -n 2 "$pid" >text 2>&1
works 'of many registrations shows the largest' grep -Eq -e "^ +$(word foreign | sed s/0x//) +256 KiB +3 " text
works 'and says how many more there are' grep -Eq '^  and 19999 more$' text
stop

pinner ./pinner fork
says 'a child of fork has a heap' 0 'live 8 MiB' once "$pid"
says 'and no domain' 0 '^pin cache no domain is open$' once "$pid"
stop

for how in -pie -no-pie -static; do
	if ! works "$how: compiles" compile whole $how -Wl,--whole-archive "$build/libhugepin.a" -Wl,--no-whole-archive -luring; then
		continue
	fi
	strip -o alone whole
	pinner ./alone
	says "$how: the library is found in a stripped program" 0 '^domain 2  mlock, predict$' once "$pid"
	once --json "$pid" >json
	says "$how: and the call site in it" 0 '^use$' where whole
	stop
done

mkdir lib
cp -L "$build/libhugepin.so" lib/libhugepin.so.0
compile moved lib/libhugepin.so.0 -luring
pinner env LD_LIBRARY_PATH="$t/lib" ./moved
rm -r lib moved
says 'the files of the process may be gone' 0 '^domain 2  mlock, predict$' once "$pid"
stop

sleep 100 &
other=$!
says 'a process without the library is told how to get it' 1 "process $other does not use hugepin: .*hugepin run" once $other
kill $other
wait $other 2>/dev/null
printf '%s\n' '#include <pthread.h>' '#include <unistd.h>' 'static void *stay(void *p) { sleep(100); return p; }' \
	'int main(void) { pthread_t t; pthread_create(&t, NULL, stay, NULL); pthread_exit(NULL); }' >first.c
# shellcheck disable=SC2086
${CC:-cc} -o first first.c -pthread
./first &
first=$!
until_true grep -q '^State:.*Z' /proc/$first/status
says 'a process that lives is not said to be none' 1 "process $first (has no memory|does not use)" once $first
kill $first
wait $first 2>/dev/null
says 'a process that has ended is none' 1 "there is no process $other" once $other
says 'a number is needed' 2 "'12x' is not the number of a process" "$hugepin" top 12x
says 'which is not 0' 2 "'0' is not the number" "$hugepin" top 0
says 'nor missing' 2 '^usage: hugepin top' "$hugepin" top
says 'the time between looks is a number' 2 "not 'x'" "$hugepin" top -d x 1
says 'that is not too small' 2 "not '0'" "$hugepin" top -d 0 1
says 'nor is the number of regions below 0' 2 "not '-1'" "$hugepin" top -n -1 1
says 'what it cannot print it says' 1 'standard output' sh -c "'$hugepin' top --help >/dev/full"

# A program whose data look like the page of a later library.
cat >later.c <<'END'
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((aligned(4096))) uint64_t page[512] = { 0x6875676570696e31, 8, [256] = 0x6875676570696e56, 0x6300000063 };
int main(void) { char c; dprintf(1, "pid %d\n", getpid()); return (int)read(0, &c, 1); }
END
# shellcheck disable=SC2086 # CC may be a command with options
${CC:-cc} -o later later.c
pinner ./later
says 'a library of another version is not looked into' 1 "process $pid uses hugepin in a version that this command" once "$pid"
stop

# Processes that lie.
# shellcheck disable=SC2086 # CC may be a command with options
${CC:-cc} -D_GNU_SOURCE -O1 -I"$top" -I"$top/include" -o hostile "$top/tests/top/hostile.c"
for how in stride round; do
	pinner ./hostile $how
	says "tables that have no end, $how: a look has" 0 "^hugepin top: $pid" once "$pid"
	stop
done

pinner ./pinner
export STUCK=stuck
while read -r name status; do
	says "a read that does not end: SIG$name ends it" "$status" '' ended "$name" env LD_PRELOAD="$here/stuck.so" "$hugepin" top --once "$pid"
done <<-'END'
	INT 130
	TERM 143
	HUP 129
END
unset STUCK
stop

# executes PROGRAM...: a shell with the library becomes that, while top looks, and ends after it has been seen, if it is.
mkfifo next last
executes()
{
	rm -f pid
	timeout -k 5 300 env LD_PRELOAD="$dropin" sh -c 'echo $$ >pid; read _ <next; exec "$@"' sh "$@" <last &
	exec {input}>last
	until_true test -s pid
	pid=$(cat pid)
	"$hugepin" top -d 0.2 --json "$pid" >lines 2>err {input}>&- & # which must not keep that open
	watcher=$!
	until_true grep -q '"command":"sh -c' lines
	echo >next
	ended() { grep -q '"command":"cat"' lines || ! kill -0 $watcher 2>/dev/null; }
	until_true ended
	exec {input}>&-
	wait $watcher
}
executes cat
works 'a process is followed into the program that it executes' grep -q '"command":"cat"' lines
works 'and had another before' grep -q '"command":"sh -c' lines
works 'and its end is told' grep -q 'has ended' err
executes env -u LD_PRELOAD cat
works 'but not into one without the library' grep -q 'does not use hugepin' err
wait

# A process that asked for them, and got none.
pinner env HUGEPIN_PAGES=thp "$here/thp" --wait
once "$pid" >text 2>&1
works 'THP are those that are there' grep -q '^heap .*  THP 0 bytes  base pages or untouched 64 MiB' text
stop

# 80 MiB are not copied within a millisecond.
forked='import os; b = bytearray(b"x") * (80 << 20); p = os.fork(); p or os._exit(0); os.waitpid(p, 0); print("of", os.getpid(), flush=True); input()'
if pool_has 60; then
	pinner env HUGEPIN_PAGES=hugetlb LD_PRELOAD="$build/libhugepin-malloc.so" python3 -c "$forked"
	once "$pid" >text 2>&1
	works 'how long a fork has stopped it' grep -q '^          stopped for [1-9][0-9]* ms by a fork: HUGEPIN_PAGES=thp avoids the copy$' text
	stop
else
	skip 'how long a fork has stopped it' 'the pool has no 60 free pages'
fi

nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
if [ "$(id -u)" = 0 ] && "${nobody[@]}" true 2>/dev/null; then
	cp "$hugepin" own
	chmod 755 own
	pinner ./pinner
	says "another user's process is left alone" 1 "process $pid is of user root" "${nobody[@]}" ./own top --once "$pid"
	stop
	ln -s pinner Uid:65534
	pinner ./Uid:65534
	says 'whatever it is called' 1 "process $pid is of user root" "${nobody[@]}" ./own top --once "$pid"
	stop
	cp -L "$build/libhugepin.so" libhugepin.so.0
	compile moved libhugepin.so.0 -luring -Wl,-rpath,"$t"
	pinner "${nobody[@]}" ./moved alone
	says 'so is one that keeps others out' 1 "process $pid (keeps others out|may not be looked at)" "${nobody[@]}" ./own top --once "$pid"
	says 'but not by root' 0 '^domain 2  mlock, predict$' once "$pid"
	stop
else
	skip "another user's process is left alone" 'another user cannot be had here'
fi
