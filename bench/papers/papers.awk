# awk -v raw=DIRECTORY -v work=DIRECTORY -v here=bench [-v html=1] -f median.awk -f html.awk -f papers/papers.awk SAMPLES TABLES...:
# the papers' figures and tables beside those of this run, as text or as a page. SAMPLES has bench, round, subject, name, value and
# unit, separated by tabs; a series has values with commas between, and its last x at the end. raw has how each bench ended. TABLES are
# the papers, one each; README.md here has their form.
BEGIN {
	FS = "\t"
	scale["ns"] = 1; scale["us"] = 1e3; scale["ms"] = 1e6; scale["s"] = 1e9
	if (html)
		print "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n" \
			"<meta name='viewport' content='width=device-width, initial-scale=1'>\n<meta name='color-scheme' content='light dark'>\n" \
			"<title>hugepin: the papers' experiments</title>\n<link rel='icon' href='data:,'>\n<style>\n" \
			read_all(here "/report.css") "</style>\n</head>\n<body>\n<header>\n<h1>The papers' experiments</h1>\n" \
			"<p class='lead'>Figures and tables of five papers by their numbers, beside this run of the benches. " \
			"<a href='#directions'>Which directions agree</a> stands at the end.</p>"
	run_facts()
	if (html)
		print "</header>\n<main>"
}
FILENAME == ARGV[1] {
	value[$1, $4, $3, $2] = $5
	unit[$1, $4, $3] = $6
	last_x[$1, $4, $3] = $7
	if ($2 > rounds[$1])
		rounds[$1] = $2
	next
}
# ---------------------------------------------------------------- this run's numbers

# Why a bench's figure is not there: what the bench said.
function missing(bench,	file, line, part, state)
{
	file = raw "/" bench ".status"
	state = "this run does not have it"
	if ((getline line <file) > 0) {
		split(line, part, "\t")
		if (part[1] != "ok")
			state = part[4] != "" ? part[4] : part[1]
	}
	close(file)
	return "not measured: " bench ": " state
}
# BENCH:NAME:SUBJECT, or SUBJECT/SUBJECT: the median of the rounds into `got`, its unit into `got_unit`. Returns why not, or "".
function median_of(reference,	part, subject, n, k, v, r)
{
	if (split(reference, part, ":") != 3)
		fatal("not BENCH:NAME:SUBJECT: " reference)
	k = split(part[3], subject, "/")
	for (r = 0; r <= rounds[part[1]]; r++)
		if ((part[1], part[2], subject[1], r) in value) {
			if (k == 1)
				v[++n] = value[part[1], part[2], subject[1], r]
			else if (((part[1], part[2], subject[2], r) in value) && value[part[1], part[2], subject[2], r] != 0)
				v[++n] = value[part[1], part[2], subject[1], r] / value[part[1], part[2], subject[2], r]
		}
	if (!n)
		return missing(part[1])
	sort_values(v, n)
	got = quantile(v, n, 0.5)
	got_unit = k == 1 ? unit[part[1], part[2], subject[1]] : ""
	return ""
}
# A reference, or one over another. Where times have different units, the ratio is of the times.
function evaluate(expression,	part, why, above, above_unit)
{
	if (split(expression, part, / over /) == 1)
		return median_of(expression)
	if (why = median_of(part[1]))
		return why
	above = got
	above_unit = got_unit
	if (why = median_of(part[2]))
		return why
	if (got == 0)
		return "not measured: over zero"
	if (above_unit != got_unit) {
		if (!scale[above_unit] || !scale[got_unit])
			return "not measured: units differ"
		above *= scale[above_unit]
		got *= scale[got_unit]
	}
	got = above / got
	got_unit = ""
	return ""
}
function at(expression, label,	k)
{
	while (k = index(expression, "%"))
		expression = substr(expression, 1, k - 1) label substr(expression, k + 1)
	return expression
}
function number(x) { return x == int(x) && x < 1e6 && x > -1e6 ? sprintf("%d", x) : sprintf(x >= 1000 ? "%.0f" : x >= 100 ? "%.1f" : "%.3g", x) }
function said() { return number(got) (got_unit == "" ? "" : got_unit == "%" ? " %" : " " got_unit) }
# Sizes as people write them; other labels stay.
function worded(label) { return label ~ /^[0-9]+[KMG]$/ ? substr(label, 1, length(label) - 1) " " substr(label, length(label)) "iB" : label }
function bytes(label,	power)
{
	power = index("KMG", substr(label, length(label)))
	return label ~ /^[0-9]+[KMG]$/ ? substr(label, 1, length(label) - 1) * 1024 ^ power : label
}
# LABELS with the expression of each, in a line. Of those without a figure the reason is said once.
function each(labels, expression,	n, i, label, why, last, list, missed)
{
	n = split(labels, label, " ")
	for (i = 1; i <= n; i++)
		if (why = evaluate(at(expression, label[i]))) {
			missed = missed (missed == "" ? "" : ", ") worded(label[i])
			last = why
		} else
			list = list (list == "" ? "" : "; ") worded(label[i]) ": " said()
	return list == "" ? last : missed == "" ? list : list "; " missed " " last
}

# ---------------------------------------------------------------- text and page

# out collects a paper's items; the list of contents stands before them.
function put(text) { out = out text "\n" }
function fatal(what)
{
	print FILENAME ": line " FNR ": " what >"/dev/stderr"
	failed = 1
	exit 1
}
function paragraph(class, head, text)
{
	end_picture()
	end_table()
	if (html)
		put("<p class='" class "'>" (head == "" ? "" : "<b>" head "</b> ") esc(text) "</p>")
	else
		put("    " (head == "" ? "" : head " ") text)
}
# One number or several beside the paper's. The page has a table for those of an item.
function row(what, paper_has, ours)
{
	end_picture()
	if (!html) {
		put("  " what "\n    paper: " paper_has "\n    here:  " ours)
		return
	}
	if (!in_table)
		put("<div class='scroll'><table><thead><tr><th>what</th><th>the paper</th><th>here</th></tr></thead><tbody>")
	in_table = 1
	put("<tr><th scope='row'>" esc(what) "</th><td>" esc(paper_has) "</td><td>" esc(ours) "</td></tr>")
}
function end_table()
{
	if (in_table)
		put("</tbody></table></div>")
	in_table = 0
}
function end_item()
{
	end_picture()
	end_table()
	if (html && item != "")
		put("</section>")
	item = ""
}
function end_paper()
{
	end_item()
	if (paper == "")
		return
	if (html)
		print "<h2 id='paper-" papers "'>" esc(paper) "</h2>\n<nav aria-label='" esc(paper) "'><ul>" contents "</ul></nav>"
	else
		print (papers > 1 ? "\n" : "") paper
	printf "%s", out
	out = contents = paper = ""
}
# Which directions of the papers this run has, and why it has not the others.
function conclusions(	i, kind, k)
{
	split("agrees differs unknown", kind, " ")
	heading["agrees"] = "as the papers say"
	heading["differs"] = "not as the papers say"
	heading["unknown"] = "not measured in this run"
	if (html)
		print "<h2 id='directions'>Directions</h2>"
	else
		print "\nDirections"
	for (k = 1; k <= 3; k++) {
		if (html)
			print "<h3>" claim_count[kind[k]] + 0 " " heading[kind[k]] "</h3><ul>"
		else
			print "  " claim_count[kind[k]] + 0 " " heading[kind[k]]
		for (i = 1; i <= claims; i++)
			if (claim_kind[i] == kind[k])
				print html ? "<li>" esc(claim_text[i]) (k == 2 ? " " esc(claim_why[i]) : "") "</li>" : \
					"    " claim_text[i] (k == 2 ? "\n      " claim_why[i] : "")
		if (html)
			print "</ul>"
	}
}
# What this run was, which a reader has to know of its numbers.
function run_facts(	line, part, fact, name, n, i)
{
	while ((getline line <(raw "/machine.tsv")) > 0) {
		split(line, part, "\t")
		fact[part[1]] = part[2]
	}
	close(raw "/machine.tsv")
	n = split("commit,date,processor,cores,kernel,load before,mode,reduced,guest,only", name, ",")
	for (i = 1; i <= n; i++)
		if (name[i] in fact)
			print html ? "<p class='kicker'>" name[i] ": " esc(fact[name[i]]) "</p>" : name[i] ": " fact[name[i]]
	if (!html)
		print ""
}

# ---------------------------------------------------------------- pictures

function begin_picture(x, y, flags)
{
	end_picture()
	end_table()
	picture = item ", picture " ++pictures_of_item
	picture_x = x
	picture_y = y
	picture_flags = flags
	curves = points_max = x_count = words = 0
	split("", x_known)
}
# A curve: its points in px and py [curve, 1..n]; style: theirs, ours, time.
function begin_curve(label, style)
{
	if (picture == "")
		fatal("a curve without a picture")
	if (++curves > 8)
		fatal("more than eight curves in a picture")
	curve_label[curves] = label
	curve_style[curves] = style
	curve_points[curves] = 0
}
function point(x, y,	n)
{
	if (curve_style[curves] != "time") {
		if (!(x in x_known)) {
			x_known[x] = ++x_count
			x_label[x_count] = x
		}
		if (bytes(x) !~ /^-?[0-9.]+(e-?[0-9]+)?$/)
			words = 1
	}
	n = ++curve_points[curves]
	px[curves, n] = x
	py[curves, n] = y
	if (n > points_max)
		points_max = n
}
function where(x) { return words ? x_known[x] : bytes(x) }
function end_picture(	i, k, n, file, line, total, tics, status)
{
	if (picture == "")
		return
	file = "picture-" papers "-" ++picture_count
	for (i = 1; i <= curves; i++)
		total += curve_points[i]
	if (html && total) {
		line = ""
		for (i = 1; i <= curves; i++)
			line = line (i > 1 ? "\t" : "") plain(curve_label[i])
		print line >(work "/" file ".dat")
		for (k = 1; k <= points_max; k++) {
			line = ""
			for (i = 1; i <= curves; i++)
				line = line (i > 1 ? "\t" : "") (k <= curve_points[i] ? (curve_style[i] == "time" ? px[i, k] : where(px[i, k])) \
					"\t" py[i, k] : "?\t?")
			print line >(work "/" file ".dat")
		}
		close(work "/" file ".dat")
		for (i = 1; i <= x_count && x_count <= 16; i++)
			tics = tics (i > 1 ? ", " : "") "'" worded(x_label[i]) "' " where(x_label[i])
		line = "file = '" work "/" file "'\nseries = " curves "\nstyles = '"
		for (i = 1; i <= curves; i++)
			line = line (i > 1 ? " " : "") curve_style[i]
		line = line "'\nset xlabel " plain(picture_x) "\nset ylabel " plain(picture_y) "\n"
		if (tics != "")
			line = line "set xtics (" tics ")" (x_count > 8 ? " rotate by 40 right" : "") "\n"
		if (picture_flags ~ /logx/ && !words)
			line = line "set logscale x\n"
		line = line (picture_flags ~ /logy/ ? "set logscale y\n" : "set yrange [0:*]\n")
		printf "%s", line >(work "/" file ".gp")
		close(work "/" file ".gp")
		status = system("gnuplot '" work "/" file ".gp' '" here "/papers/papers.gnuplot' 2>'" work "/" file ".log'")
		put("<figure>" (status ? "<p class='absent'>No picture: gnuplot is not installed, or failed.</p>" : \
			scroll("aria-label='Picture: " esc(picture) "'", inlined(file, work "/" file ".svg", esc(picture)))) \
			"<details><summary>numbers</summary>")
	}
	for (i = 1; i <= curves; i++) {
		line = ""
		n = curve_points[i]
		for (k = 1; k <= n; k++)
			if (curve_style[i] != "time")
				line = line (line == "" ? "" : "; ") worded(px[i, k]) ": " number(py[i, k])
			else if (k == 1 || n <= 30 || int(k * 30 / n) > int((k - 1) * 30 / n))
				line = line (line == "" ? "" : " ") number(py[i, k])
		if (curve_why[i] != "")
			line = line (line == "" ? "" : "; ") curve_why[i]
		if (html)
			put("<p class='how'><b>" esc(curve_label[i]) "</b> " esc(line) "</p>")
		else
			put("  " curve_label[i] ": " picture_y ", by " picture_x "\n    " (curve_style[i] == "theirs" ? "paper: " : "here:  ") line)
		curve_why[i] = ""
	}
	if (html && total)
		put("</details></figure>")
	picture = ""
}
function theirs(label, list,	n, i, pair, part)
{
	begin_curve(label, "theirs")
	n = split(list, pair, /; */)
	for (i = 1; i <= n; i++) {
		if (split(pair[i], part, " ") != 2)
			fatal("not X Y: " pair[i])
		point(part[1], part[2])
	}
}
function curve(label, list, expression,	n, i, x, why, last, missed)
{
	begin_curve(label, "ours")
	n = split(list, x, " ")
	for (i = 1; i <= n; i++)
		if (why = evaluate(at(expression, x[i]))) {
			missed = missed (missed == "" ? "" : ", ") worded(x[i])
			last = why
		} else
			point(x[i], got)
	if (last)
		curve_why[curves] = curve_points[curves] ? missed " " last : last
}
function timeline(label, reference,	part, n, i, v)
{
	begin_curve(label, "time")
	split(reference, part, ":")
	if (!((part[1], part[2], part[3], 1) in value)) {
		curve_why[curves] = missing(part[1])
		return
	}
	n = split(value[part[1], part[2], part[3], 1], v, ",")
	for (i = 1; i <= n; i++)
		point((i - 0.5) * last_x[part[1], part[2], part[3]] / n, v[i])
}

# ---------------------------------------------------------------- the papers

function claim(what, expression, test,	why, part, holds)
{
	if (split(test, part, " ") != 2 || part[1] !~ /^[<>]=?$/)
		fatal("not a comparison: " test)
	why = evaluate(expression)
	claims++
	if (why)
		claim_kind[claims] = "unknown"
	else {
		holds = part[1] == "<" ? got < part[2] : part[1] == ">" ? got > part[2] : part[1] == "<=" ? got <= part[2] : got >= part[2]
		claim_kind[claims] = holds ? "agrees" : "differs"
	}
	claim_count[claim_kind[claims]]++
	claim_text[claims] = short ", " item ": " what " (" (why ? why : said() ", asked " test) ")"
	claim_item[claims] = papers "." items
}
# Fields of a line after its key, and how many there have to be.
function fields(n,	text, got_fields)
{
	text = $0
	sub(/^\t*[a-z]+ */, "", text)
	got_fields = split(text, field, / [|] ?/)
	if (got_fields == n - 1 && n > 1)
		field[n] = ""
	else if (got_fields != n)
		fatal("has " got_fields " fields, not " n)
}
/^[\t ]*(#|$)/ { next }
{
	key = $0
	sub(/^\t*/, "", key)
	sub(/ .*/, "", key)
	if (key != "paper" && key != "item" && item == "" || key == "item" && paper == "")
		fatal("outside an item")
}
key == "paper" {
	end_paper()
	fields(1)
	paper = field[1]
	papers++
	short = paper
	sub(/:.*/, "", short)
	sub(/,.* /, " ", short)
	next
}
key == "item" {
	end_item()
	fields(2)
	items++
	pictures_of_item = 0
	item = field[1]
	if (html) {
		contents = contents "<li><a href='#item-" items "'>" esc(item) "</a></li>"
		put("<section id='item-" items "'><h3>" esc(item ": " field[2]) "</h3>")
	} else
		put("\n  " item ": " field[2])
	next
}
key == "drawing" { fields(1); paragraph("caption", "", "Nothing to measure: " field[1]); next }
key == "none" { fields(1); paragraph("absent", "", "Not measured here: " field[1]); next }
key == "how" { fields(1); paragraph("how", "Measured on", field[1]); next }
key == "differs" {
	fields(1)
	paragraph("how", "What differs:", field[1])
	reason[papers "." items] = reason[papers "." items] (reason[papers "." items] == "" ? "" : " ") field[1]
	next
}
key == "picture" { fields(3); begin_picture(field[1], field[2], field[3]); next }
key == "theirs" { fields(2); theirs(field[1], field[2]); next }
key == "curve" { fields(3); curve(field[1], field[2], field[3]); next }
key == "timeline" { fields(2); timeline(field[1], field[2]); next }
key == "row" {
	fields(3)
	why = evaluate(field[3])
	row(field[1], field[2], why ? why : said())
	next
}
key == "each" { fields(4); row(field[1], field[2], each(field[3], field[4])); next }
key == "claim" { fields(3); claim(field[1], field[2], field[3]); next }
{ fatal("an unknown key: " key) }
END {
	if (failed)
		exit 1
	end_paper()
	for (i = 1; i <= claims; i++)
		claim_why[i] = reason[claim_item[i]]
	conclusions()
	if (html)
		print "</main></body></html>"
}
