/*
 * Ceilings by control groups.
 */
#ifndef HP_CMD_CGROUP_H
#define HP_CMD_CGROUP_H

/* The ceilings that cgroups put on the memory and the hugepages of this process: facts of the section that has
 * begun. */
void hp_cgroup_facts(const long *page_sizes, int count);

#endif
