# awk -f median.awk -f uring.awk SAMPLES: what a message of many pieces costs on io_uring, by how it goes, and losses.
# Ratios are formed within a round. "plan" is lost where it is more than 10 % dearer than the best of the other ways of the queue,
# "fixed" where it is dearer than the calls that it takes the place of.
$1 == "model" { models = models sprintf("  %-5s %s: %s ns a request, %s an element, %s a byte\n", $2, $3, $4, $5, $6) }
$1 == "copies" { models = models sprintf("  copies: %s ns a piece, %s a byte\n", $2, $3) }
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
	names = split("each more copy vector chain plain fixed slot plan", name)
	print "Calibrated, processor time of both sides:"
	printf "%s", models
	printf "\nus of processor time for a message, both sides, medians of %d rounds\n%-5s %12s", rounds, "", "n x bytes"
	for (i = 1; i <= names; i++)
		printf " %7s", name[i]
	printf "   fixed/each /copy  plain/each  plan/best\n"
	for (k = 1; k <= cells; k++) {
		c = order[k]
		split(c, part, SUBSEP)
		printf "%-5s %4d x %5d", part[1], part[2], part[3]
		best = ""
		for (i = 1; i <= names; i++) {
			m = median_of(name[i], c)
			printf " %7s", m ? sprintf("%.1f", m / 1000) : ""
			if (name[i] ~ /plain|fixed|slot/ && m && (best == "" || m < least)) { best = name[i]; least = m }
		}
		lost = ratio("plan", best, c)
		printf "   %10.2f %5.2f  %10.2f  %9.2f\n", ratio("fixed", "each", c), ratio("fixed", "copy", c), ratio("plain", "each", c), lost
		where = part[1] " " part[2] " x " part[3]
		if (lost > 1.1)
			losses = losses sprintf("  %s: the plan is %.2f of %s\n", where, lost, best)
		for (i = 1; i <= 4; i++)
			if (ratio("fixed", name[i], c) > 1)
				losses = losses sprintf("  %s: by index is %.2f of %s\n", where, ratio("fixed", name[i], c), name[i])
	}
	if (losses)
		printf "\nLosses\n%s", losses
}
