# awk -v kernel=RELEASE -f median.awk -f judge.awk -f verdict.awk FILE...: every target beside what was measured. Files of targets
# (*targets) and of samples (*.csv). Then the losses to other allocators that no target is about. Exit status 1 if a target is missed.
FILENAME ~ /targets$/ {
	keep_target()
	next
}
FNR == 1 {
	split($0, head, ",")
	next
}
{
	split($0, part, ",")
	if (head[4] == "cpu") # run-programs
		keep_sample(part[1], part[2], "cpu." part[3], part[4], "s")
	else
		keep_sample(part[1], part[2], part[3], part[4], part[5])
}
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
	for (row = 1; row <= rows; row++) {
		name = order[row]
		other = best(name)
		x = is_time(name) && other != "" ? middle(name, "hugepin", "/", other) : ""
		if (x != "" && x > 1.05) {
			at = ++losses
			for (; at > 1 && worse[at - 1] < x; at--) {
				worse[at] = worse[at - 1]
				loss[at] = loss[at - 1]
			}
			worse[at] = x
			loss[at] = sprintf("  %-32s %s x %s (%s)", name, show(x), other, show(middle(name, "hugepin")) " " unit[name])
		}
	}
	print "\n" losses + 0 " rows in which another allocator is faster by more than 5 %, the worst first:"
	for (i = 1; i <= losses; i++)
		print loss[i]
	exit missed > 0
}
