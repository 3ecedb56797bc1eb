/*
 * `hugepin check`.
 */
#ifndef HP_CMD_CHECK_H
#define HP_CMD_CHECK_H

/* The sub-command. Returns the exit status. */
int hp_check_main(int argc, char **argv);

#endif
