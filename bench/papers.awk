# awk -v raw=DIRECTORY [-v html=1] -f papers.awk FIGURES papers.tables: the papers' numbers beside those of this run. raw has how each
# bench ended.
function esc(s) { gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/>/, "\\&gt;", s); return s }
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
function ours(expression,	part, n)
{
	n = split(expression, part, / over /)
	if (!(part[1] in value))
		return missing(part[1])
	if (n == 1)
		return unit[part[1]] != "" ? value[part[1]] " " unit[part[1]] : \
			value[part[1]] ~ /^[0-9.e+-]+$/ ? sprintf("%.3g", value[part[1]]) : value[part[1]]
	if (!(part[2] in value))
		return missing(part[2])
	if (scale[unit[part[1]]] && scale[unit[part[2]]])
		return sprintf("%.3g", value[part[1]] * scale[unit[part[1]]] / (value[part[2]] * scale[unit[part[2]]]))
	return unit[part[1]] == unit[part[2]] ? sprintf("%.3g", value[part[1]] / value[part[2]]) : "not measured: units differ"
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
		print "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>hugepin: the papers' experiments</title>" \
			"<meta name='viewport' content='width=device-width'><style>body{font:16px/1.5 sans-serif;margin:1em auto;max-width:80em;" \
			"padding:0 1em}.scroll{overflow-x:auto}table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.3em .6em;" \
			"text-align:left;vertical-align:top}</style></head><body><h1>The papers' experiments</h1>" \
			"<p>Numbers of the papers beside those of this run of the benches.</p>"
}
FNR == NR { value[$1] = $2; unit[$1] = $3; next }
/^paper / { begin_paper(substr($0, 7)) }
/^(row|none) / {
	kind = $1
	n = split(substr($0, length(kind) + 2), part, / [|] /)
	if (n != (kind == "row" ? 6 : 4)) {
		print "papers.tables: line " FNR " has " n " parts" >"/dev/stderr"
		exit failed = 1
	}
	if (kind == "row")
		show(part[1], part[2], part[3], ours(part[4]), part[5], part[6])
	else
		show(part[1], part[2], part[3], "not measured: " part[4], "", "")
}
END {
	if (html && !failed)
		print "</tbody></table></div></body></html>"
	exit failed
}
