#!/bin/bash
# The tests of tests/guest, in the guests that $GUESTS names: plain; none where it is set but empty. $GUEST_TESTS: these, which
# may be live tests, instead of all. $GUEST_SECONDS: for each guest.
# shellcheck disable=SC2086 # a list
if [ -z "${GUESTS-plain}" ]; then
	echo '1..0 # SKIP GUESTS is empty'
else
	exec tests/guest/run -g "${GUESTS-plain}" ${GUEST_SECONDS:+-t "$GUEST_SECONDS"} ${GUEST_TESTS:-}
fi
