#!/bin/bash
# shellcheck disable=SC2016,SC2317 # nothing is to be expanded; called through others
# make report's page: rendered from a few samples of real runs (tests/report/raw) in which one bench is missing, one failed, and
# the processor has an odd name; counted again, and looked at in a browser (tests/report/look).
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
top=$(cd "$(dirname "$0")/../.." && pwd)
page=$t/r/index.html figures=$t/r/figures.txt
unset PEERS

render() { REPORT=$1 timeout 300 "$top/bench/report" render; }
# again NAME SED-SCRIPT FILE: a report of the same samples, changed.
again() { mkdir -p "$t/$1" && cp -r "$top/tests/report/raw" "$t/$1" && sed -i "$2" "$t/$1/raw/$3" && render "$t/$1" >"$t/out"; }
figure() { sed -n "s|^$1 ||p" "${2:-$figures}"; }
is() { if [ "$2" = "$3" ]; then pass "$1"; else fail "$1" "is $2, not $3"; fi; }

mkdir "$t/r" && cp -r "$top/tests/report/raw" "$t/r"
works 'a page is made from recorded samples' render "$t/r"
[ -s "$page" ] || exit
cp "$page" "$t/before.html"
render "$t/r" >"$t/out"
works 'the same samples make the same page' cmp "$page" "$t/before.html"

# By other means: sort, and the third of five.
ratio=$(awk -F, '$3 == "pair.32K" { v[$1, $2] = $4 } END { for (r = 1; r <= 5; r++) print v[r, "hugepin"] / v[r, "glibc"] }' \
	"$t/r/raw/alloc.csv" | sort -g | sed -n 3p)
is "a ratio is the median of the rounds' ratios" "$(figure alloc-pair:pair.32K:hugepin/glibc)" "$ratio"
cell=$(awk '$1 == "cell" && $3 == "each" && $4 == 4 && $5 == 128 { print $8 }' "$t/r/raw/sg.csv" | sort -g | sed -n 3p)
is 'a value is the median of its samples' "$(figure sg-hot1:hot.1.4x128:each)" "$(awk "BEGIN { print $cell + 0 }") ns"

losses=$(grep -o "<td class='num loss'>" "$page" | wc -l)
is 'every loss of a table is in the list of losses' "$losses" $((2 * $(figure all:loss)))
is 'there are losses to be seen' "$(($(figure all:loss) > 5))" 1
wins=$(grep -o "<td class='num win'>" "$page" | wc -l)
is 'wins are counted as they are shown' "$wins" "$(figure all:win)"
for kind in peer own; do
	sed -n "/id='losses-$kind'/,/<\/tbody>/p" "$page" | sed -n "s|^<tr><td class='num loss'><b>\([^<]*\)</b> loss.*|\1|p" |
		sed 's/∞/inf/' >"$t/list"
	is "losses are listed: $kind" "$(wc -l <"$t/list")" "$(awk "/:$kind-loss / { n += \$2 } END { print n }" "$figures")"
	works 'the worst loss comes first' sort -gr -c "$t/list"
done
first() { sed -n "s|^<p class='lead' id='first'>\(.*\)</p>|\1|p" "$1"; }
has() { if [[ $2 == *"$3"* ]]; then pass "$1"; else fail "$1" "$2" "has not: $3"; fi; }
has 'the page begins with what hugepin is' "$(first "$page")" 'hugepin is a malloc for Linux that puts large buffers in hugepages'
counts=$(awk -F'[: ]' '{ n[$2] += $3 } END { printf "%d of %d comparisons, as much in %d and more in %d", n["peer-win"],
	n["peer-win"] + n["peer-level"] + n["peer-loss"], n["peer-level"], n["peer-loss"] }' "$figures")
has 'then what this run says' "$(first "$page")" "$counts"
# The first picture. use_of TABLE [PAGE]: what it says of the use: verdict, factor, least and most ratio, the best peers.
use_of() {
	sed -n "s|^<li class='\([a-z]*\)'><a href='#$1'>.*<b>\([^<]*\)</b><span class='small'>\([^<]*\)</span><span class='small'>\([^<]*\)</span></li>|\1: \2, \3, \4|p" "${2:-$page}"
}
# By other means: two rows, between which the middle is where their distance is the same.
middle=$(sed -n 's|^pin-heap:.*:arena/best ||p' "$figures" | awk '{ n++; x += log($1) } END { x = exp(-x / n); if (n == 2) printf x < 10 ? "%.2f" : "%.1f", x }')
has 'a use is its middle row, as a factor' "$(use_of pin-heap)" "win: $middle times as fast, "
has 'beside the peer that is best' "$(use_of pin-heap)" ', UCX'
is 'a loss is one' "$(use_of pin-evict)" 'loss: 6.93 times as long, 6.93 to 6.93, UCX'
is 'the best use comes first' "$(sed -n "s|^<li class='[a-z]*'><a href='#\([^']*\)'.*|\1|p" "$page" | sed -n '1p;$p' | paste -s -d ' ')" 'pin-heap pin-evict'
is '1 is at the same place in all' "$(grep -o "class='one' x1='[^']*'" "$page" | sort -u | wc -l)" 1
again slow 's/^\([1-5],hugepin,pair[^,]*\),[^,]*/\1,999999/' alloc.csv
has 'a run in which it loses shows so' "$(use_of alloc-pair "$t/slow/index.html")" 'loss: over 1000 times as long'
again level 's/^\([1-5],[^,]*,[^,]*\),[0-9.]*,ns/\1,100,ns/' alloc.csv
is 'where nothing differs it is as fast' "$(use_of alloc-pair "$t/level/index.html")" 'level: as fast, 1.00 to 1.00, glibc'
for r in 1 2 3 4 5; do printf '%s\n' "$r,hugepin,sparse.1M.peak,30,MiB" "$r,glibc,sparse.1M.peak,20,MiB" "$r,tcmalloc,sparse.1M.peak,15,MiB"; done >"$t/sparse"
again memory "\$r $t/sparse" alloc.csv
has 'memory has rows of its own' "$(use_of alloc-sparse "$t/memory/index.html")" 'loss: 2.00 times as much, 2.00 to 2.00, tcmalloc'
again smoke '/^mode/s/quick/smoke/' machine.tsv
is 'a smoke run has no headline' "$(first "$t/smoke/index.html" | grep -c comparisons) $(grep -c "class='uses'" "$t/smoke/index.html")" '0 0'
works 'but says what it is' grep -qF "<h1>A smoke run</h1>" "$t/smoke/index.html"
rm -f "$t"/level/raw/{alloc,pin}.*
render "$t/level" >"$t/out"
has 'one that measured no other software says so' "$(first "$t/level/index.html")" 'This run measured nothing beside other software.'
absent=$(sed -n "/<h2 id='absent'/,/<\/section>/p" "$t/level/index.html")
is 'what was not measured is folded, once' "$(grep -c '<details><summary>[0-9]* benches, each with its reason' <<<"$absent") $(
	grep -cE "<h3 id='(alloc|pin|programs)'" <<<"$absent")" '1 3'

works 'rows have names that a stranger understands' grep -qF \
	"<th scope='row' title='replay-misses:misses.save.shape-noreuse'>made-up: a loop whose buffers are never reused</th>" "$page"
cell() { sed -n "s|^.*<th scope='row' title='$1'>[^<]*</th>.*<td class='num\( [a-z]*\)'><b>\([^<]*\)</b>.*|\2\1|p" "$2"; }
is 'a few per cent of nothing are no loss' "$(cell replay-bytes:bytes.save.shape-noreuse "$page")" '∞ level'
is 'less memory for more misses is a trade' "$(cell replay-bytes:bytes.save.shape-zipf "$page")" '300.9 trade'
is 'and so is the other side of it' "$(cell replay-misses:misses.save.shape-zipf "$page" | sed 's/.* //')" 'trade'
again same '/trace=zipf policy=cf11/s/miss_pct=[0-9.]*/miss_pct=0.10/' replay.csv
is 'without its other side it is a loss' "$(cell replay-bytes:bytes.save.shape-zipf "$t/same/index.html")" '300.9 loss'
is 'a colour never stands alone' "$(grep -oE "<td class='num (win|loss|level)'><b>[^<]*</b> " "$page" | wc -l)" \
	"$(grep -oE "<td class='num (win|loss|level)'>" "$page" | wc -l)"
again better '/,hugepin,touch.128K,/s/,[0-9.]*,ns/,1,ns/' alloc.csv
is 'a loss that is none any longer leaves the list' "$(($(figure all:loss "$t/better/figures.txt") < $(figure all:loss)))" 1

# The papers' figures beside this run.
papers=$t/r/papers.txt
tables() { cat "$top"/bench/papers/*.tables; }
answered() { grep -cE '^    here:  (not measured: .+|([^ ]+( [KMG]iB)?: )?-?[0-9])' "$1"; }
is 'each number of the papers has one beside it, or a reason' "$(answered "$papers")" "$(tables | grep -cE '^\s*(row|each|curve|timeline) ')"
is 'each figure and table of the papers is there' "$(grep -cE '^  (Figure|Table|Section) ' "$papers")" "$(tables | grep -cE '^item (Figure|Table|Section) ')"
name=pin-register:register.64K
beside=$(printf %.3g "$(figure $name:2M/4K)")
has 'it is what the page has, by its size' "$(cat "$papers")" "here:  64 KiB: $beside; 1 GiB: "
has 'sizes that were not measured say so' "$(cat "$papers")" '; 16 KiB, 256 KiB, 1 MiB, 4 MiB, 16 MiB, 64 MiB, 256 MiB not measured: pin: this run'
has 'what this run has not says so' "$(cat "$papers")" 'here:  not measured: accuracy: this run does not have it'
has 'a curve over time is its values' "$(tr '\n' ' ' <"$papers")" \
	"here:  $(sed -n 's/^series none registered.fig1 MiB [0-9.]* \([0-9.]*\),\([0-9.]*\),.*/\1/p' "$t/r/raw/timelines.txt") "
comm=$(sed -n 's/^figure none comm.fig1 \([0-9.]*\) .*/\1/p' "$t/r/raw/timelines.txt") leave=$(sed -n 's/^figure leave comm.fig1 \([0-9.]*\) .*/\1/p' "$t/r/raw/timelines.txt")
claim="deregistering after each use makes communication longer ($(awk "BEGIN { printf \"%.3g\", $comm / $leave }"), asked > 1.05)"
has 'a direction that agrees is among those' "$(sed -n '/^Directions/,/not as the papers say/p' "$papers")" "$claim"
again against '/^figure none comm/s/ [0-9.]* \([^ ]*\)$/ 0.1 \1/' timelines.txt
has 'and one that does not among the others, with what differs' "$(sed -n '/not as the papers say/,/not measured in/p' "$t/against/papers.txt" | tr -d '\n')" \
	'asked > 1.05)      Costs of registering are a model'
again gone '' mpi.status
mv "$t/gone/raw/mpi.status" "$t/gone/raw/mpi2.status"
render "$t/gone" >"$t/out"
has 'and what failed says why' "$(cat "$t/gone/papers.txt")" "here:  not measured: mpi2: $(cut -f 4 "$t/r/raw/mpi.status")"
is 'the page of the papers has the same figures' "$(grep -c "<section id='item-" "$t/r/papers.html")" "$(tables | grep -c '^item ')"
works 'and a picture of what was measured' grep -q "<svg class='picture' role='img' aria-label='Figure 2, picture 1'" "$t/r/papers.html"
fails() { if "${@:2}" >"$t/out" 2>&1; then fail "$1"; else pass "$1"; fi; }
# page SED-SCRIPT: the papers' page of tables that are changed.
page_of() { tables | sed "$1" >"$t/papers.tables" && awk -v raw="$t/r/raw" -v work="$t" -v here="$top/bench" -f "$top/bench/median.awk" \
	-f "$top/bench/html.awk" -f "$top/bench/papers/papers.awk" /dev/null "$t/papers.tables"; }
works 'tables as they are' page_of ''
fails 'a row with a part too few is refused' page_of '0,/^\trow /s/ | [^|]*$//'
fails 'a key that is not known' page_of '0,/^\trow /s//\tcolumn /'
fails 'a figure without bench and subject' page_of '0,/^\tclaim .*/s//\tclaim what | this | < 1/'
fails 'a claim without a comparison' page_of '0,/^\tclaim .*/s//\tclaim what | a:b:c | 1/'

has 'the page begins with what the run was' "$(head -n 12 "$papers")" 'load before: 9.49 6.46 3.88'
again whole '/^mode/s/quick/papers/' machine.tsv 2>"$t/whole.err"
is 'a run for the papers alone has a figure for each row whose bench ran' $? 1
has 'and says so' "$(cat "$t/whole.err")" 'report: rows of papers.txt have no figure, though their benches ran'

# A page that cannot be made leaves none that was printed from older figures.
mkdir "$t/bin"
printf '#!/bin/sh\nexit 1\n' >"$t/bin/iconv"
chmod +x "$t/bin/iconv"
PATH=$t/bin:$PATH again lost '' machine.tsv
is 'an empty page is told by the exit status' $? 1
is 'and the papers are not printed from what was there before' "$(find "$t/lost" -maxdepth 1 -name 'papers.*')" ''

# Targets and comparisons of the same samples. The third of five ratios is the median.
"$top/bench/verdict" "$t/r/raw/alloc.csv" "$t/r/raw/pin.csv" >"$t/verdict"
is 'a missed target is told by the exit status' $? 1
works 'and with its value' grep -qE "^pair.32K .*hugepin/glibc $(printf %.3g "$ratio") \(.*MISS, at most 0.35" "$t/verdict"
works 'a target that no row is about was not measured' grep -qE '^fork1000  +NOT MEASURED$' "$t/verdict"
works 'losses are there without a target' grep -qE '^  small.many +[0-9.]+ x mimalloc \([0-9.]+ ns\)$' "$t/verdict"
# Further peers. Each row is judged by the best of all, which is another one from row to row.
further() {
	sed '1a0,new,peer,malloc 7.1,\n0,other,peer,libother.so,' "$t/r/raw/alloc.csv"
	sed -n 's/^\([1-5]\),hugepin,pair.32K,.*/\1,new,pair.32K,3,ns/p; s/^\([1-5]\),hugepin,pair.64M,.*/\1,new,pair.64M,300000,ns/p
		s/^\([1-5]\),hugepin,small.pair,.*/\1,other,small.pair,1,ns\n\1,hugepin-new,small.pair,9,ns\n\1,new,small.pair,10,ns/p' "$t/r/raw/alloc.csv"
}
mkdir -p "$t/further" && cp -r "$top/tests/report/raw" "$t/further" && further >"$t/further/raw/alloc.csv"
"$top/bench/verdict" "$t/further/raw/alloc.csv" >"$t/verdict"
judges() { works "$1" grep -qE "$2" "$t/verdict"; }
judges 'a further peer is the best where its median is least' '^pair.32K  .*  hugepin/new [0-9.]+ \([0-9.]+ to [0-9.]+\) LOSS'
judges 'elsewhere another is' '^pair.64M  .*  hugepin/tcmalloc [0-9.]+ \([0-9.]+ to [0-9.]+\) (win|level|LOSS)'
judges 'neither the floor nor a hugepin is a peer' '^small.pair  .*  hugepin/other [0-9.]+ '
judges 'hugepin over a peer is beside that peer' '^small.pair  .*  hugepin-new/new 0.9 \(0.9 to 0.9\) win'
judges 'peers have their versions' '^Beside the peers: .* Peers: new \(malloc 7.1\), other \(libother.so\), glibc \(glibc 2.36\),'
judges 'the losses name the best peer' '^  pair.32K +[0-9.]+ x new \([0-9.]+ ns\)$'
render "$t/further" >"$t/out"
page_of() { figure "$1" "$t/further/figures.txt"; }
is 'the page has a column for each, and judges by the best' "$(page_of alloc-pair:pair.32K:hugepin/best)" "$(page_of alloc-pair:pair.32K:hugepin/new)"
is 'row by row' "$(page_of alloc-pair:pair.64M:hugepin/best)" "$(page_of alloc-pair:pair.64M:hugepin/tcmalloc)"
works 'and tells whom it compares with' grep -qF '<p class='"'how'"'>Peers: new (malloc 7.1), other (libother.so), glibc (glibc 2.36), ' "$t/further/index.html"
sed '1p; /larson/!d; s/^\([1-5],hugepin[^,]*,[^,]*\),[^,]*/\1,1/' "$t/r/raw/alloc.csv" >"$t/good.csv"
works 'what reaches its targets is no failure' "$top/bench/verdict" "$t/good.csv"
for r in 1 2 3 4 5; do
	printf '%s\n' "$r,base,a,100,ns" "$r,hugepin,a,10$r,ns" "$r,base,b,100,ns" "$r,hugepin,b,10$((r + 3)),ns" \
		"$r,base,c,4,ns" "$r,hugepin,c,4.4,ns" "$r,base,d,1,MiB" "$r,hugepin,d,1.2,MiB"
done | sed '1iround,allocator,name,value,unit' >"$t/compare.csv"
awk -v worse="$t/worse" -f "$top/bench/median.awk" -f "$top/bench/judge.awk" -f "$top/bench/compare.awk" "$t/compare.csv" >"$t/compared"
is 'rows are worse from 5 % on, and times from half a nanosecond on' "$(paste -s "$t/worse")" "$(printf 'b\td')"

# A name in a page that no run of the report can have would stay a dash.
# The page's run had these PEERS.
known=$(bash -c '. "$0" && echo "$known ucx"' "$top/bench/allocators.sh")" mimalloc2 mimalloc3 mimalloc3-large snmalloc jemalloc-new ucx-new"
awk -v known="$known" '
	# A name of the page as the tables have it: a peer that is always there stands for PEER.
	function generic(text,	n, who, k, part) {
		n = split(known, who, " ")
		split(text, part, "/")
		for (k = 1; k <= n; k++)
			if (part[part[2] ? 2 : 1] == who[k])
				return (!part[2] ? "" : part[1] == "hugepin-" part[2] ? "hugepin-PEER/" : part[1] "/") "PEER"
		return text
	}
	FILENAME ~ /tables$/ {
		if ($1 == "bench") { bench = $2; table = ""; benches[bench] }
		if ($1 == "table") table = bench "-" $2
		if ($1 == "rows") rows[table] = "^(" substr($0, 6) ")$"
		if ($1 == "values" || $1 == "ratios") { gsub(/[()]/, ""); what[table] = what[table] " " substr($0, 8) " " }
		next
	}
	{
		while (match($0, /<!--[a-z0-9-]+:[^>]*-->/)) {
			n = split(substr($0, RSTART + 4, RLENGTH - 7), part, ":")
			$0 = substr($0, RSTART + RLENGTH)
			if (part[1] != "machine" && !(n == 2 && part[1] in benches && part[2] ~ /^(peer|own)-(win|level|loss)$/) &&
			    !(n == 3 && part[1] in rows && part[2] ~ rows[part[1]] && 
			      (index(what[part[1]], " " part[3] " ") || index(what[part[1]], " " generic(part[3]) " "))))
				print part[1] ":" part[2] ":" part[3]
			seen++
		}
	}
	END { if (seen < 100) print seen + 0 " figures" }' "$top/bench/report.tables" "$top/docs/PERFORMANCE.md" >"$t/unknown"
is 'figures of the page are rows of the report' "$(cat "$t/unknown")" ''

# In a log scale two tics give a decade, and glibc's own line is at 1. Rounds far apart: quartiles are elsewhere.
again spread 's/^\([12]\),hugepin,pair.32K,[^,]*/\1,hugepin,pair.32K,0.01/; s/^\([45]\),hugepin,pair.32K,[^,]*/\1,hugepin,pair.32K,99999/' alloc.csv
drawn=$(sed -n "/id='alloc-pair'/,/<\/svg>/p" "$t/spread/index.html" | awk '
	/translate\(/ { at = $0; sub(/.*translate\([^,]*,/, "", at) }
	/<tspan/ { gsub(/<[^>]*>|[ \t]/, ""); tic[$0] = at + 0 }
	/<path stroke=.var\(--series-[12]\)/ { n = /series-1/ ? 1 : 2; sub(/.*translate\([^,]*,/, ""); if (!(n in y)) y[n] = $0 + 0 }
	END { if (tic["0.001"]) printf "%.2f", 10 ^ ((y[2] - y[1]) / (tic["0.001"] - tic["0.01"])) }')
is 'a picture shows the medians' "$drawn" "$(printf %.2f "$(figure alloc-pair:pair.32K:hugepin/glibc "$t/spread/figures.txt")")"

# joined FILE: how many series have a line, apart from the one in the list of series.
joined() { sed -n "/id='alloc-pair'/,/<\/svg>/p" "$1" | grep -cE "<path stroke='var\(--series-.* L.* L"; }
is 'no line joins sizes between which others were left out' "$(joined "$page")" 0
again next 's/pair.64M/pair.64K/' alloc.csv
works 'but those that follow each other' test "$(joined "$t/next/index.html")" -gt 1
is 'both axes of each picture have a name' "$(grep '<text>' "$page" | grep -cE '>(time over .*faster\)|time, [a-z]+|misses, % of re-uses|[a-z]+ of the table|bytes .*|[a-z]+, threads|registered on average.*)<')" $((2 * $(grep -c "<svg class='picture'" "$page")))

works 'a bench that cannot run here is there with its reason' grep -qF \
	'<b>not run here</b>: exit status 2: no python3 that has numpy: &quot;tests/judges/install.sh bench&quot; &lt;&amp;&gt; again' "$page"
works 'a bench that failed is there with its reason' grep -qF "<b class='loss'>FAILED</b>: exit status 1: FAILED: predict" "$page"
works 'what it measured before is shown' grep -q '^mpi-run:time:leave ' "$figures"
works 'odd names of the machine are text' grep -qF 'Intel(R) &lt;Xeon(R)&gt; &amp; &quot;Gold&quot; 6338 CPU @ 2.00GHz × 2' "$page"
again odd '2,$s/hits.heap.10.t1/hits.heap.<i>"\&'"'"'\\`$(id)é/' pin.csv
printf 'caf\351 \001\n' >>"$t/odd/raw/pin.txt"
works 'and odd names of rows' grep -qF '&lt;i&gt;&quot;&amp;&#39;\`$(id)é</th>' "$t/odd/index.html"
rm "$t/odd/raw/guest".*
render "$t/odd" >"$t/out"
works 'the page is UTF-8, whatever a bench printed' iconv -f UTF-8 -t UTF-16 -o "$t/utf16" "$t/odd/index.html"
works 'a bench without a trace was not asked for' grep -q 'Verbs in a guest.*<b>not run here</b>: not asked for' "$t/odd/index.html"

# Where nothing is built every bench fails; the page is made all the same.
BUILD=$t/nothing timeout 300 "$top/bench/report" --smoke >"$t/out" 2>&1
is 'benches that fail are told by the exit status' $? 1
BUILD=$t/nothing timeout 300 "$top/bench/report" --papers --smoke --no-guest >"$t/out" 2>&1
is 'the papers alone, too' $? 1
papers=$t/nothing/report/papers.txt
is 'and all their rows have a reason' "$(answered "$papers") $(grep -c '^    here:  [^n]' "$papers")" \
	"$(tables | grep -cE '^\s*(row|each|curve|timeline) ') 0"
has 'that no guest was booted is one' "$(cat "$papers")" 'here:  not measured: guest: no guest was booted: --no-guest, or --smoke'
works 'all were tried, and the page is there' grep -q "class='loss'>FAILED" "$t/nothing/report/index.html"

valid() { [ -s "$1" ] && tidy -e -q "$1"; }
if command -v tidy >/dev/null; then
	for name in r/index odd/index nothing/report/index r/papers; do
		works "valid HTML: $name" valid "$t/$name.html"
	done
else
	skip 'valid HTML' 'tidy is not installed'
fi
if ! command -v chromium >/dev/null || ! command -v gnuplot >/dev/null; then
	skip 'in a browser' 'no chromium, or no gnuplot'
	exit
fi
cp "$page" "$t/good.html"
cp "$t/odd/index.html" "$t/odd.html"
cp "$t/r/papers.html" "$t/papers.html"
broken() { sed "$2" "$page" >"$t/$1.html"; }
broken link "s/id='machine'/id='machinery'/"
broken image 's/<main>/<main><img src="data:image\/png;base64,AAAA" alt="">/'
broken empty 's/<path/<desc/g; s/<use/<desc/g; s/<text/<desc/g'
broken request 's/<main>/<main><img src="http:\/\/example.org\/a.png" alt="">/'
broken wide 's/<main>/<main><div style="width:1100px">.<\/div>/'
broken pale 's/--soft: #[0-9a-f]*/--soft: #bbbbbb/'
broken cut 's/9.5rem 6.5rem/90rem 6.5rem/'
broken sign "s/id='alloc-pair-gpPt6'/id='gone'/"
broken script 's/<main>/<main><script>nowhere.to.be.found<\/script>/'
for scheme in light dark; do
	pages=("$t/good.html" "$t/odd.html" "$t/papers.html")
	[ $scheme = dark ] || pages+=("$t"/{link,image,empty,request,wide,pale,cut,sign,script}.html)
	"$top/tests/report/look" $scheme "${pages[@]}" >"$t/looked.$scheme" 2>&1
	for name in good odd papers; do
		for width in 400 1200; do
			works "no fault in a browser: $name, $width wide, $scheme" grep -qx "$name $width: none ($scheme)" "$t/looked.$scheme"
		done
	done
done
finds() { works "a browser would find: $1" grep -q "$2" "$t/looked.light"; }
finds 'a link to nowhere' '^link 400: a link to nowhere: #machine'
finds 'a picture that does not load' '^image 400: .*a picture that does not load'
finds 'a picture with nothing in it' '^empty 400: .*a picture without axes'
finds 'a request' '^request 400: .*what may be loaded'
finds 'a page wider than a telephone' '^wide 400: wider than the window: 11'
finds 'and one that a desk is wide enough for' '^wide 1200: none'
finds 'text that is hard to read' '^pale 400: hard to read'
finds 'a row of the first picture that is cut' '^cut 1200: a row that is cut'
finds 'a sign that is not there' '^sign 400: a sign that is not there'
finds 'an error of a script' '^script: .*nowhere is not defined'
