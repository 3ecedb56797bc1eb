#!/bin/bash
# hugepin plot: what it makes of traces, and what it says of files that are none. Most of it is seen in the script that
# gnuplot gets.
# shellcheck disable=SC2016 # dollars are gnuplot's and awk's
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
hugepin=$build/hugepin
header=t_ns,event,domain,policy,addr,len,pinned_bytes,regions
cd "$t" || exit 2

# A gnuplot that keeps what it is told and prints a picture, one that fails, and none.
mkdir fake broken none
printf '#!/bin/sh\ncat >%s/script\necho picture\n' "$t" >fake/gnuplot
printf '#!/bin/sh\nexit 3\n' >broken/gnuplot
chmod 755 fake/gnuplot broken/gnuplot
ln -s "$(python3 -c 'import sys; print(sys.executable)')" none/python3
plot() { PATH=$t/fake:$PATH timeout 400 "$hugepin" plot "$@"; }
# block NAME LINE...: gnuplot was told this data. mentions NAME PATTERN: gnuplot was told a line like that.
block() { says "$1" 0 "^${*:3} \$" sh -c 'sed -n "/^.$0 /,/^END/p" script | grep -v "END" | tr "\n" " "' "$2"; }
mentions() { if grep -Eq -e "$2" script; then pass "$1"; else fail "$1" "no line like: $2" "$(tail -n 30 script | cut -c1-400)"; fi; }

# One region of 2 MiB, missed at 1 s, given back at 2 s, had again at 3 s; the trace ends at 5 s.
cat >lru.csv <<END
$header
7000000000,miss,0,lru,0x7f0000000000,2097152,0,0
7001000000,register,0,lru,0x7f0000000000,2097152,2097152,1
7001000000,pin,0,lru,0x7f0000000000,100,2097152,1
9000000000,deregister,0,lru,0x7f0000000000,2097152,0,0
10000000000,register,0,lru,0x7f0000000000,2097152,2097152,1
12000000000,unpin,0,lru,0x7f0000000000,100,2097152,1
END
mkdir other
sed 's/lru/predict/' lru.csv >other/predict.csv

# rank FILE POLICY RANK BYTES [HOST SHIFT]: a trace of a rank that registers so much at 1 s + SHIFT, half of it from 2 s on, ends at 3 s.
rank()
{
	local s=${6:-0}
	{
		printf '%s\n' $header "# rank=$3 pid=$((100 + $3)) host=${5:-one}"
		echo "$((1 + s))000000000,miss,0,$2,0x1000,$4,0,0"
		echo "$((1 + s))000000000,register,0,$2,0x1000,$4,$4,1"
		echo "$((2 + s))000000000,deregister,0,$2,0x1000,$4,$(($4 / 2)),1"
		echo "$((3 + s))000000000,unpin,0,$2,0x1000,$4,$(($4 / 2)),1"
	} >"$1"
}
for n in 0 1 2 3 4 5; do rank run.r$n.csv lru $n $(((n + 1) << 20)); done

if command -v gnuplot >/dev/null; then
	works 'draws a PNG' "$hugepin" plot -o a.png lru.csv other/predict.csv
	size=$(head -c 24 a.png | od -An -tx1 | tr -d ' \n')
	says 'which is one, 1200 pixels wide' 0 '^89504e470d0a1a0a0000000d49484452000004b0' echo "$size"
	works 'draws an SVG' "$hugepin" plot -o a.svg -t 'Both & <all>' lru.csv other/predict.csv
	works 'which is well-formed' python3 -c 'import xml.dom.minidom as m; m.parse("a.svg")'
	for text in 'Both &amp; &lt;all>' 'registered memory (MiB)' 'time (s)' 'lru, lru.csv: mean 1.6 MiB, peak 2 MiB, 1 miss'; do
		works "which shows: $text" grep -F "<text>$text</text>" a.svg
	done
	printf '%s\n' $header 5,pin,0,none,0x1,1,0,0 >point.csv
	for traces in lru.csv point.csv 'run.r0.csv run.r1.csv run.r2.csv run.r3.csv run.r4.csv'; do
		# shellcheck disable=SC2086 # several
		says "gnuplot has nothing to say about $traces" 0 '^0$' sh -c '"$@" 2>&1 >/dev/null | wc -c' sh "$hugepin" plot -o a.png $traces
	done
else
	skip 'draws a PNG' 'gnuplot is not installed'
fi

says 'names the picture and what it shows' 0 '^lru\.png: 1 trace, 1 policy, 5 s$' plot lru.csv
says 'which has the name of the trace, if not told otherwise' 0 '^picture$' cat lru.png
block 'steps in MiB and seconds from the first event to the last' values0 '0 0 0\.001 2 2 0 3 2 5 2'
block 'a mark for the miss' misses0 '0\.00833333333 1'
mentions 'the axes begin at 0' '^set xrange \[0:5\]$'
mentions 'and hold the most' '^set yrange \[0:2.1\]$'
says 'plots several' 0 '^pinned\.png: 2 traces, 2 policies, 5 s$' plot -t "it's" lru.csv other/predict.csv
mentions 'labels are of policy and file' "^set title 'predict, other/predict\\.csv: .* textcolor rgb \"#d55e00\""
mentions 'quotes are doubled' "'it''s'"
{ cat lru.csv; echo 12000000001,register,1,lru,0x7f0000000000,8192,8192,2; } >two.csv
works 'plots two domains' plot two.csv
mentions 'which have their numbers then' "'lru, domain 1, two\\.csv: mean 8 KiB, peak 8 KiB, 0 misses'"
works 'reads from a pipe' plot <(cat lru.csv)
cp lru.csv $'l\xfc.csv'
works 'plots a file whose name is not UTF-8' plot $'l\xfc.csv'
mentions 'as what is' 'l\?\.csv: mean'

# Events of 1 us, in saw teeth, with one peak; the file does not end with a newline.
{
	echo $header
	awk 'BEGIN { for (i = 0; i < 200000; i++)
		printf "%d,%s,0,lru,0x1000,4096,%d,1\n", 1000 * i, i % 100 ? "register" : "miss", i == 170007 ? 1e9 : i % 9 * 1e6
		printf "200000000,deregister,0,lru,0x1000,4096,1234,0" }'
} >big.csv
works 'plots many events' plot big.csv
says 'of which it keeps a few for each column' 0 '^ok$' \
	awk '/^.values0/ { on = 1; next } /^END/ { on = 0 } on { n++; peak = $2 > peak ? $2 : peak; last = $0; if ($1 < t) back = 1; t = $1 }
	END { print (n > 2400 && n < 10000 && peak > 953.6 && peak < 953.7 && last == "200 0.00117683411" && !back ? "ok" : n " " peak " " last) }' script
mentions 'but counts them all' 'peak 954 MiB, 2000 misses'

says 'the ranks of a program are one run' 0 '^run\.png: 6 ranks, 1 policy, 2 s$' plot run.r*.csv
# 21 MiB together, of each 3.5; then half of it. A value that lasts no time is there for nobody.
block 'the line is their mean' values0 '0 3\.5 1 1\.75 2 1\.75'
says 'the band is from the one that has least to the one that has most' 0 '^0\.5 3$' \
	awk '/^.band0/ { on = 1; next } /^END/ { on = 0 } on && $1 > 1.9 && $1 < 1.91 { print $2, $3; exit }' script
mentions 'the label is of all' "'lru, run\.r\*\.csv: 6 ranks: mean 15.8 MiB, peak 21 MiB together, 6 misses'"
block 'misses of one time are one mark' misses0 '0\.00333333333 1'
rank run.r6.csv lru 6 1048576 one 2
works 'a rank that begins later' plot run.r*.csv
block 'begins later in the picture, if it has the clock of the others' values0 '0 3 1 1\.5 2 1\.64285714 3 1\.57142857 4 1\.57142857'
rank run.r6.csv lru 6 1048576 two 2000
works 'a rank with a clock of its own' plot run.r*.csv
block 'begins at the left' values0 '0 3\.14285714 1 1\.57142857 2 1\.57142857'
rm run.r6.csv
for policy in lru predict none; do for n in $(seq 0 15); do rank $policy.r"$n".csv $policy "$n" 1048576; done; done
says 'sixteen ranks under three policies are three runs' 0 '^pinned\.png: 3 runs, 16 ranks, 3 policies, 2 s$' \
	plot lru.r*.csv predict.r*.csv none.r*.csv
says 'each with a panel of its own' 0 '^3$' grep -c '^plot .band[012] .* .values[012] ' script
works 'up to four ranks' plot run.r[0-3].csv
says 'have a panel each' 0 '^4$' grep -c '^plot .values' script
mentions 'and their own names' "'lru, run\.r2\.csv: mean"
mkdir jobs
for n in 0 1 2 3 4; do rank jobs/$n-of-run.csv lru "$n" 1048576; rank jobs/run.10$n.csv lru "$n" 1048576; done
says 'a rank in another place of the name' 0 '^jobs/of-run\.png: 5 ranks' plot jobs/?-of-run.csv
says 'the number of the process in its place' 0 '^jobs/run\.png: 5 ranks' plot jobs/run.10?.csv
says 'both are two runs' 0 '^pinned\.png: 2 runs, 5 ranks' plot jobs/*.csv
says 'the same ranks twice are two runs' 0 '^pinned\.png: 2 runs, 6 ranks' plot run.r*.csv run.r*.csv
{ echo $header; seq 0 4 | awk '{ print "1,register," $1 ",lru,0x1000,4096,4096,1" }'; } >wide.csv
says 'five domains of a process are a sum, too' 0 '^wide\.png: 1 trace' plot wide.csv
mentions 'which says so' "'lru, wide\.csv: 5 domains: mean"
for n in $(seq 97); do cp lru.csv m"$n".csv; done
says 'too many runs for a picture' 1 '97 runs and policies are too many for one picture, which takes 96' plot m?.csv m??.csv

# ---------------------------------------------------------------- what is refused

while IFS='|' read -r name at line complaint; do
	sed "${at}s/.*/$line/" lru.csv >bad.csv
	says "a bad line: $name" 1 "^hugepin plot: bad\\.csv:$at: $complaint" plot lru.csv bad.csv
done <<'END'
no header|1|7000000000,miss,0,lru,0x7f0000000000,2097152,0,0|not a trace of HUGEPIN_TRACE, whose first line is t_ns,event,
no time|3|x,register,0,lru,0x7f0000000000,2097152,2097152,1|t_ns is 'x'; it has to be a number of nanoseconds
an empty line|3||t_ns is ''
time going backwards|4|7000999999,pin,0,lru,0x7f0000000000,100,2097152,1|the time is before
another event|4|7001000000,open,0,lru,0x7f0000000000,100,2097152,1|event is 'open'; it has to be pin, unpin,
a negative domain|4|7001000000,pin,-1,lru,0x7f0000000000,100,2097152,1|domain is '-1'; it has to be a number
a policy that is none|4|7001000000,pin,0,l'ru,0x7f0000000000,100,2097152,1|policy is
no address|4|7001000000,pin,0,lru,x,100,2097152,1|addr is 'x'; it has to be a hexadecimal number
a field too few|7|12000000000,unpin,0,lru,0x7f0000000000,100,2097152|regions is ''
a field too many|7|12000000000,unpin,0,lru,0x7f0000000000,100,2097152,1,2|9 fields; a line has 8: t_ns,event
an end within|7|12000000000,un|event is 'un'
END
printf '%s\n' 'seq(call number),t_start(ns since MPI_Init),t_end,cpu_app,op' 1,2,3,4,Send >calls.csv
says 'a file of the calls of MPI' 1 'calls\.csv:1: this file has the calls of an MPI program, of HUGEPIN_X_MPI_TRACE; .* HUGEPIN_TRACE=run\.csv' plot calls.csv
printf '%s\n' $header >none.csv
: >empty.csv
{ cat lru.csv; printf '13000000000,pin,0,lru,0x1,1,1,1\0,x\n'; } >zero.csv
echo old >lru.png
says 'a zero byte' 1 "zero\\.csv:8: regions is '1\\?'" plot zero.csv
says 'a trace without events' 1 'no events in none\.csv$' plot none.csv
says 'an empty file' 1 'empty\.csv:1: not a trace' plot empty.csv
says 'no such file' 1 'nowhere\.csv: No such file' plot nowhere.csv
says 'a directory' 1 'other: Is a directory' plot other
says 'another format' 2 'a\.gif: the name of the picture ends in' plot -o a.gif lru.csv
says 'a directory that is not there' 1 'nowhere/a\.png.*: No such file' plot -o nowhere/a.png lru.csv
cp lru.csv same.png
says 'a trace is not replaced by its picture' 1 'same\.png: this is a trace; the picture needs another name' plot -o same.png same.png
ln -s /dev/full full.png
says 'a full disk is noticed' 1 'No space' plot -o full.png lru.csv
works 'an ending in capitals is the same' plot -o A.SVG lru.csv
says 'the usage is that of the command' 2 "^$("$hugepin" --help | sed -n 's/^ *\(hugepin plot .*\)/usage: \1/p' | sed 's/[][]/\\&/g')$" plot
says 'without gnuplot it says what is missing' 1 'apt-get install gnuplot-nox' env PATH="$t/none" "$hugepin" plot lru.csv
says 'and without Python' 1 'python3: No such file .* apt-get install python3-minimal' env PATH=/nowhere "$hugepin" plot lru.csv
says 'when gnuplot fails it says so' 1 'gnuplot failed' env PATH="$t/broken:$PATH" "$hugepin" plot lru.csv
says 'and the old picture stays' 0 '^old$' cat lru.png
cp "$hugepin" alone
says 'without its script it says where it has looked' 1 "neither $t/hugepin-plot.py nor $t/../share/hugepin/hugepin-plot.py" ./alone plot lru.csv
