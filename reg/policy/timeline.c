/*
 * See timeline.h.
 *
 * The trees are treaps (Seidel, Aragon 1996), ordered by (key, slot). The index of numbers is a hash table with linear
 * probing (Knuth, volume 3, 6.4, algorithm R).
 */
#include "reg/policy/timeline.h"

#include "base/base.h"

/* ------------------------------------------------------------------ trees */

static uint32_t treap_priority(uint32_t slot)
{
	return slot * 0x9e3779b9u;
}

static bool is_before(const struct hp_timeline *t, uint32_t a, uint32_t b)
{
	uint64_t x = t->regions[a].key, y = t->regions[b].key;
	return x < y || (x == y && a < b);
}

/* Compute when the registrations of a subtree must begin. They are made one after another, each done before its own
 * key, so the first must begin at first_ns. If all must also be done before a certain time, they must begin at that
 * time - work_ns, if that is earlier. */
static void sum_subtree(struct hp_timeline *t, uint32_t i)
{
	struct hp_planned *x = &t->regions[i];
	int64_t own = (int64_t)x->register_ns;

	x->first_ns = (int64_t)HP_MIN(x->key, (uint64_t)INT64_MAX) - own;
	x->work_ns = own;
	if (x->right) {
		x->first_ns = HP_MIN(x->first_ns, t->regions[x->right].first_ns - own);
		x->work_ns += t->regions[x->right].work_ns;
	}
	if (x->left) {
		const struct hp_planned *l = &t->regions[x->left];
		x->first_ns = HP_MIN(l->first_ns, x->first_ns - l->work_ns);
		x->work_ns += l->work_ns;
	}
}

static void treap_split(struct hp_timeline *t, uint32_t root, uint32_t at, uint32_t *ret_left, uint32_t *ret_right)
{
	if (!root) {
		*ret_left = *ret_right = 0;
	} else if (is_before(t, root, at)) {
		treap_split(t, t->regions[root].right, at, &t->regions[root].right, ret_right);
		*ret_left = root;
		sum_subtree(t, root);
	} else {
		treap_split(t, t->regions[root].left, at, ret_left, &t->regions[root].left);
		*ret_right = root;
		sum_subtree(t, root);
	}
}

static uint32_t treap_merge(struct hp_timeline *t, uint32_t a, uint32_t b)
{
	if (!a || !b)
		return a | b;
	if (treap_priority(a) < treap_priority(b)) {
		t->regions[a].right = treap_merge(t, t->regions[a].right, b);
		sum_subtree(t, a);
		return a;
	}
	t->regions[b].left = treap_merge(t, a, t->regions[b].left);
	sum_subtree(t, b);
	return b;
}

static uint32_t treap_insert(struct hp_timeline *t, uint32_t root, uint32_t i)
{
	struct hp_planned *x = &t->regions[i];

	if (!root || treap_priority(i) < treap_priority(root)) {
		treap_split(t, root, i, &x->left, &x->right);
		sum_subtree(t, i);
		return i;
	}
	struct hp_planned *r = &t->regions[root];
	if (is_before(t, i, root))
		r->left = treap_insert(t, r->left, i);
	else
		r->right = treap_insert(t, r->right, i);
	sum_subtree(t, root);
	return root;
}

static uint32_t treap_cut(struct hp_timeline *t, uint32_t root, uint32_t i)
{
	struct hp_planned *r = &t->regions[root];

	if (root == i)
		return treap_merge(t, r->left, r->right);
	if (is_before(t, i, root))
		r->left = treap_cut(t, r->left, i);
	else
		r->right = treap_cut(t, r->right, i);
	sum_subtree(t, root);
	return root;
}

void hp_timeline_leave(struct hp_timeline *t, struct hp_planned *x)
{
	if (x->tree < HP_TREES)
		t->roots[x->tree] = treap_cut(t, t->roots[x->tree], (uint32_t)(x - t->regions));
	x->tree = HP_TREE_BUSY;
}

void hp_timeline_put(struct hp_timeline *t, struct hp_planned *x, enum hp_timeline_tree tree, uint64_t key)
{
	if (x->tree == tree && x->key == key)
		return;
	hp_timeline_leave(t, x);
	x->tree = (uint8_t)tree;
	x->key = key;
	t->roots[tree] = treap_insert(t, t->roots[tree], (uint32_t)(x - t->regions));
}

struct hp_planned *hp_timeline_first(const struct hp_timeline *t, enum hp_timeline_tree tree)
{
	uint32_t i = t->roots[tree];

	while (i && t->regions[i].left)
		i = t->regions[i].left;
	return i ? &t->regions[i] : NULL;
}

struct hp_planned *hp_timeline_last(const struct hp_timeline *t, enum hp_timeline_tree tree)
{
	uint32_t i = t->roots[tree];

	while (i && t->regions[i].right)
		i = t->regions[i].right;
	return i ? &t->regions[i] : NULL;
}

struct hp_planned *hp_timeline_neighbour(const struct hp_timeline *t, const struct hp_planned *x, bool later)
{
	uint32_t at = (uint32_t)(x - t->regions), found = 0;

	for (uint32_t i = t->roots[x->tree]; i;) {
		const struct hp_planned *r = &t->regions[i];
		bool beyond = later ? is_before(t, at, i) : is_before(t, i, at);
		if (beyond)
			found = i;
		i = beyond == later ? r->left : r->right;
	}
	return found ? &t->regions[found] : NULL;
}

/* ------------------------------------------------------------------ regions by number */

static uint32_t home_slot(const struct hp_timeline *t, uint32_t number)
{
	return (number * 0x9e3779b9u >> 7) & t->index_mask;
}

static uint32_t index_place(const struct hp_timeline *t, uint32_t number)
{
	uint32_t i = home_slot(t, number);

	while (t->index[i] && t->regions[t->index[i]].number != number)
		i = (i + 1) & t->index_mask;
	return i;
}

struct hp_planned *hp_timeline_find(const struct hp_timeline *t, uint32_t number)
{
	uint32_t slot = t->index[index_place(t, number)];
	return slot ? &t->regions[slot] : NULL;
}

bool hp_timeline_is_full(const struct hp_timeline *t)
{
	return !t->free && t->used_up == t->capacity;
}

struct hp_planned *hp_timeline_make(struct hp_timeline *t, uint32_t number)
{
	uint32_t slot = t->free;

	if (slot)
		t->free = t->regions[slot].next_free;
	else
		slot = ++t->used_up;
	t->index[index_place(t, number)] = slot;
	t->known++;
	t->regions[slot] = (struct hp_planned){ .tree = HP_TREE_BUSY, .number = number };
	return &t->regions[slot];
}

void hp_timeline_drop(struct hp_timeline *t, struct hp_planned *x)
{
	uint32_t gap = index_place(t, x->number);

	hp_timeline_leave(t, x);
	for (uint32_t i = (gap + 1) & t->index_mask; t->index[i]; i = (i + 1) & t->index_mask) {
		uint32_t want = home_slot(t, t->regions[t->index[i]].number);
		if (((i - want) & t->index_mask) < ((i - gap) & t->index_mask))
			continue;
		t->index[gap] = t->index[i];
		gap = i;
	}
	t->index[gap] = 0;
	*x = (struct hp_planned){ .tree = HP_TREE_FREE, .next_free = t->free };
	t->free = (uint32_t)(x - t->regions);
	t->known--;
}

struct hp_planned *hp_timeline_forgettable(const struct hp_timeline *t)
{
	struct hp_planned *gone = hp_timeline_first(t, HP_TREE_GONE), *idle = hp_timeline_first(t, HP_TREE_IDLE);

	if (gone && idle)
		return gone->key < idle->key ? gone : idle;
	if (gone || idle)
		return gone ? gone : idle;
	for (int tree = HP_TREE_KEPT; tree <= HP_TREE_TURN; tree++)
		if (tree != HP_TREE_IDLE && t->roots[tree])
			return hp_timeline_last(t, (enum hp_timeline_tree)tree);
	return NULL;
}
