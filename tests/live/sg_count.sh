#!/bin/bash
# A completion that the program hands in takes the same instructions with one queue and with a thousand (counted by callgrind), over
# the device of tests/mock_verbs.h.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
# shellcheck source=tests/live/counting.bash
. "$(dirname "$0")/counting.bash"
top=$PWD
cd "$t" || exit 2
countable 'instructions of a completion'
cat >count.c <<'EOF'
#include "hugepin_verbs.h"
#include "tests/mock_verbs.h"

static unsigned told;

static void done(void *arg, uint64_t tag, int status)
{
	(void)arg, (void)tag;
	told += !status;
}

/* QUEUES MESSAGES FLAGS: all queues are open, and the one in the middle sends. */
int main(int argc, char **argv)
{
	const int queues = argc > 3 ? atoi(argv[1]) : 0, messages = argc > 3 ? atoi(argv[2]) : 0;
	const struct ibv_qp_cap cap = { .max_send_wr = 4, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 };
	const struct hugepin_sg_model model = { .size = sizeof model, .refused = HUGEPIN_SG_GATHER };
	struct hugepin_attr of_domain = { .size = sizeof of_domain, .policy = HUGEPIN_POLICY_LRU, .pinned_bytes_max = UINT64_MAX };
	struct ibv_cq *cq = mock_cq(64);
	struct mock_qp *out = mock_qp(IBV_QPT_RC, cq, &cap, NULL), *in = mock_qp(IBV_QPT_RC, mock_cq(64), &cap, NULL);
	static char place[4096];
	struct ibv_sge sge = { (uintptr_t)place, sizeof place, mock_reg(place, sizeof place, HUGEPIN_WRITE) };
	hugepin_domain *domain;
	hugepin_sgpool *pool;
	hugepin_sgq *queue = NULL;

	mock_connect(out, in);
	if (hugepin_domain_open(&mock_backend, NULL, &of_domain, &domain))
		return 2;
	struct hugepin_sgpool_attr pa = { .size = sizeof pa, .domain = domain, .slots = 1000, .frame_bytes = 256, .max_sge = 1 };
	if (hugepin_sgpool_open(&pa, &pool))
		return 2;
	for (int i = 0; i < queues; i++) {
		struct hugepin_sgq_attr a = { .size = sizeof a, .qp = &out->qp, .granted = &cap, .domain = domain, .model = &model,
					      .pool = pool, .flags = (uint32_t)atoi(argv[3]) };
		hugepin_sgq *q;
		if (hugepin_sgq_open(&a, &q))
			return 3;
		queue = i == queues / 2 ? q : queue;
	}
	for (int i = 0; i < messages; i++) {
		struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
		struct ibv_wc wc;
		if (ibv_post_recv(&in->qp, &wr, &bad) || hugepin_sgq_add(queue, NULL, 0, 7, done, NULL, 0) != 1)
			return 4;
		if (ibv_poll_cq(cq, 1, &wc) != 1 || hugepin_sg_wc(&wc) != 1)
			return 5;
		ibv_poll_cq(in->qp.recv_cq, 1, &wc);
	}
	return told != (unsigned)messages;
}
EOF
# shellcheck disable=SC2086 # CC may be a command with options
works 'the program compiles' ${CC:-cc} -D_GNU_SOURCE -O2 -I"$top/include" -I"$top" -o count count.c -L"$build" -lhugepin-verbs -lhugepin \
	-lpthread -Wl,-rpath,"$build" || exit
# each QUEUES FLAGS: instructions of a completion, between a short and a longer run
each()
{
	local short
	count --collect-atstart=no --toggle-collect=hugepin_sg_wc ./count "$1" 100 "$2"
	short=$instructions
	count --collect-atstart=no --toggle-collect=hugepin_sg_wc ./count "$1" 2100 "$2"
	instructions=$(((instructions - short) / 2000))
}
for flags in 0 1; do # HUGEPIN_SGQ_MT
	each 1 $flags && one=$instructions
	each 1000 $flags && thousand=$instructions
	works "a completion: $one instructions with one queue, $thousand with a thousand (flags $flags)" \
		[ "$one" -gt 0 -a "$one" -eq "$thousand" ]
done
