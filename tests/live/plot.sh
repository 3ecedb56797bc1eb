#!/bin/bash
# hugepin plot: what it makes of traces, and what it says of files that are none. Most of it is seen in the script that
# gnuplot gets.
# shellcheck disable=SC2016 # dollars are gnuplot's and awk's
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
hugepin=$build/hugepin
header=t_ns,event,domain,policy,addr,len,pinned_bytes,regions
cd "$t" || exit 2

# A gnuplot that keeps what it is told and prints a picture.
mkdir fake broken
printf '#!/bin/sh\ncat >%s/script\necho picture\n' "$t" >fake/gnuplot
printf '#!/bin/sh\nexit 3\n' >broken/gnuplot
chmod 755 fake/gnuplot broken/gnuplot
plot() { PATH=$t/fake:$PATH timeout 400 "$hugepin" plot "$@"; }

# has NAME LINE...: gnuplot was told these, one after the other.
has()
{
	local name=$1
	shift
	if python3 -c 'import sys; sys.exit("\n" + "\n".join(sys.argv[1:]) + "\n" not in "\n" + sys.stdin.read())' "$@" <script; then
		pass "$name"
	else
		fail "$name" "$(head -c 3000 script)"
	fi
}
# mentions NAME PATTERN: gnuplot was told a line like that.
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
mkdir -p other
sed 's/lru/predict/' lru.csv >other/predict.csv
sed 's/lru/predict/' lru.csv >other/lru.csv

# ---------------------------------------------------------------- pictures

if command -v gnuplot >/dev/null; then
	works 'draws a PNG' "$hugepin" plot -o a.png lru.csv other/predict.csv
	size=$(head -c 24 a.png | od -An -tx1 | tr -d ' \n')
	says 'which is one, 1200 pixels wide' 0 '^89504e470d0a1a0a0000000d49484452000004b0' echo "$size"
	works 'draws an SVG' "$hugepin" plot -o a.svg -t 'Both & <all>' lru.csv other/predict.csv
	works 'which is well-formed' python3 -c 'import xml.dom.minidom as m; m.parse("a.svg")'
	for text in 'Both &amp; &lt;all>' 'registered memory (MiB)' 'time (s)' 'misses' 'lru, lru.csv: mean 1.6 MiB, peak 2 MiB, 1 miss' \
		'predict, predict.csv: mean 1.6 MiB, peak 2 MiB, 1 miss'; do
		works "which shows: $text" grep -F "<text>$text</text>" a.svg
	done
	says 'gnuplot has nothing to say' 0 '^0$' sh -c "'$hugepin' plot -o a.png lru.csv 2>&1 >/dev/null | wc -c"
	printf '%s\n' $header 5,pin,0,none,0x1,1,0,0 >point.csv
	says 'nor about a trace of one event' 0 '^0$' sh -c "'$hugepin' plot -o a.png point.csv 2>&1 >/dev/null | wc -c"
else
	skip 'draws a PNG' 'gnuplot is not installed'
fi

# ---------------------------------------------------------------- what gnuplot is told

says 'names the picture and what it shows' 0 '^lru\.png: 1 trace, 1 policy, 5 s; 1200 x [0-9]* pixels$' plot lru.csv
says 'which has the name of the trace, if not told otherwise' 0 '^picture$' cat lru.png
says 'says so if it replaces a file' 0 '^lru\.png \(replaced\): 1 trace' plot lru.csv
has 'steps in MiB and seconds from the first event to the last' '$values0 << END' '0 0' '0.001 2' '2 0' '3 2' '5 2' END
has 'a mark for the miss' '$misses0 << END' '0 0.15 0.7' END
mentions 'the axes begin at 0' '^set xrange \[0:5\]$'
mentions 'and hold the most' '^set yrange \[0:2.1\]$'
says 'plots several' 0 '^pinned\.png: 2 traces, 2 policies, 5 s; ' plot -t "it's" lru.csv other/predict.csv
mentions 'labels are of policy and file' ", \\\$values1 .* title 'predict, predict\\.csv: "
mentions 'the first of two lines is wider, so that the other does not hide it' 'values0 using 1:2 with steps linewidth 4.2 .*values1 using 1:2 with steps linewidth 2 '
mentions 'quotes are doubled' "'it''s'"
works 'plots two of one name' plot lru.csv other/lru.csv
mentions 'which have their paths then' "'predict, other/lru\\.csv: .*"
{ cat lru.csv; echo 12000000001,register,1,lru,0x7f0000000000,8192,8192,2; } >two.csv
works 'plots two domains' plot two.csv
mentions 'which have their numbers then' "'lru, domain 1, two\\.csv: mean 8 KiB, peak 8 KiB, 0 misses'"
{ cat lru.csv; echo 12000000001,register,0,none,0x7f0000000000,8192,8192,2; } >again.csv
works 'plots a domain that was opened again' plot again.csv
mentions 'which has a line for each policy' "'none, again\\.csv: mean 8 KiB, peak 8 KiB, 0 misses'"
works 'reads from a pipe' plot <(cat lru.csv)
rm -f pinned.png lru.png
works 'plots where standard input and output are closed' \
	bash -c 'PATH=$0/fake:$PATH; exec "$@" <&- >&-' "$t" "$hugepin" plot lru.csv
says 'as elsewhere' 0 '^picture$' cat lru.png
works 'plots where the end of children is ignored' env PATH="$t/fake:$PATH" python3 -c 'import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])' "$hugepin" plot lru.csv
cp lru.csv $'l\xfc.csv'
works 'plots a file whose name is not UTF-8' plot $'l\xfc.csv'
mentions 'as what is' 'l\?\.csv: mean'
says 'beside it' 0 '^picture$' cat $'l\xfc.png'

# More than a million events of 1 us, in saw teeth, with one peak; the file does not end with a newline.
{
	echo $header
	awk 'BEGIN { for (i = 0; i < 1200000; i++)
		printf "%d,%s,0,lru,0x1000,4096,%d,1\n", 1000 * i, i % 100 ? "register" : "miss", i == 700007 ? 1e9 : i % 9 * 1e6
		printf "1200000000,deregister,0,lru,0x1000,4096,1234,0" }'
} >big.csv
works 'plots a million events' plot big.csv
says 'of which it keeps a few for each column' 0 '^ok$' \
	awk '/^.values0/ { on = 1; next } /^END/ { on = 0 } on { n++; peak = $2 > peak ? $2 : peak; last = $0; if ($1 < t) back = 1; t = $1 }
	END { print (n > 2400 && n < 10000 && peak > 953.6 && peak < 953.7 && last == "1200 0.00117683411" && !back ? "ok" : n " " peak " " last) }' script
says 'and one miss for each' 0 '^2400$' awk '/^.misses0/ { on = 1; next } /^END/ { on = 0 } on { n++ } END { print n }' script
mentions 'but counts them all' 'peak 954 MiB, 12000 misses'

# ---------------------------------------------------------------- ranks

# rank RUN POLICY RANK BYTES [HOST SHIFT]: a trace of a rank that registers so much at 1 s + SHIFT, half of it from 2 s on, ends at 3 s.
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
says 'the ranks of a program are one run' 0 '^run\.png: 6 ranks, 1 policy, 2 s; 1200 x' plot run.r*.csv
# 21 MiB together, of each 3.5; then half of it. A value that lasts no time is there for nobody.
has 'the line is their sum, on the scale of a rank' '$values0 << END' '0 3.5' '1 1.75' '2 1.75' END
says 'the band is from the one that has least to the one that has most' 0 '^0\.5 3$' \
	awk '/^.band0/ { on = 1; next } /^END/ { on = 0 } on && $1 > 1.9 && $1 < 1.91 { print $2, $3; exit }' script
mentions 'the right axis is that of the sum' '^set y2range \[0:37.8\]$'
mentions 'the label has both' "'lru, run\.r\*\.csv: 6 ranks together: mean 15.8 MiB, peak 21 MiB; a rank at most 6 MiB; 6 misses'"
says 'misses of one time are one mark' 0 '^1$' awk '/^.misses0/ { on = 1; next } /^END/ { on = 0 } on { n++ } END { print n }' script
rank run.r6.csv lru 6 1048576 one 2
works 'a rank that begins later' plot run.r*.csv
has 'begins later in the picture, if it has the clock of the others' '$values0 << END' '0 3' '1 1.5' '2 1.64285714' '3 1.57142857' '4 1.57142857' END
rank run.r6.csv lru 6 1048576 two 2000
works 'a rank with a clock of its own' plot run.r*.csv
has 'begins at the left' '$values0 << END' '0 3.14285714' '1 1.57142857' '2 1.57142857' END
rm run.r6.csv
for policy in lru predict none; do for n in $(seq 0 15); do rank $policy.r"$n".csv $policy "$n" 1048576; done; done
says 'sixteen ranks under three policies are three runs' 0 '^pinned\.png: 3 runs, 16 ranks, 3 policies, 2 s; 1200 x' \
	plot lru.r*.csv predict.r*.csv none.r*.csv
says 'each with a panel of its own' 0 '^3$' grep -c '^plot .band[012] .* .values[012] ' script
says 'and the same axes' 0 '^1$' sh -c "grep '^set yrange .0:1\.05' script | sort -u | wc -l"
works 'up to four ranks' plot run.r[0-3].csv
says 'have a panel each' 0 '^4$' grep -c '^plot .values' script
mentions 'and their own names' "'lru, run\.r2\.csv: mean"
mkdir -p jobs
for n in 0 1 2 3 4; do rank jobs/$n-of-run.csv lru "$n" 1048576; rank jobs/run.10$n.csv lru "$n" 1048576; done
says 'a rank in another place of the name' 0 '^jobs/of-run\.png: 5 ranks' plot jobs/?-of-run.csv
says 'the number of the process in its place' 0 '^jobs/run\.png: 5 ranks' plot jobs/run.10?.csv
says 'both are two runs' 0 '^pinned\.png( \(replaced\))?: 2 runs, 5 ranks' plot jobs/*.csv
says 'the same files twice are two runs' 0 '^pinned\.png( \(replaced\))?: 2 runs, 6 ranks' plot run.r*.csv run.r*.csv
for n in 0 1 2 3 4; do grep -v '#' run.r$n.csv >old.r$n.csv; cp old.r$n.csv single$n.csv; done
says 'ranks of a trace that does not have them inside' 0 '^old\.png: 5 ranks' plot old.r*.csv
says 'files without ranks are runs of their own' 0 '^pinned\.png( \(replaced\))?: 5 traces, 1 policy' plot single?.csv
{ echo $header; seq 0 4 | awk '{ print "1,register," $1 ",lru,0x1000,4096,4096,1" }'; } >wide.csv
says 'five domains of a process are a sum, too' 0 '^wide\.png: 1 trace' plot wide.csv
mentions 'which says so' "'lru, wide\.csv: 5 domains together"
for n in $(seq 97); do cp lru.csv m"$n".csv; done
says 'too many runs for a picture' 1 '97 runs and policies are too many for one picture, which takes 96' plot m?.csv m??.csv
works 'but not for one of less' plot m[1-8]?.csv
rm -f m?.csv m??.csv
if command -v gnuplot >/dev/null; then
	says 'gnuplot has nothing to say about ranks' 0 '^0$' \
		sh -c "'$hugepin' plot -o a.png lru.r*.csv predict.r*.csv run.r*.csv single?.csv 2>&1 >/dev/null | wc -c"
fi
cp lru.csv same.png
says 'a trace is not replaced by its picture' 1 'same\.png: this is a trace; the picture needs another name' plot -o same.png same.png
cmp -s lru.csv same.png || fail 'it is whole'
rm same.png

# ---------------------------------------------------------------- Trace Event JSON

# events FILE PROGRAM: what a line of Python says of the events, as a list of dictionaries named e.
events() { python3 -c 'import json, sys; e = json.load(open(sys.argv[1]))["traceEvents"]; print(eval(sys.argv[2]))' "$@"; }

works 'writes JSON, without gnuplot' env PATH=/nowhere "$hugepin" plot -o a.json lru.csv other/predict.csv
says 'each trace is a process with its name' 0 "^\\[\\(1, 'lru.csv'\\), \\(2, 'other/predict.csv'\\)\\]\$" \
	events a.json '[(x["pid"], x["args"]["name"]) for x in e if x["ph"] == "M"]'
says 'the bytes that are registered are a counter, at the times of the trace, in microseconds' 0 \
	'^\[\(7001000.0, 2097152\), \(9000000.0, 0\), \(10000000.0, 2097152\)\]$' \
	events a.json '[(x["ts"], x["args"]["bytes"]) for x in e if x["ph"] == "C" and x["pid"] == 1]'
says 'a registration begins and ends' 0 '^beb$' \
	events a.json '"".join(x["ph"] for x in e if x.get("cat") == "registration" and x["pid"] == 1)'
says 'by domain and address' 0 "^\\{'0:0x7f0000000000'\\}\$" events a.json '{x["id2"]["local"] for x in e if x["ph"] in "be"}'
says 'so does a pin' 0 '^be$' events a.json '"".join(x["ph"] for x in e if x.get("cat") == "pin" and x["pid"] == 2)'
says 'a miss is a mark, with its policy' 0 "^\\[\\(7000000.0, 'lru', 2097152\\), \\(7000000.0, 'predict', 2097152\\)\\]\$" \
	events a.json '[(x["ts"], x["args"]["policy"], x["args"]["len"]) for x in e if x["ph"] == "i"]'
works 'writes a million events' plot -o big.json big.csv
says 'all of them' 0 '^1200001$' grep -c '"ph":"[bei]"' big.json
sed 's/^12000000000,/12000000001,/' lru.csv >odd.csv
works 'writes a time that is no whole microsecond' plot -o odd.json odd.csv
works 'as it is' grep -q '"ts":12000000.001,' odd.json
printf '%s\n' 'old' >old.json
says 'a bad line leaves the old file' 1 'nowhere\.csv: No such file' plot -o old.json nowhere.csv
says 'as it was' 0 '^old$' cat old.json
# In a file system without a free block, which the shell leaves when it ends.
on_full_disk() { unshare -m sh -c 'mount -t tmpfs -o size=4k,mode=755 full full && : >full/a && dd if=/dev/zero of=full/b bs=4k count=1 2>/dev/null; "$@"' sh "$@"; }
mkdir full
if on_full_disk test -s full/b 2>/dev/null; then
	for end in json png svg; do
		says "a full disk is noticed, $end" 1 'No space' on_full_disk env PATH="$t/fake:$PATH" "$hugepin" plot -o full/c.$end lru.csv
	done
else
	skip 'a full disk is noticed' 'no file system may be mounted'
fi

# ---------------------------------------------------------------- the file on its way

echo precious >precious
ln -s precious lru.png.part
works 'plots where a link lies beside the picture' plot lru.csv
says 'which it does not write through' 0 '^precious$' cat precious
rm lru.png.part lru.png precious
says 'the picture is as readable as other files' 0 '^-rw-r-----$' \
	sh -c 'umask 027; "$@" >/dev/null && stat -c %A lru.png' sh env PATH="$t/fake:$PATH" "$hugepin" plot lru.csv
echo old >pinned.png
mkfifo slow
for name in SIGINT SIGTERM SIGHUP; do
	says "ended by $name, it leaves the old picture and nothing else" 0 "^-$name \\['pinned.png'\\] old$" \
		python3 -c 'import os, signal, subprocess, sys, time, glob
p = subprocess.Popen([sys.argv[1], "plot", "-o", "pinned.png", "slow"])
slow = open("slow", "w")
assert glob.glob("pinned.png.*.part"), os.listdir()
p.send_signal(getattr(signal, sys.argv[2]))
print("-" + signal.Signals(-p.wait(60)).name, glob.glob("pinned*"), open("pinned.png").read())' "$hugepin" $name
done
rm pinned.png

# ---------------------------------------------------------------- what is refused

while IFS='|' read -r name at line complaint; do
	sed "${at}s/.*/$line/" lru.csv >bad.csv
	says "a bad line: $name" 1 "^hugepin plot: bad\\.csv:$at: $complaint" plot lru.csv bad.csv
done <<'END'
no header|1|7000000000,miss,0,lru,0x7f0000000000,2097152,0,0|not a trace
no time|3|x,register,0,lru,0x7f0000000000,2097152,2097152,1|the time is no number
an empty line|3||the time is no number
a time too large|3|18446744073709551616,pin,0,lru,0x1,1,0,0|the time is no number
time going backwards|4|7000999999,pin,0,lru,0x7f0000000000,100,2097152,1|the time is before
another event|4|7001000000,open,0,lru,0x7f0000000000,100,2097152,1|no such event
no domain|4|7001000000,pin,,lru,0x7f0000000000,100,2097152,1|the domain
a negative domain|4|7001000000,pin,-1,lru,0x7f0000000000,100,2097152,1|the domain
no policy|4|7001000000,pin,0,,0x7f0000000000,100,2097152,1|no such policy
a policy that is none|4|7001000000,pin,0,l'ru,0x7f0000000000,100,2097152,1|no such policy
no address|4|7001000000,pin,0,lru,x,100,2097152,1|the last four
a field too few|7|12000000000,unpin,0,lru,0x7f0000000000,100,2097152|the last four
a field too many|7|12000000000,unpin,0,lru,0x7f0000000000,100,2097152,1,2|the last four
an end within|7|12000000000,un|no such event
only an event|7|12000000000,unpin|the domain
only a policy|7|12000000000,unpin,0,lru|the last four
END
{ echo 'seq(call number),t_start(ns since MPI_Init),t_end,cpu_app,op'; echo 1,2,3,4,Send; } >calls.csv
says 'a file of the calls of MPI' 1 'calls\.csv:1: this file has the calls of an MPI program, of HUGEPIN_MPI_TRACE; .* HUGEPIN_TRACE=run\.csv' plot calls.csv
printf '%s\n' $header >none.csv
: >empty.csv
{ cat lru.csv; printf '13000000000,pin,0,lru,0x1,1,1,1\0,x\n'; } >zero.csv
rm -f ./*.png
says 'a zero byte' 1 'zero\.csv:8: a zero byte' plot zero.csv
says 'a trace without events' 1 'no events in none\.csv$' plot none.csv
says 'an empty file' 1 'empty\.csv:1: not a trace' plot empty.csv
says 'no such file' 1 'nowhere\.csv: No such file' plot nowhere.csv
says 'a directory' 1 'other: Is a directory' plot other
says 'no trace' 2 '^usage: hugepin plot' plot -o a.png
says 'another format' 2 'a\.gif: the name of the picture ends in' plot -o a.gif lru.csv
says 'a name without ending, in a directory with one' 2 'ends in' plot -o x.png/a lru.csv
says 'a directory that is not there' 1 'nowhere/a\.png.*: No such file' plot -o nowhere/a.png lru.csv
works 'an ending in capitals is the same' plot -o A.SVG lru.csv
says 'helps' 0 '^usage: hugepin plot' plot --help
echo old >lru.png
says 'without gnuplot it says what is missing' 1 'apt-get install gnuplot-nox' env PATH="$t" "$hugepin" plot lru.csv
echo old >big.png
says 'when gnuplot fails it says so' 1 'gnuplot failed' env PATH="$t/broken" "$hugepin" plot big.csv
says 'and the old picture stays' 0 '^old$' cat big.png
says 'and nothing else' 0 '^0$' sh -c 'ls -- *.part 2>/dev/null | wc -l'
