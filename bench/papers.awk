# awk -v raw=DIRECTORY [-v html=1 -v here=bench -v work=DIRECTORY] -f html.awk -f papers.awk FIGURES papers.tables: the papers'
# numbers beside those of this run. raw has how each bench ended, and what replay printed of its timelines.
# Why a figure is not there: what its bench said.
function missing(name,	bench, file, line, part, state)
{
	bench = name
	sub(/[-:].*/, "", bench)
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
function number(x) { return x !~ /^[0-9.e+-]+$/ ? x : x == int(x) ? sprintf("%d", x) : sprintf(x >= 1000 ? "%.0f" : x >= 100 ? "%.1f" : "%.3g", x) }
function ours(expression,	part, n)
{
	n = split(expression, part, / over /)
	if (!(part[1] in value))
		return missing(part[1])
	if (n == 1)
		return number(value[part[1]]) (unit[part[1]] != "" ? " " unit[part[1]] : "")
	if (!(part[2] in value))
		return missing(part[2])
	if (scale[unit[part[1]]] && scale[unit[part[2]]])
		return sprintf("%.3g", value[part[1]] * scale[unit[part[1]]] / (value[part[2]] * scale[unit[part[2]]]))
	return unit[part[1]] == unit[part[2]] ? sprintf("%.3g", value[part[1]] / value[part[2]]) : "not measured: units differ"
}
# Sizes as people write them; other labels stay.
function worded(label,	n)
{
	if (label !~ /^[0-9]+[KMG]$/)
		return label
	n = substr(label, 1, length(label) - 1) * (label ~ /K/ ? 1 : label ~ /M/ ? 1024 : 1048576)
	return n % 1048576 == 0 ? n / 1048576 " GiB" : n % 1024 == 0 ? n / 1024 " MiB" : n " KiB"
}
# LABELS: EXPRESSION, each label in place of the % there, in a line. Of those without a figure the reason is said once.
function each(text,	labels, expression, n, i, at, label, one, result, list, missed, why)
{
	labels = expression = text
	sub(/: .*/, "", labels)
	sub(/^[^:]*: /, "", expression)
	n = split(labels, label, " ")
	for (i = 1; i <= n; i++) {
		one = expression
		while (at = index(one, "%"))
			one = substr(one, 1, at - 1) label[i] substr(one, at + 1)
		result = ours(one)
		if (result ~ /^not /) {
			missed = missed (missed == "" ? "" : ", ") worded(label[i])
			why = result
		} else
			list = list (list == "" ? "" : "; ") worded(label[i]) ": " result
	}
	return list == "" ? why : missed == "" ? list : list "; " missed " " why
}
# TRACE: POLICIES, what each has registered over time: a line of averages, of which each is of so many printed ones, and points
# for gnuplot. The series of the picture are in `drawn`.
function timeline(text,	trace, policies, policy, file, line, field, pair, n, i, k, at, part, sum, head, list, got, ms, points)
{
	trace = policies = text
	sub(/: .*/, "", trace)
	sub(/^[^:]*: /, "", policies)
	drawn = split(policies, policy, " ")
	file = raw "/replay.csv"
	while ((getline line <file) > 0) {
		if (line !~ /^table=timeline / || index(line, " trace=" trace " ") == 0)
			continue
		n = split(line, field, " ")
		for (i = 1; i <= n; i++) {
			split(field[i], part, "=")
			pair[part[1]] = part[2]
		}
		got[pair["policy"]] = pair["timeline"]
		ms[pair["policy"]] = pair["ms"]
	}
	close(file)
	for (i = 1; i <= drawn; i++) {
		if (!(policy[i] in got)) {
			drawn = 0
			return missing("replay:timeline")
		}
		n = split(got[policy[i]], at, ",")
		list = list (i > 1 ? "; " : "") policy[i] ":"
		head = (i > 1 ? head : plain("")) "\t" plain(policy[i])
		for (k = 1; k <= n; k++) {
			sum += at[k]
			if (k % 10 == 0) {
				list = list sprintf(" %.0f", sum / 10)
				sum = 0
			}
			points[k] = points[k] "\t" (k - 0.5) * ms[policy[i]] / n "\t" at[k]
		}
	}
	if (html) {
		file = work "/timeline-" trace ".dat"
		print head >file
		for (k = 1; k <= n; k++)
			print plain("") points[k] >file
		close(file)
	}
	return list
}
function picture(trace, what,	file)
{
	file = work "/timeline-" trace
	if (system("gnuplot -e 'file=\"" file "\"; kind=\"time\"; longest=0; ylabel=\"registered, % of leave\"; xlabel=\"ms\"' '" \
		here "/report.gnuplot' 2>'" file ".log'"))
		return "<p class='absent'>No picture: gnuplot is not installed, or failed.</p>"
	return scroll("aria-label='Picture: " esc(what) "'", inlined("timeline-" trace, file ".svg", esc(what)))
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
function begin_paper(text)
{
	if (html)
		print (papers++ ? "</tbody></table></div>" : "") "<h2>" esc(text) "</h2><div class='scroll'><table><thead><tr>" \
			"<th>what</th><th>where</th><th>the paper</th><th>here</th><th>how</th><th>what differs</th></tr></thead><tbody>"
	else
		print (papers++ ? "\n" : "") text
}
function show(where, what, theirs, here, how, differs)
{
	if (html)
		print "<tr><td>" esc(what) "</td><td>" esc(where) "</td><td>" esc(theirs) "</td><td>" esc(here) "</td><td>" esc(how) \
			"</td><td>" esc(differs) "</td></tr>"
	else
		printf "  %s (%s)\n    paper: %s\n    here:  %s%s\n%s", what, where, theirs, here, how == "" ? "" : " (" how ")", \
			differs == "" ? "" : "    " differs "\n"
}
BEGIN {
	scale["ns"] = 1; scale["us"] = 1e3; scale["ms"] = 1e6; scale["s"] = 1e9
	if (html)
		print "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n" \
			"<meta name='viewport' content='width=device-width, initial-scale=1'>\n<meta name='color-scheme' content='light dark'>\n" \
			"<title>hugepin: the papers' experiments</title>\n<link rel='icon' href='data:,'>\n<style>\n" \
			read_all(here "/report.css") "</style>\n</head>\n<body>\n<header>\n<h1>The papers' experiments</h1>\n" \
			"<p class='lead'>Numbers of the papers beside those of this run of the benches.</p>"
	run_facts()
	if (html)
		print "</header>\n<main>"
}
FNR == NR { value[$1] = $2; unit[$1] = $3; next }
/^paper / { begin_paper(substr($0, 7)) }
/^(row|each|timeline|none) / {
	kind = $1
	n = split(substr($0, length(kind) + 2), part, / [|] /)
	if (n != (kind == "none" ? 4 : 6)) {
		print "papers.tables: line " FNR " has " n " parts" >"/dev/stderr"
		exit failed = 1
	}
	if (kind != "none") {
		show(part[1], part[2], part[3], kind == "row" ? ours(part[4]) : kind == "each" ? each(part[4]) : timeline(part[4]), \
			part[5], part[6])
		sub(/: .*/, "", part[4])
		if (html && kind == "timeline" && drawn)
			print "<tr><td colspan='6'>" picture(part[4], part[2]) "</td></tr>"
	} else
		show(part[1], part[2], part[3], "not measured: " part[4], "", "")
}
END {
	if (html && !failed)
		print "</tbody></table></div></main></body></html>"
	exit failed
}
