# awk -v names="glibc ... hugepin" -f median.awk -f programs.awk CSV: medians, ratios with their spread, targets.
# Ratios are formed within a round. Level with another: not more than 1 % slower in the median.
function ratios(name, a, b, v,	r, n)
{
	for (r = 1; r <= rounds; r++)
		if (((r, a, name) in cpu) && ((r, b, name) in cpu))
			v[++n] = cpu[r, a, name] / cpu[r, b, name]
	sort_values(v, n)
	return n
}
function middle(name, a, value,	r, n, v)
{
	for (r = 1; r <= rounds; r++)
		if ((r, a, name) in value)
			v[++n] = value[r, a, name]
	sort_values(v, n)
	return n ? quantile(v, n, 0.5) : ""
}
function judge(what, ok, x)
{
	printf "  %s: %s: median of hugepin's ratios %.3f\n", ok ? "ok" : "MISS", what, x
}

BEGIN { FS = "," }
FNR > 1 {
	if (!($3 in seen)) {
		order[++rows] = $3
		seen[$3] = 1
	}
	cpu[$1, $2, $3] = $4
	wall[$1, $2, $3] = $5
	rounds = $1 > rounds ? $1 : rounds
}
END {
	count = split(names, name_of, " ")
	printf "\nuser + sys and wall: medians in seconds; ratio: of user + sys to glibc, within a round; rounds: %d\n\n", rounds
	printf "%-10s %-11s %9s %9s %8s   %-15s %-15s\n", "", "", "user+sys", "wall", "ratio", "middle half", "least, most"
	for (row = 1; row <= rows; row++) {
		name = order[row]
		best = ""
		for (i = 1; i <= count; i++) {
			a = name_of[i]
			split("", v)
			n = ratios(name, a, "glibc", v)
			if (!n) {
				printf "%-10s %-11s %9s\n", name, a, "-"
				continue
			}
			x = quantile(v, n, 0.5)
			printf "%-10s %-11s %9.2f %9.2f %8.3f   %.3f to %.3f  %.3f to %.3f\n", name, a, middle(name, a, cpu),
				middle(name, a, wall), x, quantile(v, n, 0.25), quantile(v, n, 0.75), v[1], v[n]
			if (a == "hugepin")
				to_glibc = x
			else if (best == "" || x < least) {
				best = a
				least = x
			}
		}
		split("", v)
		n = ratios(name, "hugepin", best, v)
		if (!n)
			continue
		if (name == "r" || name == "zstd")
			judge("not slower than glibc by more than 3 %", to_glibc <= 1.03, to_glibc)
		else
			judge("ahead of or level with the best, " best, quantile(v, n, 0.5) <= 1.01, quantile(v, n, 0.5))
	}
	if (rounds < 11)
		print "fewer than 11 rounds: not a verdict"
}
