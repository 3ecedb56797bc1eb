# Sourced by tests of programs that replay traces of communication in virtual time. $program is what they run, and prints lines of
# "key=value" pairs.
# shellcheck shell=bash source-path=SCRIPTDIR source=tap.bash
. "$(dirname "$0")/tap.bash"
# shellcheck disable=SC2034 # used by those who source it
traces=$(cd "$(dirname "$0")/../traces" && pwd)
header='seq,t_start(ns),t_end(ns),cpu_app(ns),op,dir,addr(hex),len(bytes),payload(bytes),peer,f0(hex),f1,f2,f3'

# trace NAME LINE...: lines of "t_start t_end cpu_app dir addr len".
trace()
{
	local name=$1
	shift
	{
		echo "$header"
		printf '%s\n' "$@" | awk '{ print NR "," $1 "," $2 "," $3 ",Send," $4 "," $5 "," $6 "," $6 ",0,1,0,0,0" }'
	} >"$t/$name.csv"
}
# line NAME "KEY=VALUE..." ARG...: the program's line has them.
line()
{
	local name=$1 want=$2 line pair missing=
	shift 2
	line=$(timeout 400 "$program" "$@" 2>&1)
	for pair in $want; do [[ " $line " == *" $pair "* ]] || missing+=" $pair"; done
	if [ -z "$missing" ]; then pass "$name"; else fail "$name" "no$missing in:" "$line"; fi
}
# refuses NAME PATTERN ARG...: status 1, and a message like PATTERN.
refuses()
{
	local name=$1 pattern=$2 out status
	shift 2
	out=$(timeout 400 "$program" "$@" 2>&1 >/dev/null)
	status=$?
	if [ $status = 1 ] && grep -Eq -e "$pattern" <<<"$out"; then
		pass "$name"
	else
		fail "$name" "status $status: $out"
	fi
}
