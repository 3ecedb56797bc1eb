/* link: hugepin */
/* stress.c with the functions of hugepin.h, in a program that keeps its own malloc, so that sanitizers can follow
 * it. */
#include "live.h"

#include <hugepin.h>

#define STRESS_API
#define x_malloc hugepin_malloc
#define x_calloc hugepin_calloc
#define x_realloc hugepin_realloc
#define x_free hugepin_free
#define x_aligned_alloc hugepin_aligned_alloc

#include "stress.c"
