#!/usr/bin/env bash
# Runs the suite of collectives (tests/comm) on several machines, in every shape that differs.
set -eu
# shellcheck source=tests/cluster/machines.sh
. "$FSDP_SOURCE/tests/cluster/machines.sh"
machines_enter "$@"
program=$FSDP_BUILD/tests/program_ranks

suite() { # MACHINES K: on the first of the machines
    FSDP_TEST_MACHINES=$1 machines_run "$2" "$program" collectives >"$machines_folder/out" 2>&1 || {
        echo "$1 machines with $2 ranks each failed:"
        cat "$machines_folder/out"
        exit 1
    }
}

machines_up 3
suite 3 1
suite 3 2
machines_fewer 2
suite 2 1
suite 2 2
MACHINES_MAP=node suite 2 2 # ranks 0 and 2 on the first machine: they are numbered by machine all the same
