#!/bin/bash
# The crate for Rust, by the distribution's compiler: its tests, each by its name, also under the drop-in; what its pages
# say is accepted and refused; the ways to find the library.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/../../../tests/live/tap.bash"
export PATH=/usr/bin:/bin
if [ ! -x /usr/bin/cargo ] || [ ! -x /usr/bin/rustc ]; then
	skip 'the crate for Rust' 'no cargo in /usr/bin: tools/setup check'
	exit
fi
cd "$(dirname "$0")/.." || exit 2
export CARGO_HOME=$t/cargo CARGO_TARGET_DIR=$build/rust HUGEPIN_X_LIB_DIR=$build
cargo_test() { timeout -k 5 600 cargo test --offline --locked "$@"; }

# results FACT COMMAND...: a result for each test of Rust's that the command runs, and one for its end.
results()
{
	local fact=$1 result name why
	shift
	"$@" >"$t/said" 2>"$t/errors" </dev/null
	echo $? >"$t/status"
	while IFS=$'\t' read -r result name why; do
		case $result in
		ok) pass "$name" ;;
		skipped) skip "$name" "$why" ;;
		*) fail "$name" "$(tail -30 "$t/errors")" ;;
		esac
	done < <(awk -v OFS='\t' '
		/^test .* \.\.\. / { name = $2; why = ""; sub(/^test .* \.\.\. /, "") }
		sub(/^skipped: /, "") { why = $0; next }
		name && /^(ok|FAILED)$/ { print(why && /^ok$/ ? "skipped" : $0, name, why); name = "" }
	' "$t/said")
	works "$fact" grep -qx 0 "$t/status" || sed 's/^/# /' "$t/said" "$t/errors"
}

# With one thread each test's output stands behind its name.
results 'all tests of the crate pass' cargo_test --no-fail-fast --tests -- --nocapture --test-threads=1
program() { sed -n "s|^ *Running tests/$1.rs (\(.*\))\$|\1|p" "$t/programs"; }
cp "$t/errors" "$t/programs"
heap=$(program heap) pins=$(program pins)
# The error that is meant is known to compilers that take all features, as this variable makes one.
RUSTC_BOOTSTRAP=1 LD_LIBRARY_PATH=$build says 'the compiler accepts and refuses what the pages say' 0 \
	'^test result: ok. [1-9][0-9] passed' cargo_test --doc
HUGEPIN_STATS=2 says 'the statistics at exit have the vector' 0 '^hugepin\[.*\] heap-[^:]*: placed [1-9]' \
	"$heap" --exact a_vec_of_1_mib_is_in_the_heap
works 'the heap under the drop-in' with "$heap"
works 'pins under the drop-in' with "$pins"

unset HUGEPIN_X_LIB_DIR
export CARGO_TARGET_DIR=$build/rust/pkg-config
if command -v pkg-config >/dev/null; then
	sed "s|@PREFIX@|$t|; s|@LIBDIR@|$build|; s|@VERSION@|0|; s|@RUNPATH@|-Wl,-rpath,$build|" \
		../../packaging/hugepin.pc.in >"$t/hugepin.pc"
	PKG_CONFIG_PATH=$t works 'pkg-config names the library' cargo_test --test heap a_vec_of_1_mib
else
	skip 'pkg-config names the library' 'no pkg-config: tools/setup check'
fi
PKG_CONFIG_LIBDIR=/nonexistent PKG_CONFIG_PATH=/nonexistent says 'without the library, the build says what is missing' 101 \
	'no libhugepin: install libhugepin-dev, or name its directory in HUGEPIN_X_LIB_DIR' cargo_test --no-run
HUGEPIN_X_LIB_DIR=/nonexistent says 'and which directory does not have it' 101 \
	'no libhugepin in /nonexistent, which HUGEPIN_X_LIB_DIR names' cargo_test --no-run
