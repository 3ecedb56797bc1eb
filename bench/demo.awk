# awk -v offered=WORDS -f median.awk -f demo.awk SAMPLES: what `make demo` says of its runs. Pure: the numbers in, the table and the
# verdict out. SAMPLES, separated by tabs: program, round, how it ran, what bench/counted printed. It ran "without" hugepin, which is
# what a user has; with the "tunable", which is what a user could set instead; or "with" hugepin. Round 0 was watched, and its times
# do not count. offered: the hugepages that the machine has for hugepin ("none" if it has none).
#
# Times are compared within a round: processor time with hugepin / without, and with hugepin / with the tunable. A program gains if
# the median of these ratios is under 1 - level and their upper quartile is under 1. It is slower if the median is over 1 + level and
# the lower quartile over 1. If the quartiles are further apart than `noise`, and 1 is between them, the runs say nothing. Else it is
# level.
BEGIN {
	FS = "\t"
	level = 0.05
	noise = 0.1
	small_mib = 8 # fewer MiB in hugepages are no reason for anything
	purpose = "Where the tunable alone is enough, hugepin is for what the tunable lacks: pages of a pool, which are hugepages " \
		"however little memory is free; keys by which devices use buffers; and an account of what lay in hugepages.\n"
}
{
	if (!($1 in known)) {
		known[$1]
		program[++programs] = $1
	}
	fields = split($4, field, " ")
	for (i = 1; i <= fields; i++) {
		split(field[i], part, "=")
		value[$1, $2, $3, part[1]] = part[2]
	}
	value[$1, $2, $3, "cpu"] = value[$1, $2, $3, "user"] + value[$1, $2, $3, "sys"]
	rounds = $2 > rounds ? $2 : rounds
}

# Into q[1..3] the quartiles of a value, or with `base` those of its ratios to base's; "" where a sample lacks it.
function quartiles(name, which, what, base, q,	r, v, n)
{
	split("", q)
	for (r = 1; r <= rounds; r++)
		if (value[name, r, which, what] ~ /^[0-9.]+$/ && (base == "" || value[name, r, base, what] > 0))
			v[++n] = value[name, r, which, what] / (base == "" ? 1 : value[name, r, base, what])
	if (!n)
		return ""
	sort_values(v, n)
	q[1] = quantile(v, n, 0.25); q[2] = quantile(v, n, 0.5); q[3] = quantile(v, n, 0.75)
	return q[2]
}
function median(name, which, what,	q) { return quartiles(name, which, what, "", q) }
function mib(name, which, what) { return value[name, 0, which, what] / 1024 }
function huge(name, which) { return mib(name, which, "hugetlb") + mib(name, which, "thp") }

# Of "with" beside another way; its quartiles go to q.
function verdict(name, base, q)
{
	quartiles(name, "with", "cpu", base, q)
	if (q[2] < 1 - level && q[3] < 1)
		return "gains"
	if (q[2] > 1 + level && q[1] > 1)
		return "slower"
	return q[3] - q[1] > noise && q[1] < 1 && q[3] > 1 ? "unclear" : "level"
}

# ---------------------------------------------------------------- the table

function row(text, without, tunable, with) { printf "  %-44s %12s %12s %12s\n", text, without, tunable, with }
function counted_row(name, what, text, format,	a, b, c)
{
	a = median(name, "without", what)
	b = median(name, "tunable", what)
	c = median(name, "with", what)
	if (a == "" || b == "" || c == "")
		row(text, "not counted", "here", "")
	else
		row(text, sprintf(format, a), sprintf(format, b), sprintf(format, c))
}
function page_row(name, what, text)
{
	row(text, sprintf("%.0f", mib(name, "without", what)), sprintf("%.0f", mib(name, "tunable", what)),
		sprintf("%.0f", mib(name, "with", what)))
}
function ratio(name, base,	q)
{
	quartiles(name, "with", "cpu", base, q)
	return sprintf("%.2f (%.2f to %.2f)", q[2], q[1], q[3])
}
function table(name)
{
	row(name, "without", "tunable", "with")
	counted_row(name, "cpu", "  processor time, s", "%.2f")
	counted_row(name, "user", "    of the program itself", "%.2f")
	counted_row(name, "sys", "    of the kernel", "%.2f")
	counted_row(name, "wall", "  time by the clock, s", "%.2f")
	counted_row(name, "faults", "  page faults", "%.0f")
	counted_row(name, "tlb", "  TLB misses", "%.0f")
	page_row(name, "hugetlb", "  MiB in hugepages of the pool, at the peak")
	page_row(name, "thp", "  MiB in transparent hugepages")
	page_row(name, "base", "  MiB in base pages")
	printf "    with / without: %s; with / tunable: %s\n\n", ratio(name, "without"), ratio(name, "tunable")
}

# ---------------------------------------------------------------- the words

function percent(x) { return sprintf("%.0f %%", 100 * x) }
function saved(name, what) { return median(name, "without", what) - median(name, "with", what) }
function faults(name) { return sprintf("%.0f page faults instead of %.0f", median(name, "with", "faults"), median(name, "without", "faults")) }
function memory(name, which) { return huge(name, which) + mib(name, which, "base") }
# Where the time came from. A part under a fifth of it is not told.
function why_gain(name,	user, sys, kernel, own)
{
	user = saved(name, "user")
	sys = saved(name, "sys")
	kernel = sprintf("the kernel saves %.2f s (%s)", sys, faults(name))
	own = sprintf("the program itself saves %.2f s, since it waits less for address translation", user)
	if (sys < (user + sys) / 5)
		return own
	return user < (user + sys) / 5 ? kernel : kernel ", and " own
}
function why_level(name)
{
	if (huge(name, "with") < small_mib)
		return sprintf("%.0f MiB of it are in hugepages, since it has few large buffers", huge(name, "with"))
	if (huge(name, "without") > huge(name, "with") / 2)
		return sprintf("the kernel gives it %.0f MiB in hugepages without hugepin, too", huge(name, "without"))
	if (saved(name, "user") * saved(name, "sys") < 0 && (saved(name, "user") ^ 2) ^ 0.5 > level * median(name, "without", "cpu"))
		return sprintf("%.0f MiB of it are in hugepages (%s). The program itself takes %s of what it took, and the kernel %s",
			huge(name, "with"), faults(name), percent(median(name, "with", "user") / median(name, "without", "user")),
			percent(median(name, "with", "sys") / median(name, "without", "sys")))
	return sprintf("%.0f MiB of it are in hugepages (%s), but the kernel took only %s of its time, and the program itself takes %s " \
		"of what it took: it seldom waits for address translation", huge(name, "with"), faults(name),
		percent(median(name, "without", "sys") / median(name, "without", "cpu")),
		percent(median(name, "with", "user") / median(name, "without", "user")))
}
function why_slower(name)
{
	if (saved(name, "sys") < saved(name, "user"))
		return sprintf("the kernel takes %.2f s more, with %s: it zeroes each hugepage as a whole, and a virtual machine may have to " \
			"get the memory from its host first", -saved(name, "sys"), faults(name))
	return sprintf("the program itself takes %.2f s more", -saved(name, "user"))
}
function words(name, word, q,	text)
{
	if (word == "unclear")
		return sprintf("has no verdict, since its runs differ too much (%.2f to %.2f of the time). Something else uses this machine.",
			q[1], q[3])
	if (word == "gains")
		text = sprintf("gains %s of its processor time: %s.", percent(1 - q[2]), why_gain(name))
	else if (word == "slower")
		text = sprintf("loses %s of processor time: %s.", percent(q[2] - 1), why_slower(name))
	else
		text = sprintf("is level (%.2f of the time): %s.", q[2], why_level(name))
	if (memory(name, "with") > 1.25 * memory(name, "without") && memory(name, "with") > memory(name, "without") + small_mib)
		text = text sprintf(" It takes %.0f MiB of memory instead of %.0f.", memory(name, "with"), memory(name, "without"))
	return text
}
# Beside the tunable, behind the words of words().
function beside(word, q)
{
	if (word == "unclear")
		return sprintf(" Beside the tunable it has no verdict, since its runs differ too much (%.2f to %.2f of the time).", q[1], q[3])
	return sprintf(" With hugepin it takes %.2f times what it takes with the tunable%s.", q[2], word == "gains" ? "" : \
		word == "level" ? ": the tunable alone is enough for it" : ": the tunable is better for it")
}
function in_short(word, q)
{
	return word == "level" ? "the tunable alone is enough" : word == "unclear" ? "unclear beside the tunable" : \
		sprintf("%s %s than with the tunable", percent(word == "gains" ? 1 - q[2] : q[2] - 1), word == "gains" ? "less" : "more")
}
function listed(list, item) { return list (list ? ", " : "") item }

END {
	for (i = 1; i <= programs; i++)
		table(program[i])
	printf "Medians of %d round%s. \"without\" is what you have. \"tunable\" is what you could set instead: with " \
		"GLIBC_TUNABLES=glibc.malloc.hugetlb=1 glibc's malloc asks for transparent hugepages.\n", rounds, rounds == 1 ? "" : "s"
	printf "\"with / without\" is the median of the rounds' ratios, and their quartiles. A program gains if it is under %.2f with the " \
		"upper quartile under 1. It loses if it is over %.2f with the lower quartile over 1.\n\n", 1 - level, 1 + level
	for (i = 1; i <= programs; i++) {
		name = program[i]
		word = verdict(name, "without", q)
		other = verdict(name, "tunable", p)
		if (huge(name, "with") > most)
			most = huge(name, "with")
		text = text name " " words(name, word, q) (word == "gains" || other == "slower" ? beside(other, p) : "") "\n"
		if (word == "gains" && (other == "level" || other == "slower"))
			enough = 1
		if (word == "gains")
			winners = listed(winners, sprintf("%s (%s less processor time; %s)", name, percent(1 - q[2]), in_short(other, p)))
		else if (word == "unclear")
			unclear = listed(unclear, name)
		else
			others = listed(others, sprintf("%s (%s%s)", name, word == "slower" ? percent(q[2] - 1) " more" : word,
				other == "slower" ? "; " in_short(other, p) : ""))
	}
	if (offered == "none")
		print "Who gains here: nobody. This machine has no hugepages for hugepin. `hugepin info` says what to change."
	else if (most < small_mib) {
		print "Who gains here: nobody. The machine has " offered ", but no memory came to lie in hugepages. `hugepin info` may say why."
		failed = 1
	} else
		printf "%s%s\nWho gains here: %s. Who does not: %s.%s\n", text, enough ? purpose : "", winners ? winners : "nobody", others ? others : "nobody",
			unclear ? " No verdict: " unclear "." : ""
	exit failed
}
