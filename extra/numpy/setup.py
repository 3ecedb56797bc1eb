# Version and flags are those of the libhugepin that pkgconf finds (PKG_CONFIG_PATH). The rest is in pyproject.toml.
import os
import shlex
import subprocess
import sys

import numpy
from setuptools import Extension, setup


def pkgconf(*question):
    command = [os.environ.get("PKG_CONFIG", "pkgconf"), *question, "hugepin"]
    try:
        return shlex.split(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    except FileNotFoundError:
        sys.exit(f"setup.py: there is no {command[0]}: install pkgconf, or set PKG_CONFIG")
    except subprocess.CalledProcessError:
        sys.exit("setup.py: pkgconf does not find libhugepin: install libhugepin-dev, "
                 "or name the directory of hugepin.pc in PKG_CONFIG_PATH")


setup(
    version=pkgconf("--modversion")[0],
    py_modules=[],
    ext_modules=[
        Extension(
            "hugepin_numpy",
            ["hugepin_numpy.c"],
            include_dirs=[numpy.get_include()],
            extra_compile_args=["-fvisibility=hidden", *pkgconf("--cflags")],
            extra_link_args=pkgconf("--libs"),
        )
    ],
)
