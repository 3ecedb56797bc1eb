# awk -v kernel=RELEASE -f median.awk -f judge.awk -f pin.awk TARGETS CSV: medians, ratios with their spread, targets.
# Ratios are formed within a round. Rows whose names begin alike share a head.
END {
	for (row = 1; row <= rows; row++) {
		name = order[row]
		group[name] = name
		sub(/[.].*/, "", group[name])
		count = split(subjects[name], who, " ")
		for (i = 1; i <= count; i++)
			if (!seen[group[name], who[i]]++)
				columns[group[name]] = columns[group[name]] " " who[i]
	}
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
