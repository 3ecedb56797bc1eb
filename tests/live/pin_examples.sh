#!/bin/bash
# The programs that the pages of the pin cache and of packing display do what they say.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$t" || exit 2

# shows PAGE LINES: the program on the page, linked as it says, prints these lines (a regular expression); under the drop-in
# too.
shows()
{
	local page=$1 lines=$2 how
	awk '/^\.Bd -literal/ { text = "" }
		/^\.Ed/ && text ~ /\nint main\(/ { printf "%s", text }
		!/^\./ { gsub(/\\e/, "\\"); text = text $0 "\n" }' "$top/man/$page.3" >"$page.c"
	# shellcheck disable=SC2086 # CC may be a command with options
	works "$page(3): the example compiles" ${CC:-cc} -Wall -Wextra -Werror -I"$top/include" -o "$page" "$page.c" \
		-L"$build" -Wl,-rpath,"$build" -lhugepin || return
	for how in '' " under the drop-in"; do
		if timeout -k 5 100 env LD_PRELOAD="${how:+$dropin}" "./$page" >said 2>&1 && [[ $(cat said) =~ ^$lines$ ]]; then
			pass "$page(3): the example runs$how"
		else
			fail "$page(3): the example runs$how" "$(cat said)"
		fi
	done
}

# A buffer of 1 MiB lies in one hugepage, or in two.
shows hugepin_domain $'entry 0, (2097152|4194304) bytes\n1 of 1000 pins registered'
shows hugepin_pin '2 pins each time, [12] registrations in all'
shows hugepin_sg_map '65 elements, 528 bytes, [12] pins'
shows hugepin_sg_frame $'10: north\n11: \n12: east'
