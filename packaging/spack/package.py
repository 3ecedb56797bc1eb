# A recipe for Spack 1.0 and later. Untried: no Spack has run it. tests/live/spack.sh compares it with the Makefile.
# It names no place to download from, because there is none yet. In a clone of the repository:
#
#   spack repo create REPO hugepin_local
#   mkdir REPO/packages/hugepin && cp packaging/spack/package.py REPO/packages/hugepin
#   spack repo add REPO && spack dev-build hugepin@0.1

from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Hugepin(MakefilePackage):
    """A malloc that puts large buffers in hugepages, and a cache of registrations for io_uring and RDMA adapters."""

    license("BSD-2-Clause")

    version("0.1")

    variant("mpi", default=False, description="Build libhugepin-mpi.so, for MPI programs")
    variant("hooks", default=False, description="Build libhugepin-hooks.so, for the caches of UCX and libfabric")

    requires("platform=linux", msg="hugepin is for Linux")
    requires("target=x86_64:", msg="hugepin is for x86-64")

    depends_on("c", type="build")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("jemalloc@5.3: libs=static", type="build")  # linked into libhugepin-malloc.so
    depends_on("libbsd", type="build")
    depends_on("libhugetlbfs")
    depends_on("jansson")
    depends_on("libmnl")
    depends_on("liburing")
    depends_on("rdma-core")
    depends_on("mpi", when="+mpi")
    depends_on("ucx", when="+hooks")
    depends_on("libfabric", when="+hooks")

    @property
    def build_targets(self):
        spec, prefix = self.spec, self.prefix
        arguments = [
            f"PREFIX={prefix}",
            f"RUNPATH={prefix.lib}",
            f"JEMALLOC={spec['jemalloc'].prefix.lib}/libjemalloc_pic.a",
            "MPICC=" + (spec["mpi"].mpicc if "+mpi" in spec else ""),
        ]
        return arguments if "+hooks" in spec else arguments + ["HOOKS_LIB="]

    @property
    def install_targets(self):
        return ["install"] + self.build_targets
