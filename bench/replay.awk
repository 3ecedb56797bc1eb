# awk -f rows.awk -f replay.awk LINES: tables of replay's lines, each with table=NAME in front, and what policies are
# judged by.
# Average/peak and misses of each policy, after the first one's bound (average/peak) or budget.
function table(name, title, policies,	n, p, i, k, t, measure)
{
	if (!traces[name])
		return
	measure = name ~ /budget/ ? "budget" : "bound"
	n = split(policies, p, " ")
	printf "\n%s\n%-16s %6s %9s", title, "trace", "reuses", measure
	for (i = 1; i <= n; i++)
		printf "  %23s", p[i]
	print ""
	for (k = 1; k <= traces[name]; k++) {
		t = trace[name, k]
		printf "%-16s %6d %5.1f%s", t, v[name, t, p[1], "reuses"], v[name, t, p[1], measure "_pct"],
			measure == "bound" ? sprintf("/%3.0f", v[name, t, p[1], "bound_peak_pct"]) : "    "
		for (i = 1; i <= n; i++)
			printf "  %5.1f/%3.0f %6.2f%% %5d", v[name, t, p[i], "avg_pct"], v[name, t, p[i], "peak_pct"],
				v[name, t, p[i], "miss_pct"], v[name, t, p[i], "misses"]
		print ""
	}
}
function most(a, b) { return a > b ? a : b }
function judge(what, p, value, limit)
{
	printf "  %-58s %-8s %8s%s\n", what, p, sprintf(value == int(value) ? "%d" : "%.2f", value),
		limit == "" ? "" : value <= limit ? "  ok, at most " limit : "  MISSED, at most " limit
}
function judge_save(p, ours,	k, t, n, gap, far, over, more, best, down, misses, reuses, longer)
{
	for (k = 1; k <= traces["traces.save"]; k++) {
		t = trace["traces.save", k]
		n++
		gap += v["traces.save", t, p, "avg_pct"] - v["traces.save", t, p, "bound_pct"]
		far = most(far, v["traces.save", t, p, "avg_pct"] - v["traces.save", t, p, "bound_pct"])
		down += 100 - v["traces.save", t, p, "avg_pct"]
		best = most(best, 100 - v["traces.save", t, p, "avg_pct"])
		longer += v["traces.save", t, p, "time_pct"] - 100
		misses += v["traces.save", t, p, "misses"]
		reuses += v["traces.save", t, p, "reuses"]
		over += v["traces.save", t, p, "misses"] > \
			0.005 * v["traces.save", t, p, "reuses"] + 2 * v["traces.save", t, p, "regions"]
		more += v["traces.save", t, p, "misses"] > v["traces.save", t, "cf11", "misses"] / 2
	}
	if (!n)
		return
	judge("bytes above the bound, mean, points", p, gap / n, ours ? 13 : "")
	judge("bytes above the bound, most, points", p, far, ours ? 30 : "")
	judge("traces with more misses than 0.5 % and two a region", p, over, ours ? 0 : "")
	judge("traces with more than half of cf11's misses", p, more, ours ? 0 : "")
	judge("misses, % of all re-uses", p, 100 * misses / reuses)
	judge("bytes down from leave-pinned, mean, % (the paper: 23.6)", p, down / n)
	judge("bytes down from leave-pinned, best, % (the paper: 49.4)", p, best)
	judge("run time above leave-pinned, mean, %", p, longer / n)
}
function judge_budget(p, ours,	k, t, n, sum, lru, worse, above, d)
{
	for (k = 1; k <= traces["traces.budget"]; k++) {
		t = trace["traces.budget", k]
		n++
		d = v["traces.budget", t, p, "misses"] - v["traces.budget", t, "lru", "misses"]
		sum += v["traces.budget", t, p, "misses"]
		lru += v["traces.budget", t, "lru", "misses"]
		worse += d > most(3, 0.01 * v["traces.budget", t, p, "reuses"])
		above += v["traces.budget", t, p, "peak_pct"] > v["traces.budget", t, p, "budget_pct"]
	}
	if (!n)
		return
	judge("budget: misses, % of LRU's", p, lru ? 100 * sum / lru : 0, ours ? 15 : "")
	judge("budget: traces worse than LRU by over 1 point and 3 misses", p, worse, ours ? 0 : "")
	judge("budget: traces with a peak above it", p, above, ours ? 0 : "")
}
function judge_shapes(p,	k, t, n, s, i, above)
{
	n = split("bt 2 sp 4 lu 4 cg 12 ft 8", s, " ")
	for (i = 1; i < n; i += 2)
		judge("shape " s[i] ": bytes, % of leave-pinned", p, v["shapes.save", s[i], p, "avg_pct"], s[i + 1] + 0)
	n = split("bt 20 sp 30 lu 60 cg 70 ft 60", s, " ")
	for (i = 1; i < n; i += 2)
		judge("shape " s[i] ": peak, % of leave-pinned", p, v["shapes.save", s[i], p, "peak_pct"], s[i + 1] + 0)
	for (i = 1; i < n; i += 2)
		judge("shape " s[i] ": misses, at most half of cf11's", p, v["shapes.save", s[i], p, "misses"],
			v["shapes.save", s[i], "cf11", "misses"] / 2)
	judge("shape zipf: misses, % of re-uses", p, v["shapes.save", "zipf", p, "miss_pct"], 2)
	n = split("bt 0.5 sp 0.5 lu 0.5 cg 0.5 ft 8 ft60 3", s, " ")
	for (i = 1; i < n; i += 2)
		judge("shape " s[i] ", budget: misses, %", p, v["shapes.budget", s[i], p, "miss_pct"], s[i + 1] + 0)
	judge("shape zipf, budget: misses", p, v["shapes.budget", "zipf", p, "misses"],
		v["shapes.budget", "zipf", "lru", "misses"])
	for (k = 1; k <= traces["shapes.budget"]; k++) {
		t = trace["shapes.budget", k]
		above += v["shapes.budget", t, p, "peak_pct"] > v["shapes.budget", t, p, "budget_pct"]
	}
	judge("shapes, budget: peaks above it", p, above, 0)
}
{ keep_row("policy") }
END {
	print "Cells: average/peak of registered bytes, % of leave-pinned's; misses, % of re-uses and in numbers."
	table("traces.save", "Recorded traces, no budget", "none cf11 predict")
	table("traces.budget", "Recorded traces, budget 25 % or what is in use at once", "lru cf11 predict")
	table("shapes.save", "Shapes, 1 % jitter, no budget", "none cf11 predict")
	table("shapes.budget", "Shapes, 1 % jitter, budget 25 % or the two largest regions", "lru cf11 predict")
	print "\nJudged by"
	judge_save("cf11", 0)
	judge_save("predict", 1)
	judge_budget("cf11", 0)
	judge_budget("predict", 1)
	judge_shapes("predict")
}
