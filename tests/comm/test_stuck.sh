#!/usr/bin/env bash
# Lets a function of MPI not come back on one rank: while ranks join, in the middle of a step, and while they leave.
# Every rank must end all the same, and say why.
set -eu
# shellcheck source=tests/comm/mpi.sh
. "$FSDP_SOURCE/tests/comm/mpi.sh"
export FSDP_ONE_LEVEL=1 # so that the ranks of one machine exchange messages
ASAN_OPTIONS+=:verify_asan_link_order=0

# Exits with the starter's status: 124 where somebody goes on for ever.
train() { # STARTER PLUGIN ARGUMENT...
    local starter=$1 stuck=$FSDP_BUILD/tests/preload_stuck_$2.so
    shift 2
    timeout 1200 "$starter" $alone -n 2 env LD_PRELOAD="$stuck" "$FSDP" train --model.preset=llama-1m \
        --model.n_layers=2 --data.path="$FSDP_SOURCE/tests/reference/tokens.bin" --training.seq_len=32 \
        --training.local_batch_size=1 --metrics.log_freq=1 --comm.timeout=2 --checkpoint.folder="$folder/run" \
        --checkpoint.interval=1 "$@"
}

# stuck FUNCTION FILE TEXT STARTER PLUGIN ARGUMENT...
stuck() {
    local function=$1 from=$2 text=$3 status=0
    shift 3
    rm -rf "$folder/run"
    STUCK_IN=$function STUCK_FROM=$from STUCK_RANK=1 FSDP_JOIN_TIMEOUT=${join:-600} train "$@" >"$folder/out" 2>&1 || status=$?
    if [ $status = 0 ] || [ $status = 124 ] || ! grep -qF -- "$text" "$folder/out"; then
        echo "$1 with a $function that does not come back (exit status $status) does not say '$text' but:"
        head -c 4000 "$folder/out"
        exit 1
    fi
}

tried=0
alone= # an option of the starter
try() { # STARTER PLUGIN
    if [ ! -e "$FSDP_BUILD/tests/preload_stuck_$2.so" ] || ! command -v "$1" >/dev/null; then
        echo "$2: not tried, there is no $1 or no plug-in for it"
        return
    fi
    tried=1
    # With nothing that is stuck, and no timeout that a busy machine or a slow disk reaches.
    FSDP_JOIN_TIMEOUT=600 train "$@" --training.steps=2 --comm.timeout=600 >"$folder/out" 2>&1 || {
        cat "$folder/out"
        exit 1
    }
    for function in MPI_Init_thread MPI_Comm_split_type; do
        join=2 stuck $function / "not all ranks have joined within 2 s (FSDP_JOIN_TIMEOUT)" "$@" --training.steps=2
        [ ! -e "$folder/run" ]
    done
    # Ranks of one machine that do not reach each other say so before all of joining is over.
    join=12 STUCK_APART=1 stuck nothing / "1 of 1 other processes of this machine have not come" "$@" --training.steps=2
    # The first message of all, before anybody knows of a config: it has the time that there was to join.
    join=6 stuck MPI_Isend / "comm.timeout is 6 s" "$@" --training.steps=2
    stuck MPI_Testsome "$folder/run/step-2" \
        "is in a call of the network that has not come back for 2 s (comm.timeout is 2 s): it was in call " \
        "$@" --training.steps=1000000
    "$FSDP" verify "$folder/run/step-2" >/dev/null
    stuck MPI_Finalize / ": not all ranks have left the network within 10 s" "$@" --training.steps=2
    "$FSDP" verify "$folder/run/step-2" >/dev/null
}

try mpirun.openmpi openmpi
# What ends a rank does not depend on the MPI: the second one in TEST_LONG, but for what its starter does below.
if [ "${TEST_LONG:-}" = 1 ] || [ $tried = 0 ]; then try mpiexec.mpich mpich; fi
[ $tried = 1 ] || exit 77

# A starter that lets the others go on when one has ended: it ends by itself, too.
if [ -e "$FSDP_BUILD/tests/preload_stuck_mpich.so" ] && command -v mpiexec.mpich >/dev/null; then
    alone=-disable-auto-cleanup
    stuck MPI_Testsome "$folder/run/step-2" "; rank 1 cannot leave the network, and is ended" \
        mpiexec.mpich mpich --training.steps=1000000
fi
