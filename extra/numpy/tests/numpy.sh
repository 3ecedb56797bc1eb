#!/bin/bash
# The module for NumPy: its tests (test_hugepin_numpy.py), each in an interpreter of its own; and pip builds and installs it.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../../../tests/live/tap.bash"
source=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-/usr/bin/python3}
if ! ls "$build"/numpy/hugepin_numpy.*.so >/dev/null 2>&1; then
	skip 'hugepin_numpy' 'no numpy: tools/setup check'
	exit
fi
export LD_LIBRARY_PATH=$build PYTHONPATH=$build/numpy PKG_CONFIG_PATH=$build/numpy PYTHONDONTWRITEBYTECODE=1
cd "$source/tests" || exit 2

mapfile -t tests < <("$python" -c '
import unittest
def names(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            names(test)
        else:
            print(test.id())
names(unittest.defaultTestLoader.loadTestsFromName("test_hugepin_numpy"))')
works 'the tests are found' test ${#tests[@]} -gt 20
for test in "${tests[@]}"; do
	timeout -k 5 400 "$python" -m unittest -v "$test" >"$t/said" 2>&1 </dev/null
	status=$?
	why=$(sed -n "s/.*skipped ['\"]\(.*\)['\"]$/\1/p" "$t/said" | head -1)
	if [ -n "$why" ]; then
		skip "${test##*.}" "$why"
	elif [ $status = 0 ]; then
		pass "${test##*.}"
	else
		fail "${test##*.}" "status $status" "$(tail -20 "$t/said")"
	fi
done

works 'the bench runs' "$python" ../bench.py 1

# pip asks no network: what it builds with is installed.
unset PYTHONPATH
if "$python" -m pip --version >/dev/null 2>&1 && "$python" -c 'import wheel' 2>/dev/null; then
	cp -r "$source" "$t/source"
	works 'pip installs it' "$python" -m pip --quiet --disable-pip-version-check install --root-user-action=ignore \
		--no-build-isolation --no-deps --no-index --target "$t/installed" "$t/source"
	licence=$(find "$t/installed" -path '*.dist-info/*' -name LICENSE)
	works 'with the licence' cmp "$licence" ../../../LICENSE
	works 'and its name' grep -qx 'License: BSD-2-Clause' "${licence%.dist-info/*}.dist-info/METADATA"
	export PYTHONPATH=$t/installed
	says 'and it is imported from there' 0 "^$t/installed/hugepin_numpy.*\.so (thp|hugetlb|base)$" "$python" -c '
import numpy, hugepin_numpy
print(hugepin_numpy.__file__, hugepin_numpy.where(numpy.ones(100000)))'
else
	skip 'pip installs it' 'no pip, or no wheel'
fi
PKG_CONFIG_PATH=/nonexistent PKG_CONFIG_LIBDIR=/nonexistent says 'without libhugepin setup.py names what is missing' 1 \
	'pkgconf does not find libhugepin: install libhugepin-dev, or name .* in PKG_CONFIG_PATH' \
	"$python" ../setup.py --version
