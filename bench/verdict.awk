# awk -v kernel=RELEASE -f median.awk -f judge.awk -f verdict.awk FILE...: every target beside what was measured. Files of targets
# (*targets) and of samples (*.csv). Then the losses to other allocators that no target is about. Exit status 1 if a target is missed.
END {
	for (row = 1; row <= rows; row++) {
		text = judged(order[row])
		if (text != "")
			printf "%-36s%s\n", order[row], text
	}
	for (i = 1; i <= targets; i++)
		if (!(i in matched)) {
			printf "%-36s  NOT MEASURED\n", substr(regex[i], 3, length(regex[i]) - 4)
			unmeasured += bound[i]
		}
	judged_all()
	print "\n" losses + 0 " losses by more than 5 %, the worst first:"
	for (i = 1; i <= losses; i++)
		print loss[i]
	exit missed > 0
}
