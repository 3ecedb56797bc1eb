# awk -v names="glibc ... hugepin" -v plot=FILE -f median.awk -f alloc.awk TARGETS CSV
# The table of medians, ratios and targets.
# Ratios are medians of the rounds' ratios. Writes what gnuplot draws to FILE.
# The median over the rounds of allocator a's value, of its ratio to b's ("/"), or how much it is above b's ("-").
# "" where there is none.
function middle(name, a, op, b,	r, v, n)
{
	for (r = 1; r <= rounds; r++) {
		if (!((r, a, name) in value) || (op && !((r, b, name) in value)))
			continue
		if (op == "/" && value[r, b, name] == 0)
			continue
		v[++n] = value[r, a, name] + 0
		if (op)
			v[n] = op == "/" ? v[n] / value[r, b, name] : v[n] - value[r, b, name]
	}
	sort_values(v, n)
	return n ? quantile(v, n, 0.5) : ""
}
function show(x)
{
	if (x == "")
		return "-"
	return x >= 1000 || x == int(x) ? sprintf("%.0f", x) : sprintf(x < 0.1 ? "%.2g" : x < 10 ? "%.2f" : "%.1f", x)
}
function verdict(name,	i, x, text, words)
{
	for (i = 1; i <= targets; i++) {
		if (name !~ regex[i])
			continue
		if (against[i] == "itself")
			x = middle(name, "hugepin")
		else if (against[i] ~ /\+$/)
			x = middle(name, "hugepin", "-", substr(against[i], 1, length(against[i]) - 1))
		else
			x = middle(name, "hugepin", "/", against[i])
		text = against[i] (against[i] ~ /\+$/ ? "" : against[i] == "itself" ? " " : " x ") limit[i]
		if (x == "") {
			words = words "  NOT MEASURED " text
			unmeasured++
		} else if (x <= limit[i]) {
			words = words "  ok " text
			reached++
		} else {
			words = words "  MISS " text " is " show(x)
			missed++
			misses = misses sprintf("  %-30s %s, is %s\n", name, text, show(x))
		}
	}
	return words
}

FILENAME == ARGV[1] {
	if (!/^#/ && NF) {
		regex[++targets] = "^(" $1 ")$"
		against[targets] = $2
		limit[targets] = $3 + 0
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
	}
	if ($4 != "-")
		value[$1, $2, $3] = $4
	rounds = $1 > rounds ? $1 : rounds
}

END {
	count = split(names, name_of, " ")
	print "workload " names > plot
	print "\nTimes: glibc's and hugepin's, then each allocator's ratio to glibc, hugepin's to the best of the others"
	printf "(floor apart), and the targets. Rows in other units show the values themselves. Medians; rounds: %d.\n\n", rounds
	printf "%-32s %9s %9s %-6s", "", "glibc", "hugepin", "unit"
	for (i = 1; i <= count; i++)
		if (name_of[i] != "glibc")
			printf " %13s", name_of[i]
	printf " %7s  %s\n", "/best", "at most"
	for (row = 1; row <= rows; row++) {
		name = order[row]
		time = unit[name] == "ns" || unit[name] == "ms"
		printf "%-32s %9s %9s %-6s", name, show(middle(name, "glibc")), show(middle(name, "hugepin")), unit[name]
		best = ""
		dots = ""
		for (i = 1; i <= count; i++) {
			a = name_of[i]
			x = middle(name, a)
			if (x != "" && a !~ /^(hugepin|nothing$)/ && (best == "" || x < least)) {
				best = a
				least = x
			}
			x = time ? middle(name, a, "/", "glibc") : x
			dots = dots " " (x == "" ? "?" : x)
			if (a != "glibc")
				printf " %13s", show(x)
		}
		printf " %7s%s\n", time && best ? show(middle(name, "hugepin", "/", best)) : "-", \
			(" " names " ") ~ / hugepin / ? verdict(name) : ""
		if (time)
			print name dots > plot
	}
	if (reached + missed + unmeasured)
		printf "\n%d targets reached, %d missed, %d not measured\n%s", reached, missed, unmeasured, misses
}
