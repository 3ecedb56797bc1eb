#!/bin/bash
# The public headers compile by themselves, as the C and C++ that programs are written in. Where a struct and a function have the same
# name, C++ has another one for the struct.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
top=$(cd "$(dirname "$0")/../.." && pwd)
includes=("$top/include" "$top"/extra/*/include)
cd "$t" || exit 2

# The names of functions, and of structs, in all headers, without comments and the bodies of macros.
for header in "$top"/include/*.h "$top"/extra/*/include/*.h; do
	name=${header##*/}
	echo "#include <$name>" >>all.c
	${CC:-cc} -fpreprocessed -dD -E -P "$header" | sed '/^#define/d' >"$name.plain"
done
grep -ohE '\<hugepin_[a-z_0-9]+\(' ./*.plain | tr -d '(' | sort -u >functions
grep -ohE '^struct hugepin_[a-z_0-9]+ \{' ./*.plain | cut -d ' ' -f 2 | sort -u >structs
comm -12 functions structs >both
works 'there are structs with the name of a function' grep -qx hugepin_stats both

# A program that has each such struct, and calls functions by the same names.
{
	cat all.c
	echo 'int main(void)'
	echo '{'
	echo '	size_t bytes = 0;'
	sed 's/.*/\t&_t of_&;\n\tstruct & *at_& = \&of_&;\n\tbytes += sizeof *at_&;/' both
	cat <<-'END2'
		hugepin_domain *domain = NULL;
		hugepin_stats_t s;
		hugepin_domain_stats_t d;
		hugepin_pin_t pin;
		char *p = (char *)hugepin_malloc(1 << 20);
		if (hugepin_domain_open(hugepin_mlock(), NULL, NULL, &domain) < 0 || hugepin_pin(domain, p, 4096, 0, &pin) < 0)
			return 1;
		if (hugepin_stats(&s, sizeof s) < 0 || hugepin_domain_stats(domain, &d, sizeof d) < 0 || hugepin_unpin(domain, &pin) < 0)
			return 2;
		hugepin_domain_close(domain);
		hugepin_free(p);
		return bytes == 0 || s.placed != 1 || d.registered != 1;
	END2
	echo '}'
} >each.c
cp each.c each.cc

# alone COMPILER STANDARD: each header by itself, with no other before it.
alone()
{
	local header
	for header in "$top"/include/*.h "$top"/extra/*/include/*.h; do
		# shellcheck disable=SC2086 # a compiler may have options
		echo "#include <${header##*/}>" | $1 -std="$2" -fsyntax-only -pedantic -Wall -Wextra -Werror "${includes[@]/#/-I}" - ||
			{ echo "# ${header##*/}"; return 1; }
	done
}

# compiles COMPILER SOURCE STANDARD...: all headers in one program, with the strictest warnings. (liburing.h needs _GNU_SOURCE.)
compiles()
{
	local compiler=$1 source=$2 standard
	for standard in "${@:3}"; do
		# shellcheck disable=SC2086 # a compiler may have options
		works "$standard: ${compiler%% *}" $compiler -std="$standard" -pedantic -Wall -Wextra -Werror "${includes[@]/#/-I}" -o "each-$standard" \
			"$source" -L"$build" -Wl,-rpath,"$build" -lhugepin || continue
		works "$standard: ${compiler%% *}: the program works" "./each-$standard"
	done
}
compiles "${CC:-cc} -D_GNU_SOURCE" each.c c99 c11 c17
works "c11: each header alone" alone "${CC:-cc} -D_GNU_SOURCE -xc" c11
for compiler in g++ clang++; do
	if command -v $compiler >/dev/null; then
		compiles "$compiler -Wshadow" each.cc c++11 c++17 c++20
		works "c++11: $compiler: each header alone" alone "$compiler -Wshadow -xc++" c++11
	else
		skip "C++: $compiler" "no $compiler"
	fi
done
