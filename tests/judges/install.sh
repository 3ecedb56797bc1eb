#!/bin/bash
# Installs what the judges need on Debian 12 and is not there yet. As root, or with sudo.
#   install.sh                              everything
#   install.sh base-light|base|mpi|bench|abinit    only that group; base-light: numpy, redis, sqlite, gxx, browsers, strangers
set -eu
light="python3-numpy redis-server redis-tools sqlite3 g++ chromium firefox-esr"
light="$light python3 faketime libuid-wrapper libsocket-wrapper fakeroot fakechroot heaptrack ltrace"
light="$light php-cli php-xml php-mbstring php-zip php-intl php-curl php-gd php-mysql"
base="$light octave r-base-core abinit abinit-data"
mpi="openmpi-bin libopenmpi-dev gcc libc6-dev lammps quantum-espresso quantum-espresso-data hpcc"
bench="python3-numpy python3-scipy r-base-core zstd libjemalloc2 libmimalloc2.0"
case ${1:-all} in
    all) want="$base $mpi $bench" ;;
    base-light) want=$light ;;
    base) want=$base ;;
    mpi) want=$mpi ;;
    bench) want=$bench ;;
    abinit) want="abinit abinit-data" ;;
    *) echo "usage: $0 [base-light|base|mpi|bench|abinit]" >&2; exit 2 ;;
esac
missing=
for p in $want; do
    [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2>/dev/null | cut -c1-2)" = ii ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0
as=
[ "$(id -u)" = 0 ] || as=sudo
# policy-rc.d is not touched: the Redis that its package starts on port 6379 does not disturb the judges.
$as apt-get -qq update
# shellcheck disable=SC2086 # a list
$as env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install $missing > /dev/null
