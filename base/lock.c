#include "base/lock.h"

#ifdef HP_DEBUG
HP_TLS unsigned hp_locks_held;
#else
typedef int hp_lock_c_is_not_empty; /* ISO C forbids an empty translation unit */
#endif
