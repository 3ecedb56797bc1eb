# awk -v names="glibc ... hugepin" -f median.awk -f judge.awk -f programs.awk TARGETS CSV: medians, ratios with their spread, targets.
END {
	count = split(names, name_of, " ")
	printf "\nuser + sys and wall: medians in seconds; ratio: of user + sys to glibc, within a round; rounds: %d\n\n", rounds
	printf "%-10s %-14s %9s %9s %8s   %-15s %-15s\n", "", "", "user+sys", "wall", "ratio", "middle half", "least, most"
	for (row = 1; row <= rows; row++) {
		if (order[row] !~ /^cpu[.]/)
			continue
		name = substr(order[row], 5)
		for (i = 1; i <= count; i++) {
			a = name_of[i]
			n = gather("cpu." name, a, "/", "glibc", v)
			if (n)
				printf "%-10s %-14s %9.2f %9.2f %8.3f   %.3f to %.3f  %.3f to %.3f\n", name, a, middle("cpu." name, a),
					middle("wall." name, a), quantile(v, n, 0.5), quantile(v, n, 0.25), quantile(v, n, 0.75), v[1], v[n]
			else
				printf "%-10s %-14s %9s\n", name, a, "-"
		}
		print judged("cpu." name)
	}
	judged_all()
	if (rounds < 11)
		print "fewer than 11 rounds: the programs' ratios are hints"
}
