/*
 * `hugepin top`.
 */
#ifndef HP_CMD_TOP_H
#define HP_CMD_TOP_H

/* The sub-command. Returns the exit status. */
int hp_top_main(int argc, char **argv);

#endif
