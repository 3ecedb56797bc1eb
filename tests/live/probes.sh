#!/bin/bash
# The probes of hugepin_probes(7): each is in the library with the arguments of the page, and passes as often as known (what
# tests/probes/known.c does is known). gdb counts, which needs no privilege.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
fact='the library has the probes of the page'
# shellcheck source=tests/probes/known.bash
. "$(dirname "$0")/../probes/known.bash"
page=$top/man/hugepin_probes.7

sed -n 's/^\.It Fn //p' "$page" | awk '{ print $1, NF - 1 }' | sort >"$t/described"
works 'the library has the probes of the page, with as many arguments' diff "$t/described" "$t/notes"
run_known

# The counts in the form of known.c, out of lines "NAME ARGUMENT...", numbers as words of the page.
counts()
{
	awk '
		FNR == NR && /^\.Ss/ { list = $2; sub(/:/, "", list) }
		FNR == NR && /^\.It [0-9]/ { word[list, $2] = $4 }
		FNR == NR { next }
		$1 == "miss" { n["miss"]++ }
		$1 == "registration" && $7 == 0 { n[$1 " " word["kind", $5]]++ }
		$1 == "deregistration" { n[$1 " " word["kind", $5]]++ }
		$1 ~ /^(eviction|invalidation|uncached)$/ { n[$1 " " word[$1, $5]]++ }
		$1 == "commit" { memory += $4 + $5 + $6 }
		$1 == "give_back" { memory -= $4 + $5 + $6 }
		$1 == "extent_made" { extents++ }
		$1 == "extent_gone" { extents-- }
		$1 == "fork_copy" { n["fork " word["fork_copy", $2]]++; copied += $3 }
		END {
			for (i in n)
				print i, n[i]
			print "memory", memory + 0
			print "extents", extents + 0
			print "copied", copied + 0
		}' "$page" - | sort
}

if ! command -v gdb >/dev/null; then
	skip 'gdb counts what is known' 'no gdb: tools/setup check'
else
	{
		echo 'set pagination off'
		echo 'set confirm off'
		echo 'set print thread-events off'
		echo 'break main'
		echo 'run'
		while read -r name arguments; do
			printf 'break -probe-stap hugepin:%s\ncommands\nsilent\nprintf "@@ %s' "$name" "$name"
			for ((i = 0; i < arguments; i++)); do printf ' %%lu'; done
			printf '\\n"'
			# shellcheck disable=SC2016 # a variable of gdb
			for ((i = 0; i < arguments; i++)); do printf ', (unsigned long)$_probe_arg%d' $i; done
			printf '\ncontinue\nend\n'
		done <"$t/notes"
		echo 'continue'
	} >"$t/gdb"
	timeout 400 gdb -nx -batch -x "$t/gdb" "$t/known" >"$t/gdb.out" 2>&1
	if grep -q 'ptrace: Operation not permitted' "$t/gdb.out"; then
		skip 'gdb counts what is known' 'this place allows no ptrace'
	else
		sed -n 's/^@@ //p' "$t/gdb.out" | counts >"$t/counted"
		grep -v '^again ' "$t/expected" | sort >"$t/wanted"
		works 'gdb counts what is known, and no probe for 4000 hits and pairs' diff "$t/wanted" "$t/counted" ||
			tail -5 "$t/gdb.out" | sed 's/^/# gdb: /'
		passed() { cut -d ' ' -f 1 "$t/notes" | while read -r name; do
			grep -q "^@@ $name " "$t/gdb.out" || echo "$name"
		done | diff /dev/null -; }
		works 'each probe was passed' passed
		# A domain has a small number, and a region lies behind the first pages.
		in_order() { awk '$1 == "@@" && $2 ~ /^(registration|deregistration|eviction|invalidation|uncached)$/ &&
			($3 > 9999 || $4 < 65536 || $5 < 1 || $5 > 2 ^ 40)' "$t/gdb.out" | diff /dev/null -; }
		works 'what is told of a region begins with its domain, address and bytes' in_order
		once() { [ "$(sed -n 's/^@@ invalidation [0-9]* [0-9]* \([0-9]*\) 0 [0-9]* \([0-9]*\)$/\1 \2/p' "$t/gdb.out")" = '1048576 1048576' ]; }
		works 'an invalidation tells which memory went away' once
	fi
fi
