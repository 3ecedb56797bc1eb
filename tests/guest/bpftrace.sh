#!/bin/bash
# guest: odp
# The scripts of bpftrace, where root may trace. It takes a minute or more, which plain has no room for.
exec bash "$(dirname "$0")/../../extra/bpftrace/tests/scripts.sh"
