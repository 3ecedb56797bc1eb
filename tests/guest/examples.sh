#!/bin/bash
# guest: plain
# The examples of pages that need a device of RDMA.
exec bash "$(dirname "$0")/../live/examples.sh" verbs
