/*
 * `hugepin info`.
 */
#ifndef HP_CMD_INFO_H
#define HP_CMD_INFO_H

/* The sub-command. Returns the exit status. */
int hp_info_main(int argc, char **argv);

#endif
