#!/usr/bin/env bash
# Checks the plug-ins of the MPIs that are installed: processes that mpirun starts exchange messages, and are the ranks
# of a world.
set -eu
# shellcheck source=tests/comm/mpi.sh
. "$FSDP_SOURCE/tests/comm/mpi.sh"

# says TEXT COMMAND...: the command says the text; its exit status is in $status
says() {
    local text=$1
    shift
    status=0
    timeout 1200 "$@" >"$folder/out" 2>&1 || status=$?
    [ -z "$text" ] || grep -qF -- "$text" "$folder/out" || {
        echo "$* (exit status $status) does not say '$text' but:"
        head -c 4000 "$folder/out"
        exit 1
    }
}

# well TEXT STARTER RANKS PROGRAM [ARGUMENT]
well() {
    local text=$1 starter=$2 ranks=$3 program=$4
    shift 4
    says "$text" "$starter" -n "$ranks" "$program" "$@"
    [ $status = 0 ] || {
        echo "$starter -n $ranks $program $*: exit status $status, it said:"
        head -c 4000 "$folder/out"
        exit 1
    }
}

# Without TEST_LONG a sanitizer watches the plug-in for one MPI alone, and not what the program refuses.
brief=
[ "${TEST_LONG:-}" = 1 ] || ! grep -q '^FSDP_SANITIZE:STRING=.' "$FSDP_BUILD/CMakeCache.txt" || brief=1

# flight STARTER: what ranks did last is written when they are asked for it, and is there of one that is killed
flight() {
    local run pid pids killed records=$folder/flight
    rm -rf "$records"
    : >"$folder/out"
    FLIGHT_OF=$records "$1" -n 3 "$FSDP" train --model.preset=llama-1m --data.path="$0" --training.seq_len=8 \
        --training.steps=1000000 --metrics.log_freq=1 --metrics.flight_recorder="$records" >"$folder/out" 2>&1 &
    run=$!
    until grep -q '^step:  2' "$folder/out"; do
        kill -0 $run 2>/dev/null || { cat "$folder/out"; exit 1; }
        sleep 0.05
    done
    pids=$(for pid in $(pgrep -x fsdp); do
        ! grep -qsz "^FLIGHT_OF=$records\$" "/proc/$pid/environ" || echo "$pid"
    done)
    # shellcheck disable=SC2086
    kill -USR2 $pids
    until [ "$(grep -c "the last calls of rank [0-2] are in '$records'" "$folder/out")" = 3 ]; do
        kill -0 $run 2>/dev/null || { cat "$folder/out"; exit 1; }
        sleep 0.05
    done
    killed=$(echo "$pids" | tail -n 1)
    kill -9 "$killed"
    ! wait $run
    says "train, 3 ranks" "$FSDP" flight "$records" --calls 3
    grep -q "^rank [0-2] (machine .*, process $killed): in step " "$folder/out" || { cat "$folder/out"; exit 1; }
}

tried=0
try() { # STARTER PLUGIN TITLE
    local network=$FSDP_BUILD/tests/program_network ranks=$FSDP_BUILD/tests/program_ranks
    if [ ! -e "$FSDP_BUILD/libfsdp-$2.so" ] || ! command -v "$1" >/dev/null; then
        echo "$3: not tried, there is no $1 or no plug-in for it"
        return
    fi
    local first=$((1 - tried))
    tried=1
    well "4 ranks of $3" "$1" 4 "$network" messages
    well "1 ranks of $3" "$1" 1 "$network" messages
    well "" "$1" 2 "$network" refused
    well "told: MPI's rank 1 has sent 10 bytes where this rank expects 20" "$1" 2 "$network" short
    well "told: a message of 20 bytes from MPI's rank 1 was lost: MPI says '" "$1" 2 "$network" long
    well "told: MPI's rank 1 has sent 64 bytes where at most 10 are expected" "$1" 2 "$network" polled
    UCX_TLS=tcp,self well "" "$1" 2 "$network" late # as between machines: see fall_silent
    well "" "$1" 2 "$network" twice
    well "" "$1" 2 "$network" initialised
    well "" "$1" 2 "$network" funneled

    well "" "$1" 4 "$ranks" collectives
    well "" "$1" 2 "$ranks" both_leave
    well "" "$1" 1 "$ranks" both_leave
    # As on two machines. A starter may end the other rank before it has told what it was told.
    FSDP_ONE_LEVEL=1 says " was told" "$1" -n 2 "$ranks" circle
    flight "$1"
    # Whom the program refuses to start with does not depend on the MPI: the second one in TEST_LONG.
    [ -z "$brief" ] || return 0
    [ $first = 1 ] || [ "${TEST_LONG:-}" = 1 ] || return 0
    FSDP_PLUGIN_PATH="$folder" says "there is no libfsdp-$2.so in FSDP_PLUGIN_PATH ($folder)" "$1" -n 2 "$ranks"
    [ $status != 0 ]
    # Only rank 0 reads the config: the other one is not to wait for it in MPI_Init.
    says "cannot open '$folder/nope.yaml'" "$1" -n 2 "$FSDP" train "$folder/nope.yaml"
    [ $status != 0 ] && [ $status != 124 ]
    says "training.stepz is not a key of training" "$1" -n 2 "$FSDP" train --training.stepz=1
    [ $status != 0 ] && [ $status != 124 ]
    says "there is no '$folder/nope'" "$1" -n 1 "$FSDP" eval "$folder/nope" --data="$0" : \
        -n 1 "$ranks" both_leave
    [ $status != 0 ] && [ $status != 124 ]
    # Ranks of several builds, and with several command lines.
    local fsdp=$FSDP line=(train --data.path="$0" --training.seq_len=8 --training.steps=1)
    python3 "$FSDP_SOURCE/tests/support/other_build.py" "$fsdp" "$folder/other"
    says "start all ranks from one build" "$1" -n 1 "$fsdp" "${line[@]}" : -n 1 "$folder/other" "${line[@]}"
    [ $status != 0 ] && [ $status != 124 ]
    mkdir -p "$folder/plugins"
    python3 "$FSDP_SOURCE/tests/support/other_build.py" "$FSDP_BUILD/libfsdp-$2.so" "$folder/plugins/libfsdp-$2.so"
    says "runs its plug-in of fsdp" "$1" -n 1 "$fsdp" "${line[@]}" : \
        -n 1 env FSDP_PLUGIN_PATH="$folder/plugins" "$fsdp" "${line[@]}"
    [ $status != 0 ] && [ $status != 124 ]
    says "--training.seed is not given and 3: start all ranks with the same" "$1" -n 1 "$fsdp" "${line[@]}" : \
        -n 1 "$fsdp" "${line[@]}" --training.seed=3
    [ $status != 0 ] && [ $status != 124 ]
    # One that cannot, or does not, join the others is not to be waited for.
    says "train: unknown option '--bogus'" "$1" -n 1 "$fsdp" train --bogus : -n 1 "$fsdp" "${line[@]}"
    [ $status != 0 ] && [ $status != 124 ]
    says "there is no libfsdp-$2.so" "$1" -n 1 "$fsdp" "${line[@]}" : \
        -n 1 env FSDP_PLUGIN_PATH= "$folder/other" "${line[@]}"
    [ $status != 0 ] && [ $status != 124 ]
    # The one that waits begins when the other is about to end. Open MPI may notice it first, and end the one that waits.
    rm -f "$folder/ends"
    # shellcheck disable=SC2016
    FSDP_JOIN_TIMEOUT=4 ENDS=$folder/ends says "" "$1" \
        -n 1 sh -c 'until [ -e "$ENDS" ]; do sleep 0.05; done; exec "$0" "$@"' "$fsdp" "${line[@]}" : \
        -n 1 sh -c '"$0" --version; : >"$ENDS"' "$fsdp"
    grep -qE "of 2 processes that were started here 1 has ended without joining the others|exiting improperly" \
        "$folder/out" || { cat "$folder/out"; exit 1; }
    [ $status != 0 ] && [ $status != 124 ]
    FSDP_MPI=mvapich says "FSDP_MPI is 'mvapich', not openmpi, mpich or none" "$1" -n 2 "$ranks"
    [ $status != 0 ]
}

try mpirun.openmpi openmpi "Open MPI"
[ -n "$brief" ] && [ $tried = 1 ] || try mpiexec.mpich mpich MPICH
[ $tried = 1 ] || exit 77

# The one that has not started them knows of no others.
if [ -e "$FSDP_BUILD/libfsdp-openmpi.so" ] && command -v mpiexec.mpich >/dev/null; then
    FSDP_MPI=openmpi says "has started 2 ranks, but Open MPI knows of 1: this process was started by another MPI" \
        mpiexec.mpich -n 2 "$FSDP_BUILD/tests/program_ranks"
    [ "$status" != 0 ]
fi
