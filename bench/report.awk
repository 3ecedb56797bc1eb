# awk -v dir=RAW -v work=DIRECTORY -v here=bench -v figures=FILE -f median.awk -f report.awk TABLES SAMPLES: bench/report's page.
# SAMPLES: bench, round, subject, name, value, unit, separated by tabs. RAW has besides NAME.txt (what the bench printed),
# NAME.status (state, seconds, command, reason) and machine.tsv. Whatever comes from there is escaped.
BEGIN { FS = "\t" }
function esc(s)
{
	gsub(/&/, "\\&amp;", s)
	gsub(/</, "\\&lt;", s)
	gsub(/>/, "\\&gt;", s)
	gsub(/"/, "\\&quot;", s)
	gsub(/'/, "\\&#39;", s)
	gsub(/[\001-\010\013\014\016-\037\177]/, "?", s)
	return s
}
function show(x)
{
	if (x == "")
		return "–"
	if (x == "inf")
		return "∞"
	return x == 0 || x >= 1000 ? sprintf("%.0f", x) : sprintf(x < 0.1 ? "%.2g" : x < 10 ? "%.2f" : "%.1f", x)
}
function label(b, s) { return ((b, s) in label_of) ? label_of[b, s] : s }
function printed(t, name)
{
	if (("strip", t) in spec && index(name, spec["strip", t]) == 1)
		name = substr(name, length(spec["strip", t]) + 1)
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
# Strict with wins: their upper quartile is below 1, too.
function verdict(q, level)
{
	return q[2] == "inf" || q[2] > 1 + level ? "loss" : q[2] < 1 - level && q[3] != "inf" && q[3] < 1 ? "win" : "level"
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
	} else if (key == "name") {
		key = text
		sub(/ .*/, "", key)
		label_of[bench, key] = substr(text, length(key) + 2)
	} else
		spec[key, table == "" ? bench : table] = text
	next
}
{
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
function measured(b, name, subject,	q)
{
	quartiles(b, name, subject, "-", q)
	return show(q[2])
}
# Count a ratio with quartiles q. Its verdict; a loss goes to the list.
function count(b, t, name, part, q,	word)
{
	word = verdict(q, spec["level", t])
	counted[b, word]++
	counted[t, word]++
	counted[t]++
	counted_all[word]++
	if (word == "loss") {
		loss_size[++losses] = q[2] == "inf" ? 1e300 : q[2]
		loss_row[losses] = sprintf("<tr><td class='num loss'><b>%s</b> loss%s</td><td>%s<br>beside <b>%s</b></td>", show(q[2]),
			spread(q), esc(label(b, part[1])), esc(label(b, part[2]))) \
			sprintf("<th scope='row'>%s</th><td class='num'>%s : %s %s</td>", esc(printed(t, name)),
			measured(b, name, part[1]), measured(b, name, part[2]), esc(unit[b, name])) \
			sprintf("<td><a href='#%s'>%s</a><span class='small'>%s</span></td></tr>\n", t, esc(spec["title", t]),
			esc(spec["title", b]))
	}
	return word
}
# Into rat[1..m] the ratios of a table without their parentheses, which are noted in `hidden`.
function ratios_of(t, rat, hidden,	m, k)
{
	split("", hidden)
	m = split(spec["ratios", t], rat, " ")
	for (k = 1; k <= m; k++)
		if (gsub(/[()]/, "", rat[k]))
			hidden[k]
	return m
}
function head_html(b, t,	html, n, m, k, val, rat, hidden, part)
{
	html = "<tr><th scope='col'></th>"
	n = split(spec["values", t], val, " ")
	for (k = 1; k <= n; k++)
		html = html sprintf("<th scope='col' class='num'>%s</th>", esc(label(b, val[k])))
	html = html "<th scope='col'></th>"
	m = ratios_of(t, rat, hidden)
	for (k = 1; k <= m; k++) {
		split(rat[k], part, "/")
		html = html sprintf("<th scope='col' class='num'>%s<br>÷ %s%s</th>", esc(label(b, part[1])), esc(label(b, part[2])),
			(k in hidden) ? "<span class='small'>not counted</span>" : "")
	}
	return html "</tr>\n"
}
function row_html(b, t, name,	html, n, m, k, val, rat, hidden, part, q, word)
{
	html = sprintf("<tr><th scope='row'>%s</th>", esc(printed(t, name)))
	n = split(spec["values", t], val, " ")
	for (k = 1; k <= n; k++) {
		if (quartiles(b, name, val[k], "-", q))
			figure(t, name, val[k], q[2], " " unit[b, name])
		most_rounds[t] = q[0] > most_rounds[t] ? q[0] : most_rounds[t]
		html = html sprintf("<td class='num'>%s</td>", show(q[2]))
	}
	html = html sprintf("<td class='unit'>%s</td>", esc(unit[b, name]))
	m = ratios_of(t, rat, hidden)
	for (k = 1; k <= m; k++) {
		split(rat[k], part, "/")
		if (!quartiles(b, name, part[1], part[2], q)) {
			html = html "<td class='num'>–</td>"
			continue
		}
		figure(t, name, rat[k], q[2], "")
		word = (k in hidden) ? "" : count(b, t, name, part, q)
		html = html sprintf("<td class='num%s'><b>%s</b>%s%s</td>", word ? " " word : "", show(q[2]), word ? " " word : "", spread(q))
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
		"else <span class='level'>level</span>."
}
# What is wider than the window scrolls by itself.
function scroll(attributes, html)
{
	return "<div class='scroll' role='region' tabindex='0' " attributes ">\n" html "</div>\n"
}
# Long strings are joined here: awk may have no room for them in sprintf.
function table_html(b, t,	head, html, i, name, units, rows, tally)
{
	head = "<h3 id='" t "'>" esc(spec["title", t]) "</h3>\n"
	if (!name_count[b])
		return head "<p class='absent'>Not measured: " esc(reason[b]) "</p>\n"
	units = ("units", t) in spec ? "^(" spec["units", t] ")$" : "."
	for (i = 1; i <= name_count[b]; i++) {
		name = names[b, i]
		if (name !~ "^(" spec["rows", t] ")$" || unit[b, name] !~ units || (b, name) in taken)
			continue
		taken[b, name]
		row_name[t, ++rows] = name
		html = html row_html(b, t, name)
	}
	if (!rows)
		return head "<p class='absent'>Not measured in this run.</p>\n"
	tally = rows " row" (rows == 1 ? "" : "s")
	if (counted[t])
		tally = tally sprintf(": %d wins, %d level, %d losses", counted[t, "win"], counted[t, "level"], counted[t, "loss"])
	html = scroll("aria-labelledby='" t "'", "<table aria-describedby='" t "-caption'><thead>" head_html(b, t) \
		"</thead>\n<tbody>\n" html "</tbody></table>")
	return head "<p class='caption' id='" t "-caption'>" caption(t) "</p>\n" picture(b, t, rows) \
		(rows > 30 ? "<details><summary>" tally "</summary>\n" html "</details>\n" : html "<p class='tally'>" tally "</p>\n")
}

# ---------------------------------------------------------------- pictures

# What gnuplot takes for one string.
function plain(s) { gsub(/["'\\\t`@$]/, "", s); return "\"" s "\"" }
# Median and quartiles for gnuplot; "?" is a gap.
function point(q, k) { return "\t" (q[0] && q[k] != "inf" && q[k] > 0 ? q[k] : "?") }
# The data of a table's picture: a line with the names of the series, then one for each row. Whether there are any.
function write_data(b, t, rows, p, n, file,	i, k, q, line, name, any)
{
	line = plain("")
	for (k = 3; k <= n; k++)
		line = line "\t" plain(label(b, p[k]))
	print line >file
	for (i = 1; i <= rows; i++) {
		name = row_name[t, i]
		line = plain(printed(t, name))
		for (k = 3; k <= n; k++) {
			any += quartiles(b, name, p[k], p[2], q) > 0
			line = line point(q, 2) point(q, 1) point(q, 3)
		}
		print line >file
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
		line = plain(printed(t, row_name[t, i]))
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
# gnuplot's picture as a part of the page: its names unique there, its colours the page's.
function inlined(t, file, description,	svg, line, k)
{
	while ((getline line <file) > 0) {
		if (line ~ /^<[?!]/ || line ~ /^<(title|desc)>/)
			continue
		gsub(/xlink:href='#/, "&" t "-", line)
		gsub(/id='/, "&" t "-", line)
		gsub(/id="[gG]nuplot/, "&-" t, line)
		gsub(/rgb\( *1, *1, *1\)/, "var(--ink)", line)
		gsub(/rgb\( *2, *2, *2\)/, "var(--rule)", line)
		for (k = 1; k <= 8; k++)
			gsub("rgb\\( *" k ", *0, *0\\)", "var(--series-" k ")", line)
		gsub(/ font-family="[^"]*"/, "", line)
		if (line ~ /^<svg/)
			line = "<svg class='picture' role='img' aria-label='" description "' "
		svg = svg line "\n"
	}
	close(file)
	return svg
}
function picture(b, t, rows,	n, p, file, what, some)
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
		what = p[2] == "-" ? "time, " unit[b, row_name[t, 1]] : "time over that of " label(b, p[2]) " (below 1: faster)"
	}
	if (!some || system(sprintf("gnuplot -e 'file=\"%s\"; kind=\"%s\"; ylabel=%s; xlabel=%s' '%s/report.gnuplot' 2>'%s.log'", file,
		p[1], plain(what), plain(spec["xlabel", t]), here, file)))
		return "<p class='absent'>No picture: gnuplot is not installed, or failed.</p>\n"
	return scroll("aria-label='Picture: " esc(spec["title", t]) "'",
		inlined(t, file ".svg", esc(spec["title", t]) ": " esc(what)))
}

# ---------------------------------------------------------------- the page

function read_all(file,	line, text)
{
	while ((getline line <file) > 0)
		text = text line "\n"
	close(file)
	return text
}
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
	all = counted[b, "win"] + counted[b, "level"] + counted[b, "loss"]
	for (i = 1; i <= 3 && all; i++) {
		width = 100 * counted[b, words[i]] / all
		html = html sprintf("<rect class='%s' x='%.2f' width='%.2f' height='8'/>", words[i], x, width)
		x += width
	}
	return all ? "<svg class='bar' viewBox='0 0 100 8' preserveAspectRatio='none' aria-hidden='true'>" html "</svg>" : ""
}
function th(text) { return "<th scope='col'>" text "</th>" }
function th_num(text) { return "<th scope='col' class='num'>" text "</th>" }
function td_num(text) { return "<td class='num'>" text "</td>" }
function summary(	i, b, html)
{
	for (i = 1; i <= bench_count; i++) {
		b = benches[i]
		html = html "<tr><th scope='row'><a href='#" b "'>" esc(spec["title", b]) "</a></th>" td_num(counted[b, "win"] + 0) \
			td_num(counted[b, "level"] + 0) td_num(counted[b, "loss"] + 0) "<td>" bar(b) "</td>" \
			td_num(state[b] == "absent" ? "–" : missed_targets(b)) td_num(esc(seconds[b])) \
			"<td class='state'>" said(b) "</td></tr>\n"
	}
	return scroll("aria-labelledby='verdict'", "<table class='summary'><thead><tr>" th("bench") th_num("wins") th_num("level") \
		th_num("losses") th("") th_num("own bounds missed") th_num("seconds") th("state") "</tr></thead>\n<tbody>\n" html \
		"</tbody></table>")
}
function loss_list(	i, j, x, s, html)
{
	if (!losses)
		return "<p>None, of what was measured.</p>\n"
	for (i = 2; i <= losses; i++)
		for (j = i; j > 1 && loss_size[j - 1] < loss_size[j]; j--) {
			x = loss_size[j]; loss_size[j] = loss_size[j - 1]; loss_size[j - 1] = x
			s = loss_row[j]; loss_row[j] = loss_row[j - 1]; loss_row[j - 1] = s
		}
	for (i = 1; i <= losses; i++)
		html = html loss_row[i]
	html = scroll("aria-labelledby='losses'", "<table><thead><tr>" th_num("ratio") th("what") th("row") th_num("medians") th("table") \
		"</tr></thead>\n<tbody>\n" html "</tbody></table>")
	sub(/class='scroll'/, "class='scroll tall'", html)
	return html
}
function section_html(b,	html, k, text)
{
	html = "<section>\n<h2 id='" b "'>" esc(spec["title", b]) "</h2>\n<p>" esc(spec["about", b]) "</p>\n<p class='how'><code>" \
		esc(state[b] == "absent" ? spec["command", b] : command[b]) "</code> " said(b) "</p>\n"
	for (k = 1; k <= table_count[b]; k++)
		html = html table_html(b, tables[b, k])
	text = read_all(dir "/" b ".txt")
	if (text != "")
		html = html "<details><summary>What the bench printed</summary>\n<pre tabindex='0'>" esc(text) "</pre></details>\n"
	return html "</section>\n"
}
function nav_item(id, text) { return "<li><a href='#" id "'>" text "</a></li>\n" }

END {
	split("win level loss", words, " ")
	plural["win"] = "wins"; plural["level"] = "level"; plural["loss"] = "losses"
	while ((getline line <(dir "/machine.tsv")) > 0) {
		split(line, part, "\t")
		machine[part[1]] = esc(part[2])
		facts = facts "<tr><th scope='row'>" esc(part[1]) "</th><td>" esc(part[2]) "</td></tr>\n"
	}
	for (i = 1; i <= bench_count; i++) {
		b = benches[i]
		status(b)
		sections = sections section_html(b)
		nav = nav nav_item(b, esc(spec["title", b]))
		for (k = 1; k <= 3; k++)
			print b ":" words[k], counted[b, words[k]] + 0 >figures
	}
	for (k = 1; k <= 3; k++) {
		print "all:" words[k], counted_all[words[k]] + 0 >figures
		counts = counts "<li class='" words[k] "'><b>" counted_all[words[k]] + 0 "</b> " plural[words[k]] "</li>\n"
		comparisons += counted_all[words[k]]
	}

	print "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>"
	print "<meta name='viewport' content='width=device-width, initial-scale=1'>\n<meta name='color-scheme' content='light dark'>"
	print "<title>hugepin: measured on " machine["date"] "</title>\n<link rel='icon' href='data:,'>"
	print "<style>\n" read_all(here "/report.css") "</style>\n</head>\n<body>"
	print "<header>\n<p class='kicker'>hugepin, commit " machine["commit"] "</p>\n<h1>What it wins and what it loses</h1>"
	print "<p class='lead'>Every bench beside its peers, on one machine: " machine["processor"] ", " machine["cores"] ", Linux " \
		machine["kernel"] ". " machine["date"] ".</p>"
	if (machine["mode"] != "full")
		print "<p class='notice'><b>A " machine["mode"] " run</b>: " machine["reduced"] "</p>"
	print "<ul class='count'>\n" counts "</ul>\n</header>"
	print "<nav aria-label='Contents'><ul>\n" nav_item("verdict", "By bench") nav_item("losses", "All losses") nav \
		nav_item("machine", "The machine") "</ul></nav>\n<main>"
	print "<section>\n<h2 id='verdict'>Wins and losses by bench</h2>\n<p>Each ratio of a table is one comparison. Unless its table " \
		"says otherwise, within 5&nbsp;% is level; above that, hugepin takes more time, memory or misses: a loss; below it, " \
		"less: a win, if by more than the spread of its rounds, else level. Own bounds are those that the benches set for " \
		"hugepin, missed ones; some are of comparisons that are wins here.</p>"
	print summary() "</section>"
	print "<section>\n<h2 id='losses'>All losses, worst first</h2>\n<p>" losses + 0 " of " comparisons + 0 " comparisons. " \
		"The ratio is of what hugepin took to what the other took.</p>"
	print loss_list() "</section>"
	print sections
	print "<section>\n<h2 id='machine'>The machine, and how this was made</h2>\n<table class='facts'><tbody>\n" facts "</tbody></table>"
	print "<p>Made by <code>make report</code>. Every sample is in <code>raw/</code> beside this page, every figure in " \
		"<code>figures.txt</code>; <code>bench/report render</code> makes the page again from them.</p>\n</section>"
	print "</main>\n</body>\n</html>"
}
