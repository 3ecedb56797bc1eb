# Sourced by the tests of the probes, after tap.bash: a copy of the library ($library), so that other tests' processes do not come to
# its probes, and its notes ($t/notes). run_known makes known.c ($t/known), and keeps what that prints ($t/expected). $fact is skipped
# where the library has no probe.
# shellcheck shell=bash disable=SC2154 # build, t: of tap.bash; fact: of who sources this
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir "$t/lib"
cp "$build/libhugepin.so" "$t/lib/libhugepin.so.0"
library=$t/lib/libhugepin.so.0
# The notes of a file: "NAME ARGUMENTS".
notes()
{
	readelf -n "$1" | awk '
		/Provider:/ { ours = $2 == "hugepin" }
		ours && /Name:/ { name = $2 }
		ours && /Arguments:/ { print name, NF - 1 }' | sort -u
}
notes "$library" >"$t/notes"
# shellcheck disable=SC2086 # CC may be a command with options
if ! echo "#include <sys/sdt.h>" | ${CC:-cc} -E - >/dev/null 2>&1 && [ ! -s "$t/notes" ]; then
	skip "$fact" 'built without sys/sdt.h: tools/setup build'
	exit
fi

# shellcheck disable=SC2086 # CC may be a command with options
compile() { ${CC:-cc} -D_GNU_SOURCE -O1 -g -fno-omit-frame-pointer -I"$top/include" -o "$t/$1" "$top/tests/probes/$1.c" "${@:2}"; }
run_known()
{
	local status
	works 'the program compiles' compile known "$library" -Wl,-rpath,"$t/lib" || exit 1
	"$t/known" >"$t/expected" 2>"$t/errors"
	status=$?
	if [ $status = 77 ]; then
		skip 'the program does what is known' 'the kernel does not tell of memory that goes away'
		exit
	fi
	works 'the program does what is known' test $status = 0 || { sed 's/^/# /' "$t/errors"; exit 1; }
}
