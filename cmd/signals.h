/*
 * The signals by which a person or a script ends a command.
 */
#ifndef HP_CMD_SIGNALS_H
#define HP_CMD_SIGNALS_H

#include <signal.h>
#include <stddef.h>

/* Fill the set with SIGINT, SIGTERM, SIGHUP and SIGQUIT, without those that are ignored (nohup(1) ignores SIGHUP): a
 * blocked signal would still reach a signalfd(2). */
static inline void hp_signals_that_end(sigset_t *ret_)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	struct sigaction now;

	sigemptyset(ret_);
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
		if (!sigaction(signals[i], NULL, &now) && now.sa_handler != SIG_IGN)
			sigaddset(ret_, signals[i]);
}

#endif
