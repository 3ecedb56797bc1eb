#!/bin/bash
# Completion in bash, as a shell calls it, without the package bash-completion: what can be completed is what the command knows.
# shellcheck source=tests/live/tap.bash
. "$(dirname "$0")/tap.bash"
# shellcheck source=packaging/completions/hugepin
. "$(dirname "$0")/../../packaging/completions/hugepin"
PATH=$build:$PATH hugepin=hugepin
cd "$t" || exit 2
mkdir -p dir "with space" && touch one.csv two.csv three.txt

# completed WORD...: what the last of them can become, in one line. Equals signs are words, as in a shell.
completed()
{
	COMP_WORDS=("$hugepin" "$@") COMP_CWORD=$# COMPREPLY=()
	_hugepin "$hugepin" "${*: -1}"
	result=$(printf '%s\n' "${COMPREPLY[@]}" | sort | paste -sd " ")
}
# offers NAME EXPECTED WORD...
offers()
{
	local result
	completed "${@:3}"
	if [ "$result" = "$2" ]; then pass "$1"; else fail "$1" "got: $result" "expected: $2"; fi
}

printf '#!/bin/sh\ntouch ran\n' >hugepin
chmod 755 hugepin
hugepin=./hugepin offers 'what is asked is the command in PATH' info i
hugepin=./hugepin offers 'for options, too' 'hugetlb' run --pages = h
works 'and what was typed is not run' test ! -e ran
rm hugepin

words=$("$hugepin" --help | sed -nE 's/^(usage:|      ) hugepin ([a-z]+) .*/\2/p' | sort | paste -sd " ")
offers 'every command' "--help --version $words" ''
offers 'a command that is begun' info i
offers 'nothing that there is not' '' x
options=$(sed -n 's/^\tX(\([A-Z_]*\), .*/\1/p' "$OLDPWD/base/config.h" | tr 'A-Z_' 'a-z-')
for option in $options; do
	completed run "--$option"
	case " $result " in
	*" --$option= "* | *" --$option "*) ;;
	*) fail "--$option of run" "got: $result" ;;
	esac
done
pass 'every option of run'
offers 'with an equals sign where a value is needed' '--predict-memory= --predict-mode=' run --pred
offers 'and without where there need be none' '--stats' run --st
offers 'the words of an option' '1g auto base hugetlb thp' run --pages =
offers 'those that begin so' 'hugetlb' run --pages = h
offers 'where = is no word of its own' '--pages=hugetlb' run --pages=h
offers 'as the next word' 'conservative' run --helper c
offers 'words beside numbers' 'interleave local' run --numa = ''
offers 'a flag is 0 or 1' '0 1' run --abort = ''
offers 'files for a path' 'one.csv' run --trace = on
offers 'nothing for a number' '' run --decay = ''
offers 'nothing for what can be no option' '' run --x/e = a
# shellcheck disable=SC2016 # of another shell
works 'without a word' bash -c '. "$1"; COMP_WORDS=("$2" run --x/e=a) COMP_CWORD=2; [ -z "$(_hugepin 2>&1)" ]' . \
	"$OLDPWD/packaging/completions/hugepin" "$hugepin"
# shellcheck disable=SC2317 # called by the completion
compopt() { [ "$*" != '-o filenames' ] || as_file=yes; }
as_files() { as_file=no; completed "${@:2}"; [ "$as_file" = "$1" ]; }
works 'a path is completed as one' as_files yes run --trace = on
works 'so is a trace' as_files yes plot on
works 'but not a word, which may be the name of a directory' as_files no run --pages = base
works 'nor a process' as_files no top ''
unset -f compopt
offers 'programs' 'basename' run basenam
offers 'programs behind options' 'basename' run --pages = thp --stats --reserve 3 -- basenam
offers 'programs behind a flag' 'basename' run --stats basenam
offers 'files for a program' 'three.txt' run --reserve = 3 cat th
offers 'files, also where an option could be' '' run cat --pa
offers 'the options of check itself' '--json' check --js
offers 'and those of run' '1g auto base hugetlb thp' check -t 5 --pages = ''
offers 'what check compares with' 'mimalloc thp tunable' check --against = ''
offers 'programs to check' 'basename' check -t 5 -n 3 --json --fork = cow -- basenam
offers 'no file for its seconds' '' check -t o
offers 'files for a program to check' 'three.txt' check -n 3 cat th
offers 'options of info' '--help' info -
offers 'nothing behind info' '' info ''
offers 'options of plot' '--help -o -t' plot -
offers 'traces and directories for plot' 'dir/ one.csv two.csv with space/' plot ''
offers 'any file for a picture' 'three.txt' plot -o th
offers 'no file for a title' '' plot -t o
offers 'traces behind options' 'one.csv' plot -t x -o y.png o
offers 'options of top' '--help --json --once -d -n' top -
offers 'no process for its seconds' '' top -d ''
# shellcheck disable=SC2317 # called by the completion
_command_offset() { COMPREPLY=("$1:${COMP_WORDS[$1]}"); }
offers 'with bash-completion, what it knows of the program' '6:cat' run --reserve = 3 -- cat -
unset -f _command_offset

LD_PRELOAD=$dropin sleep 500 &
sleeper=$!
for ((i = 0; i < 600; i++)); do
	! grep -qs libhugepin /proc/$sleeper/maps || break
	sleep 0.1
done
offers 'processes that have the library, to top' $sleeper top -d 2 --once $sleeper
offers 'and no others' '' top $$
kill $sleeper
# shellcheck disable=SC2317 # called by the completion
type() { [ "$*" = '-P hugepin' ] && PATH=$t/dir builtin type "$@"; }
offers 'nothing without the command' '' run --pa
