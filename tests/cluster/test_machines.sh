#!/usr/bin/env bash
# Checks the machines of machines.sh themselves, and messages between them.
set -eu
# shellcheck source=tests/cluster/machines.sh
. "$FSDP_SOURCE/tests/cluster/machines.sh"
machines_enter "$@"
program=$FSDP_BUILD/tests/program_network
title="Open MPI"
[ "$MACHINES_MPI" = openmpi ] || title=MPICH

machines_up 3
[ "$(machines_on 1 hostname)" = m1 ]
said=$(machines_run 2 "$program")
grep -q "6 ranks of $title .* on 'm0', machines 0 0 2 2 4 4" <<<"$said" || {
    echo "six ranks on three machines said: $said"
    exit 1
}
before=$(machines_bytes 2)
machines_run 1 "$program" >/dev/null
[ $(($(machines_bytes 2) - before)) -gt 18000000 ] # two rings of 9 MiB and small ones

machines_answers 2 0
machines_cut 2
if machines_answers 2 0; then exit 1; fi
machines_mend 2
machines_answers 0 2

machines_on 1 sleep 1000 2>/dev/null &
while [ -z "$(machines_pids 1)" ]; do sleep 0.01; done
machines_kill 1
wait $! 2>/dev/null || [ $? = 137 ]
[ -z "$(machines_pids 1)" ]
[ "$(machines_on 1 hostname)" = m1 ] # it can be used again
