# awk -v kernel=RELEASE -f median.awk -f pin.awk TARGETS CSV: medians, ratios with their spread, targets.
# Ratios are formed within a round. Rows whose names begin alike share a head.
function version(release,	part)
{
	split(release, part, /[.-]/)
	return part[1] * 1000 + part[2]
}
# Into v[1..n], sorted: each round's value of a, or its ratio to b's. Returns n.
function gather(name, a, b, v,	r, n)
{
	for (r = 1; r <= rounds; r++)
		if (((r, a, name) in value) && (b == "itself" || value[r, b, name] > 0))
			v[++n] = value[r, a, name] / (b == "itself" ? 1 : value[r, b, name])
	sort_values(v, n)
	return n + 0
}
function show(x)
{
	return x >= 1000 || x == int(x) ? sprintf("%.0f", x) : sprintf("%.3g", x)
}
# One target of a row: what is measured, its spread, and a mark where it is lost.
function verdict(name, i,	n, v, x, what, text)
{
	what = subject[i] (against[i] == "itself" ? "" : "/" against[i])
	n = gather(name, subject[i], against[i], v)
	if (!n) {
		if (bound[i])
			unmeasured++
		return "  " what (bound[i] ? " NOT MEASURED" : " -")
	}
	x = quantile(v, n, 0.5)
	text = "  " what " " show(x) (n > 1 ? " (" show(v[1]) " to " show(v[n]) ")" : "")
	if (!bound[i])
		return text (x > 1.05 ? " LOSS" : "")
	if (x <= limit[i]) {
		reached++
		return text " ok, at most " limit[i]
	}
	missed++
	misses = misses sprintf("  %-24s %s is %s, at most %s\n", name, what, show(x), limit[i])
	return text " MISS, at most " limit[i]
}

FILENAME == ARGV[1] {
	if (!/^#/ && NF) {
		regex[++targets] = "^(" $1 ")$"
		subject[targets] = $2
		against[targets] = $3
		limit[targets] = $4
		bound[targets] = $4 != "-" && (NF < 5 || version(kernel) >= version($5))
	}
	next
}
FNR == 1 {
	FS = ","
	next
}
{
	if (!($3 in unit)) {
		order[++rows] = $3
		unit[$3] = $5
		group[$3] = $3
		sub(/[.].*/, "", group[$3])
	}
	if (!((group[$3], $2) in seen)) {
		seen[group[$3], $2] = 1
		columns[group[$3]] = columns[group[$3]] " " $2
		groups[group[$3]]
	}
	value[$1, $2, $3] = $4
	rounds = $1 > rounds ? $1 : rounds
}

END {
	printf "\nMedians; then medians of the rounds' ratios (least to most), and the targets. Rounds: %d.\n", rounds
	for (g = 1; g <= rows; g++) {
		here = group[order[g]]
		if (here in shown)
			continue
		shown[here]
		count = split(columns[here], column, " ")
		printf "\n%-24s", ""
		for (i = 1; i <= count; i++)
			printf " %10s", column[i]
		print ""
		for (row = 1; row <= rows; row++) {
			name = order[row]
			if (group[name] != here)
				continue
			printf "%-24s", name
			for (i = 1; i <= count; i++) {
				split("", v)
				n = gather(name, column[i], "itself", v)
				printf " %10s", n ? show(quantile(v, n, 0.5)) : "-"
			}
			printf " %s", unit[name]
			for (i = 1; i <= targets; i++)
				if (name ~ regex[i])
					printf "%s", verdict(name, i)
			print ""
		}
	}
	if (reached + missed + unmeasured)
		printf "\n%d targets reached, %d missed, %d not measured\n%s", reached, missed, unmeasured, misses
}
