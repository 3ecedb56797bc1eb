# Sourced by tools/check-*: a bare Debian in $root, which is in $work, from the machine's own mirror. Needs root. What is mounted
# in it goes away with the process, which is to begin by own_mounts "$@".
# shellcheck shell=bash

own_mounts()
{
	[ "$(id -u)" = 0 ] || { echo "${0##*/}: has to be root, for a root of its own"; exit 1; }
	[ -n "${OWN_MOUNTS:-}" ] || OWN_MOUNTS=1 exec unshare --mount "tools/${0##*/}" "$@"
	unset OWN_MOUNTS MAKEFLAGS BUILD # what is built there is built by itself
	work=$(mktemp -d)
	root=$work/root
	trap 'umount -lR "$work"/*/{proc,sys,dev} 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
	trap 'exit 1' INT TERM
}

# say FACT COMMAND...: the command's output is shown when it fails.
say()
{
	local start=$SECONDS
	"${@:2}" >"$work/log" 2>&1 </dev/null || { cat "$work/log"; echo "FAIL: $1"; return 1; }
	echo "$1 ($((SECONDS - start)) s)"
}

# bare_start SUITE: begin to make it, in the background. Its sources are the machine's own of this suite, or where the machine
# has another Debian, the suite of the same mirror.
bare_start()
{
	local known
	known=$(apt-get indextargets --format "\$(ORIGIN) deb \$(REPO_URI) \$(RELEASE) \$(COMPONENT)" 'Created-By: Packages' |
		sed -n 's/^Debian deb/deb/p' | sort -u)
	grep -E "^deb [^ ]+ $1([-/][^ ]*)? " <<<"$known" >"$work/sources.list" ||
		sed -n "s/^\(deb [^ ]*\) [a-z]* main$/\1 $1 main/p;T;q" <<<"$known" >"$work/sources.list"
	[ -s "$work/sources.list" ] || { echo "FAIL: apt has no source of Debian: apt-get update"; return 1; }
	# A mirror that stands still is as good: what it has is signed all the same.
	mmdebstrap --quiet --mode=root --variant=apt --dpkgopt=force-unsafe-io --aptopt='Acquire::Check-Valid-Until "false"' "$1" "$root" \
		"$work/sources.list" >"$work/mmdebstrap" 2>&1 </dev/null &
	bare=$!
}

bare_wait() { wait "$bare" || { cat "$work/mmdebstrap"; echo 'FAIL: no bare system'; return 1; }; }

# Wait for it, and give it what a system has.
bare_ready()
{
	bare_wait
	mount -t proc proc "$root/proc"
	mount --rbind /sys "$root/sys"
	mount --rbind /dev "$root/dev"
}

# The sources without what was built, in a new directory.
copy_sources() { mkdir "$1" && tar -c --exclude=./build --exclude=./.git . | tar -x -C "$1"; }

# A program or library of AArch64.
of_aarch64() { [ "$(od -An -tx1 -N4 "$1") $(od -An -tu2 -j18 -N2 "$1")" = ' 7f 45 4c 46    183' ]; }

inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"; }
get() { inside apt-get -qq -y --no-install-recommends "$@"; }
