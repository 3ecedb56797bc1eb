"""What `import hugepin_numpy` gains: python3 bench.py [ROUNDS]

Each workload runs in processes of its own, in turn with NumPy alone and with the module. Prints medians of processor
time (user and system) and of page faults, and the ratio of the times: below 1 the module is faster.
"""
import json
import os
import resource
import statistics
import subprocess
import sys

import numpy as np

MiB = 1 << 20


def temporaries():
    """arithmetic whose intermediate results have 8 MiB"""
    a, b = np.ones(MiB), np.full(MiB, 0.5)
    yield
    for _ in range(30):
        a = (a * b + 1.0) / (b + 2.0) - a * 0.25


def temporaries_small():
    """the same with 512 KiB"""
    a, b = np.ones(MiB // 16), np.full(MiB // 16, 0.5)
    yield
    for _ in range(480):
        a = (a * b + 1.0) / (b + 2.0) - a * 0.25


def fresh():
    """an array of 256 MiB, written and freed, five times"""
    yield
    for _ in range(5):
        np.full(32 * MiB, 1.0)


def gather():
    """4 million random elements of 512 MiB, in an array that is there"""
    a = np.ones(64 * MiB)
    index = np.random.default_rng(1).integers(0, a.size, 4 * MiB)
    yield
    a.take(index).sum()


def grow():
    """a million numbers from an iterator, 20 times"""
    numbers = range(MiB)
    yield
    for _ in range(20):
        np.fromiter(numbers, np.float64)


def small():
    """300000 arrays of 64 bytes"""
    yield
    for _ in range(300000):
        np.empty(8)


WORKLOADS = {work.__name__: work for work in (temporaries, temporaries_small, fresh, gather, grow, small)}


def measure(name, use):
    """In a process of its own: processor time in milliseconds, and page faults."""
    if use:
        import hugepin_numpy  # noqa: F401
    work = WORKLOADS[name]()
    next(work)
    before = resource.getrusage(resource.RUSAGE_SELF)
    next(work, None)
    after = resource.getrusage(resource.RUSAGE_SELF)
    ms = 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(json.dumps((ms, after.ru_minflt - before.ru_minflt)))


def sample(name, use):
    command = [sys.executable, os.path.abspath(__file__), "measure", name, "hugepin" if use else ""]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    print(f"{'':18} {'processor time, ms':>26} {'page faults':>17}")
    print(f"{'':18} {'numpy':>8} {'hugepin':>8} {'ratio':>8} {'numpy':>8} {'hugepin':>8}")
    for name, work in WORKLOADS.items():
        samples = {False: [], True: []}
        for i in range(rounds):
            for use in (False, True) if i % 2 else (True, False):
                samples[use].append(sample(name, use))
        ms, faults = map(statistics.median, zip(*samples[False]))
        ms_with, faults_with = map(statistics.median, zip(*samples[True]))
        row = f"{ms:8.0f} {ms_with:8.0f} {ms_with / ms:8.2f} {faults:8.0f} {faults_with:8.0f}"
        print(f"{name:18} {row}   {work.__doc__}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(sys.argv[2], bool(sys.argv[3]))
    else:
        main()
