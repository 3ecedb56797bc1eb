# awk -f median.awk -f sg.awk SAMPLES: what a message costs in each mode, the planner beside the best of them, and targets.
# Ratios are formed within a round. "fixed" choices: each, chain, gather, pack, inline (where it fits, else pack).
# A cell is reached if the planner is within 10 % of the best fixed choice, or no slower than it in a quarter of the rounds at
# least, which is the run's own spread. One piece by itself (each, chain) is gather, by a loop that checks nothing: of one piece
# they are shown, but are no other choice.
BEGIN {
	fixed_count = split("each chain gather pack inline", fixed, " ")
}
$1 == "model" { model = model " " $2 " " $3 }
$1 == "mode" { mode[$2, $3, $4, $5] = $6 }
$1 == "cell" {
	cell = $4 SUBSEP $5 SUBSEP $6 SUBSEP $7
	value[$2, $3, cell] = $8
	if (!(cell in known)) {
		known[cell]
		order[++cells] = cell
	}
	note(ns, $4)
	rounds = $2 + 1 > rounds ? $2 + 1 : rounds
}
$1 == "offset" {
	sum[$3 " " $4 "x" $5, $6] += $7
	times[$3 " " $4 "x" $5, $6]++
	offsets[$3 " " $4 "x" $5]
}
$1 == "plan" {
	plan_sum[$3] += $5
	plan_times[$3]++
	note(ns, $3)
}

# Keep the order in which numbers come.
function note(list, x)
{
	if (!((x, "seen") in list)) {
		list[x, "seen"]
		list[++list[0]] = x
	}
}
function median_of(subject, cell,	r, v, n)
{
	for (r = 0; r < rounds; r++)
		if ((r, subject, cell) in value)
			v[++n] = value[r, subject, cell]
	sort_values(v, n)
	return n ? quantile(v, n, 0.5) : 0
}
# Into q: lower quartile, median, upper quartile of the rounds' ratios.
function ratios(a, cell_a, b, cell_b, q,	r, v, n)
{
	for (r = 0; r < rounds; r++)
		if (((r, a, cell_a) in value) && ((r, b, cell_b) in value))
			v[++n] = value[r, a, cell_a] / value[r, b, cell_b]
	sort_values(v, n)
	q[1] = quantile(v, n, 0.25); q[2] = quantile(v, n, 0.5); q[3] = quantile(v, n, 0.75)
	return n
}
function say(text, ok)
{
	print "  " text (ok ? "  ok" : "  MISS")
	missed += !ok
	asked++
}
function best_of(cell,	i, m, best, least)
{
	split(cell, cell_part, SUBSEP)
	for (i = cell_part[1] == 1 ? 3 : 1; i <= fixed_count; i++) {
		m = median_of(fixed[i], cell)
		if (m && (!best || m < least)) { best = fixed[i]; least = m }
	}
	return best
}
function at_most(what, a, b, n, s, t, limit,	q, c)
{
	c = n SUBSEP s SUBSEP t SUBSEP 1
	if (ratios(a, c, b, c, q))
		say(sprintf("%s: %.2f (%.2f to %.2f), at most %s", what, q[2], q[1], q[3], limit), q[2] <= limit)
}
function shown(what, t,	q, c)
{
	c = 4 SUBSEP 128 SUBSEP t SUBSEP 1
	if (ratios("gather", c, "pack", c, q))
		printf "    (%s: %.2f)\n", what, q[2]
}

END {
	print "Calibrated:" model
	print "\nns for a message, medians of " rounds " rounds; < the best fixed choice; the planner's (i inline, p pack, g gather, m" \
		" mixed), its ratio\nto the best (quartiles), and ! where it is lost"
	for (k = 1; k <= cells; k++) {
		c = order[k]
		split(c, part, SUBSEP)
		if (part[3] != last_temp || part[4] != last_regs)
			printf "\n%s, %s registration%s\n%11s %7s  %7s  %7s  %7s  %7s  %7s   ratio\n", part[3], part[4],
				(part[4] > 1 ? "s" : ""), "n x s", "each", "chain", "gather", "pack", "inline", "plan"
		last_temp = part[3]; last_regs = part[4]
		best = best_of(c)
		ratios("plan", c, best, c, q)
		reached = q[2] <= 1.1 || q[1] <= 1
		good += reached
		line = sprintf("%4d x %-4d", part[1], part[2])
		for (i = 1; i <= fixed_count; i++) {
			line = line sprintf(" %7.1f%s", median_of(fixed[i], c), fixed[i] == best ? "<" : " ")
			ratios(fixed[i], c, "plan", c, f)
			log_sum[fixed[i]] += log(f[2])
			fixed_sum[fixed[i]] += median_of(fixed[i], c)
		}
		plan_total += median_of("plan", c)
		split(c, idx, SUBSEP)
		m = substr(mode[idx[1], idx[2], idx[3], idx[4]], 1, 1)
		line = line sprintf(" %7.1f%s  %5.2f (%.2f to %.2f)", median_of("plan", c), m, q[2], q[1], q[3])
		print line (reached ? "" : "  !")
		if (!reached)
			losses = losses sprintf("  %s x %s %s, %s registrations: %s is %.2f of %s\n", part[1], part[2], part[3], part[4],
				mode[idx[1], idx[2], idx[3], idx[4]], q[2], best)
	}
	if (cells) {
		print "\nThe checks and the lookup of hugepin_sg_fill beside a bare loop that holds its key, medians over hot cells:"
		for (k = 1; k <= cells; k++) {
			c = order[k]
			split(c, part, SUBSEP)
			if (part[3] == "hot" && part[4] == 1 && part[2] == 128)
				printf "  %2d x 128: gather %.1f, floor %.1f; pack %.1f, floor %.1f\n", part[1], median_of("gather", c),
					median_of("floor-gather", c), median_of("pack", c), median_of("floor-pack", c)
		}
	}
	if (ns[0] && plan_times[ns[1]]) {
		print "\nhugepin_sg_plan itself, ns; and a message as planned with it, at 128 bytes hot, when the plan serves 1, 16, 256 of them"
		for (i = 1; i <= ns[0]; i++) {
			n = ns[i]
			p = plan_sum[n] / plan_times[n]
			m = median_of("plan", n SUBSEP 128 SUBSEP "hot" SUBSEP 1)
			printf "  %2d pieces %6.1f    %6.1f %6.1f %6.1f\n", n, p, m + p, m + p / 16, m + p / 256
		}
	}
	heading = 0
	for (o in offsets) {
		least = most = 0
		for (at = 0; at < 4096; at += 8)
			if ((o, at) in times) {
				x = sum[o, at] / times[o, at]
				if (!least || x < least) { least = x; least_at = at }
				if (x > most) { most = x; most_at = at }
			}
		if (!heading++)
			print "\nOffset of the pieces in their page (slots begin pages); mean ns, least and most"
		printf "  %-14s %.1f at %d, %.1f at %d\n", o, least, least_at, most, most_at
	}
	if (!cells)
		exit
	print "\nTargets"
	say(sprintf("within 10 %% of the best fixed choice, or the spread, in %d of %d cells: %.1f %%, at least 95", good, cells,
		100 * good / cells), good >= 0.95 * cells)
	for (i = 1; i <= fixed_count; i++)
		say(sprintf("always %s: %.2f times the planner in the geometric mean, %.2f times in sum, more than 1", fixed[i],
			exp(log_sum[fixed[i]] / cells), fixed_sum[fixed[i]] / plan_total),
			log_sum[fixed[i]] > 0 && fixed_sum[fixed[i]] > plan_total)
	at_most("gather / pack, 4 x 128 from the heap, hot, key held", "floor-gather", "floor-pack", 4, 128, "hot", 0.8)
	at_most("gather / pack, 4 x 128 from the heap, cold, key held", "floor-gather", "floor-pack", 4, 128, "cold", 0.3)
	shown("the same by hugepin_sg_fill, its key looked up and given back each time, hot", "hot")
	shown("the same by hugepin_sg_fill, its key looked up and given back each time, cold", "cold")
	printf "%d targets, %d missed\n", asked, missed
	if (losses)
		printf "\nLosses\n%s", losses
}
