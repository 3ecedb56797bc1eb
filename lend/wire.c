/* See wire.h. */
#include "lend/wire.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "hugepin.h"

_Static_assert(HP_WIRE_ASK_FIXED + 8 * HP_WIRE_REFS_MAX <= HUGEPIN_LEND_MESSAGE_MAX, "the longest message");

static uint32_t get32(const unsigned char *at)
{
	uint32_t x;

	memcpy(&x, at, sizeof x);
	return le32toh(x);
}

static uint64_t get64(const unsigned char *at)
{
	uint64_t x;

	memcpy(&x, at, sizeof x);
	return le64toh(x);
}

static unsigned char *put32(unsigned char *at, uint32_t x)
{
	x = htole32(x);
	memcpy(at, &x, sizeof x);
	return at + sizeof x;
}

static unsigned char *put64(unsigned char *at, uint64_t x)
{
	x = htole64(x);
	memcpy(at, &x, sizeof x);
	return at + sizeof x;
}

/* Bytes between the header and the refs, by type. */
static const uint8_t fixed_bytes[] = {
	[HP_WIRE_ASK] = 24,   [HP_WIRE_LEND] = 40, [HP_WIRE_NO] = 16,
	[HP_WIRE_RECALL] = 0, [HP_WIRE_WANT] = 8,  [HP_WIRE_RETURN] = 0,
};

static bool is_range(uint64_t addr, uint64_t len)
{
	return len && addr + len > addr;
}

static bool read_refs(struct hp_wire *w, const unsigned char *at)
{
	for (unsigned i = 0; i < w->n; i++) {
		w->refs[i] = get64(at + 8 * i);
		if (!w->refs[i])
			return false;
		for (unsigned j = 0; j < i; j++)
			if (w->refs[j] == w->refs[i])
				return false;
	}
	return true;
}

/* Read the members between header and refs. False: a value that no lend sends. */
static bool read_fixed(struct hp_wire *w, const unsigned char *at)
{
	switch (w->type) {
	case HP_WIRE_ASK:
		w->addr = get64(at);
		w->len = get64(at + 8);
		w->carried = get32(at + 16);
		return is_range(w->addr, w->len) && !get32(at + 20) && !w->flags && w->carried <= HP_WIRE_CARRY_MAX &&
		       (!w->carried || w->carried == w->len);
	case HP_WIRE_LEND:
		w->ref = get64(at);
		w->addr = get64(at + 8);
		w->len = get64(at + 16);
		w->share = get64(at + 24);
		w->rkey = get32(at + 32);
		return w->ref && is_range(w->addr, w->len) && !get32(at + 36) && !w->n &&
		       !(w->flags & ~HP_WIRE_CARRIED);
	case HP_WIRE_NO:
		w->error = get32(at);
		w->share = get64(at + 8);
		return w->error && w->error <= HP_WIRE_ERRNO_MAX && !get32(at + 4) && !w->n && !w->flags;
	case HP_WIRE_RECALL:
		return w->n && !w->flags && !w->number;
	case HP_WIRE_WANT:
		w->bytes = get64(at);
		return w->number && !w->n && !w->flags;
	default: /* RETURN: MORE comes with a number, and only the last part of an answer to WANT may have no refs */
		return !(w->flags & ~HP_WIRE_MORE) && (w->number || !w->flags) && (w->n || (w->number && !w->flags));
	}
}

int hp_wire_read(struct hp_wire *ret_, const void *msg, size_t len)
{
	const unsigned char *at = msg;
	struct hp_wire w = { 0 };
	size_t size;

	if (len < HP_WIRE_HEADER || at[0] != HP_WIRE_VERSION || at[1] < HP_WIRE_ASK || at[1] > HP_WIRE_RETURN ||
	    at[2] > HP_WIRE_REFS_MAX)
		return -EILSEQ;
	w.type = at[1];
	w.n = at[2];
	w.flags = at[3];
	w.number = get32(at + 4);
	size = (size_t)HP_WIRE_HEADER + fixed_bytes[w.type] + 8u * w.n;
	if (len < size || !read_fixed(&w, at + HP_WIRE_HEADER) || len != size + w.carried ||
	    !read_refs(&w, at + HP_WIRE_HEADER + fixed_bytes[w.type]))
		return -EILSEQ;
	w.carry = w.carried ? at + size : NULL;
	*ret_ = w;
	return 0;
}

size_t hp_wire_write(void *buf, const struct hp_wire *w)
{
	unsigned char *at = buf;

	*at++ = HP_WIRE_VERSION;
	*at++ = w->type;
	*at++ = w->n;
	*at++ = w->flags;
	at = put32(at, w->number);
	switch (w->type) {
	case HP_WIRE_ASK:
		at = put64(put64(at, w->addr), w->len);
		at = put32(put32(at, w->carried), 0);
		break;
	case HP_WIRE_LEND:
		at = put64(put64(put64(put64(at, w->ref), w->addr), w->len), w->share);
		at = put32(put32(at, w->rkey), 0);
		break;
	case HP_WIRE_NO:
		at = put64(put32(put32(at, w->error), 0), w->share);
		break;
	case HP_WIRE_WANT:
		at = put64(at, w->bytes);
		break;
	}
	for (unsigned i = 0; i < w->n; i++)
		at = put64(at, w->refs[i]);
	if (w->carried) {
		memcpy(at, w->carry, w->carried);
		at += w->carried;
	}
	return (size_t)(at - (unsigned char *)buf);
}
