# gnuplot -e "out='FILE.svg'; dat='FILE.dat'" alloc.gnuplot: every time's ratio to glibc, a sign for each allocator.
# The file's first line names the columns.
set terminal svg size 1700,800 dynamic background "white" font "sans,11"
set output out
set title "time over glibc's (below 1 is faster)"
set logscale y
set grid ytics xtics linetype 1 linecolor rgb "#e0e0e0"
set xtics rotate by 60 right font "sans,9"
set key outside right top
set datafile missing "?"
set xrange [-1:*]
colours = "#000000 #808080 #56b4e9 #0060c0 #b08000 #d0a040 #009e73 #9400d3 #e00000 #ff8080 #c04000"
names = system("head -n 1 ".dat)
is_ours(i) = word(names, i) eq "hugepin"
# An allocator without a time in any row has no points, of which gnuplot would warn.
columns = system("awk 'FNR > 1 { for (i = 2; i <= NF; i++) if ($i != \"?\") seen[i] = 1 } END { for (i in seen) print i }' ".dat." | sort -n")
plot for [c in columns] i = c + 0, dat every ::1 using 0:(column(i)):xticlabels(1) with points \
	pointtype (is_ours(i) ? 7 : 1 + (i - 2) % 6) pointsize (is_ours(i) ? 1.2 : 0.8) \
	linecolor rgb (word(colours, 1 + (i - 2) % words(colours))) title word(names, i)
