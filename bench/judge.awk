# For the tables of run-alloc, run-programs and run-pin, and for `make bench-targets`: samples, medians over the rounds, and targets.
# Ratios are formed within a round. keep_target() takes a line of a file of targets, keep_sample() a sample; judged(name) is what
# the targets say of a row, and judged_all() how many were reached.
function version(release,	part)
{
	split(release, part, /[.-]/)
	return part[1] * 1000 + part[2]
}
function keep_target()
{
	if (/^#/ || !NF)
		return
	regex[++targets] = "^(" $1 ")$"
	subject[targets] = $2
	against[targets] = $3
	limit[targets] = $4
	bound[targets] = $4 != "-" && (NF < 5 || version(kernel) >= version($5))
}
function keep_sample(round, who, name, x, its_unit)
{
	if (!(name in unit)) {
		order[++rows] = name
		unit[name] = its_unit
	}
	if (!((name, who) in had)) {
		had[name, who]
		subjects[name] = subjects[name] " " who
	}
	if (x != "-")
		value[round, who, name] = x + 0
	rounds = round > rounds ? round : rounds
}
# Into v[1..n], sorted: each round's value of a, its ratio to b's ("/"), or how much it is above b's ("-"). Returns n.
function gather(name, a, op, b, v,	r, n)
{
	n = 0
	for (r = 1; r <= rounds; r++) {
		if (!((r, a, name) in value) || (op && !((r, b, name) in value)) || (op == "/" && !value[r, b, name]))
			continue
		v[++n] = value[r, a, name]
		if (op)
			v[n] = op == "/" ? v[n] / value[r, b, name] : v[n] - value[r, b, name]
	}
	sort_values(v, n)
	return n
}
# The median of those, "" where there is none.
function middle(name, a, op, b,	n, v)
{
	n = gather(name, a, op, b, v)
	return n ? quantile(v, n, 0.5) : ""
}
# The other allocator whose median is least.
function best(name,	i, n, who, x, least, found)
{
	n = split(subjects[name], who, " ")
	for (i = 1; i <= n; i++) {
		x = middle(name, who[i])
		if (who[i] ~ /^(glibc|jemalloc|mimalloc|tcmalloc)/ && x != "" && (found == "" || x < least)) {
			found = who[i]
			least = x
		}
	}
	return found
}
function show(x)
{
	return x == "" ? "-" : x >= 1000 || x == int(x) ? sprintf("%.0f", x) : sprintf("%.3g", x)
}
function is_time(name)
{
	return unit[name] ~ /^(ns|us|ms|s)$/
}
# One target of a row: what is measured, its median and spread, and a mark where it is lost.
function verdict(name, i,	n, v, x, what, other, op, text)
{
	other = against[i]
	op = other == "itself" ? "" : other ~ /\+$/ ? "-" : "/"
	sub(/\+$/, "", other)
	if (other == "best")
		other = best(name)
	what = subject[i] (op == "" ? "" : op == "-" ? " over " other : "/" other)
	n = gather(name, subject[i], op, other, v)
	if (!n) {
		unmeasured += bound[i]
		return "  " what (bound[i] ? " NOT MEASURED" : " -")
	}
	x = quantile(v, n, 0.5)
	text = "  " what " " show(x) (n > 1 ? " (" show(v[1]) " to " show(v[n]) ")" : "")
	if (!bound[i])
		return text (op == "/" && x > 1.05 ? " LOSS" : "")
	if (x <= limit[i]) {
		reached++
		return text " ok, at most " limit[i]
	}
	missed++
	misses = misses sprintf("  %-24s %s is %s, at most %s\n", name, what, show(x), limit[i])
	return text " MISS, at most " limit[i]
}
function judged(name,	i, text)
{
	for (i = 1; i <= targets; i++)
		if (name ~ regex[i]) {
			matched[i]
			text = text verdict(name, i)
		}
	return text
}
function judged_all()
{
	if (reached + missed + unmeasured)
		printf "\n%d targets reached, %d missed, %d not measured\n%s", reached, missed, unmeasured, misses
	if (rounds < 5)
		print "fewer than 5 rounds: not a verdict"
}
