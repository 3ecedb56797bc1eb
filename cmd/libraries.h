/*
 * The libraries of hugepin, as the command knows them: one table.
 */
#ifndef HP_CMD_LIBRARIES_H
#define HP_CMD_LIBRARIES_H

enum {
	HP_LIBRARY_HEAP,
	HP_LIBRARY_DROPIN,
	HP_LIBRARY_VERBS,
	HP_LIBRARY_URING,
	HP_LIBRARY_MPI,
	HP_LIBRARY_HOOKS,
	HP_LIBRARY_VERBSCACHE,
	HP_LIBRARIES
};

struct hp_library {
	const char *file;   /* the name that the loader knows */
	const char *what;   /* it is for */
	const char *option; /* of `hugepin run`, which preloads the library; NULL: there is none */
	const char *words; /* values that the option may have, as struct hp_option has them; NULL: it takes none */
	const char *variable; /* which the value becomes */
};
extern const struct hp_library hp_libraries[HP_LIBRARIES];

#endif
