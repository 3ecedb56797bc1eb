#include "base/lock.h"

HP_TLS unsigned hp_locks_held;
