# awk -v names="glibc ... hugepin" -v plot=FILE -f median.awk -f judge.awk -f alloc.awk TARGETS CSV
# The table of medians, ratios and targets. Ratios are medians of the rounds' ratios (least to most). Writes what gnuplot draws to FILE.
END {
	count = split(names, name_of, " ")
	print "workload " names > plot
	print "\nTimes: glibc's and hugepin's, then each allocator's ratio to glibc, and the targets: hugepin's ratio to the best peer is"
	printf "among these. Rows in other units show the values themselves. Medians (least to most); rounds: %d.\n\n", rounds
	printf "%-32s %9s %9s %-6s", "", "glibc", "hugepin", "unit"
	for (i = 1; i <= count; i++)
		if (name_of[i] != "glibc")
			printf " %9s", name_of[i]
	print "  targets"
	for (row = 1; row <= rows; row++) {
		name = order[row]
		printf "%-32s %9s %9s %-6s", name, show(middle(name, "glibc")), show(middle(name, "hugepin")), unit[name]
		dots = ""
		for (i = 1; i <= count; i++) {
			x = is_time(name) ? middle(name, name_of[i], "/", "glibc") : middle(name, name_of[i])
			dots = dots " " (x == "" ? "?" : x)
			if (name_of[i] != "glibc")
				printf " %" (length(name_of[i]) > 9 ? length(name_of[i]) : 9) "s", show(x)
		}
		print (" " names " ") ~ / hugepin / ? judged(name) : ""
		if (is_time(name))
			print name dots > plot
	}
	judged_all()
}
