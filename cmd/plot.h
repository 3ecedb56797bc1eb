/*
 * `hugepin plot`.
 */
#ifndef HP_CMD_PLOT_H
#define HP_CMD_PLOT_H

/* The sub-command. Returns the exit status. */
int hp_plot_main(int argc, char **argv);

#endif
