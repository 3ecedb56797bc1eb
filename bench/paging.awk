# awk -f rows.awk -f paging.awk LINES: of paging's lines, each with table=NAME in front, lines of figures; tables in the form
# of those and of the figures of Li et al. 2016; and what hybrid is judged by.

# Lines of figures: the subject is the scheme. The ranks of a program are its rounds.
function figure(name, t, scheme, what, key, unit, per)
{
	printf "figure %s %s %.6g %s\n", scheme, what, v[name, t, scheme, key] / per, unit
}
function program_figures(name, state,	n, s, i, k, t, what)
{
	n = split(all_schemes, s, " ")
	for (k = 1; k <= traces[name]; k++) {
		t = trace[name, k]
		what = state "." t
		sub(/[.]r[0-9]+$/, "", what)
		for (i = 1; i <= n; i++) {
			figure(name, t, s[i], "events." what, "faulting", "transfers", 1)
			figure(name, t, s[i], "faults." what, "faults", "pages", 1)
			figure(name, t, s[i], "brought." what, "brought", "pages", 1)
			figure(name, t, s[i], "asked." what, "asked", "pages", 1)
			figure(name, t, s[i], "ms." what, "us", "ms", 1000)
			figure(name, t, s[i], "pinned." what, "pinned_kib", "KiB", 1)
			figure(name, t, s[i], "peak." what, "pinned_peak_kib", "KiB", 1)
		}
	}
}
function transfer_figures(name,	n, s, i, k, t, size)
{
	n = split(all_schemes, s, " ")
	for (k = 1; k <= traces[name]; k++) {
		t = trace[name, k]
		size = t >= 1048576 ? t / 1048576 "M" : t / 1024 "K"
		for (i = 1; i <= n; i++) {
			figure(name, t, s[i], name "." size, "us", "us", 1000)
			printf "figure %s %s-rate.%s %.6g MB/s\n", s[i], name, size, t * 1000 / v[name, t, s[i], "us"]
			printf "figure %s %s-more.%s %.4g %%\n", s[i], name, size,
				100 * (v[name, t, s[i], "us"] / v[name, t, "pin", "us"] - 1)
		}
	}
}
function heading(title, first, columns,	n, c, i)
{
	printf "\n%s\n%-16s", title, first
	n = split(columns, c, " ")
	for (i = 1; i <= n; i++)
		printf " %10s", c[i]
	print ""
}
function row(name, t, schemes, key, format, per,	n, s, i)
{
	n = split(schemes, s, " ")
	for (i = 1; i <= n; i++)
		printf " " format, v[name, t, s[i], key] / per
}
# Tables I and II: events of the device.
function events(name, title,	k, t)
{
	heading(title ": pages faulted in by the device; pages brought in", "program", "native enhanced optimal hybrid | enhanced optimal hybrid")
	for (k = 1; k <= traces[name]; k++) {
		t = trace[name, k]
		printf "%-16s", t
		row(name, t, "native enhanced optimal hybrid", "faults", "%10d", 1)
		printf " %10s", "|"
		row(name, t, "enhanced optimal hybrid", "brought", "%10d", 1)
		print ""
	}
}
# Figures 10 and 11: time, and size of what is pinned.
function programs(name, title,	k, t)
{
	heading(title ": time, ms; pinned on average and at most, KiB", "program", all_schemes " | pin hybrid pin hybrid")
	for (k = 1; k <= traces[name]; k++) {
		t = trace[name, k]
		printf "%-16s", t
		row(name, t, all_schemes, "us", "%10.1f", 1000)
		printf " %10s", "|"
		row(name, t, "pin hybrid", "pinned_kib", "%10d", 1)
		row(name, t, "pin hybrid", "pinned_peak_kib", "%10d", 1)
		print ""
	}
}
# Figures 8 and 9: latency and bandwidth by size.
function transfers(name, title,	k, t, n, s, i)
{
	heading(title ": latency, us; bandwidth, MB/s", "bytes", all_schemes " | " all_schemes)
	n = split(all_schemes, s, " ")
	for (k = 1; k <= traces[name]; k++) {
		t = trace[name, k]
		printf "%-16s", t
		row(name, t, all_schemes, "us", "%10.2f", 1000)
		printf " %10s", "|"
		for (i = 1; i <= n; i++)
			printf " %10.1f", t * 1000 / v[name, t, s[i], "us"]
		print ""
	}
}
function judge(what, value, limit, worst)
{
	printf "  %-66s %9.3f  %s, at most %s  %s\n", what, value, value <= limit ? "ok" : "MISSED", limit, worst
	missed += value > limit
}
function judge_all(name, title, most,	k, t, pin, optimal, hybrid, best, slower, faulting, above, losses, worst, worst_faulting)
{
	for (k = 1; k <= traces[name]; k++) {
		t = trace[name, k]
		pin = v[name, t, "pin", "us"]
		optimal = v[name, t, "optimal", "us"]
		hybrid = v[name, t, "hybrid", "us"]
		best = pin < optimal ? pin : optimal
		if (hybrid / best > slower) {
			slower = hybrid / best
			worst = t
		}
		if (hybrid > best)
			losses = losses sprintf("    %-18s %.2f %% slower than %s\n", t, 100 * (hybrid / best - 1),
				best == pin ? "pin" : "optimal")
		if (v[name, t, "hybrid", "faulting_pct"] > faulting) {
			faulting = v[name, t, "hybrid", "faulting_pct"]
			worst_faulting = t
		}
		above += v[name, t, "hybrid", "budget_kib"] && v[name, t, "hybrid", "pinned_peak_kib"] > v[name, t, "hybrid", "budget_kib"]
	}
	print title
	judge("time by the better of pin and optimal, the worst program", slower, most, worst)
	judge("uses that fault, %, the worst program", faulting, 1, worst_faulting)
	judge("programs with more pinned than the budget", above, 0, "")
	printf "%s", losses == "" ? "" : "  losses\n" losses
}
{ keep_row("scheme") }
END {
	all_schemes = "pin native enhanced optimal hybrid"
	program_figures("programs.stay", "stay")
	program_figures("programs.lost", "lost")
	program_figures("programs.all", "swapped")
	transfer_figures("send")
	transfer_figures("put")
	print "\nIn virtual time; costs of soft-RoCE in an emulated guest."
	events("programs.stay", "Memory stays")
	events("programs.lost", "The device loses it after each use")
	events("programs.all", "Swapped out after each use")
	events("programs.budget", "Swapped out, a budget of 25 % or what is in use at once")
	programs("programs.stay", "Memory stays")
	programs("programs.lost", "The device loses it after each use")
	programs("programs.all", "Swapped out after each use")
	programs("programs.budget", "Swapped out, a budget of 25 % or what is in use at once")
	transfers("send", "Sends of a buffer that stays in memory, a thousand")
	transfers("put", "Puts from a buffer that stays in memory, a thousand")
	print "\nHybrid is judged by"
	judge_all("programs.all", "  No budget", 1.05)
	judge_all("programs.budget", "  A budget of 25 % or what is in use at once; pin has the same", 1.15)
	exit missed > 0
}
