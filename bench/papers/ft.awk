# awk -v layout=2x8 -v mib=128 [-v iterations=20 -v compute=2 -v rank=0 -v node="0 5 9" -v pairs=1] -f ft.awk: a communication
# trace of the NAS benchmark FT for one rank, by its source, in the format of tests/traces. The layout is rows x columns.
#
# A transform is one all-to-all of an array's blocks in a row of ranks, and another one in a column unless there is only one
# row. Arrays u0, u1 and u2 have `mib` each. Two transforms send from u0 to u1, the first of them to touch all memory; in
# each iteration then one from u2 to u1. A rank sends no block to itself. For the ranks of its `node` it copies blocks as
# fast as others are sent, so that all ranks take the same time. All blocks of an all-to-all are under way at once, or with
# `pairs` one there and one back at a time.
# `compute` is the seconds before each transform, and varies by up to 1 %. The call site is one of the whole path of
# calls, as the frames of the paper's signature are: it differs between the three calls of a transform. Transfers have
# 1.2 GB/s, as in bench/shapes.c. Such a trace wants replay -c 0.
function varied(s) { # by the minimal standard generator (Park and Miller 1988), for all ranks alike
	seed = seed * 16807 % 2147483647
	return s * (1 + 0.01 * (2 * seed / 2147483647 - 1))
}
function call(direction, array, offset, bytes, start, end, site) {
	printf "%d,%.0f,%.0f,%.0f,Alltoall,%s,%d%08x,%d,%d,-1,%d,0,0,0\n", ++calls, start, end, cpu, direction, array + 1, offset, \
		bytes, bytes, site
}
# Blocks from an array to another, between the `size` ranks first, first + step and so on.
function all_to_all(from, to, size, first, step, site,	bytes, ns, other, k, at, end, copied) {
	bytes = mib * 1048576 / size
	ns = bytes / 1.2
	at = end = now
	for (k = 0; k < size; k++) {
		other = first + k * step
		if (other in near) {
			copied += (other != rank) * ns
			continue
		}
		end += ns
		call("S", from, k * bytes, bytes, at, end, site)
		call("R", to, k * bytes, bytes, at, end, site)
		if (pairs)
			at = end
	}
	now = end
	compute_for(copied / 1e9)
}
function transform(from, to, path,	row) {
	compute_for(varied(compute * (columns > 1 && rows > 1 ? 0.5 : 1)))
	row = int(rank / columns)
	all_to_all(from, to, columns, row * columns, 1, path)
	if (rows > 1) {
		compute_for(varied(compute * 0.5))
		all_to_all(to, from, rows, rank % columns, columns, path + 1)
	}
}
function compute_for(s) {
	now += s * 1e9
	cpu += s * 1e9
}
BEGIN {
	seed = 1
	split(layout, part, "x")
	rows = part[1]
	columns = part[2]
	rank += 0
	if (!iterations)
		iterations = 20
	if (!compute)
		compute = 1
	near[rank]
	for (k = split(node, part, " "); k; k--)
		near[part[k]]
	print "seq,t_start,t_end,cpu_app,op,dir,addr,len,payload,peer,f0,f1,f2,f3"
	transform(0, 1, 1)
	transform(0, 1, 3)
	for (k = 0; k < iterations; k++)
		transform(2, 1, 5)
}
