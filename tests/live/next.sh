#!/bin/bash
# HUGEPIN_SMALL=next: small requests go to the next malloc of the process, the heap serves the rest.
. "$(dirname "$0")/tap.bash"
export HUGEPIN_SMALL=next
works 'the conformance tests hold over the C library'\''s malloc' env LD_PRELOAD="$dropin" "$here/conformance"
works 'buffers of both mallocs go back to their own' env STRESS_SECONDS=1 LD_PRELOAD="$dropin" "$here/stress"
works 'a program that allocates before the constructors runs' env LD_PRELOAD="$dropin" "$here/early"
next=$(ldconfig -p | awk '/libmimalloc.so/ { print $NF; exit }')
if [ -n "$next" ]; then
	# shellcheck disable=SC2016 # perl's
	works 'the next malloc may be a preloaded one' env LD_PRELOAD="$dropin $next" perl -e 'my @a = map { "x" x $_ } 1 .. 2000'
else
	skip 'the next malloc may be a preloaded one' 'libmimalloc is not installed'
fi
