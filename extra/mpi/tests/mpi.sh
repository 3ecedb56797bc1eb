#!/bin/bash
# The MPI layer, preloaded under programs that do not know of it: every function it stands before brings the right
# data, each buffer is pinned as often as it should be and none stays pinned, and what it records is what happened.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../../../tests/live/tap.bash"
# shellcheck source=extra/mpi/tests/programs/common.bash
. "$(dirname "$0")/programs/common.bash"
mpi_or_skip 'the MPI layer'
compile all -pthread
compile transpose

count() { run "$1" HUGEPIN_POLICY=lru "$t/all" "$1" && pinned "$1" "$2"; }

if ! run probe HUGEPIN_POLICY=lru "$t/all" types >/dev/null && grep -q 'io_uring\|no domain' "$t/probe.out"; then
	skip 'the MPI layer' "no io_uring: $(grep -o 'nothing is registered: .*' "$t/probe.out" | head -1)"
	exit
fi

# io_uring has no page faults of its own.
unavailable() { [ "$(grep -c ' device_faults=not-available device_prefetches=not-available device_invalidations=not-available ' "$t/probe.out")" = 2 ]; }
works 'what a device does not count is not available' unavailable
# What the cases of extra/mpi/tests/programs/all.c hand to MPI above the threshold, counted by hand.
works 'sends, receives and probes pin each buffer once' count point_to_point 20
works 'each way to complete requests unpins them, in any order' count completions 144
works 'a persistent request is pinned from start to completion' count persistent 28
works 'freed and cancelled requests are let go' count freed_and_cancelled 3
small() { run small HUGEPIN_POLICY=lru HUGEPIN_X_MPI_MIN=64 "$t/all" small && pinned small 8; }
works 'requests that share a handle, having been done at once, are one each' small
works 'derived types are pinned as far as they reach' count types 2
works 'collectives pin what they read and write, nonblocking ones and in place' count collectives 88
works 'between two groups the root is in one of them' count between_groups 4
works 'windows are pinned until they are freed, origins until the closing synchronisation' count windows 19
if grep -q 'without threads' <(layer "$t/all" types); then
	skip 'threads that use the same handles of requests one after the other' 'this MPI has no MPI_THREAD_MULTIPLE'
else
	works 'threads that use the same handles of requests one after the other' count threads 1200
fi
for policy in none arena cf11 predict; do
	works "all of it under the policy $policy" run $policy HUGEPIN_POLICY=$policy "$t/all"
done
# told [VARIABLE=VALUE...] COMMAND...: two ranks with HUGEPIN_STATS=1; their errors go to $t/told.
told() { layer HUGEPIN_STATS=1 HUGEPIN_POLICY=lru "$@" >"$t/told.out" 2>"$t/told" || { cat "$t/told.out" "$t/told"; return 1; }; }
# lines COUNT PREFIX: so many lines are hugepin's, and begin so.
lines() { cat "$t/told"; [ "$(grep -c '^hugepin' "$t/told")" = "$1" ] && [ "$(grep -c "^hugepin\\[$2: " "$t/told")" = "$1" ]; }
works 'HUGEPIN_STATS=1: the ranks add up what they have to tell' told "$t/all" point_to_point
works 'and rank 0 prints it once' lines 2 '2 ranks\] all'
works 'with the pins of both' grep -E ': pin cache: [0-9]+ % of 40 pins found their memory registered; ' "$t/told"
works 'with the heap under the layer' told LD_PRELOAD="$mpi_layer $dropin" "$t/all" point_to_point
works 'there is one summary, too' lines 4 '2 ranks\] all'
# shellcheck disable=SC2016 # Perl's dollar
works 'without MPI calls' told LD_PRELOAD="$dropin" perl -e 'my $x = "a" x 100_000_000'
works 'each rank tells of itself' lines 6 '[0-9]*\] perl rank [01]'
works 'a rank that needs little' told LD_PRELOAD="$dropin" true
works 'tells nothing' lines 0 ''
# Some mpirun of Open MPI 5 cannot start two programs.
if ! "$mpicc" -show 2>/dev/null | grep -q openmpi || ! "$mpirun" -n 1 "$t/all" types : -n 1 "$t/all" types >/dev/null 2>&1; then
	skip 'two programs of one job' 'this mpirun starts none such'
else
	several() { timeout -k 5 400 "$mpirun" -n 1 env HUGEPIN_STATS=1 LD_PRELOAD="$mpi_layer" "$t/all" types : -n 1 "$t/all" types >"$t/told.out" 2>"$t/told"; }
	works 'where a program is without the layer, nobody waits for its numbers' several
	works 'and the other tells of itself' lines 2 '[0-9]*\] all rank 0'
fi

with_heap() { run heap HUGEPIN_POLICY=arena LD_PRELOAD="$mpi_layer $dropin" "$t/all"; }
works 'all of it on the heap of the drop-in' with_heap
extents() { [ "$(says "$t/heap.out" 0 ahead)" -gt 0 ] || [ "$(says "$t/heap.out" 0 extents)" -gt 0 ]; }
works 'where whole extents are registered' extents

works 'tests/judges/halo.c compiles' "$mpicc" -O1 -o "$t/halo" tests/judges/halo.c
stencil()
{
	timeout -k 5 400 "$mpirun" -n 2 "$t/halo" 64 60 >"$t/plain.out" && [ -s "$t/plain.out" ] &&
		layer HUGEPIN_POLICY=predict "$t/halo" 64 60 >"$t/halo.out" && cmp "$t/plain.out" "$t/halo.out"
}
works 'a stencil that frees, maps and moves its buffers computes what it does without' stencil

large() { run large HUGEPIN_POLICY=lru HUGEPIN_X_MPI_MIN=129K "$t/all" types && pinned large 0 && ! grep 'not known' "$t/large.out"; }
works 'HUGEPIN_X_MPI_MIN: smaller buffers are left alone' large
wrong() { layer HUGEPIN_X_MPI_MIN=-1 "$t/all" types 2>&1 | grep -q 'HUGEPIN_X_MPI_MIN=-1 is not understood: it takes a size'; }
works 'HUGEPIN_X_MPI_MIN: nonsense is named' wrong
unknown() { layer HUGEPIN_X_MPI_MINN=1 "$t/all" types 2>&1 | grep -q 'HUGEPIN_X_MPI_MINN is not known'; }
works 'a variable that does not exist is named' unknown
foreign() { env LD_PRELOAD="$mpi_layer" true; }
works 'a program without MPI is left alone' foreign
names() { ! nm -D --defined-only "$mpi_layer" | grep -vE ' T (P?MPI_[A-Z][a-z_]*|mpi_[a-z_]*_(f08_|f08ts_)?|hugepin_mpi_site)$'; }
works 'the layer defines names of MPI alone, and one for the cache of registrations' names
bindings() { [ "$(nm -D --defined-only "$mpi_layer" | grep -cE ' T mpi_(send|alltoallw)_(f08_|f08ts_)?$')" = 6 ]; }
works 'of each kind of Fortran bindings' bindings
needs() { ! readelf -dW "$mpi_layer" | grep 'NEEDED.*mpi'; }
works 'and needs no MPI library' needs

# Only buffers that can be pinned are: addresses in a type, and types with more hole than data, are counted.
compile odd
works 'what cannot be pinned in a sensible way is counted' run odd HUGEPIN_POLICY=lru "$t/odd"
counted() { [ "$(sort -u "$t/odd.sums")" = '2 pins, 2 unpins, not pinned 1, bottom 2, sparse 2, left 1' ]; }
works 'by its kind' counted
strict() { ! layer HUGEPIN_X_MPI_STRICT=1 "$t/odd" >"$t/strict.out" 2>&1 && grep -q 'cannot be registered for MPI_Isend: ' "$t/strict.out"; }
works 'HUGEPIN_X_MPI_STRICT: a buffer that cannot be registered ends the program' strict

# ---------------------------------------------------------------- traces

traced() { run "$1" HUGEPIN_POLICY=none HUGEPIN_X_MPI_TRACE="$t/$1" "${@:2}"; }
works 'a run is recorded' traced trace setarch -R "$t/transpose" 3 64 5 2
# Five times three transposes, of 64 KiB each way, in order.
parses()
{
	awk -F, -v rank="$1" '
	NR == 1 { bad += !/^seq\(call number\),t_start.*,cpu_app.*,op,dir.*,addr\(hex\),len.*,payload.*,peer.*,f0.*,f1,f2,f3$/; next }
	/^#/ { bad += index($0, "# rank=" rank " total_wall_ns=") != 1 || !/ mpi_calls=16 .* payload_bytes_logged=1966080 /; end = NR; next }
	{
		rows++
		bad += NF != 14 || $1 < seq || $2 < start || $3 <= $2 || $4 < cpu || $5 != "Alltoall" || $8 != 65536 || $9 != 65536
		bad += $6 != (rows % 2 ? "S" : "R") || $10 != -1 || $11 !~ /^[0-9a-f]+$/ || $11 == "0"
		seq = $1; start = $2; cpu = $4; addr[$7]++; site[$11]++
	}
	END {
		for (a in addr) { addrs++; bad += addr[a] != 5 }
		for (s in site) sites++
		print rows " rows, " addrs " buffers, " sites " sites, " bad + 0 " wrong"
		exit bad || rows != 30 || addrs != 6 || sites != 1 || end != NR
	}' "$t/trace.r$1.csv"
}
private() { [ "$(stat -c %a "$t/trace.r0.csv")" = 600 ]; }
works 'which only this user may read' private
linked()
{
	echo precious >"$t/precious"
	ln -s precious "$t/linked.r0.csv"
	traced linked "$t/transpose" 3 64 5 2 >/dev/null
	grep -q 'rank 0: no trace .*linked.r0.csv: it takes a regular file' "$t/linked.out" &&
		[ "$(cat "$t/precious")" = precious ]
}
works 'a link in its place is not followed' linked
works 'the trace of rank 0 has each buffer of each call' parses 0
works 'the trace of rank 1, too' parses 1
# Each rank's events are in a file of its own, which says whose it is; %r puts the rank elsewhere. plot draws them as one run.
events()
{
	rm -f "$t"/events*
	run events HUGEPIN_POLICY=lru HUGEPIN_TRACE="$1" "$t/transpose" 3 64 5 2 &&
		grep -qx '# rank=0 pid=[0-9]* host=.*' "$2" && grep -qx '# rank=1 pid=[0-9]* host=.*' "$3" &&
		[ "$(cat "$t"/events*[01]*csv | grep -c '^[0-9]*,pin,')" = 60 ] && [ "$(find "$t" -name 'events*csv' | wc -l)" = 2 ]
}
works 'the events of each rank are in a file of its own' events "$t/events.csv" "$t/events.r0.csv" "$t/events.r1.csv"
one_file()
{
	is_one_file || { cat "$t/events.out"; head -3 "$t/events.r1.csv"; return 1; }
}
is_one_file()
{
	run events HUGEPIN_TRACE="$t/events.csv" HUGEPIN_X_MPI_TRACE="$t/events" "$t/transpose" 3 64 5 2 &&
		[ "$(grep -o 'the calls are not recorded: HUGEPIN_X_MPI_TRACE=' "$t/events.out" | wc -l)" = 2 ] &&
		grep -q '^[0-9]*,pin,' "$t/events.r1.csv" && ! grep -q Alltoall "$t/events.r1.csv"
}
works 'which is not that of the calls' one_file
works 'whose name has the rank where %r stands' events "$t/events-%r-x.csv" "$t/events-0-x.csv" "$t/events-1-x.csv"
compile sites -O1 -fno-omit-frame-pointer -fno-inline -fno-optimize-sibling-calls
sites() { traced sites "$t/sites" && awk -F, '$5 == "Bcast" { print $11 != last, $12 != before; last = $11; before = $12 }' \
	"$t/sites.r0.csv" | xargs | tee /dev/stderr | grep -qx '1 1 0 1 1 1'; }
works 'a call site is told by its callers' sites
compile descriptors
no_descriptor()
{
	(cd "$t" && run open HUGEPIN_POLICY=none HUGEPIN_X_MPI_TRACE=open "$t/descriptors") &&
		[ "$(grep -c ',Bcast,' "$t/open.r0.csv")" = 1500 ] && grep -q '^# rank=0 .* dropped=0 ' "$t/open.r0.csv"
}
works 'a trace is complete without a descriptor that is kept, in the directory where the program began' no_descriptor
works 'the traces of all functions are complete' traced everything "$t/all"
complete() { awk -F, 'NR > 1 && !/^#/ { bad += NF != 14 || $3 <= $2; n++ } END { exit bad || n != 1508 }' "$t/everything.r$1.csv"; }
works 'no row is missing or has no end' complete 0
works 'one-sided operations are recorded' traced windows "$t/all" windows
# Each is closed before the next begins, but those with requests, two by two; its window is there before and after.
closed()
{
	awk -F, '
	NR == 1 || /^#/ { next }
	$5 ~ /^Win_/ { bad += $2 < until; until = $3; windows++; next }
	{ operations++; bad += $3 > until || ($1 != seq && $2 < end && $5 !~ /^Ra|^Rg/); seq = $1; end = $3 }
	END { print windows, operations, bad + 0; exit bad || windows != 2 || operations != 17 }' "$t/windows.r0.csv"
}
works 'each ends with its synchronisation, the window when it is freed' closed

# ---------------------------------------------------------------- Fortran

fortran=${mpicc/mpicc/mpifort}
if ! command -v "$fortran" >/dev/null || ! command -v gfortran >/dev/null; then
	skip 'programs in Fortran' 'no Fortran compiler for MPI'
	exit
fi
for kind in '' -DF08; do
	binding=${kind:+mpi_f08}
	binding=${binding:-mpi}
	# shellcheck disable=SC2086 # nothing, or one word
	works "use $binding: a program compiles" "$fortran" $kind -g -fno-omit-frame-pointer -o "$t/$binding" extra/mpi/tests/programs/fortran.F90
	works "use $binding: it is content" traced "$binding" HUGEPIN_POLICY=lru "$t/$binding"
	works "use $binding: each buffer was pinned once" pinned "$binding" 10
	# Seven places, one of which is come by three times; without the layer's Fortran functions they would look
	# alike.
	places() { [ "$(awk -F, 'NR > 1 && !/^#/ { print $11 }' "$t/$binding.r0.csv" | uniq | wc -l)" = 7 ]; }
	works "use $binding: each call is known by its place" places
done
