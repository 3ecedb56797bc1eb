#!/bin/bash
# Where base pages are not of 4 KiB the library says so once, and stands aside: programs run on the small tier.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"

fake=$here/pagesize.so
told='^hugepin: base pages of [0-9]+ bytes.* 4096.*'
# shellcheck disable=SC2016 # Perl's dollars
with_fake() { timeout -k 5 100 env "$@" LD_PRELOAD="$fake $dropin" perl -e 'my @a = map { chr(97 + $_ % 26) x (1 << 20) } 1 .. 20;
	my $whole = join "", @a; print length $whole, substr($whole, 5 << 20, 2), "\n"' >"$t/out" 2>"$t/err"; }

if with_fake && [ "$(cat "$t/out")" = 20971520gg ]; then pass 'a program runs as it does alone'; else
	fail 'a program runs as it does alone' "$(cat "$t/out" "$t/err")"; fi
if [ "$(wc -l <"$t/err")" = 1 ] && grep -Eq "$told" "$t/err"; then pass 'one line says why nothing is placed'; else
	fail 'one line says why nothing is placed' "$(cat "$t/err")"; fi
with_fake HUGEPIN_STATS=2
if grep -Eq ': small_bytes [0-9]+$' "$t/err" && ! grep ': placed ' "$t/err"; then pass 'nothing is placed'; else fail 'nothing is placed' "$(cat "$t/err")"; fi
with_fake HUGEPIN_SMALL=next HUGEPIN_STATS=2
if ! grep ': placed ' "$t/err" && [ "$(cat "$t/out")" = 20971520gg ]; then pass 'nor with the next malloc'; else
	fail 'nor with the next malloc' "$(cat "$t/out" "$t/err")"; fi
with_fake HUGEPIN_SMALL_PINNED=1
if [ "$(cat "$t/out")" = 20971520gg ]; then pass 'nor is there a part of the heap for small buffers'; else
	fail 'nor is there a part of the heap for small buffers' "$(cat "$t/out" "$t/err")"; fi
