/*
 * HUGEPIN_X_VERBS_CACHE, and what is printed at exit.
 */
#ifndef HP_VERBSCACHE_OPTIONS_H
#define HP_VERBSCACHE_OPTIONS_H

/* Which registrations are kept: none; those that only this process uses; all, since peers are trusted. */
enum hp_verbscache_mode { HP_VERBSCACHE_OFF, HP_VERBSCACHE_LOCAL, HP_VERBSCACHE_REMOTE };

enum hp_verbscache_mode hp_verbscache_mode(void);

#endif
