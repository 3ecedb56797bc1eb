# For the tables of run-alloc, run-programs and run-pin, and for `make bench-targets`: reads files of targets (*targets), then CSVs of
# samples. Medians are over the rounds, and ratios formed within a round. judged(name) is what the targets say of a row, and
# judged_all() how many were reached. peer[NAME] is the version of other software, by the CSV's rows "0,NAME,peer,VERSION,".
FILENAME ~ /targets$/ {
	keep_target()
	next
}
FNR == 1 {
	FS = ","
	next
}
{ keep_sample($1, $2, $3, $4, $5) }

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
	bound[targets] = $4 ~ /^[0-9]/ && (NF < 5 || version(kernel) >= version($5))
}
function keep_sample(round, who, name, x, its_unit)
{
	if (name == "peer") {
		peers = peers (who in peer ? "" : ", " who " (" x ")")
		peer[who] = x
		return
	}
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
# The peer whose median is least.
function best(name,	i, n, who, x, least, found)
{
	n = split(subjects[name], who, " ")
	for (i = 1; i <= n; i++) {
		x = middle(name, who[i])
		if ((who[i] in peer) && x != "" && (found == "" || x < least)) {
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
# Into loss[], the worst first.
function lost(x, text,	at)
{
	for (at = ++losses; at > 1 && loss_by[at - 1] < x; at--) {
		loss_by[at] = loss_by[at - 1]
		loss[at] = loss[at - 1]
	}
	loss_by[at] = x
	loss[at] = text
}
# One target of a row: what is measured, its median and spread, and a mark where it is lost.
function verdict(name, i, who, other,	n, v, x, what, op, text, word)
{
	op = other == "itself" ? "" : other ~ /\+$/ ? "-" : "/"
	sub(/\+$/, "", other)
	if (other == "best")
		other = best(name)
	what = who (op == "" ? "" : op == "-" ? " over " other : "/" other)
	n = gather(name, who, op, other, v)
	if (!n) {
		unmeasured += bound[i]
		return limit[i] == "level" ? "" : "  " what (bound[i] ? " NOT MEASURED" : " -")
	}
	x = quantile(v, n, 0.5)
	text = "  " what " " show(x) (n > 1 ? " (" show(v[1]) " to " show(v[n]) ")" : "")
	if (limit[i] == "level" || (bound[i] && against[i] == "best")) {
		word = x > 1.05 ? "LOSS" : x < 0.95 ? "win" : "level"
		tally[word]++
		if (word == "LOSS")
			lost(x, sprintf("  %-32s %s x %s (%s %s)", name (who == "hugepin" ? "" : ", " who), show(x), other,
				show(middle(name, who)), unit[name]))
		if (!bound[i])
			return text " " word
	}
	if (!bound[i])
		return text
	if (x <= limit[i]) {
		reached++
		return text " ok, at most " limit[i]
	}
	missed++
	misses = misses sprintf("  %-24s %s is %s, at most %s\n", name, what, show(x), limit[i])
	return text " MISS, at most " limit[i]
}
# Of lines about the same two, the last one that matches counts. PEER stands for each peer.
function judged(name,	i, k, n, who, ours, theirs, last, text)
{
	for (i = 1; i <= targets; i++)
		if (name ~ regex[i]) {
			matched[i]
			last[subject[i], against[i]] = i
		}
	for (i = 1; i <= targets; i++) {
		if (last[subject[i], against[i]] != i)
			continue
		if (subject[i] !~ /PEER/) {
			text = text verdict(name, i, subject[i], against[i])
			continue
		}
		n = split(subjects[name], who, " ")
		for (k = 1; k <= n; k++) {
			ours = subject[i]
			theirs = against[i]
			sub(/PEER/, who[k], ours)
			sub(/PEER/, who[k], theirs)
			if (who[k] in peer)
				text = text verdict(name, i, ours, theirs)
		}
	}
	return text
}
function judged_all()
{
	if (reached + missed + unmeasured)
		printf "\n%d targets reached, %d missed, %d not measured\n%s", reached, missed, unmeasured, misses
	if (peers)
		printf "Beside the peers: %d wins, %d level, %d losses (over 1.05). Peers: %s\n", tally["win"], tally["level"],
			tally["LOSS"], substr(peers, 3)
	if (rounds < 5)
		print "fewer than 5 rounds: not a verdict"
}
