# awk -f lend.awk LINES: tables of bench/lend's lines, and what lending keys is judged by. The patterns of Bonachea and Bell are
# lines "figure SUBJECT NAME VALUE UNIT", which bench/report gathers.
function get(p, s, key) { return v[p, s, key] }
function judge(what, value, limit, short)
{
	printf "  %-64s %12s  %s, at most %s\n", what, value == int(value) ? sprintf("%d", value) : sprintf("%.6f", value),
		value <= limit ? "ok" : "MISSED", short == "" ? limit : short
}
function bound(p, limit)
{
	if ((p, "pool", "handshakes") in v)
		judge("questions a put: " p, get(p, "pool", "handshakes"), limit)
}
function add_figure(s, name, value, unit) { figures = figures "figure " s " " name " " value + 0 " " unit "\n" }
function figures_of(p, s)
{
	gsub(/[.]/, "-", s)
	sub(/^paper/, "", p)
	add_figure(s, "put" p, pair["put_us"], "us")
	if (s ~ /^rendezvous/)
		return
	add_figure(s, "missed" p, pair["missed_pct"], "%")
	add_figure(s, "registered" p, pair["peak_bytes"] / 1048576, "MiB")
	if (pair["missed_pct"] == 0)
		return
	add_figure(s, "hit" p, pair["hit_us"], "us")
	add_figure(s, "miss" p, pair["missed_us"], "us")
	add_figure(s, "found" p, pair["found_pct"], "%")
}
{
	split("", pair)
	for (i = 1; i <= NF; i++) {
		split($i, part, "=")
		pair[part[1]] = part[2]
	}
	s = pair["policy"] (pair["bucket"] == "own" ? "" : "." pair["bucket"])
	if (!(pair["pattern"] in seen)) {
		seen[pair["pattern"]]
		pattern[++patterns] = pair["pattern"]
	}
	for (key in pair)
		v[pair["pattern"], s, key] = pair[key] + 0
	has[pair["pattern"], s]
	if (pair["pattern"] ~ /^paper/)
		figures_of(pair["pattern"], s)
}
END {
	n = split("static.128K static.2M static.64M static pool", settings, " ")
	print "Questions a put, second half of the run; F=0: a peer's share is smaller than the bucket. M = 512 MiB, MAXVICTIM = 128 MiB."
	printf "%-20s %6s", "pattern", "nodes"
	for (k = 1; k <= n; k++)
		printf " %12s", settings[k]
	print ""
	for (i = 1; i <= patterns; i++) {
		p = pattern[i]
		if (!((p, "static") in has))
			continue
		printf "%-20s %6d", p, get(p, "pool", "nodes")
		for (k = 1; k <= n; k++)
			printf " %12s", get(p, settings[k], "share") ? sprintf("%.6f", get(p, settings[k], "handshakes")) : "F=0"
		print ""
	}
	print "\nPool: a put in the second half; the most that was lent and idle at once"
	printf "%-20s %10s %10s %14s %14s %10s %10s %8s\n", "pattern", "questions", "messages", "registrations", "KiB registered",
		"refused", "bucket KiB", "peak MiB"
	for (i = 1; i <= patterns; i++) {
		p = pattern[i]
		if (p !~ /^(tables|paper)/)
			printf "%-20s %10.6f %10.6f %14.6f %14.1f %10.6f %10d %8.1f\n", p, get(p, "pool", "handshakes"),
				get(p, "pool", "messages"), get(p, "pool", "registrations"), get(p, "pool", "registered_bytes") / 1024,
				get(p, "pool", "refused"), get(p, "pool", "bucket_bytes") / 1024, get(p, "pool", "peak_bytes") / 1048576
	}
	if (("tables-64", "pool") in has) {
		print "\nTables of a node, KiB: the target's, with four peers that have keys; a borrower's"
		for (i = 1; i <= patterns; i++) {
			p = pattern[i]
			if (p ~ /^tables/)
				printf "%-20s %10.1f %10.1f   %.0f bytes for each node\n", p, get(p, "pool", "target_tables") / 1024,
					get(p, "pool", "origin_tables") / 1024, get(p, "pool", "target_tables") / get(p, "pool", "nodes")
		}
	}
	if (figures != "")
		printf "\nBonachea and Bell 2003: puts, hits and misses; misses that find the memory registered\n%s", figures
	print "\nJudged by"
	bound("gups-256M-4of63", 0.007)
	bound("gups-256M-3of3", 0.002)
	bound("gups-256M-all4", 0.002)
	bound("halo-256-4of63", 0)
	bound("vectors-300K-4of63", 0)
	bound("blocks-256K-4of63", 0.055)
	bound("sweep-1G-2of63", 0.01)
	for (i = 1; i <= patterns; i++) {
		p = pattern[i]
		over += get(p, "pool", "peak_bytes") > get(p, "pool", "limit_bytes")
		for (k = 1; k <= n; k++)
			if ((p, settings[k]) in has) {
				over += get(p, settings[k], "peak_bytes") > get(p, settings[k], "limit_bytes")
				worse += settings[k] != "pool" && get(p, "pool", "handshakes") > get(p, settings[k], "handshakes")
			}
	}
	judge("runs that exceed M + MAXVICTIM", over + 0, 0)
	judge("patterns and buckets where pool asks more than static", worse + 0, 0)
	if (("paper.cannon.2.myrinet", "pool") in has) {
		judge("puts with a question, %: matrix multiply (the paper: 0.2)", get("paper.cannon.2.myrinet", "pool", "missed_pct"), 0.2)
		judge("puts with a question, %: bitonic sort (the paper: 0.02)", get("paper.bitonic.2.myrinet", "pool", "missed_pct"), 0.02)
	}
	if (("tables-4096", "pool") in has)
		judge("bytes of tables for each of 4096 nodes", get("tables-4096", "pool", "target_tables") / 4096, 512)
}
