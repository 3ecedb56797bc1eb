#!/bin/bash
# hugepin_pmr.hpp compiles without a warning, by itself and in every standard that it is for, and its containers work:
# tests/live/pmr.cpp, whose results are this test's.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
top=$(cd "$(dirname "$0")/../.." && pwd)
if ! command -v g++ >/dev/null; then
	skip 'hugepin_pmr.hpp' 'no C++ compiler: tools/setup check'
	exit
fi
# Every function of a template is instantiated.
cat >"$t/alone.cpp" <<'END'
#include <hugepin_pmr.hpp>
template class hugepin::allocator<int>;
struct alignas(64) wide { int member; };
template class hugepin::allocator<wide>;
int main() { return hugepin::resource() == nullptr; }
END
strict='-O2 -pedantic -Wall -Wextra -Wundef -Wconversion -Wsign-conversion -Wold-style-cast -Werror'
# compiles NAME SOURCE COMMAND OPTION...
# shellcheck disable=SC2086 # options
compiles() { works "$1" "${@:3}" $strict -I"$top/include" "$2" -o "$t/program" -L"$build" -Wl,-rpath,"$build" -lhugepin -pthread; }
for compiler in g++ clang++; do
	command -v $compiler >/dev/null || continue
	for standard in c++17 c++20 c++2b; do
		compiles "$compiler -std=$standard" "$t/alone.cpp" $compiler -std=$standard
	done
	compiles "$compiler -fno-exceptions -fno-rtti" "$t/alone.cpp" $compiler -std=c++17 -fno-exceptions -fno-rtti
	works "$compiler -fno-exceptions -fno-rtti runs" "$t/program"
done
older() { ! g++ -std=c++14 -I"$top/include" -c -o /dev/null "$t/alone.cpp" 2>"$t/said"; }
# alone.cpp has errors of its own then: there is no allocator.
says_once()
{
	[ "$(grep -c 'hugepin_pmr.hpp:.*error:' "$t/said")" = 1 ] && grep -q 'error: .*hugepin_pmr.hpp needs C++17' "$t/said"
}
works 'in C++14 the header is refused' older
works 'by one error, which says what it needs' says_once
compiles 'the containers compile' "$top/tests/live/pmr.cpp" g++ -std=c++17 || exit
timeout -k 5 400 "$t/program" >"$t/said" 2>&1
status=$?
while IFS= read -r line; do
	case $line in
	ok\ * | 'not ok '*) result "${line%%ok *}ok" "${line#*- }" ;;
	1..*) ;;
	*) echo "$line" ;;
	esac
done <"$t/said"
works 'destructors of static objects free' test "$status" = 0
works 'all of the tests ran' grep -q '^1\.\.' "$t/said"
