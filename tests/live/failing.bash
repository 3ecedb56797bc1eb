# Sourced by shell tests of examples, behind tap.bash: what an example is linked with, and what it leaves when a call fails.
# shellcheck shell=bash disable=SC2154 # build: tap.bash
failing_header=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/failing.h
failing_include=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && printf ' -I%s' "$PWD"/include "$PWD"/extra/*/include)

# libraries SOURCE: to link it with, by what it includes.
libraries()
{
	case $(grep -o 'hugepin_[a-z]*\.h\>\|hugepin\.h\>' "$1" | sort | tail -1) in
	hugepin_verbs.h) echo -lhugepin-verbs -lhugepin -libverbs ;;
	hugepin_uring.h)
		! grep -q hugepin_sg_uring "$1" || echo -lhugepin-uring
		echo -lhugepin -luring
		;;
	hugepin_hooks.h) echo -lhugepin-hooks -lhugepin ;;
	*) echo -lhugepin ;;
	esac
}

# leaves_nothing NAME SOURCE [ARGUMENT...]: each call that may fail (failing.h) fails once, with EIO and with ENOBUFS. The program
# then ends with status 1, or goes on without a pin, with another GID, or without one of the calls $failing_tolerates. It leaves nothing behind, and the sanitizers find nothing.
leaves_nothing()
{
	local name=$1 source=$2 calls call error n status sanitizers
	local program=$PWD/failing-${2%.c}
	shift 2
	# shellcheck disable=SC2046,SC2086 # CC may be a command with options
	for sanitizers in ${failing_sanitizers+"$failing_sanitizers"} '-fsanitize=address,undefined -fno-sanitize-recover=all' ''; do
		${CC:-cc} -D_GNU_SOURCE=1 -Wall -Wextra -Werror $sanitizers -include "$failing_header" $failing_include -o "$program" "$source" \
			-L"$build" -Wl,-rpath,"$build" $(libraries "$source") >compiled 2>&1 && break
	done
	calls=$("$program" "$@" 2>&1 >/dev/null | sed -n 's/^\([0-9]*\) calls$/\1/p')
	if [ -z "$calls" ] || [ "$calls" = 0 ]; then
		fail "$name: calls are made to fail" "$(cat compiled)" "$("$program" "$@" 2>&1 | tail -20)"
		return
	fi
	for error in 5 105; do
		# All of the first forty, then every so many: the others are calls in a loop.
		for ((n = 1; n <= calls; n += n < 40 ? 1 : calls / 16 + 1)); do
			FAIL_AT=$n FAIL_ERRNO=$error timeout -k 5 400 "$program" "$@" >failed 2>&1
			status=$?
			# Fewer calls this time: the number of waits varies. A program that has crashed says nothing either.
			[ $status != 0 ] || grep -q '^made to fail' failed || break
			call=$(sed -n 's/^made to fail: //p' failed)
			case $status,$error,$call in
			1,*,?* | 0,105,hugepin_pin | 0,*,ibv_query_gid) continue ;;
			0,*) [[ " ${failing_tolerates-} " != *" $call "* ]] || continue ;;
			esac
			fail "$name: a call that fails leaves nothing behind" "call $n, errno $error: status $status" "$(tail -20 failed)"
			return
		done
	done
	pass "$name: a call that fails leaves nothing behind ($calls calls)"
}
