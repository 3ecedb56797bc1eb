/*
 * Limits by control groups.
 */
#ifndef HP_CMD_CGROUP_H
#define HP_CMD_CGROUP_H

/* Add the limits of this process's control groups on memory and hugepages, as facts of the present section. */
void hp_cgroup_facts(const long *page_sizes, int count);

#endif
