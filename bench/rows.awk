# For tables of lines that have table=NAME, trace=NAME and further key=value pairs. Keep a line: its numbers are
# v[table, trace, the value of its key `by`, key], and a table's traces are trace[table, 1 to traces[table]].
function keep_row(by,	pair, part, key, i)
{
	for (i = 1; i <= NF; i++) {
		split($i, part, "=")
		pair[part[1]] = part[2]
	}
	if (!((pair["table"], pair["trace"]) in seen)) {
		seen[pair["table"], pair["trace"]]
		trace[pair["table"], ++traces[pair["table"]]] = pair["trace"]
	}
	for (key in pair)
		v[pair["table"], pair["trace"], pair[by], key] = pair[key] + 0
}
