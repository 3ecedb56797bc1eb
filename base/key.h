/*
 * Keys of thread-specific data.
 */
#ifndef HP_BASE_KEY_H
#define HP_BASE_KEY_H

#include <pthread.h>

/*
 * As pthread_key_create(), but never gives key 0. Some programs use a zeroed pthread_key_t as a key without creating
 * one. As long as no library has created key 0, such a program finds no value there and cannot set one. But if we had
 * key 0, the program would find our pointers and overwrite them.
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
