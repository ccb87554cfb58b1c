#!/usr/bin/env bash
# Kills and stops ranks; lets machines lose all their processes, stand still or lose the network, in the middle of steps
# and of saves. Every rank must end within the timeout, a message must say who and where, and the run must continue from
# the newest checkpoint as if nothing had happened. There is one failure of each of six kinds; with TEST_LONG=1 there
# are a hundred. Ranks also fail before they have joined: then the time for joining counts.
set -eu
# shellcheck source=tests/cluster/machines.sh
. "$FSDP_SOURCE/tests/cluster/machines.sh"
machines_enter "$@"
machines_up 2
cd "$machines_folder"
fsdp=$FSDP
options=(--model.preset=llama-1m --model.n_layers=2 --data.path="$FSDP_SOURCE/tests/reference/tokens.bin"
    --training.seq_len=32 --training.local_batch_size=1 --metrics.log_freq=1)
timeout=2 # comm.timeout

fail() {
    echo "$name: $1; it said:"
    cat "$name.txt"
    exit 1
}

# Whether it has saved step 2 or a later one. That of step 2 goes when there are four later ones.
has_saved() {
    local saved
    for saved in "$name"/step-*; do
        if [[ $saved =~ /step-([2-9]|[0-9]{2,})$ ]]; then return 0; fi
    done
    return 1
}

# start K: a run on 2 x K ranks that saves in every step and would go on for hours; returns when it has saved step 2
start() {
    machines_run "$1" "$fsdp" train "${options[@]}" --training.steps=1000000 --metrics.jsonl="$name.jsonl" \
        --comm.timeout=$timeout --checkpoint.folder="$name" --checkpoint.interval=1 --checkpoint.keep_latest_k=4 \
        >"$name.txt" 2>&1 &
    run=$!
    until has_saved; do
        kill -0 "$run" 2>/dev/null || fail "ended by itself"
        sleep 0.05
    done
    sleep 0.$((RANDOM % 5))$((RANDOM % 10)) # anywhere in a step or a save
}

one_rank_of() { machines_ranks "$1" | head -n 1; }

# ended I...: all ranks of these machines, well before anybody who waits for ever would
ended() {
    local machine left=12000
    for machine in "$@"; do
        while [ -n "$(machines_ranks "$machine")" ]; do
            [ $((left--)) -gt 0 ] || fail "there are ranks on machine m$machine that have not ended"
            sleep 0.05
        done
    done
}

# said TEXT: somebody. What ranks say last mpirun may pass on after they have ended.
said() {
    local left=12000
    while kill -0 "$run" 2>/dev/null && [ $((left--)) -gt 0 ] && ! grep -Eq "$1" "$name.txt"; do
        sleep 0.05
    done
    grep -Eq "$1" "$name.txt" || fail "nobody said '$1'"
}

# over: mpirun has ended with an error, and nothing is left. Its daemons may take a moment longer.
over() {
    local left=12000
    ended 0 1
    if wait "$run"; then fail "mpirun says that all is well"; fi
    until [ -z "$(machines_pids 0)$(machines_pids 1)" ]; do
        [ $((left--)) -gt 0 ] || fail "there are processes that have not ended"
        sleep 0.05
    done
}

# Ends mpirun and its daemons, which do not end where they have lost each other.
end_daemons() {
    machines_kill 0
    machines_kill 1
    wait "$run" 2>/dev/null || true
}

# curve FILE COUNT: of the last steps in it
curve() {
    grep -o '^{"step": [0-9]*, "loss": [^,]*, "grad_norm": [^,]*' "$1" | tail -n "$2"
}

# goes_on K: from the newest checkpoint, on two machines; and from the one before, on one machine, the same way
goes_on() {
    local before newest
    read -r before newest <<<"$(basename -a "$name"/step-* | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 2 | xargs)"
    [ -n "$newest" ] || fail "there are too few checkpoints: $newest, $before"
    "$fsdp" verify "$name/step-$newest" >>"$name.txt" 2>&1 || fail "the newest checkpoint is damaged"
    if [ "${TEST_LONG:-}" != 1 ] && [ $((trial % 2)) = 1 ]; then
        machines_run "$1" "$fsdp" train "${options[@]}" --training.steps=$((newest + 1)) --checkpoint.folder="$name" \
            >>"$name.txt" 2>&1 || fail "does not go on"
        rm -rf "$name"
        return
    fi
    mkdir "$name.before"
    cp -r "$name/step-$before" "$name.before"
    machines_run "$1" "$fsdp" train "${options[@]}" --training.steps=$((newest + 2)) --checkpoint.folder="$name" \
        --metrics.jsonl="$name.on.jsonl" >>"$name.txt" 2>&1 || fail "does not go on"
    FSDP_TEST_MACHINES=2 "$fsdp" train -n $((2 * $1)) "${options[@]}" --training.steps=$((newest + 2)) \
        --checkpoint.folder="$name.before" --metrics.jsonl="$name.before.jsonl" >>"$name.txt" 2>&1 ||
        fail "does not go on from the checkpoint before"
    [ "$(curve "$name.on.jsonl" 9 | wc -l)" = 2 ] || fail "has not gone on for two steps"
    diff <(curve "$name.on.jsonl" 2) <(curve "$name.before.jsonl" 2) || fail "goes on in another way"
    rm -rf "$name" "$name.before"
}

# ---- what happens; each with ranks on a machine ----

rank_killed() {
    kill -9 "$(one_rank_of 1)"
    over
    said "has died|on signal 9|RUNNING AT m1" # the last are mpiexec's words, which ends all the others
}

rank_stopped() {
    local pid
    pid=$(one_rank_of 1)
    kill -STOP "$pid"
    if [ "$MACHINES_MPI" = mpich ] && [ "$ranks" = 1 ]; then # nobody beside it fails: mpiexec waits for it
        ended 0
        [ "$(machines_ranks 1)" = "$pid" ] || fail "the stopped rank has ended"
        kill -CONT "$pid"
    fi
    over
    said "rank [0-9] \(machine 'm1'\) has not been heard of for [0-9.]+ s \(comm.timeout is 2 s\)[;:] it was |rank [0-9](, which)? is stopped"
}

machine_killed() {
    machines_kill 1
    over
    said "daemon|mpiexec@m0.*closed|rank [0-9] \(machine 'm1'\)" # mpirun's words, where it was first to end the others
}

# Daemons stay.
link_cut() {
    machines_cut 1
    ended 0 1
    said "rank [0-9] \(machine 'm1'\) has not been heard of for [0-9.]+ s \(comm.timeout is 2 s\)[;:] it was "
    end_daemons
    machines_mend 1
}

# Its ranks find the world broken when they go on.
machine_stopped() {
    local pids
    pids=$(machines_pids 1)
    # shellcheck disable=SC2086
    kill -STOP $pids
    ended 0
    said "rank [0-9] \(machine 'm1'\) has not been heard of for [0-9.]+ s \(comm.timeout is 2 s\)[;:] it was "
    # shellcheck disable=SC2086
    kill -CONT $pids 2>/dev/null || true
    ended 1
    end_daemons
}

first_machine_killed() { # with mpirun on it
    machines_kill 0
    ended 0 1
    end_daemons
}

kinds=(rank_killed rank_stopped machine_killed link_cut machine_stopped first_machine_killed)
trials=6
[ "${TEST_LONG:-}" != 1 ] || trials=100
for ((trial = 0; trial < trials; trial++)); do
    kind=${kinds[trial % 6]}
    ranks=$((1 + (trial / 6 + trial) % 2))
    name=$kind-$trial
    start $ranks
    $kind
    goes_on $ranks
done

# ---- before they have joined ----

# start_later CONDITION: a rank on each machine, that begins when it holds there
start_later() {
    # shellcheck disable=SC2016
    FSDP_JOIN_TIMEOUT=$timeout machines_run 1 sh -c "$1"'; exec "$0" "$@"' "$fsdp" train "${options[@]}" \
        --training.steps=1 >"$name.txt" 2>&1 &
    run=$!
}

begun() { # I...: the ranks on these machines
    local machine
    for machine in "$@"; do
        while [ -z "$(machines_ranks "$machine")" ]; do
            kill -0 "$run" 2>/dev/null || fail "ended before it began"
            sleep 0.05
        done
    done
}

name=rank-stopped-before-joining
start_later '[ "$(hostname)" = m0 ] || kill -STOP $$'
begun 0
ended 0
said "not all ranks have joined within 2 s \(FSDP_JOIN_TIMEOUT\)"
end_daemons

name=link-cut-before-joining
start_later "touch $machines_folder/ready-\$(hostname); until [ -e $machines_folder/go ]; do sleep 0.01; done"
until [ -e ready-m0 ] && [ -e ready-m1 ]; do
    kill -0 "$run" 2>/dev/null || fail "ended before it began"
    sleep 0.05
done
machines_cut 1
touch go
begun 0 1
ended 0 1
said "not all ranks have joined within 2 s \(FSDP_JOIN_TIMEOUT\)"
end_daemons
