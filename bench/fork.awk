# Lines "NAME ROW VALUE ms" of bench/fork: medians and quarters, over a copy by hand in the same run, and over glibc. Runs that found
# too little in the pool do not count.
$2 == "pool" { missing += short = $1 ~ /^hugepin(-parts)?(,|$)/ && $3 < 64 }
$2 != "pool" && !short {
	at = $1 " " $2
	add(at, $3)
	hand = $2 == "hand" ? $3 : hand
	if ($2 == "first" && $1 !~ /glibc/)
		add($1 " first/hand", $3 / hand)
}
function add(at, value)
{
	if (!n[at]++)
		order[++rows] = at
	v[at, n[at]] = value
}
END {
	printf "%-32s %9s %9s %9s %9s\n", "ms, or a ratio", "quarter", "median", "quarter", "over glibc"
	for (i = 1; i <= rows; i++) {
		at = order[i]
		for (k = 1; k <= n[at]; k++)
			one[k] = v[at, k] + 0
		sort_values(one, n[at])
		middle[at] = quantile(one, n[at], 0.5)
		glibc = at
		sub(/^[^ ,]*/, "glibc", glibc)
		over = glibc != at && at !~ /hand/ && glibc in middle ? sprintf("%9.2f", middle[at] / middle[glibc]) : ""
		printf "%-32s %9.3f %9.3f %9.3f %s\n", at, quantile(one, n[at], 0.25), middle[at], quantile(one, n[at], 0.75), over
	}
	if (missing)
		printf "%d runs do not count, since the pool had too little for them\n", missing
}
