# awk -v kernel=RELEASE -f median.awk -f judge.awk -f pin.awk TARGETS CSV: medians, ratios with their spread, targets.
# Ratios are formed within a round. Rows whose names begin alike share a head.
FILENAME == ARGV[1] {
	keep_target()
	next
}
FNR == 1 {
	FS = ","
	next
}
{
	keep_sample($1, $2, $3, $4, $5)
	group[$3] = $3
	sub(/[.].*/, "", group[$3])
	if (!((group[$3], $2) in seen)) {
		seen[group[$3], $2] = 1
		columns[group[$3]] = columns[group[$3]] " " $2
		groups[group[$3]]
	}
}

END {
	printf "\nMedians; then medians of the rounds' ratios (least to most), and the targets. Rounds: %d.\n", rounds
	for (g = 1; g <= rows; g++) {
		here = group[order[g]]
		if (here in shown)
			continue
		shown[here]
		count = split(columns[here], column, " ")
		printf "\n%-24s", ""
		for (i = 1; i <= count; i++)
			printf " %10s", column[i]
		print ""
		for (row = 1; row <= rows; row++) {
			name = order[row]
			if (group[name] != here)
				continue
			printf "%-24s", name
			for (i = 1; i <= count; i++)
				printf " %10s", show(middle(name, column[i]))
			print " " unit[name] judged(name)
		}
	}
	judged_all()
}
