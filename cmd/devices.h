/*
 * What the pin cache can have of the kernel and of devices.
 */
#ifndef HP_CMD_DEVICES_H
#define HP_CMD_DEVICES_H

/* What userfaultfd, io_uring and RDMA devices can do for the pin cache: sections. */
void hp_devices_facts(void);

#endif
