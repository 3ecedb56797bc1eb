#!/bin/bash
# The recipe for Spack says what the Makefile understands. Spack itself is not here: its directives are stood in for.
# shellcheck disable=SC2016 # nothing is to be expanded
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
cd "$(dirname "$0")/../.." || exit 1

# targets VARIANT...: what the recipe has `make` do to install under /p, with these variants; after the
# lines "version VERSION" and "to build", the packages that only the build needs.
targets() {
	python3 - "$@" <<-'END'
		import sys, types
		class Prefix(str):
		    lib = property(lambda self: Prefix(self + "/lib"))
		class Spec(dict):
		    __contains__ = lambda self, variant: variant in sys.argv[1:]
		types_of, versions = {}, []
		def directive(name):
		    def note(*args, **kwargs):
		        if name == "depends_on":
		            types_of[args[0].split("@")[0]] = kwargs.get("type", "")
		        elif name == "version":
		            versions.append(args[0])
		    return note
		package = types.ModuleType("spack.package")
		for name in "license version variant requires depends_on conflicts maintainers".split():
		    setattr(package, name, directive(name))
		makefile = types.ModuleType("spack_repo.builtin.build_systems.makefile")
		makefile.MakefilePackage = type("MakefilePackage", (), {})
		sys.modules.update({"spack": types.ModuleType("spack"), "spack.package": package, makefile.__name__: makefile})
		for parent in "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems":
		    sys.modules[parent] = types.ModuleType(parent)
		scope = {}
		exec(compile(open("packaging/spack/package.py").read(), "package.py", "exec"), scope)
		made = scope["Hugepin"]()
		made.prefix = Prefix("/p")
		made.spec = Spec({name: types.SimpleNamespace(prefix=Prefix("/" + name), mpicc="/mpi/bin/mpicc") for name in ("mpi", "jemalloc")})
		print("version", *versions)
		print("to build", *sorted(name for name in types_of if types_of[name] == "build"))
		print("\n".join(made.install_targets))
	END
}
version_is() { targets | grep -qx "version $(awk '/^#define HUGEPIN_VERSION_M/ { v = v "." $3 } END { print substr(v, 2) }' include/hugepin.h)"; }
# make_says VARIANT... -- PATTERN: a line of what make would do; with ! before the pattern, no line. In a directory without objects.
make_says() {
	local variants=() arguments
	while [ "$1" != -- ]; do variants+=("$1"); shift; done
	shift
	mapfile -t arguments < <(targets "${variants[@]}" | tail -n +3)
	make -n BUILD="$t/build" "${arguments[@]}" >"$t/make" 2>&1 || { cat "$t/make"; return 1; }
	if [ "$1" = ! ]; then ! grep -E -- "$2" "$t/make"; else grep -qE -- "$1" "$t/make" || { tail -n 30 "$t/make"; return 1; }; fi
}

works 'the version is that of the headers' version_is
only_to_build() { targets | grep -E '^to build' | grep -qw -- "$1"; }
for package in jemalloc pkgconfig; do works "only the build needs $package" only_to_build $package; done
works 'jemalloc is the one that Spack built' make_says -- '/jemalloc/lib/libjemalloc_pic\.a. .*/jemalloc\.a$'
works 'libraries look for each other in the prefix' make_says -- '-rpath,.?/p/lib'
works 'the command goes to the prefix' make_says -- 'install -m 755 .*/hugepin .*/p/bin'
works 'the libraries go to the prefix' make_says -- '/p/lib/\$l\.so'
works 'without its variant there is no layer for MPI' make_says -- ! 'soname,libhugepin-mpi'
works 'with its variant there is one' make_says +mpi -- '/mpi/bin/mpicc .*-c .*extra/mpi/'
works 'without their variant there are no hooks' make_says -- ! 'soname,libhugepin-hooks'
if printf '#include <rdma/fi_ext.h>\n#include <ucm/api/ucm.h>\n' | cc -E - >/dev/null 2>&1; then
	works 'with their variant there are' make_says +hooks -- 'soname,libhugepin-hooks'
else
	skip 'with their variant there are' 'no headers of UCX and libfabric'
fi
