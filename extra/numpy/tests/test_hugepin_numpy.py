"""Tests of hugepin_numpy, on real memory: python3 -m unittest, in this directory or beside the installed module."""
import asyncio
import concurrent.futures
import contextvars
import ctypes
import gc
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import threading
import tracemalloc
import unittest

import numpy as np

# A thread that runs before the module is imported, and waits for work.
early = concurrent.futures.ThreadPoolExecutor(1)
early.submit(int).result()
existing = [np.full(size, 7, np.uint8) for size in (100, 1000, 40000, 1 << 20, 64 << 20)]

import hugepin_numpy  # noqa: E402

LARGE = 32768
where = hugepin_numpy.where


def in_heap(array):
    return where(array) is not None


def filled(value, size=1 << 20):
    return np.full(size, value, np.uint8)


def python(code, expect=0):
    """The output of a Python of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    if done.returncode != expect or done.stderr:
        raise AssertionError(f"status {done.returncode}: {code}\n{done.stdout}{done.stderr}")
    return done.stdout


class Arrays(unittest.TestCase):
    def tearDown(self):
        hugepin_numpy.enable()

    def test_large_arrays_lie_in_the_heap_and_small_ones_do_not(self):
        for make in (np.empty, np.zeros, np.ones):
            self.assertIsNone(where(make(LARGE - 1, np.uint8)))
            self.assertTrue(in_heap(make(LARGE, np.uint8)))
        a = np.arange(100000)
        for made in (a.copy(), a + 1, np.sort(a), np.concatenate([a, a]), a.astype(np.float32), a[::2].copy()):
            self.assertTrue(in_heap(made))

    def test_large_arrays_are_in_hugepages_where_there_are_some(self):
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
            if "[never]" in file.read():
                self.skipTest("THP is off")
        self.assertIn(where(filled(1, 32 << 20)), ("thp", "hugetlb"))

    def test_where_knows_views(self):
        a = np.arange(1 << 18).reshape(512, 512)
        for view in (a[::-1], a.T, a[100:200, 3], a.ravel(), a.view(np.uint8), a[:0], np.asarray(memoryview(a))):
            self.assertTrue(in_heap(view))
        self.assertIsNone(where(np.frombuffer(bytes(1 << 20), np.uint8)))

    def test_where_refuses_what_is_no_array(self):
        with self.assertRaisesRegex(TypeError, "where.. takes a NumPy array, not list"):
            where([1, 2])

    def test_a_view_keeps_the_memory(self):
        view = filled(5)[1000:]
        others = [filled(6) for _ in range(20)]
        self.assertTrue((view == 5).all())
        del others

    def test_zeros_are_zero_in_used_memory(self):
        for size in (LARGE, 1 << 20, 5 << 20, 100 << 20):
            for _ in range(3):
                a = np.zeros(size, np.uint8)
                self.assertFalse(a.any())
                a[:] = 255
                del a

    def test_resize_keeps_the_contents(self):
        sizes = [10, 1000, LARGE - 1, LARGE, 100000, 8 << 20, 20 << 20, 3 << 20, 50000, LARGE, 20000, 500, 60000, 1]
        contents = np.random.default_rng(3).integers(0, 256, max(sizes), np.uint8)
        a = np.empty(sizes[0], np.uint8)
        kept = a.copy()
        for size in sizes:
            a.resize(size, refcheck=False)
            both = min(size, kept.size)
            self.assertTrue((a[:both] == kept[:both]).all())
            self.assertFalse(a[both:].any())
            self.assertEqual(in_heap(a), size >= LARGE)
            a[:] = contents[:size]
            kept = a.copy()

    def test_arrays_that_grow_while_they_are_read_get_there(self):
        a = np.fromiter(range(300000), np.int64)
        self.assertTrue(in_heap(a))
        self.assertTrue((a == np.arange(300000)).all())
        with tempfile.TemporaryFile() as file:
            file.write(b"1 2 3 4 5 " * 30000)
            file.seek(0)
            a = np.fromfile(file, sep=" ")
        self.assertTrue(in_heap(a))
        self.assertEqual(a.sum(), 450000)

    def test_objects_are_counted(self):
        class Counted:
            alive = 0

            def __init__(self):
                Counted.alive += 1

            def __del__(self):
                Counted.alive -= 1

        a = np.array([Counted() for _ in range(10000)], object)
        self.assertTrue(in_heap(a))
        self.assertEqual(Counted.alive, 10000)
        del a
        self.assertEqual(Counted.alive, 0)

    def test_memory_is_used_again(self):
        used = []
        for _ in range(50):
            a = np.empty(3 << 20, np.uint8)
            used.append(a.ctypes.data)
            del a
        self.assertLess(len(set(used)), 5)

    def test_impossible_sizes_are_memory_errors(self):
        for make in (np.empty, np.zeros):
            with self.assertRaises(MemoryError):
                make(1 << 60, np.uint8)
        a = filled(3, 100000)
        with self.assertRaises(MemoryError):
            a.resize(1 << 60, refcheck=False)
        self.assertTrue((a == 3).all())

    def test_tracemalloc_sees_arrays(self):
        tracemalloc.start()
        try:
            a = filled(1, 4 << 20)
            self.assertGreaterEqual(tracemalloc.get_traced_memory()[0], 4 << 20)
            del a
            self.assertLess(tracemalloc.get_traced_memory()[0], 1 << 20)
        finally:
            tracemalloc.stop()

    def test_fresh_arrays_fault_a_tenth_as_often(self):
        if where(filled(1, 32 << 20)) == "base":
            self.skipTest("no pool and no THP")

        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(40):
                filled(1, 2 << 20)  # NumPy itself asks for THP from 4 MiB on
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        hugepin_numpy.disable()
        plain = faults()
        hugepin_numpy.enable()
        self.assertLess(faults() * 10, plain)


class Switching(unittest.TestCase):
    def tearDown(self):
        hugepin_numpy.enable()

    def test_arrays_from_before_the_import_stay_and_can_be_freed(self):
        while existing:
            a = existing.pop()
            self.assertIsNone(where(a))
            self.assertTrue((a == 7).all())
            if a.size % 1000 == 0:
                a.resize(a.size * 3, refcheck=False)
                self.assertEqual(in_heap(a), a.size >= LARGE)
                self.assertTrue((a[: a.size // 3] == 7).all())
            del a

    def test_arrays_outlive_disable(self):
        kept = [filled(value, 100000 + value) for value in range(10)]
        hugepin_numpy.disable()
        self.assertIsNone(where(filled(1)))
        self.assertIsNone(where(np.zeros(1 << 20)))
        for value, a in enumerate(kept):
            self.assertTrue(in_heap(a))
            a.resize(300000, refcheck=False)
            self.assertTrue((a[: 100000 + value] == value).all())
        del a
        kept.clear()
        hugepin_numpy.enable()
        self.assertTrue(in_heap(filled(1)))

    def test_switching_at_any_time_loses_nothing(self):
        sizes = np.random.default_rng(1).integers(1, 200000, 3000)
        kept = []
        for i, size in enumerate(sizes):
            (hugepin_numpy.enable, hugepin_numpy.disable)[i % 3 == 0]()
            a = filled(i % 256, int(size))
            if i % 5 == 0:
                a.resize(int(sizes[-i]), refcheck=False)
                a[:] = i % 256
            kept.append((i % 256, a))
            if len(kept) > 100:
                value, a = kept.pop(int(size) % 100)
                self.assertTrue((a == value).all())

    def test_a_handler_that_the_program_has_set_stays(self):
        api = getattr(np, "_core", None) or np.core
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        table = ctypes.cast(get(api.multiarray._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
        set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[304])  # PyDataMem_SetHandler
        libc = ctypes.CDLL(None)
        libc.malloc.restype = libc.calloc.restype = libc.realloc.restype = ctypes.c_void_p
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        functions = [
            ctypes.CFUNCTYPE(pointer, pointer, size)(lambda _, n: libc.malloc(size(n))),
            ctypes.CFUNCTYPE(pointer, pointer, size, size)(lambda _, n, each: libc.calloc(size(n), size(each))),
            ctypes.CFUNCTYPE(pointer, pointer, pointer, size)(lambda _, p, n: libc.realloc(pointer(p), size(n))),
            ctypes.CFUNCTYPE(None, pointer, pointer, size)(lambda _, p, n: libc.free(pointer(p))),
        ]

        class Handler(ctypes.Structure):
            _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("ctx", pointer),
                        *((f"f{i}", type(f)) for i, f in enumerate(functions))]

        handler = Handler(b"theirs", 1, None, *functions)

        def inside():
            set_handler(new(ctypes.addressof(handler), b"mem_handler", None))
            a = filled(4)
            self.assertEqual(api.multiarray.get_handler_name(a), "theirs")
            self.assertIsNone(where(a))

        self.assertEqual(api.multiarray.get_handler_name(), "hugepin")
        contextvars.copy_context().run(inside)
        self.assertTrue(in_heap(filled(1)))
        self._keep = handler, functions

    def test_a_second_copy_of_the_module_is_refused(self):
        with tempfile.TemporaryDirectory() as directory:
            name = os.path.join(directory, os.path.basename(hugepin_numpy.__file__))
            with open(hugepin_numpy.__file__, "rb") as source, open(name, "wb") as copy:
                copy.write(source.read())
            said = python(
                "import hugepin_numpy, importlib.machinery as m, importlib.util as u\n"
                f"loader = m.ExtensionFileLoader('hugepin_numpy', {name!r})\n"
                "try: u.module_from_spec(u.spec_from_loader('hugepin_numpy', loader))\n"
                "except ImportError as error: print(error)")
        self.assertIn("NumPy's default handler is 'hugepin'", said)

    def test_the_interpreter_ends_with_arrays_alive(self):
        python("import numpy as np, hugepin_numpy, threading, time, atexit\n"
               "kept = [np.ones(n) for n in (10, 10000, 10000000)]\n"
               "cycle = [np.ones(100000)]; cycle.append(cycle)\n"
               "atexit.register(lambda: np.ones(1000000).sum())\n"
               "class Late:\n"
               "    def __init__(self): self.a = np.ones(100000)\n"
               "    def __del__(self): self.a.resize(200000, refcheck=False)\n"
               "late = Late()\n"
               "def run():\n"
               "    while True: np.ones(100000) + 1\n"
               "threading.Thread(target=run, daemon=True).start(); time.sleep(.1)\n")


class Threads(unittest.TestCase):
    def test_a_thread_from_before_the_import(self):
        self.assertTrue(early.submit(lambda: in_heap(filled(1))).result())

    def test_new_threads_executors_and_tasks(self):
        seen = []
        thread = threading.Thread(target=lambda: seen.append(where(filled(1))))
        thread.start()
        thread.join()
        self.assertIsNotNone(seen[0])
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            self.assertTrue(all(pool.map(lambda size: in_heap(filled(1, size)), range(LARGE, LARGE + 100))))

        async def task():
            return in_heap(filled(1)), await asyncio.to_thread(lambda: in_heap(filled(1)))

        self.assertEqual(asyncio.run(task()), (True, True))
        self.assertTrue(contextvars.Context().run(lambda: in_heap(filled(1))))

    def test_arrays_are_handed_between_threads(self):
        places, wrong, lock = [None] * 3, [], threading.Lock()

        def hand_on(number):
            for i in range(500):
                size = 20000 + 9000 * number + i
                mine = filled(size % 251, size)
                with lock:
                    mine, places[(number + i) % 3] = places[(number + i) % 3], mine
                if mine is not None and not (mine == mine.size % 251).all():
                    wrong.append((number, i))
                if mine is not None and i % 7 == 0:
                    mine.resize(size * 2, refcheck=False)

        threads = [threading.Thread(target=hand_on, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_an_array_outlives_the_thread_that_made_it(self):
        kept = []
        for value in range(20):
            thread = threading.Thread(target=lambda: kept.append(filled(value, 3 << 20)))
            thread.start()
            thread.join()
        self.assertTrue(all(in_heap(a) and (a == value).all() for value, a in enumerate(kept)))


class Forks(unittest.TestCase):
    def child(self, check):
        """check() in a child of fork: its result."""
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(0 if check() else 1)
            except BaseException as error:
                os.write(2, f"{error!r}\n".encode())
                os._exit(2)
        return os.waitpid(pid, 0)[1] == 0

    def test_a_child_has_its_own_copy(self):
        a = filled(1, 8 << 20)

        def check():
            whole = (a == 1).all()
            a[:] = 2
            return whole and in_heap(a) and in_heap(filled(3)) and (a == 2).all()

        self.assertTrue(self.child(check))
        self.assertTrue((a == 1).all())

    def test_a_child_frees_and_resizes_what_it_has_inherited(self):
        kept = [filled(value, 200000) for value in range(20)]

        def check():
            for value in range(10):
                kept[value].resize(500000, refcheck=False)
            whole = all((a[:200000] == value).all() for value, a in enumerate(kept))
            kept.clear()
            gc.collect()
            return whole and not np.zeros(4 << 20, np.uint8).any()

        self.assertTrue(self.child(check))
        self.assertTrue(all((a == value).all() for value, a in enumerate(kept)))

    def test_multiprocessing_by_fork(self):
        said = python(
            "import multiprocessing, numpy as np, hugepin_numpy\n"
            "a = np.arange(1000000)\n"
            "def half(i):\n"
            "    made = a[i::2] * 2\n"
            "    assert hugepin_numpy.where(made)\n"
            "    return made\n"
            "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
            "    print(sum(int(made.sum()) for made in pool.map(half, range(2))))")
        self.assertEqual(int(said), 999999000000)

    def test_a_fork_while_threads_allocate(self):
        end = threading.Event()

        def allocate():
            while not end.is_set():
                filled(9, 100000)

        threads = [threading.Thread(target=allocate) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            a = filled(1, 1 << 20)
            for _ in range(20):
                self.assertTrue(self.child(lambda: (a == 1).all() and in_heap(filled(2))))
        finally:
            end.set()
            for thread in threads:
                thread.join()


class Pinned(unittest.TestCase):
    """Arrays as fixed buffers of io_uring: uring_read.c, the example of README.md."""

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        module = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        library = os.path.join(cls.directory.name, "uring_read.so")
        try:
            flags = subprocess.run(["pkgconf", "--cflags", "--libs", "hugepin", "liburing"], check=True, text=True,
                                   stdout=subprocess.PIPE).stdout
        except (FileNotFoundError, subprocess.CalledProcessError):
            raise unittest.SkipTest("no pkgconf, libhugepin-dev or liburing-dev")
        compiler = [*shlex.split(os.environ.get("CC", "cc")), "-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
        source = os.path.join(module, "uring_read.c")
        subprocess.run([*compiler, "-shared", "-fPIC", source, "-o", library, *shlex.split(flags)], check=True)
        cls.lib = ctypes.CDLL(library, use_errno=True)
        cls.lib.reader_open.restype = ctypes.c_void_p
        cls.lib.reader_read.restype = ctypes.c_ssize_t
        cls.lib.reader_read.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long)
        cls.lib.reader_registrations.restype = ctypes.c_long
        cls.lib.reader_registrations.argtypes = cls.lib.reader_close.argtypes = (ctypes.c_void_p,)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def setUp(self):
        self.reader = self.lib.reader_open()
        if not self.reader:
            self.skipTest(f"no io_uring: {os.strerror(ctypes.get_errno())}")
        self.addCleanup(self.lib.reader_close, self.reader)
        self.data = np.random.default_rng(2).integers(0, 256, 8 << 20, np.uint8)
        self.file = tempfile.TemporaryFile()
        self.addCleanup(self.file.close)
        self.file.write(self.data)
        self.file.flush()

    def read(self, array, at=0):
        return self.lib.reader_read(self.reader, self.file.fileno(), array.ctypes.data, array.nbytes, at)

    def test_files_are_read_into_pinned_arrays(self):
        blocks = [np.zeros(64 << 10, np.uint8) for _ in range(32)]
        for i in range(256):
            block, at = blocks[i % 32], i * 32 << 10
            self.assertEqual(self.read(block, at), min(block.nbytes, self.data.nbytes - at))
            part = self.data[at : at + block.nbytes]
            self.assertTrue((block[: part.size] == part).all())
        # 256 pins of 32 arrays, which lie in one extent or in two.
        self.assertIn(self.lib.reader_registrations(self.reader), (1, 2))

    def test_fresh_arrays_find_their_memory_pinned(self):
        for _ in range(20):
            whole = np.empty_like(self.data)
            self.assertEqual(self.read(whole), whole.nbytes)
            self.assertTrue((whole == self.data).all())
            self.read(whole[1000:-1000], 0)  # a view of it
            self.assertTrue((whole[1000:-1000] == self.data[:-2000]).all())
        self.assertLess(self.lib.reader_registrations(self.reader), 5)

    def test_a_pinned_array_can_be_resized_and_inherited(self):
        a = np.zeros(1 << 20, np.uint8)
        self.read(a)
        a.resize(3 << 20, refcheck=False)
        self.assertTrue((a[: 1 << 20] == self.data[: 1 << 20]).all())
        self.assertEqual(self.read(a), a.nbytes)
        self.assertTrue((a == self.data[: 3 << 20]).all())
        pid = os.fork()
        if pid == 0:
            os._exit(0 if (a == self.data[: 3 << 20]).all() else 1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.read(a, 1 << 20)
        self.assertTrue((a == self.data[1 << 20 : 4 << 20]).all())


if __name__ == "__main__":
    unittest.main()
