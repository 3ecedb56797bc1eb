/*
 * Keys of thread-specific data.
 */
#ifndef HP_BASE_KEY_H
#define HP_BASE_KEY_H

#include <pthread.h>

/*
 * pthread_key_create, but for number 0. A program that takes a zeroed pthread_key_t for a key, before or without making
 * one, finds no value there, and cannot set one, as long as nobody has made a first key. With a key of ours at 0 it
 * would find our pointers, and write over them.
 */
static inline int hp_key_create(pthread_key_t *ret_key, void (*at_exit)(void *))
{
	pthread_key_t key, next;
	int err = pthread_key_create(&key, at_exit);

	if (err)
		return err;
	if (key == 0) {
		err = pthread_key_create(&next, at_exit);
		pthread_key_delete(key);
		key = next;
	}
	if (err == 0)
		*ret_key = key;
	return err;
}

#endif
