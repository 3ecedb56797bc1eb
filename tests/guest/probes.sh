#!/bin/bash
# guest: odp
# The probes. It takes a minute or more, which plain has no room for.
exec bash "$(dirname "$0")/../live/probes.sh"
