/* Receives into pieces: hugepin_sg_fill_recv(). */
#include "tests/unit/sg_fill.h"

TEST(a_receive_has_an_element_for_each_piece_within_what_the_queue_pair_takes)
{
	static struct work w;
	struct iovec iov[20];
	struct ibv_recv_wr wr = { .wr_id = 9, .next = &wr }, before = wr;
	struct hugepin_sg_caps caps = rc;
	struct hugepin_sg_info info = { 0 };
	struct hugepin_sg_room *r = work_room(&w);
	caps.max_recv_sge = 8;
	key_access = HUGEPIN_WRITE;
	register_comb();
	int n = comb(iov, 10, 200);
	iov[0].iov_len = iov[9].iov_len = 0;
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, iov, n, &wr, r, &info), 8);
	EXPECT(wr.wr_id == 9 && wr.next == &wr && wr.num_sge == 8 && wr.sg_list == w.sge);
	EXPECT(info.bytes == 1600 && info.pins == 3 && info.copied == 0);
	for (int i = 0; i < 8; i++)
		EXPECT(w.sge[i].addr == (uintptr_t)iov[i + 1].iov_base && w.sge[i].length == 200 &&
		       w.sge[i].lkey == 100 + (unsigned)(i + 1) / 3);
	release(w.pins, info.pins);

	wr = before;
	iov[9].iov_len = 1;
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, iov, n, &wr, r, NULL), -EMSGSIZE); /* nine */
	EXPECT_EQ(hugepin_sg_fill_recv(NULL, iov, 2, &wr, r, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, NULL, 2, &wr, r, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, iov, 2, NULL, r, NULL), -EINVAL);
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, iov, 2, &wr, NULL, NULL), -EINVAL);
	r->sges = 3;
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, iov, 5, &wr, r, NULL), -EMSGSIZE);
	r->sges = 8;
	caps.max_msg = 799;
	EXPECT_EQ(hugepin_sg_fill_recv(&caps, iov, 5, &wr, r, NULL), -EMSGSIZE);
	r->key = NULL;
	EXPECT_EQ(hugepin_sg_fill_recv(&rc, iov, 5, &wr, r, NULL), -ENOKEY);
	EXPECT_EQ(hugepin_sg_fill_recv(&rc, iov, 1, &wr, r, NULL), 0);
	wr.sg_list = before.sg_list;
	EXPECT(!memcmp(&wr, &before, sizeof wr));
	EXPECT_EQ(pins_out(), 0);
}

T_MAIN
