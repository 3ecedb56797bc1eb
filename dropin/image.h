/*
 * HUGEPIN_IMAGE: bss, data and text of the program and of its libraries in hugepages. Between the libraries; no
 * promise to anyone else.
 */
#ifndef HP_DROPIN_IMAGE_H
#define HP_DROPIN_IMAGE_H

#pragma GCC visibility push(default)

/* Do what HUGEPIN_IMAGE asks for. Called once, by the constructor of libhugepin-malloc.so, before main. Takes the
 * loader's lock. Libraries that are opened later are left alone. */
void hugepin_image_(void);

/* Called by the destructor of libhugepin-malloc.so: HUGEPIN_STATS has a line of each part of a library that was opened
 * later. Takes the loader's lock. */
void hugepin_image_end_(void);

#pragma GCC visibility pop

#endif
