# gnuplot -e "file='NAME'; kind='lines'; longest=8; ylabel='...'; xlabel='...'" report.gnuplot: NAME.svg from NAME.dat.
# kind: lines or points (a row's name, then median and quartiles of each series; its first line names the series; lines: then the
# logarithm of the row's size, with an empty line where sizes between two rows were left out), or scatter (missed and registered
# of each series).
# Colours are numbers that bench/report.awk replaces by the page's: 1,1,1 ink, 2,2,2 rules, N,0,0 the Nth series.
set terminal svg size 860,(360 + 6 * longest) dynamic font "sans,13" linewidth 1.2
set output file.".svg"
ink = "#010101"
set border 3 linecolor rgb ink
set tics nomirror textcolor rgb ink
set key outside right top textcolor rgb ink reverse Left samplen 2
set grid ytics linetype 1 linewidth 0.6 linecolor rgb "#020202"
set datafile separator "\t"
set datafile missing "?"
set label textcolor rgb ink
colour(i) = sprintf("#%02x0000", i)
sign(i) = int(word("7 5 9 13 11 4 6 2", i))
series = system(sprintf("head -n 1 '%s.dat' | awk -F'\t' '{ print NF - 1 }'", file)) + 0
title(i) = system(sprintf("head -n 1 '%s.dat' | awk -F'\t' -v i=%d '{ gsub(/\"/, \"\"); print $(i + 1) }'", file, i))
if (kind eq "scatter") {
	set xlabel "registered on average, % of leave-pinned's" textcolor rgb ink
	set ylabel "misses, % of re-uses" textcolor rgb ink
	set xrange [0:105]
	set yrange [-3:103]
	set grid xtics
	plot for [i = 1:series] file.".dat" every ::1 using (column(2 * i + 1)):(column(2 * i)) with points \
		pointtype sign(i) pointsize 0.8 linecolor rgb colour(i) title title(i)
}
if (kind eq "lines" || kind eq "points") {
	set logscale y
	set ylabel ylabel textcolor rgb ink
	set xlabel xlabel textcolor rgb ink
	set xtics rotate by 50 right noenhanced textcolor rgb ink
	set key noenhanced
	set xrange [-0.5:*]
	# Room for the axis's name beside numbers such as 100000; names stand slantwise below the axis, and long ones need more.
	set lmargin longest > 20 ? 12 + 0.6 * (longest - 20) : 12
	set offsets 0, 0.5, 0, 0
	if (kind eq "lines") {
		size = 3 * series + 2
		set xrange [*:*]
		set offsets 0.5, 0.5, 0, 0
		plot for [i = 1:series] file.".dat" skip 1 using (column(size)):(column(3 * i - 1)):xticlabels(1) with linespoints \
			pointtype sign(i) pointsize (i == 1 ? 0.7 : 0.5) linewidth (i == 1 ? 2.4 : 1) linecolor rgb colour(i) title title(i), \
			for [i = 1:1] "" skip 1 using (column(size)):(column(3 * i - 1)):xticlabels(1) with linespoints \
			pointtype sign(i) pointsize 0.7 linewidth 2.4 linecolor rgb colour(i) notitle # on top
	} else {
		plot file.".dat" every ::1 using 0:2:xticlabels(1) with points pointtype -1 notitle, \
			for [i = 1:series] "" every ::1 using ($0 + (i - series / 2.0 - 0.5) * 0.09):(column(3 * i)):(0): \
			(column(3 * i + 1) - column(3 * i)) with vectors nohead linewidth (i == 1 ? 2 : 1) linecolor rgb colour(i) notitle, \
			for [i = 1:series] "" every ::1 using ($0 + (i - series / 2.0 - 0.5) * 0.09):(column(3 * i - 1)) with points \
			pointtype sign(i) pointsize (i == 1 ? 0.8 : 0.6) linecolor rgb colour(i) title title(i)
	}
}
