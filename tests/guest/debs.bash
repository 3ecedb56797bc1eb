# Sourced by tests/guest/kernel and tests/guest/root: Debian packages of any architecture and suite, unpacked in directories of
# $cache. Nothing is installed, no privilege is needed, and apt's own state is left alone.
#
# GUEST_CACHE     where they are kept (~/.cache/hugepin-guest); remove a directory there to get a newer one
# DEBIAN_MIRROR   where they come from: the machine's own mirror, or deb.debian.org
# shellcheck shell=bash

cache=${GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hugepin-guest}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
PATH=$PATH:/usr/sbin:/sbin

give_up() { echo "$*" >&2; exit 77; }

# debs_start ARCHITECTURE: $mirror; $work, which goes away with the process, and what is unpacked in $work/tree.
debs_start()
{
	if ! command -v apt-get >/dev/null || [ ! -r $keyring ]; then give_up "no apt-get, or no $keyring"; fi
	mirror=${DEBIAN_MIRROR:-$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null |
		grep -v '^ *#' | grep -m1 -oE 'https?://[^ ]*/debian/?( |$)')}
	mirror=${mirror:-http://deb.debian.org/debian}
	mkdir -p "$cache"
	work=$(mktemp -d "$cache/tmp.XXXXXX") || give_up "cannot write to $cache"
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' INT TERM # with the trap above
	mkdir -p "$work"/{lists,cache/archives}/partial "$work/tree"
	touch "$work/status"
	apt=(-qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$work/lists"
		-o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" -o APT::Architecture="$1" -o APT::Architectures="$1"
		-o APT::Sandbox::User= -o Debug::NoLocking=1 -o Acquire::Languages=none -o Acquire::Retries=2
		-o Acquire::http::Timeout=20 -o APT::Update::Error-Mode=any)
}

# debs_of SUITE: apt knows its packages, and no others.
debs_of()
{
	echo "deb [signed-by=$keyring] $mirror $1 main" >"$work/sources.list"
	timeout 120 apt-get "${apt[@]}" update
}

# debs_first SUITES: run fetch() on one after the other; it is to make $work/tree. Print the directory NAME of the first.
# NAME is what name_of() says.
debs_first()
{
	local suite reasons=
	for suite in $1; do
		if fetch "$suite" >"$work/log" 2>&1; then
			mv -T "$work/tree" "$cache/$(name_of "$suite")" 2>/dev/null || [ -e "$cache/$(name_of "$suite")" ] # another was faster
			echo "$cache/$(name_of "$suite")"
			exit
		fi
		reasons+=" $suite: $(grep -m1 '^E:' "$work/log" || tail -1 "$work/log");"
		rm -rf "$work"/{tree,*.deb} && mkdir "$work/tree"
	done
	give_up "$mirror:${reasons%;}"
}
