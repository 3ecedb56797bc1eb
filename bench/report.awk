# awk -v dir=RAW -v work=DIRECTORY -v here=bench -v figures=FILE -f median.awk -f html.awk -f report.awk TABLES SAMPLES: bench/report's page.
# SAMPLES: bench, round, subject, name, value, unit, separated by tabs. RAW has besides NAME.txt (what the bench printed),
# NAME.status (state, seconds, command, reason) and machine.tsv. Whatever comes from there is escaped.
BEGIN { FS = "\t" }
function show(x)
{
	if (x == "")
		return "–"
	if (x == "inf")
		return "∞"
	return x == 0 || x >= 1000 ? sprintf("%.0f", x) : sprintf(x < 0.1 ? "%.2g" : x < 10 ? "%.2f" : "%.1f", x)
}
function label(b, s) { return ((b, s) in label_of) ? label_of[b, s] : s == "best" ? "the best peer" : s }
# A part of a row's name, in words.
function worded(part)
{
	if (part ~ /^[0-9]+K$/ && part % 1024 == 0)
		return part / 1024 " MiB"
	if (part ~ /^[0-9]+[KMG]$/)
		return substr(part, 1, length(part) - 1) " " substr(part, length(part)) "iB"
	if (part ~ /^t[0-9]+$/)
		return substr(part, 2) (part == "t1" ? " thread" : " threads")
	if (part ~ /^r[0-9]+$/)
		return "rank " substr(part, 2)
	if (part ~ /^[0-9]+x[0-9]+$/)
		return substr(part, 1, index(part, "x") - 1) (part ~ /^1x/ ? " piece of " : " pieces of ") substr(part, index(part, "x") + 1) " bytes"
	return part == "busy" ? "at once" : part == "paced" ? "with pauses" : part
}
# What a row is called: its own name if no line of the tables knows it.
function printed(b, name,	i, k, n, part, text)
{
	for (i = 1; i <= row_count[b]; i++)
		if (name ~ row_match[b, i]) {
			text = row_text[b, i]
			n = split(name, part, ".")
			for (k = 1; k <= n; k++)
				while (i = index(text, "$" k))
					text = substr(text, 1, i - 1) worded(part[k]) substr(text, i + 1 + length(k))
			return text
		}
	return name
}
# Into q: quartiles and number (q[0]) of subject's samples, or of their ratios to base's within a round.
# "inf" where only base is 0, 1 where both are.
function quartiles(b, name, subject, base, q,	r, v, n, x, y, infinite)
{
	split("", q)
	for (r = 0; r <= rounds[b]; r++) {
		if (!((b, r, subject, name) in value) || base != "-" && !((b, r, base, name) in value))
			continue
		x = value[b, r, subject, name]
		if (base != "-") {
			y = value[b, r, base, name]
			if (y == 0 && x != 0) {
				infinite++
				x = 1e300
			} else
				x = y == 0 ? 1 : x / y
		}
		v[++n] = x
	}
	q[0] = n + 0
	if (!n)
		return 0
	sort_values(v, n)
	q[1] = quantile(v, n, 0.25); q[2] = quantile(v, n, 0.5); q[3] = quantile(v, n, 0.75)
	if (infinite)
		for (r = 1; r <= 3; r++)
			if (q[r] > 1e290)
				q[r] = "inf"
	return n
}
function middle(b, name, subject,	q) { quartiles(b, name, subject, "-", q); return q[2] }
function apart(x, y) { return x > y ? x - y : y - x }
# Strict with wins: their upper quartile is below 1, too. A difference that is small in itself is level, however large its ratio.
function verdict(b, t, name, part, q)
{
	if (("floor", t) in spec && apart(middle(b, name, part[1]), middle(b, name, part[2])) <= spec["floor", t])
		return "level"
	return q[2] == "inf" || q[2] > 1 + spec["level", t] ? "loss" : \
		q[2] < 1 - spec["level", t] && q[3] != "inf" && q[3] < 1 ? "win" : "level"
}
# Whether the counterpart of this row has the opposite verdict: less of one thing for more of another.
function traded(b, t, name, part, word,	x, q, other)
{
	if (!(("trade", t) in spec) || word == "level")
		return 0
	split(spec["trade", t], x, "/")
	other = name
	if (!sub("^" x[1], x[2], other) || !quartiles(b, other, part[1], part[2], q))
		return 0
	other = verdict(b, t, other, part, q)
	return other != "level" && other != word
}
function is_peer(b, subject) { return (b, subject) in version_of }
# The peer whose median is least; "best" itself where there is none.
function best_of(b, name,	n, who, k, x, least, found)
{
	found = "best"
	n = split(peers[b], who, " ")
	for (k = 1; k <= n; k++) {
		x = middle(b, name, who[k])
		if (x != "" && (found == "best" || x < least)) {
			found = who[k]
			least = x
		}
	}
	return found
}
# Into out[1..n] the words of a list, each once, those with PEER for each peer whose subjects have samples. In `hidden`: the words
# that had parentheses.
function words_of(b, list, out, hidden,	n, i, k, m, here, word, who, text, part, had)
{
	split("", out)
	split("", hidden)
	m = split(list, word, " ")
	for (i = 1; i <= m; i++) {
		here = split(word[i] ~ /PEER/ ? peers[b] : "-", who, " ")
		for (k = 1; k <= here; k++) {
			text = word[i]
			gsub(/PEER/, who[k], text)
			gsub(/[()]/, "", text)
			split(text, part, "/")
			if ((text in had) || word[i] ~ /PEER/ && !((b, part[1]) in has))
				continue
			had[text]
			out[++n] = text
			if (word[i] ~ /^\(/)
				hidden[n]
		}
	}
	return n + 0
}
function spread(q) { return q[0] > 1 ? "<span class='small'>" show(q[1]) " to " show(q[3]) "</span>" : "" }

# ---------------------------------------------------------------- input

FILENAME == ARGV[1] {
	if (/^#/ || !NF)
		next
	key = $0
	sub(/ .*/, "", key)
	text = substr($0, length(key) + 2)
	if (key == "bench") {
		bench = text
		benches[++bench_count] = bench
		table = ""
	} else if (key == "table") {
		table = bench "-" text
		tables[bench, ++table_count[bench]] = table
		spec["level", table] = 0.05
		spec["step", table] = 2
	} else if (key == "name") {
		key = text
		sub(/ .*/, "", key)
		label_of[bench, key] = substr(text, length(key) + 2)
	} else if (key == "row") {
		key = text
		sub(/ .*/, "", key)
		row_match[bench, ++row_count[bench]] = "^(" key ")$"
		row_text[bench, row_count[bench]] = substr(text, length(key) + 2)
	} else
		spec[key, table == "" ? bench : table] = text
	next
}
$4 == "peer" {
	if (!is_peer($1, $3))
		peers[$1] = peers[$1] " " $3
	version_of[$1, $3] = $5
	next
}
{
	has[$1, $3]
	if (!(($1, $4) in unit)) {
		unit[$1, $4] = $6
		names[$1, ++name_count[$1]] = $4
	}
	value[$1, $2 + 0, $3, $4] = $5 + 0
	if ($2 + 0 > rounds[$1] + 0)
		rounds[$1] = $2 + 0
	seen[$1, $2 + 0]
}

# ---------------------------------------------------------------- a table

function figure(t, name, what, x, u) { print t ":" name ":" what, x u >figures }
function measured(b, name, subject) { return show(middle(b, name, subject)) }
# For the first picture: the use that this row is of. hugepin as it is by default, the subject that comes first, beside the best of
# the peers, with which the ratio is largest.
function add_use(b, t, name, part, q,	u, row)
{
	u = ("each", t) in spec && name ~ "^(" spec["each", t] ")$" ? t ":" name : ("does", t) in spec ? t : ""
	if (u == "")
		return
	if (!(u in use_subject)) {
		uses[++use_count] = u
		use_bench[u] = b
		use_table[u] = t
		use_subject[u] = part[1]
		use_name[u] = u == t ? spec["does", t] : printed(b, name)
		use_of[u] = unit[b, name] ~ /^(x|MiB)$/ && u != t ? "memory" : "time"
	}
	if (part[1] != use_subject[u])
		return
	row = u SUBSEP name
	if (!(row in use_middle))
		use_row[u, ++use_rows[u]] = name
	else if (bounded(q[2]) <= use_middle[row])
		return
	use_low[row] = bounded(q[1]); use_middle[row] = bounded(q[2]); use_high[row] = bounded(q[3])
	use_peer[row] = part[2]
}
# What is beyond the picture's edges is at them.
function bounded(x) { return x == "inf" || x > 1000 ? 1000 : x < 0.001 ? 0.001 : x }
# Count a ratio with quartiles q: beside a peer, or beside another choice of hugepin's own. Its verdict; a loss goes to the list.
function count(b, t, name, part, q,	word, kind, size)
{
	word = verdict(b, t, name, part, q)
	if (traded(b, t, name, part, word)) {
		counted[t, "trade"]++
		return "trade"
	}
	kind = is_peer(b, part[2]) ? "peer" : "own"
	size = q[2] == "inf" ? 1e300 : q[2]
	counted[b, kind, word]++
	counted[t, kind, word]++
	counted[t, kind]++
	counted[t, word]++
	counted[t]++
	counted_all[word]++
	counted_all[kind, word]++
	if (kind == "peer")
		add_use(b, t, name, part, q)
	if (word == "loss") {
		loss_size[kind, ++losses[kind]] = size
		loss_row[kind, losses[kind]] = sprintf("<tr><td class='num loss'><b>%s</b> loss%s</td><td>%s<br>beside <b>%s</b></td>",
			show(q[2]), spread(q), esc(label(b, part[1])), esc(label(b, part[2]))) \
			sprintf("<th scope='row'>%s</th><td class='num'>%s : %s %s</td>", esc(printed(b, name)),
			measured(b, name, part[1]), measured(b, name, part[2]), esc(unit[b, name])) \
			sprintf("<td><a href='#%s'>%s</a><span class='small'>%s</span></td></tr>\n", t, esc(spec["title", t]),
			esc(spec["title", b]))
	}
	return word
}
function head_html(b, t,	html, n, m, k, val, rat, hidden, part)
{
	html = "<tr><th scope='col'></th>"
	n = words_of(b, spec["values", t], val, hidden)
	for (k = 1; k <= n; k++)
		html = html sprintf("<th scope='col' class='num'>%s</th>", esc(label(b, val[k])))
	html = html "<th scope='col'></th>"
	m = words_of(b, spec["ratios", t], rat, hidden)
	for (k = 1; k <= m; k++) {
		split(rat[k], part, "/")
		html = html sprintf("<th scope='col' class='num'>%s<br>÷ %s%s</th>", esc(label(b, part[1])), esc(label(b, part[2])),
			(k in hidden) ? "<span class='small'>not counted</span>" : "")
	}
	return html "</tr>\n"
}
function row_html(b, t, name,	html, n, m, k, val, rat, hidden, part, q, word)
{
	html = sprintf("<tr><th scope='row' title='%s'>%s</th>", esc(t ":" name), esc(printed(b, name)))
	n = words_of(b, spec["values", t], val, hidden)
	for (k = 1; k <= n; k++) {
		if (quartiles(b, name, val[k], "-", q))
			figure(t, name, val[k], q[2], " " unit[b, name])
		most_rounds[t] = q[0] > most_rounds[t] ? q[0] : most_rounds[t]
		html = html sprintf("<td class='num'>%s</td>", show(q[2]))
	}
	html = html sprintf("<td class='unit'>%s</td>", esc(unit[b, name]))
	m = words_of(b, spec["ratios", t], rat, hidden)
	for (k = 1; k <= m; k++) {
		split(rat[k], part, "/")
		if (part[2] == "best")
			part[2] = best_of(b, name)
		if (!quartiles(b, name, part[1], part[2], q)) {
			html = html "<td class='num'>–</td>"
			continue
		}
		figure(t, name, rat[k], q[2], "")
		word = (k in hidden) || ("shown", t) in spec && name ~ "^(" spec["shown", t] ")$" ? "" : count(b, t, name, part, q)
		html = html sprintf("<td class='num%s'><b>%s</b>%s%s%s</td>", word ? " " word : "", show(q[2]), word ? " " word : "", spread(q),
			rat[k] ~ /\/best$/ && is_peer(b, part[2]) ? "<span class='small'>" esc(label(b, part[2])) "</span>" : "")
	}
	return html "</tr>\n"
}
# What is measured, by how many rounds, and what is a win.
function caption(t,	text, own)
{
	own = ("inner", t) in spec
	text = esc(spec["what", t]) " "
	if (own && !(spec["inner", t] + 0))
		text = text "Computed, one run. "
	else
		text = text "Medians of " (own ? spec["inner", t] " rounds, formed by the bench itself. " : \
			most_rounds[t] == 1 ? "1 round, which are no verdict. " : most_rounds[t] " rounds. ")
	if (!counted[t])
		return text "Shown, not counted."
	return text "Ratios" (own ? "" : " are the medians of the rounds' ratios, quartiles below them") \
		sprintf(": under %s%s is a <span class='win'>win</span>, over %s a <span class='loss'>loss</span>, ", 1 - spec["level", t],
		most_rounds[t] > 1 ? " with both quartiles under 1" : "", 1 + spec["level", t]) \
		"else <span class='level'>level</span>." \
		(("floor", t) in spec ? " A difference of " spec["floor", t] " points or fewer is level, too." : "") \
		(("trade", t) in spec ? " Less memory for more misses, or the reverse, is a <span class='trade'>trade</span>, and not counted." : "")
}
# Long strings are joined here: awk may have no room for them in sprintf.
function table_html(b, t,	head, html, i, name, units, rows, tally)
{
	head = "<h3 id='" t "'>" esc(spec["title", t]) "</h3>\n"
	units = ("units", t) in spec ? "^(" spec["units", t] ")$" : "."
	for (i = 1; i <= name_count[b]; i++) {
		name = names[b, i]
		if (name !~ "^(" spec["rows", t] ")$" || unit[b, name] !~ units || (!spec["shared", t] && (b, name) in taken))
			continue
		if (!spec["shared", t])
			taken[b, name]
		row_name[t, ++rows] = name
		html = html row_html(b, t, name)
	}
	if (!rows)
		return ""
	tally = rows " row" (rows == 1 ? "" : "s")
	if (counted[t])
		tally = tally sprintf(": %d wins, %d level, %d losses", counted[t, "win"], counted[t, "level"], counted[t, "loss"])
	if (counted[t, "trade"])
		tally = tally sprintf(", %d trades", counted[t, "trade"])
	html = scroll("aria-labelledby='" t "'", "<table aria-describedby='" t "-caption'><thead>" head_html(b, t) \
		"</thead>\n<tbody>\n" html "</tbody></table>")
	return head "<p class='caption' id='" t "-caption'>" caption(t) "</p>\n" picture(b, t, rows) \
		(rows > 30 ? "<details><summary>" tally "</summary>\n" html "</details>\n" : html "<p class='tally'>" tally "</p>\n")
}

# ---------------------------------------------------------------- pictures

# Median and quartiles for gnuplot; "?" is a gap.
function point(q, k) { return "\t" (q[0] && q[k] != "inf" && q[k] > 0 ? q[k] : "?") }
# The size that a row's name has, as a power of two; "" if it has none.
function size_of(name,	n, part)
{
	for (n = split(name, part, "."); n; n--)
		if (part[n] ~ /^[0-9]+[KMG]$/)
			return log(part[n] * 1024 ^ index("KMG", substr(part[n], length(part[n])))) / log(2)
	return ""
}
# The data of a table's picture: a line with the names of the series, then one for each row; for lines by size, with a gap where sizes
# were left out. Whether there are any.
function write_data(b, t, rows, p, n, file,	i, j, k, q, line, name, any, at, order)
{
	line = plain("")
	for (k = 3; k <= n; k++)
		line = line "\t" plain(label(b, p[k]))
	print line >file
	for (i = 1; i <= rows; i++) {
		at[i] = size_of(row_name[t, i])
		for (j = i; j > 1 && p[1] == "lines" && at[order[j - 1]] > at[i]; j--)
			order[j] = order[j - 1]
		order[j] = i
	}
	for (i = 1; i <= rows; i++) {
		name = row_name[t, order[i]]
		line = plain(printed(b, name))
		for (k = 3; k <= n; k++) {
			any += quartiles(b, name, p[k], p[2], q) > 0
			line = line point(q, 2) point(q, 1) point(q, 3)
		}
		if (p[1] == "lines" && i > 1 && at[order[i]] - at[order[i - 1]] > log(spec["step", t]) / log(2) + 0.01)
			print "" >file
		print line "\t" at[order[i]] >file
	}
	close(file)
	return any
}
# Registered bytes and misses of each series.
function write_scatter(b, t, rows, p, n, file,	i, k, q, line, name)
{
	line = plain("")
	for (k = 3; k <= n; k++)
		line = line "\t" plain(label(b, p[k]))
	print line >file
	for (i = 1; i <= rows; i++) {
		line = plain(printed(b, row_name[t, i]))
		for (k = 3; k <= n; k++) {
			name = row_name[t, i]
			line = line "\t" (quartiles(b, name, p[k], "-", q) ? q[2] : "?")
			sub(/^misses/, "bytes", name)
			line = line "\t" (quartiles(b, name, p[k], "-", q) ? q[2] : "?")
		}
		print line >file
	}
	close(file)
	return rows
}
function picture(b, t, rows,	n, p, file, what, some, i, longest)
{
	if (!(("plot", t) in spec))
		return ""
	n = split(spec["plot", t], p, " ")
	file = work "/" t
	if (p[1] == "scatter") {
		some = write_scatter(b, t, rows, p, n, file ".dat")
		what = "misses over what is registered"
	} else {
		some = write_data(b, t, rows, p, n, file ".dat")
		what = p[2] == "-" ? "time, " unit[b, row_name[t, 1]] : "time over " label(b, p[2]) "’s (below 1: faster)"
	}
	for (i = 1; i <= rows && p[1] != "scatter"; i++)
		longest = length(printed(b, row_name[t, i])) > longest ? length(printed(b, row_name[t, i])) : longest
	if (!some || system(sprintf("gnuplot -e 'file=\"%s\"; kind=\"%s\"; longest=%d; ylabel=%s; xlabel=%s' '%s/report.gnuplot' 2>'%s.log'",
		file, p[1], longest, plain(what), plain(("xlabel", t) in spec ? spec["xlabel", t] : "rows of the table"), here, file)))
		return "<p class='absent'>No picture: gnuplot is not installed, or failed.</p>\n"
	return scroll("aria-label='Picture: " esc(spec["title", t]) "'",
		inlined(t, file ".svg", esc(spec["title", t]) ": " esc(what)))
}

# ---------------------------------------------------------------- the page

function status(b,	line, part)
{
	if ((getline line <(dir "/" b ".status")) <= 0)
		line = "absent\t0\t\tnot asked for"
	close(dir "/" b ".status")
	split(line, part, "\t")
	state[b] = part[1]
	seconds[b] = part[2]
	command[b] = part[3]
	reason[b] = part[4]
}
function missed_targets(b,	text) { text = read_all(dir "/" b ".txt"); return gsub(/MISS/, "", text) }
function said(b)
{
	if (state[b] == "ok")
		return "ran"
	return (state[b] == "failed" ? "<b class='loss'>FAILED</b>: " : "<b>not run here</b>: ") esc(reason[b])
}
function bar(b,	all, html, i, x, width)
{
	all = counted[b, "peer", "win"] + counted[b, "peer", "level"] + counted[b, "peer", "loss"]
	for (i = 1; i <= 3 && all; i++) {
		width = 100 * counted[b, "peer", words[i]] / all
		html = html sprintf("<rect class='%s' x='%.2f' width='%.2f' height='8'/>", words[i], x, width)
		x += width
	}
	return all ? "<svg class='bar' viewBox='0 0 100 8' preserveAspectRatio='none' aria-hidden='true'>" html "</svg>" : ""
}
function th(text) { return "<th scope='col'>" text "</th>" }
function th_num(text) { return "<th scope='col' class='num'>" text "</th>" }
function td_num(text) { return "<td class='num'>" text "</td>" }
# Three cells; dashes if there is nothing of the kind.
function tallies(b, kind,	i, html, any)
{
	any = counted[b, kind, "win"] + counted[b, kind, "level"] + counted[b, kind, "loss"]
	for (i = 1; i <= 3; i++)
		html = html td_num(any ? counted[b, kind, words[i]] + 0 : "–")
	return html
}
function summary(	i, b, html)
{
	for (i = 1; i <= bench_count; i++) {
		b = benches[i]
		if (!name_count[b] && state[b] == "absent")
			continue
		html = html "<tr><th scope='row'><a href='#" b "'>" esc(spec["title", b]) "</a></th>" tallies(b, "peer") \
			"<td>" bar(b) "</td>" tallies(b, "own") \
			td_num(state[b] == "absent" ? "–" : missed_targets(b)) td_num(esc(seconds[b])) \
			"<td class='state'>" said(b) "</td></tr>\n"
	}
	return scroll("aria-labelledby='verdict'", "<table class='summary'><thead><tr><td></td>" \
		"<th scope='colgroup' colspan='4'>beside other software</th>" \
		"<th scope='colgroup' colspan='3'>beside its own choices</th><td></td><td></td><td></td></tr>\n<tr>" th("bench") \
		th_num("wins") th_num("level") th_num("losses") th("") th_num("wins") th_num("level") th_num("losses") \
		th_num("bounds missed") th_num("seconds") th("state") "</tr></thead>\n<tbody>\n" html \
		"</tbody></table>")
}
function loss_list(kind, by,	i, j, x, html)
{
	if (!losses[kind])
		return "<p>None, of what was measured.</p>\n"
	for (i = 2; i <= losses[kind]; i++)
		for (j = i; j > 1 && loss_size[kind, j - 1] < loss_size[kind, j]; j--) {
			x = loss_size[kind, j]; loss_size[kind, j] = loss_size[kind, j - 1]; loss_size[kind, j - 1] = x
			x = loss_row[kind, j]; loss_row[kind, j] = loss_row[kind, j - 1]; loss_row[kind, j - 1] = x
		}
	for (i = 1; i <= losses[kind]; i++)
		html = html loss_row[kind, i]
	html = scroll("aria-labelledby='" by "'", "<table><thead><tr>" th_num("ratio") th("what") th("row") th_num("medians") \
		th("table") "</tr></thead>\n<tbody>\n" html "</tbody></table>")
	sub(/class='scroll'/, "class='scroll tall'", html)
	return html
}
# What a stranger is to know first: what hugepin is, and what this run says.
function first_words(	html, wins, level, lost)
{
	html = "hugepin is a malloc for Linux that puts large buffers in hugepages, and a cache of registrations for programs that hand " \
		"buffers to devices. "
	wins = counted_all["peer", "win"] + 0
	level = counted_all["peer", "level"] + 0
	lost = counted_all["peer", "loss"] + 0
	if (machine["mode"] == "smoke")
		return html
	if (!(wins + level + lost))
		return html "This run measured nothing beside other software. So it says nothing about other software."
	return html sprintf("On this machine it needed less time or memory than the best other software in %d of %d comparisons, " \
		"as much in %d and more in %d.", wins, wins + level + lost, level, lost)
}
# Where a ratio is in the first picture, in per cent of its width: 1/10 and 10 are as far from 1.
function place(x) { return 100 * (log(x) - log(scale_low)) / (log(scale_high) - log(scale_low)) }
function ratio_text(x) { return x > 999.9 ? "over 1000" : x < 0.0010001 ? "under 0.001" : show(x) }
# How a use's middle row is called: a win is told the other way round, since "5 times as fast" is understood sooner than 0.2.
function factor(u, x)
{
	if (x > 0.95 && x < 1.05)
		return use_of[u] == "time" ? "as fast" : "as much"
	return use_of[u] == "memory" ? ratio_text(x) " times as much" : x < 1 ? ratio_text(1 / x) " times as fast" : ratio_text(x) " times as long"
}
# Middle and ends of a use's rows, and the peer that is best in most of them.
function sum_up(u,	i, row, v, n, times, who, found, most)
{
	n = use_rows[u]
	for (i = 1; i <= n; i++) {
		row = u SUBSEP use_row[u, i]
		v[i] = log(use_middle[row])
		if (i == 1 || use_low[row] < low_of[u])
			low_of[u] = use_low[row]
		if (i == 1 || use_high[row] > high_of[u])
			high_of[u] = use_high[row]
		if (!times[use_peer[row]]++)
			who[++found] = use_peer[row]
	}
	sort_values(v, n)
	middle_of[u] = exp(quantile(v, n, 0.5))
	most = who[1]
	for (i = 2; i <= found; i++)
		if (times[who[i]] > times[most])
			most = who[i]
	peers_of[u] = label(use_bench[u], most) (found > 1 ? "; " found - 1 " more" : "")
}
function stroke(class, from, to, top, bottom)
{
	return sprintf("<line class='%s' x1='%.2f%%' x2='%.2f%%' y1='%d%%' y2='%d%%'/>", class, from, to, top, bottom)
}
function use_html(u,	word)
{
	word = middle_of[u] <= 0.95 ? "win" : middle_of[u] >= 1.05 ? "loss" : "level"
	return sprintf("<li class='%s'><a href='#%s'>%s</a><svg class='track' aria-hidden='true'>", word, use_table[u], esc(use_name[u])) \
		stroke("one", place(1), place(1), -100, 200) stroke("range", place(low_of[u]), place(high_of[u]), 50, 50) \
		sprintf("<circle cx='%.2f%%' cy='50%%' r='5'/></svg>", place(middle_of[u])) \
		sprintf("<b>%s</b><span class='small'>%s to %s</span><span class='small'>%s</span></li>\n",
		factor(u, middle_of[u]), ratio_text(low_of[u]), ratio_text(high_of[u]), esc(peers_of[u]))
}
# The uses of time, or of memory, best first.
function use_list(kind, title, axis, first,	i, j, n, u, order, html, x)
{
	for (i = 1; i <= use_count; i++) {
		if (use_of[uses[i]] != kind)
			continue
		for (j = ++n; j > 1 && middle_of[order[j - 1]] > middle_of[uses[i]]; j--)
			order[j] = order[j - 1]
		order[j] = uses[i]
	}
	if (!n)
		return ""
	html = "<li class='axis'><b>" title "</b><span class='track'><span class='name'>" axis "</span>"
	for (x = scale_low; x < 1.1 * scale_high; x *= 10)
		html = html sprintf("<span style='left:%.2f%%'>%s</span>", place(x), x > 0.9 ? int(x + 0.5) : "1/" int(1 / x + 0.5))
	html = html "</span><b>" first "</b><span class='small'>range</span><span class='small'>the best other</span></li>\n"
	for (i = 1; i <= n; i++)
		html = html use_html(order[i])
	return "<ul class='uses'>\n" html "</ul>\n"
}
# Faster than what, by how much, at which cost: one picture.
function first_picture(	i, u)
{
	if (!use_count || machine["mode"] == "smoke")
		return ""
	scale_low = 0.1
	scale_high = 10
	for (i = 1; i <= use_count; i++) {
		u = uses[i]
		sum_up(u)
		while (scale_low > low_of[u] * 1.001)
			scale_low /= 10
		while (scale_high < high_of[u] / 1.001)
			scale_high *= 10
	}
	return "<figure id='uses'>\n" use_list("time", "A program that …", "hugepin’s time ÷ the best other’s", "hugepin is") \
		use_list("memory", "Memory", "hugepin’s memory ÷ the best other’s", "hugepin takes") \
		"<figcaption>hugepin as it is by default, beside the software that was best in each row, which is at 1: further left is less. " \
		"The dot is the middle row of a use; the bar goes from the lower quartile of its best row to the upper one of its worst." \
		"</figcaption></figure>\n"
}
function versions(b,	n, k, who, text)
{
	n = split(peers[b], who, " ")
	for (k = 1; k <= n; k++)
		text = text (k > 1 ? ", " : "") label(b, who[k]) (version_of[b, who[k]] ? " (" version_of[b, who[k]] ")" : "")
	return n ? "<p class='how'>Peers: " esc(text) "</p>\n" : ""
}
function printed_html(b,	text)
{
	text = read_all(dir "/" b ".txt")
	return text == "" ? "" : "<details><summary>What the bench printed</summary>\n<pre tabindex='0'>" esc(text) "</pre></details>\n"
}
function section_html(b,	html, k, t, left_out)
{
	html = "<section>\n<h2 id='" b "'>" esc(spec["title", b]) "</h2>\n<p>" esc(spec["about", b]) "</p>\n<p class='how'><code>" \
		esc(command[b]) "</code> " said(b) "</p>\n" versions(b)
	for (k = 1; k <= table_count[b]; k++) {
		t = table_html(b, tables[b, k])
		html = html t
		if (t == "")
			left_out = left_out (left_out ? ", " : "") spec["title", tables[b, k]]
	}
	if (left_out)
		html = html "<p class='absent'>Not measured in this run: " esc(left_out) ".</p>\n"
	return html printed_html(b) "</section>\n"
}
# A bench that this run does not have, in the list of those.
function absent_html(b)
{
	return "<h3 id='" b "'>" esc(spec["title", b]) "</h3><p><code>" esc(state[b] == "absent" ? spec["command", b] : command[b]) \
		"</code> " said(b) "</p>\n" printed_html(b)
}
function nav_item(id, text) { return "<li><a href='#" id "'>" text "</a></li>\n" }

END {
	split("win level loss", words, " ")
	while ((getline line <(dir "/machine.tsv")) > 0) {
		split(line, part, "\t")
		machine[part[1]] = esc(part[2])
		facts = facts "<tr><th scope='row'>" esc(part[1]) "</th><td>" esc(part[2]) "</td></tr>\n"
	}
	for (i = 1; i <= bench_count; i++) {
		b = benches[i]
		status(b)
		if (name_count[b]) {
			sections = sections section_html(b)
			nav = nav nav_item(b, esc(spec["title", b]))
		} else {
			absent = absent absent_html(b)
			absent_count++
		}
		for (k = 1; k <= 3; k++) {
			print b ":peer-" words[k], counted[b, "peer", words[k]] + 0 >figures
			print b ":own-" words[k], counted[b, "own", words[k]] + 0 >figures
		}
	}
	for (k = 1; k <= 3; k++) {
		print "all:" words[k], counted_all[words[k]] + 0 >figures
		comparisons["peer"] += counted_all["peer", words[k]]
		comparisons["own"] += counted_all["own", words[k]]
	}

	print "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>"
	print "<meta name='viewport' content='width=device-width, initial-scale=1'>\n<meta name='color-scheme' content='light dark'>"
	print "<title>hugepin: measured on " machine["date"] "</title>\n<link rel='icon' href='data:,'>"
	print "<style>\n" read_all(here "/report.css") "</style>\n</head>\n<body>"
	print "<header>\n<p class='kicker'>hugepin, commit " machine["commit"] "</p>\n<h1>" \
		(machine["mode"] == "smoke" ? "A smoke run" : "Faster than what, by how much, at which cost") "</h1>"
	print "<p class='lead' id='first'>" esc(first_words()) "</p>"
	print "<p class='kicker'>" machine["processor"] ", " machine["cores"] ", Linux " machine["kernel"] ". " machine["date"] ".</p>"
	if (machine["mode"] != "full")
		print "<p class='notice'><b>A " machine["mode"] " run</b>: " machine["reduced"] "</p>"
	print first_picture() "</header>"
	print "<nav aria-label='Contents'><ul>\n" nav_item("verdict", "By bench") nav_item("losses", "All losses") nav \
		(absent ? nav_item("absent", "Not measured") : "") nav_item("machine", "The machine") "</ul></nav>\n<main>"
	print "<section>\n<h2 id='verdict'>Wins and losses by bench</h2>\n<p>A comparison is a ratio of a table: what hugepin took to " \
		"what the other took for the same work: where there is other software, the one that was best in that row. " \
		"Unless its table says otherwise, within 5&nbsp;% is level; above, hugepin took more " \
		"time, memory or misses: a loss; below, less: a win, if by more than the spread of its rounds, else level. Where less memory " \
		"was paid for by misses, neither is counted, and small differences of percentages are level.</p>"
	print "<p>Comparisons with other software are counted apart from those with choices of hugepin's own: base pages instead of " \
		"hugepages, another policy, a fixed way of packing. Only the former say which software is faster. Bounds are those that the " \
		"benches set for hugepin.</p>"
	print summary() "</section>"
	print "<section>\n<h2 id='losses'>All losses, worst first</h2>\n<h3 id='losses-peer'>Beside other software</h3>\n<p>" \
		losses["peer"] + 0 " of " comparisons["peer"] + 0 " comparisons. The ratio is of what hugepin took to what the other took.</p>"
	print loss_list("peer", "losses-peer") "<h3 id='losses-own'>Beside its own choices</h3>\n<p>" losses["own"] + 0 " of " \
		comparisons["own"] + 0 " comparisons: what a choice costs that hugepin leaves to the program.</p>"
	print loss_list("own", "losses-own") "</section>"
	print sections
	if (absent)
		print "<section>\n<h2 id='absent'>Not measured</h2>\n<details><summary>" absent_count \
			(absent_count == 1 ? " bench" : " benches") ", each with its reason</summary>\n" absent "</details>\n</section>"
	print "<section>\n<h2 id='machine'>The machine, and how this was made</h2>\n<table class='facts'><tbody>\n" facts "</tbody></table>"
	print "<p>Made by <code>make report</code>, which leaves every sample in <code>build/report/raw/</code> and every figure in " \
		"<code>build/report/figures.txt</code>. <code>bench/report render</code> makes the page again from these.</p>\n</section>"
	print "</main>\n</body>\n</html>"
}
