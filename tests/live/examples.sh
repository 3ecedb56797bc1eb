#!/bin/bash
# The examples of the manual pages and of README.md, extracted by tools/examples, do what they say: C is compiled as it stands, and
# run; lines for a shell are run as they stand, with the libraries in a directory of their own.
#
# What cannot be run says why: a skip, or a line of its own. Those that need a device of RDMA run where there is one
# (tests/guest/examples.sh, by the argument `verbs`); hugepin_sg_plan(3), hugepin_sgq(3) and hugepin_lendq(3) leave out how queue
# pairs are connected, so here they end where they ask for one. examples/, tests/guest/sg.c, sgq.c and lend.c have the rest.
# shellcheck disable=SC2016 # dollars are the examples'
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
# shellcheck source=tests/live/failing.bash
. "$(dirname "$0")/failing.bash"
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$t" || exit 2
for page in "$top"/man/*.[137] "$top"/extra/*/*.[137] "$top/README.md"; do
	"$top/tools/examples" "$page" "${page##*/}"
done

# builds WHAT SOURCE: to the same name without .c or .cpp.
builds()
{
	local compiler=${CC:-cc}
	[[ $2 != *.cpp ]] || compiler='g++ -std=c++17'
	# shellcheck disable=SC2046,SC2086 # CC may be a command with options
	works "$1 compiles" $compiler -Wall -Wextra -Werror $failing_include -o "${2%.*}" "$2" -L"$build" -Wl,-rpath,"$build" \
		$(libraries "$2")
}
# shows PAGE NUMBER LINES [STATUS]: the program on the page prints these lines (a regular expression) and ends so; under the
# drop-in too.
shows()
{
	local what="$1: example $2" program=$1-$2 lines=$3 status=${4:-0} how got
	shown+=" $program"
	builds "$what" "$(echo "$program".c*)"
	[ -e "$program" ] || return
	for how in '' " under the drop-in"; do
		timeout -k 5 400 env LD_PRELOAD="${how:+$dropin}" "./$program" >said 2>&1
		got=$?
		if [ $got = "$status" ] && [[ $(cat said) =~ ^$lines$ ]]; then pass "$what runs$how"; else
			fail "$what runs$how" "status $got" "$(cat said)"
		fi
	done
}
# whole NUMBER: the README's C of that number, in a program that has what it takes for granted; standard input has that: lines
# for the head of the file, one that says BODY, lines before it, one that says BEHIND, lines behind it.
whole()
{
	local source=README.md-$1 head='' before='' line
	while IFS= read -r line && [ "$line" != BODY ]; do head+=$line$'\n'; done
	while IFS= read -r line && [ "$line" != BEHIND ]; do before+=$line$'\n'; done
	{
		grep '^#include' "$source.c"
		printf '%sint main(void)\n{\n%s' "$head" "$before"
		grep -v '^#include' "$source.c"
		cat
		echo '}'
	} >program.c
	mv program.c "$source.c"
	shown+=" $source"
}
shown=

whole 3 <<'END'
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
BODY
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *device = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = device ? ibv_alloc_pd(device) : NULL;
	uint32_t n = 1 << 20;
	char *p = malloc(n);
	hugepin_domain *domain;
	struct hugepin_pin pin = { 0 };

	if (!pd)
		return 77;
BEHIND
	printf("%s, %u bytes\n", sge.lkey ? "a key" : "no key", sge.length);
	return hugepin_unpin(domain, &pin) || hugepin_domain_close(domain);
END
if [ "${1:-}" = verbs ]; then
	shows hugepin_verbs.3 1 '16 requests, 0 waits for room'
	# 8 MiB, as the systems have it: a block and seven of the peer's are more.
	# shellcheck disable=SC2317 # called by works
	limited()
	{
		setpriv --reuid=61234 --bounding-set=-all --inh-caps=-all prlimit --memlock=$((8 << 20)) ./hugepin_verbs.3-1 >said 2>&1 &&
			grep -Eq '^16 requests, [1-9][0-9]* waits for room$' said
	}
	chmod 755 . && chmod 666 /dev/infiniband/uverbs*
	works 'hugepin_verbs.3: example 1 makes do with 8 MiB of locked memory' limited
	sed 's/^/# /' said
	# Shorter, and without sanitizers, since a guest without KVM is slow.
	sed 's/BLOCKS = 16/BLOCKS = 2/; s/SIZE = 1 << 20/SIZE = 1 << 16/' hugepin_verbs.3-1.c >short_verbs.c
	failing_sanitizers='' leaves_nothing 'hugepin_verbs.3: example 1' short_verbs.c
	shows README.md 3 'a key, 1048576 bytes'
	exit
fi

# ---------------------------------------------------------------- programs

# A buffer of 1 MiB lies in one hugepage, or in two.
run_backend() { [[ $("$build/examples/backend") =~ ^$'entry 0, '(2097152|4194304)$' bytes\n1 of 1000 pins registered'$ ]]; }
works 'examples/backend registers once for 1000 pins' run_backend
shows hugepin_domain.3 1 '(2097152|4194304) bytes locked'
shows hugepin_pin.3 1 '2 pins each time, [12] registrations in all'
shows hugepin_pin_try.3 1 '1 of 1000 pins waited'
shows hugepin_key.3 1 '1000 transfers, 1 key'
shows hugepin_register.3 1 '16 pins, 32 MiB'
shows hugepin_lend.3 1 'borrowed already, by 2 messages'
shows hugepin_sg_map.3 1 '65 elements, 528 bytes, [12] pins'
shows hugepin_sg_frame.3 1 $'10: north\n11: \n12: east'
shows hugepin_extent.3 1 $'in [0-9]+ bytes of (base pages|transparent hugepages|hugetlb pages) at 0x[0-9a-f]+\n[0-9]+ bytes went back'
works 'hugepin_extent.3: all of it' awk '/^in / { n = $2 } / went back/ { exit !($1 >= 8388608 && $1 % 2097152 == 0 && n >= 8388608) }' said
shows hugepin_pmr.3 1 $'samples in (base pages|hugepages)\nthe last name in (base pages|hugepages)'
shows hugepin_malloc.3 1 '1000000 samples, room for [0-9]+ bytes'
works 'hugepin_malloc.3: there is room' awk '{ exit !($6 >= 8000000) }' said
shows hugepin_stats.3 1 $'([0-9]+ hugepages were not to be had\n)?[0-9]+ of [0-9]+ bytes in hugetlb pages'
shows hugepin_stats.3 2 $'([a-z_]+ [0-9]+\n)+[a-z_]+ [0-9]+'
# Where libfabric is not loaded, it goes on without: in the page's words, not linked with it.
if [ -e "$build/libhugepin-hooks.so" ]; then
	shows hugepin_hooks.3 1 'libfabric: No such file or directory'
else
	skip 'hugepin_hooks.3: example 1 runs' 'no libhugepin-hooks.so'
	shown+=' hugepin_hooks.3-1'
fi
shows hugepin_sg_plan.3 1 '' 1
shows hugepin_sgq.3 1 '' 1
shows hugepin_sgpool.3 1 '' 1
shows hugepin_lendq.3 1 '' 1
shown+=' hugepin_uring.3-1 hugepin_sg_uring.3-1' # uring_examples.sh, extra/uring/tests/examples.sh
builds 'hugepin_verbs.3: example 1' hugepin_verbs.3-1.c
shown+=' hugepin_verbs.3-1'

whole 1 <<'END'
#include <stdio.h>
#define DOTS(n) for (size_t i = 0; i < count; i++) a[i] = (double)i;
BODY
	size_t n = 1000000, count = n;
	struct hugepin_stats s;
BEHIND
	hugepin_stats(&s, sizeof s);
	printf("%d buffer\n", (int)s.placed);
	return 0;
END
shows README.md 1 '1 buffer'

whole 2 <<'END'
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#define DOTS(n) DOTS##n
#define DOTS1 sqe = io_uring_get_sqe(&ring);
#define DOTS2 if (io_uring_submit(&ring) != 1 || io_uring_wait_cqe(&ring, &cqe)) return 1;
BODY
	struct io_uring ring;
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
	hugepin_domain *domain;
	struct hugepin_pin pin;
	unsigned n = 70001;
	int fd = open("file", O_RDONLY);

	if (io_uring_queue_init(8, &ring, 0))
		return 77;
BEHIND
	printf("%d bytes, the last is %d\n", cqe->res, p[n - 1]);
	return hugepin_domain_close(domain);
END
{ head -c 70000 /dev/zero; printf '\007'; } >file
if python3 - <<'END'
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(425, 0, None)
raise SystemExit(ctypes.get_errno() in (1, 38))
END
then
	shows README.md 2 '70001 bytes, the last is 7'
else
	skip 'README.md: example 2 runs' 'no io_uring'
fi

builds 'README.md: example 3' README.md-3.c

# The queue needs a device; the layers below it do not.
whole 4 <<'END'
#include <stdio.h>
#include <hugepin_verbs.h>
#define hugepin_sgq_add(...) (queue ? hugepin_sgq_add(__VA_ARGS__) : 0)
static void done(void *arg, uint64_t tag, int status) { (void)arg, (void)tag, (void)status; }
static int no_key(void *arg, const void *addr, size_t len, unsigned access, struct hugepin_pin *ret)
{
	(void)arg, (void)access;
	if (!addr)
		return 0;
	*ret = (struct hugepin_pin){ .base = (uintptr_t)addr, .len = len, .lkey = 7 };
	return 0;
}
#define hugepin_sg_key no_key
BODY
	char from[2][4096], slot[8192];
	struct iovec iov[2] = { { from[0], 4096 }, { from[1], 24 } };
	int n, count = 2, tag = 1;
	hugepin_domain *domain = NULL;
	struct hugepin_sge sge[30];
	struct hugepin_pin pins[30];
	struct hugepin_sg_model model = { .size = sizeof model, .copy_below = { 256, 24 } };
	struct hugepin_sg_caps caps = { .max_sge = 16, .max_recv_sge = 16, .max_sge_rd = 16, .max_wr = 64, .max_recv_wr = 64, .max_msg = 1 << 30 };
	struct hugepin_sg_plan plan;
	struct ibv_sge elements[30];
	struct ibv_send_wr wr, template = { .opcode = IBV_WR_SEND };
	struct hugepin_sg_room room = { .size = sizeof room, .wr = &wr, .wrs = 1, .sge = elements, .sges = 30, .pins = pins,
		.pins_max = 30, .slot = slot, .slot_len = sizeof slot, .key = no_key };
	hugepin_sgq *queue = NULL;
	void *arg = NULL;

	wr.num_sge = 0;
BEHIND
	unsigned bytes = 0;

	for (int i = 0; i < wr.num_sge; i++)
		bytes += elements[i].length;
	printf("%d elements, %u bytes to send\n", n, bytes);
	return 0;
END
shows README.md 4 '[12] elements, 4120 bytes to send'

# Functions of pages, each called by a program that has what they take for granted: a queue pair that is no more than a function to
# post with, and memory that is locked. The function says how many pins are out.
send_program()
{
	cat <<END
#include <hugepin_verbs.h>
#include <errno.h>
#include <stdio.h>
#define main page_main
#include "$1"
#undef main
static int post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) { (void)qp, (void)wr, (void)bad; return 0; }
int main(void)
{
	struct ibv_context device = { .ops.post_send = post };
	struct ibv_qp qp = { .context = &device };
	struct hugepin_sg_caps caps = { .max_sge = 16, .max_recv_sge = 16, .max_wr = 4, .max_msg = 1 << 20 };
	struct hugepin_sg_model model = { .size = sizeof model };
	struct hugepin_pin pins[32] = { 0 }, piece;
	struct ibv_sge sge[32];
	struct ibv_send_wr wr;
	struct iovec iov[3];
	hugepin_domain *domain = NULL;
	char slot[8192], *memory = hugepin_malloc(1 << 20);
	int ret = memory ? hugepin_domain_open(hugepin_mlock(), NULL, NULL, &domain) : -ENOMEM;

	if (!ret)
		ret = hugepin_pin(domain, memory, 1 << 20, HUGEPIN_READ, &piece);
	if (!ret) {
		for (int i = 0; i < 3; i++)
			iov[i] = (struct iovec){ memory + 300000 * i, 5000 };
		$2
		if (ret > 0) {
			printf("%d pins\\n", ret);
			hugepin_unpinv(domain, pins, ret);
		}
		hugepin_unpin(domain, &piece);
	}
	if (domain)
		hugepin_domain_close(domain);
	hugepin_free(memory);
	(void)sge, (void)wr, (void)slot;
	return ret < 0;
}
END
}
send_program hugepin_sg.7-part-1.c 'struct hugepin_sg_room room = { .size = sizeof room, .wr = &wr, .wrs = 1, .sge = sge, .sges = 32, .pins = pins,
			.pins_max = 32, .slot = slot, .slot_len = sizeof slot, .key = hugepin_sg_key, .arg = domain };
		ret = send_three(&qp, &model, &caps, iov, &room);' >sg.c
send_program hugepin_sg_plan.3-1.c 'struct sender s = { .qp = &qp, .caps = caps, .model = model, .domain = domain, .slot = slot };
		ret = send_pieces(&s, iov, 3, 1, pins);' >sg_plan.c
sends() { "./$1" >said && grep -xE '[123] pins' said; }
builds 'hugepin_sg.7: send_three()' sg.c && works 'hugepin_sg.7: send_three() sends' sends sg
builds 'hugepin_sg_plan.3: send_pieces()' sg_plan.c && works 'hugepin_sg_plan.3: send_pieces() sends' sends sg_plan
leaves_nothing 'hugepin_sg.7: send_three()' sg.c
leaves_nothing 'hugepin_sg_plan.3: send_pieces()' sg_plan.c
shown+=' hugepin_sg.7-part-1 sg sg_plan'

for example in domain pin pin_try register sg_map sg_frame extent malloc stats; do
	leaves_nothing "hugepin_$example.3: example 1" "hugepin_$example.3-1.c"
done

for source in *.c *.cpp; do
	[[ $shown == *" ${source%.*}"* ]] || echo "$source"
done >left
works 'no example is left out' test ! -s left

# ---------------------------------------------------------------- lines for a shell

# As `make install` lays it out (tools/check-install tries that), from what was built, whatever the compiler and its options.
prefix=$t/prefix
mkdir -p "$prefix"/{bin,include,lib/pkgconfig}
cp "$build/hugepin" "$build/hugepin-plot.py" "$prefix/bin"
cp "$top"/include/* "$top"/extra/*/include/* "$prefix/include"
cp -P "$build"/libhugepin*.so* "$prefix/lib"
for template in "$top"/packaging/*.pc.in "$top"/extra/*/*.pc.in; do
	name=${template##*/}
	sed -e "s|@PREFIX@|$prefix|; s|@LIBDIR@|$prefix/lib|; s|@VERSION@|0|; s| @RUNPATH@||" "$template" >"$prefix/lib/pkgconfig/${name%.in}"
done
export PATH="$prefix/bin:$t:$PATH" LD_LIBRARY_PATH="$prefix/lib" PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
unset HUGEPIN_STATS
# What the examples call program and solver: one that pins; and what they sort and run.
cp hugepin_pin.3-1 program
cp hugepin_pin.3-1 solver
cp hugepin_malloc.3-1.c prog.c
cp hugepin_malloc.3-1.c program.c
cp hugepin_pmr.3-1.cpp program.cpp
seq 200000 -1 1 >big.txt
echo 'print(sum(bytearray(1 << 22)))' >model.py
# shellcheck source=extra/mpi/tests/programs/common.bash
. "$top/extra/mpi/tests/programs/common.bash"
mpi=$([ -e "$mpi_layer" ] && command -v "$mpirun")
if [ -n "$mpi" ]; then
	works 'a program of MPI compiles' "$mpicc" -o transpose "$top/extra/mpi/tests/programs/transpose.c"
	printf '#!/bin/sh\nexec "%s/transpose" 2 64 2 1\n' "$t" >mpi-program
	chmod 755 mpi-program
fi

# Why a line is not run here, if so.
why_not()
{
	case $1 in
	sudo\ * | dpkg-buildpackage*) echo 'changes the machine, or builds packages: debian/tests' ;;
	tools/setup\ guest* | tests/guest/run* | make\ BUILD=*) echo 'is a step of .ci/run' ;;
	make\ demo* | make\ check* | make | make\ *\#*) echo 'is what .ci/run begins with' ;;
	*hugepin\ top*) echo 'looks at a process of that number: tests/live/top.sh' ;;
	*mpirun* | *.r\**) [ -n "$mpi" ] || echo 'no MPI: tools/setup check' ;;
	*gnuplot* | *hugepin\ plot*) command -v gnuplot >/dev/null || echo 'no gnuplot' ;;
	*pkgconf* | *pkg-config*) command -v pkgconf >/dev/null || echo 'no pkgconf' ;;
	esac
}
ln -s "$build" build # as in a clone
# Each page's lines, one after the other in one shell, since some set variables for others.
for lines in *.sh; do
	page=${lines%.sh}
	# shellcheck disable=SC2034 # hugepin.1 sets and uses it
	wrap=
	{
		n=0
		while IFS= read -r line; do
			n=$((n + 1))
			why=$(why_not "$line")
			if [ -n "$why" ]; then
				result ok "$page: ${line%%  *} # SKIP ${why}"
				continue
			fi
			# The program is one of MPI where mpirun starts it. info and check say by their status what they found.
			[[ $line != *mpirun* ]] || cp mpi-program program
			eval "$line" >said 2>&1 </dev/null
			status=$?
			[[ $line != *mpirun* ]] || cp hugepin_pin.3-1 program
			[[ $line != hugepin\ info* || $status -gt 4 ]] || status=0
			[[ $line != *hugepin\ check* || ! $status =~ ^[56]$ ]] || status=0 # no; cannot tell
			if [ $status = 0 ]; then pass "$page: ${line%%  *}"; else fail "$page: $line" "status $status" "$(tail -5 said)"; fi
		done
	} <"$lines"
	unset HUGEPIN_STATS HUGEPIN_POLICY HUGEPIN_PREDICT_MODE L LAYER
done
works 'sorted.txt is sorted' bash -c 'sort -c sorted.txt && [ $(wc -l <sorted.txt) = 200000 ]'
[ ! -e solver.svg ] || works 'solver.svg is a picture' grep -q '</svg>' solver.svg
# picture FILE: a PNG that is not all of one colour, which would be smaller.
picture() { [ "$(head -c 4 "$1" | tail -c 3)" = PNG ] && [ "$(wc -c <"$1")" -gt 8000 ]; }
if command -v gnuplot >/dev/null; then
	[ -z "$mpi" ] || works 'policies.png is a picture' picture policies.png
fi
[ -z "$mpi" ] || works 'calls.r0.csv has calls' grep -q ',Alltoall,' calls.r0.csv
