# awk -f median.awk -f uring.awk SAMPLES: what a message of many pieces costs on io_uring, by how it goes, and losses.
# Ratios are formed within a round. A loss is more than 10 % dearer than the best of the other ways.
$1 == "cell" {
	cell = $4 SUBSEP $5 SUBSEP $6
	value[$2, $3, cell] = $7
	if (!(cell in known)) {
		known[cell]
		order[++cells] = cell
	}
	rounds = $2 + 1 > rounds ? $2 + 1 : rounds
}
function median_of(subject, cell,	r, v, n)
{
	for (r = 0; r < rounds; r++)
		if ((r, subject, cell) in value)
			v[++n] = value[r, subject, cell]
	sort_values(v, n)
	return n ? quantile(v, n, 0.5) : 0
}
function ratio(a, b, cell,	r, v, n)
{
	for (r = 0; r < rounds; r++)
		if (((r, a, cell) in value) && ((r, b, cell) in value))
			v[++n] = value[r, a, cell] / value[r, b, cell]
	sort_values(v, n)
	return n ? quantile(v, n, 0.5) : 0
}
END {
	names = split("each copy vector chain address slot hugepin", name)
	printf "us of processor time for a message, medians of %d rounds\n%-6s %12s", rounds, "", "n x bytes"
	for (i = 1; i <= names; i++)
		printf " %7s", name[i]
	printf "   hugepin/each /best\n"
	for (k = 1; k <= cells; k++) {
		c = order[k]
		split(c, part, SUBSEP)
		printf "%-6s %4d x %5d", part[1], part[2], part[3]
		best = ""
		for (i = 1; i <= names; i++) {
			m = median_of(name[i], c)
			printf " %7.1f", m / 1000
			if (name[i] != "hugepin" && (best == "" || m < least)) { best = name[i]; least = m }
		}
		lost = ratio("hugepin", best, c)
		printf "   %12.2f %5.2f\n", ratio("hugepin", "each", c), lost
		if (lost > 1.1)
			losses = losses sprintf("  %s %d x %d: %.2f of %s\n", part[1], part[2], part[3], lost, best)
	}
	if (losses)
		printf "\nLosses\n%s", losses
}
