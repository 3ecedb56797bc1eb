# awk -v names="glibc ... hugepin" -v plot=FILE -f median.awk -f judge.awk -f alloc.awk TARGETS CSV
# The table of medians, ratios and targets. Ratios are medians of the rounds' ratios. Writes what gnuplot draws to FILE.
FILENAME == ARGV[1] {
	keep_target()
	next
}
FNR == 1 {
	FS = ","
	next
}
{ keep_sample($1, $2, $3, $4, $5) }

END {
	count = split(names, name_of, " ")
	print "workload " names > plot
	print "\nTimes: glibc's and hugepin's, then each allocator's ratio to glibc, hugepin's to the best of the others"
	printf "(floor apart), and the targets. Rows in other units show the values themselves. Medians; rounds: %d.\n\n", rounds
	printf "%-32s %9s %9s %-6s", "", "glibc", "hugepin", "unit"
	for (i = 1; i <= count; i++)
		if (name_of[i] != "glibc")
			printf " %9s", name_of[i]
	printf " %7s  %s\n", "/best", "targets"
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
		other = best(name)
		x = is_time(name) && other != "" ? middle(name, "hugepin", "/", other) : ""
		printf " %7s%s\n", show(x), (" " names " ") ~ / hugepin / ? judged(name) : ""
		if (is_time(name))
			print name dots > plot
	}
	judged_all()
}
