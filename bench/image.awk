# Behind median.awk: samples of run-image, "PROGRAM VARIANT" and a line of bench/counted each, become its table. The program alone in
# seconds, the other variants as ratios to it: medians.
function field(name)
{
	return match($0, " " name "=[^ ]*") ? substr($0, RSTART + length(name) + 2, RLENGTH - length(name) - 2) + 0 : 0
}
{
	key = $1 " " $2
	if (!(key in n)) order[++keys] = key
	i = ++n[key]
	cpu[key, i] = field("user") + field("sys"); wall[key, i] = field("wall"); faults[key, i] = field("faults")
	thp[key, i] = field("thp") / 1024; pool[key, i] = field("hugetlb") / 1024
}
function median(a, key,    i, v)
{
	for (i = 1; i <= n[key]; i++) v[i] = a[key, i]
	sort_values(v, n[key])
	return quantile(v, n[key], 0.5)
}
END {
	printf "%-10s %-13s %9s %9s %11s %9s %9s\n", "program", "with", "cpu", "wall", "faults", "THP MiB", "pool MiB"
	for (k = 1; k <= keys; k++) {
		key = order[k]; split(key, w, " "); alone = w[1] " alone"
		c = median(cpu, key); a = median(cpu, alone); x = median(wall, key); y = median(wall, alone)
		if (key == alone)
			printf "%-10s %-13s %7.2f s %7.2f s", w[1], w[2], c, x
		else
			printf "%-10s %-13s %9.2f %9.2f", "", w[2], a ? c / a : 0, y ? x / y : 0
		printf " %11d %9.1f %9.1f%s\n", median(faults, key), median(thp, key), median(pool, key), (c > 1.03 * a ? " <" : "")
	}
}
