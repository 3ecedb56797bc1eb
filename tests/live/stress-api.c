/* link: hugepin */
/* stress.c on the explicit functions, in a program that keeps its own malloc: the one that sanitizers can follow. */
#include "live.h"

#include <hugepin.h>

#define STRESS_API
#define x_malloc hugepin_malloc
#define x_calloc hugepin_calloc
#define x_realloc hugepin_realloc
#define x_free hugepin_free
#define x_aligned_alloc hugepin_aligned_alloc

#include "stress.c"
