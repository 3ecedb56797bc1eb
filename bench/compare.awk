# awk -v worse=FILE -f median.awk -f judge.awk -f compare.awk CSV: hugepin beside base, row by row. In every row less is better.
# A row is worse if the median of the ratios is above 1.05, and a time by more than half a nanosecond. Its name goes to FILE.
END {
	printf "" > worse
	for (row = 1; row <= rows; row++) {
		name = order[row]
		n = gather(name, "hugepin", "/", "base", v)
		if (!n)
			continue
		x = quantile(v, n, 0.5)
		mark = ""
		if (x > 1.05 && !(unit[name] == "ns" && middle(name, "hugepin", "-", "base") <= 0.5)) {
			mark = "  WORSE"
			print name > worse
		} else if (x < 0.95)
			mark = "  better"
		printf "%-32s %9s %9s %-6s %6.3f (%.2f to %.2f)%s\n", name, show(middle(name, "base")),
			show(middle(name, "hugepin")), unit[name], x, v[1], v[n], mark
	}
}
