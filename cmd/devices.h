/*
 * Features of the kernel and of devices for the pin cache.
 */
#ifndef HP_CMD_DEVICES_H
#define HP_CMD_DEVICES_H

/* Add sections about userfaultfd, io_uring and RDMA devices. */
void hp_devices_facts(void);

#endif
