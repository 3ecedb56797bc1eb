/*
 * import hugepin_numpy: NumPy's arrays of 32 KiB and more lie in hugepin's heap from then on, in every thread.
 * README.md says how to use it.
 *
 * NumPy asks a handler (NEP 49) for the data of its arrays. Each context may set a handler, and each thread has a
 * context of its own. A context that has set none uses NumPy's default handler: a capsule, which NumPy hands out as
 * PyDataMem_DefaultHandler, with a pointer to a table of functions. This module points that capsule at a table of its
 * own. So no thread, executor or task has to do anything, and a handler that a program has set for itself stays.
 *
 * An array keeps its handler. So the functions of this module also get arrays that NumPy's functions have allocated,
 * and go on getting arrays of the heap after disable(). The address tells them apart: buffers of the heap start on a
 * boundary of 4 KiB. A buffer of the C library may start there, too. hugepin_free() and hugepin_realloc() take it, and
 * NumPy's default handler gets its memory from the C library.
 *
 * All of this runs with the GIL held.
 */
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <Python.h>

#include <hugepin.h>
#include <numpy/arrayobject.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* malloc releases the GIL from this size on, and calloc always, as NumPy's does. The heap zeroes fresh pages of a pool
 * in malloc. That takes some milliseconds for 64 MiB, as long as getting the GIL back from a busy thread. */
#define LONG_MALLOC ((size_t)64 << 20)

static bool enabled;
static PyDataMemAllocator numpy; /* the functions that the capsule had */

static bool may_be_ours(const void *p)
{
	return p && (uintptr_t)p % 4096 == 0;
}

static void *array_malloc(void *ctx, size_t bytes)
{
	void *p;

	(void)ctx;
	if (!enabled || bytes < HUGEPIN_LARGE_MIN)
		return numpy.malloc(numpy.ctx, bytes);
	if (bytes < LONG_MALLOC)
		return hugepin_malloc(bytes);
	Py_BEGIN_ALLOW_THREADS
	p = hugepin_malloc(bytes);
	Py_END_ALLOW_THREADS
	return p;
}

static void *array_calloc(void *ctx, size_t count, size_t each)
{
	size_t bytes;
	void *p;

	(void)ctx;
	if (!enabled || __builtin_mul_overflow(count, each, &bytes) || bytes < HUGEPIN_LARGE_MIN)
		return numpy.calloc(numpy.ctx, count, each);
	Py_BEGIN_ALLOW_THREADS
	p = hugepin_calloc(count, each);
	Py_END_ALLOW_THREADS
	return p;
}

/* An array that grows to 32 KiB moves into the heap, one that shrinks below moves out of it. */
static void *array_realloc(void *ctx, void *p, size_t bytes)
{
	(void)ctx;
	if (may_be_ours(p) || (enabled && bytes >= HUGEPIN_LARGE_MIN))
		return hugepin_realloc(p, bytes);
	return numpy.realloc(numpy.ctx, p, bytes);
}

static void array_free(void *ctx, void *p, size_t bytes)
{
	(void)ctx;
	if (may_be_ours(p))
		hugepin_free(p);
	else
		numpy.free(numpy.ctx, p, bytes);
}

static PyDataMem_Handler handler = {
	.name = "hugepin",
	.version = 1,
	.allocator = { .malloc = array_malloc, .calloc = array_calloc, .realloc = array_realloc, .free = array_free },
};

static int take_over(void)
{
	PyDataMem_Handler *was = PyCapsule_GetPointer(PyDataMem_DefaultHandler, "mem_handler");

	if (!was)
		return -1;
	/* The functions of another module might not get their memory from the C library. */
	if (was->version != 1 || strcmp(was->name, "default_allocator") != 0) {
		PyErr_Format(PyExc_ImportError,
			     "NumPy's default handler is '%s' of version %d, not 'default_allocator' of 1",
			     was->name, was->version);
		return -1;
	}
	numpy = was->allocator;
	return PyCapsule_SetPointer(PyDataMem_DefaultHandler, &handler);
}

/* ------------------------------------------------------------------ what Python calls */

static PyObject *enable(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	enabled = true;
	Py_RETURN_NONE;
}

static PyObject *disable(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	enabled = false;
	Py_RETURN_NONE;
}

static PyObject *where(PyObject *self, PyObject *array)
{
	struct hugepin_extent extent;

	(void)self;
	if (!PyArray_Check(array)) {
		PyErr_Format(PyExc_TypeError, "where() takes a NumPy array, not %.100s", Py_TYPE(array)->tp_name);
		return NULL;
	}
	if (hugepin_extent(PyArray_DATA((PyArrayObject *)array), &extent, sizeof extent) < 0)
		Py_RETURN_NONE;
	return PyUnicode_FromString(extent.kind == HUGEPIN_KIND_HUGETLB ? "hugetlb" :
				    extent.kind == HUGEPIN_KIND_THP ? "thp" : "base");
}

static PyMethodDef methods[] = {
	{ "enable", enable, METH_NOARGS,
	  "enable()\n--\n\n"
	  "From now on arrays of 32 KiB and more are allocated in hugepages, in all threads.\n"
	  "Importing the module does this." },
	{ "disable", disable, METH_NOARGS,
	  "disable()\n--\n\n"
	  "From now on NumPy allocates as without the module, in all threads.\n"
	  "Arrays that lie in hugepages stay there, and may be used, resized and freed." },
	{ "where", where, METH_O,
	  "where(array, /)\n--\n\n"
	  "The memory that an array or a view lies in: 'hugetlb' (the hugetlb pool), 'thp' (transparent\n"
	  "hugepages), 'base' (the heap, in base pages for lack of hugepages), or None: not in hugepin's heap.\n"
	  "The answer is the weakest kind in the array's extent, a run of up to 64 MiB." },
	{ 0 },
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "hugepin_numpy",
	.m_doc = "NumPy arrays in hugepages. Importing the module puts the data of arrays of 32 KiB and more,\n"
		 "made from then on, in hugepin's heap. Arrays that exist already stay where they are.",
	.m_size = -1,
	.m_methods = methods,
};

PyMODINIT_FUNC PyInit_hugepin_numpy(void)
{
	PyObject *m;

	import_array();
	m = PyModule_Create(&module);
	if (!m)
		return NULL;
	if (take_over() < 0) {
		Py_DECREF(m);
		return NULL;
	}
	enabled = true;
	return m;
}
