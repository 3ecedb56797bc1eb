# gnuplot SETTINGS papers.gnuplot: file.svg from file.dat, a column of x and one of y for each of `series`; the first line has their
# titles. styles: theirs (points of a paper), ours (a curve), time (a line without points), a word each.
# Colours are numbers that bench/html.awk replaces by the page's: 1,1,1 ink, 2,2,2 rules, N,0,0 the Nth series.
set terminal svg size 860,340 dynamic font "sans,13" linewidth 1.2
set output file.".svg"
ink = "#010101"
set border 3 linecolor rgb ink
set tics nomirror textcolor rgb ink
set xlabel textcolor rgb ink
set ylabel textcolor rgb ink
set key outside right top textcolor rgb ink reverse Left samplen 2 noenhanced
set grid ytics linetype 1 linewidth 0.6 linecolor rgb "#020202"
set datafile separator "\t"
set datafile missing "?"
set offsets graph 0.02, graph 0.02, 0, 0
colour(i) = sprintf("#%02x0000", i)
sign(i) = int(word("7 5 9 13 11 4 6 2", i))
is(i, style) = word(styles, i) eq style
dash(i) = is(i, "theirs") ? 2 : 1
shape(i) = is(i, "time") ? -1 : sign(i)
title(i) = system(sprintf("head -n 1 '%s.dat' | awk -F'\t' -v i=%d '{ gsub(/\"/, \"\"); print $i }'", file, i))
plot for [i = 1:series] file.".dat" every ::1 using (column(2 * i - 1)):(column(2 * i)) with linespoints \
	dashtype dash(i) linewidth (is(i, "theirs") ? 1 : 1.4) pointtype shape(i) \
	pointsize (is(i, "theirs") ? 1 : 0.6) linecolor rgb colour(i) title title(i)
