#!/usr/bin/env bash
# Starts ranks by a Slurm of two machines, which has daemons, key and folders of its own: with PMIx for Open MPI, with
# PMI2 for MPICH. Checks which rank is which, that the losses are the same, what ends ranks and what it leaves behind,
# and examples/cluster/train.sbatch through a failure, the end of its time, scancel and a machine that never starts.
set -eu
PATH=$PATH:/usr/sbin
# shellcheck source=tests/cluster/machines.sh
. "$FSDP_SOURCE/tests/cluster/machines.sh"
for tool in munged slurmctld slurmd srun sbatch scancel scontrol squeue; do
    command -v $tool >/dev/null || skip "there is no $tool here"
done
machines_enter "$@"
[ "$(cat /proc/self/setgroups)" = allow ] || skip "slurmd cannot set groups in a user namespace of one user"
machines_up 2
cd "$machines_folder"
fsdp=$FSDP
name=start

fail() {
    echo "$name: $1; it said:"
    grep -v '^step:\|^saved:' "$name.txt" | tail -n 60
    machines_on 0 scontrol -o show job | grep -o 'JobId=[0-9]*\|JobState=.* Dep\|Comment=.* Std'
    ps axf -o pid,ppid,stat,args
    grep -h 'error:' slurm/*.log | grep -v 'rmdir_recursive\|Failed to remove' | tail -n 20
    exit 1
}

export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 # MPICH's: it sees that these machines are processes of one

# ---- a Slurm ----

# Nothing that a busy machine does late is an error here, and a requeued job need not wait two minutes in the end. Ranks
# that heed no SIGTERM are for the test to find.
mkdir slurm slurm/state slurm/{spool,tmp}-m{0,1}
export SLURM_CONF=$PWD/slurm/slurm.conf
cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=m0(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$PWD/slurm/munge
CredType=cred/munge
StateSaveLocation=$PWD/slurm/state
SlurmdSpoolDir=$PWD/slurm/spool-%n
TmpFS=$PWD/slurm/tmp-%n
SlurmctldPidFile=$PWD/slurm/slurmctld.pid
SlurmdPidFile=$PWD/slurm/slurmd-%n.pid
SlurmctldLogFile=$PWD/slurm/slurmctld.log
SlurmdLogFile=$PWD/slurm/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_min_interval=1000,batch_sched_delay=0
SlurmdParameters=config_overrides
MessageTimeout=100
BatchStartTimeout=300
SlurmctldTimeout=300
SlurmdTimeout=0
KillWait=300
UnkillableStepTimeout=600
NodeName=m0 NodeAddr=10.77.0.1 CPUs=4
NodeName=m1 NodeAddr=10.77.0.2 CPUs=4
PartitionName=all Nodes=m0,m1 Default=YES State=UP
END
echo "CgroupPlugin=cgroup/v1" >slurm/cgroup.conf # which nothing of it uses

head -c 128 /dev/urandom >slurm/key
chmod 400 slurm/key
daemons=()
munged --foreground --force --key-file="$PWD/slurm/key" --socket="$PWD/slurm/munge" --pid-file="$PWD/slurm/munged.pid" \
    --seed-file="$PWD/slurm/seed" --num-threads=2 >slurm/munged.log 2>&1 &
daemons+=($!)
until [ -S slurm/munge ]; do
    kill -0 "${daemons[0]}" 2>/dev/null || skip "munged does not run here: $(tail -n 1 slurm/munged.log)"
    sleep 0.05
done
start_daemon() { # MACHINE COMMAND...
    machines_on "$@" >"slurm/$2-on-m$1.log" 2>&1 &
    daemons+=($!)
}
start_daemon 0 slurmctld -D
start_daemon 0 slurmd -D -N m0
start_daemon 1 slurmd -D -N m1
while [ "$(machines_on 0 sinfo -h -o %T 2>/dev/null)" != idle ]; do
    for daemon in "${daemons[@]}"; do
        kill -0 "$daemon" 2>/dev/null || skip "Slurm does not run here: $(tail -qn 1 slurm/slurm*.log | xargs -0)"
    done
    sleep 0.1
done

mpis=()
machines_on 0 srun --mpi=list >list.txt 2>&1
! grep -qw pmix list.txt || mpis+=(pmix)
[ ! -e "$FSDP_BUILD/libfsdp-mpich.so" ] || ! grep -qw pmi2 list.txt || mpis+=(pmi2)
[ ${#mpis[@]} != 0 ] || skip "this Slurm starts no MPI that there is a plug-in for: $(xargs <list.txt)"
echo "srun --mpi: ${mpis[*]}"

# ---- runs ----

options=(--model.preset=llama-1m --model.n_layers=2 --data.path="$FSDP_SOURCE/tests/reference/tokens.bin"
    --training.seq_len=32 --training.local_batch_size=1 --metrics.log_freq=1)
few=(--training.steps=6)
endless=(--training.steps=1000000 --checkpoint.interval=2 --checkpoint.keep_latest_k=4)

srun_on() { # MPI [OPTION OF SRUN...]: on 2 x 2 ranks
    machines_on 0 srun --mpi="$1" -N2 --ntasks-per-node=2 "${@:2}"
}

# Open MPI 4.1 calls what is not there yet where another rank's first message comes while a rank is in MPI_Init still:
# its trace has no frame but the signal's. Of 160 starts of three ranks on two busy cores it did so in two.
died_in_mpi_init() {
    grep -qF 'Failing at address: (nil)' "$name.txt" && ! grep -qF '[ 1]' "$name.txt"
}

# status_of COMMAND...: $status of it; words in $name.txt
status_of() {
    for try in 1 2 3; do
        status=0
        "$@" >"$name.txt" 2>&1 || status=$?
        if [ "${mpi:-}" = pmi2 ] && machines_mpich_stayed "$name.txt"; then
            status=0
        fi
        [ $status = 139 ] && died_in_mpi_init || return 0
        echo "Open MPI has died in MPI_Init (start $try of $name)"
    done
}

# refused STATUS: with which the ranks have ended; or PMIx, for which one was lost then, has ended those that were slower
refused() {
    [ "$status" = "$1" ] || { [ "$status" = 137 ] && grep -q 'mpi/pmix.*Error handler invoked' "$name.txt"; } ||
        fail "status $status"
}

said() {
    grep -Eq -- "$1" "$name.txt" || fail "nobody said '$1'"
}

# curve FILE: loss and norm of the gradients of each step, as the last run that took it had them
curve() {
    grep -o '^{"step": [0-9]*, "loss": [^,]*, "grad_norm": [^,]*' "$1" | sort -snk2,2 | awk -F, '
        { if ($1 != step && NR > 1) print line; step = $1; line = $0 } END { print line }'
}

same() { # FILE FILE
    diff <(curve "$1") <(curve "$2") || fail "has another curve"
    [ -n "$(curve "$1")" ] || fail "has no curve"
}

ranks_of() { # MACHINE...
    local machine
    for machine in "$@"; do machines_ranks "$machine"; done
}

# Slurm's own processes take a moment longer than srun.
no_steps() { [ -z "$(pgrep -f 'slurmstepd: \[')" ]; }

nothing_left() {
    [ -z "$(ranks_of 0 1)" ] || fail "there are ranks that have not ended"
    until no_steps && [ -z "$(machines_on 0 squeue -h)" ]; do sleep 0.05; done
}

# has_saved N: there is a checkpoint of step N or later in the folder $name
has_saved() {
    find "$name" -maxdepth 1 -name 'step-*' 2>/dev/null | grep -Eo '[0-9]+$' | awk -v n="$1" '$1 >= n { r = 1 } END { exit !r }'
}

until_saved() { # N COMMAND...: fails where COMMAND does before
    until has_saved "$1"; do
        "${@:2}" 2>/dev/null || fail "has ended by itself"
        sleep 0.05
    done
}

# end_stuck TEXT COMMAND...: until COMMAND succeeds. A rank whose peer has died may stay inside of Open MPI 4.1 for ever (a
# list of events that has become a circle). Slurm kills it after KillWait, this does some time after TEXT was said.
end_stuck() {
    local text=$1 left=60
    shift
    until "$@"; do
        if [ $left -lt 60 ] || grep -Eqs -- "$text" "$name.txt"; then left=$((left - 1)); fi
        if [ $left = 0 ]; then
            echo "$name: $(ranks_of 0 1 | wc -l) ranks have not ended by themselves"
            # shellcheck disable=SC2046
            kill -9 $(ranks_of 0 1) 2>/dev/null || true
        fi
        [ $left -gt -20000 ] || fail "does not end"
        sleep 0.05
    done
}

FSDP_TEST_MACHINES=2 "$fsdp" train -n 4 "${options[@]}" "${few[@]}" --metrics.jsonl=here.jsonl >here.txt 2>&1

# ---- who is who, and the same curve ----

cat >says_where <<END
#!/usr/bin/env bash
echo "\$SLURM_PROCID on \$(hostname)"
exec $fsdp "\$@"
END
chmod +x says_where

# What Slurm does is the same with either: but for TEST_LONG the second shows who is who.
first=("${mpis[0]}")
[ "${TEST_LONG:-}" != 1 ] || first=("${mpis[@]}")

for mpi in "${mpis[@]}"; do
    name=block-$mpi
    status_of srun_on "$mpi" "$fsdp" train "${options[@]}" "${few[@]}" --metrics.jsonl="$name.jsonl" -n 4
    [ $status = 0 ] || fail "status $status"
    said '^ranks:  4 on 2 machines, '
    said '^net:    sent: [0-9.]*[KMG]iB  received: '
    same "$name.jsonl" here.jsonl

    # Slurm deals the ranks to the machines in turn: 0 and 2 are on the first one.
    name=cyclic-$mpi
    status_of srun_on "$mpi" -m cyclic ./says_where train "${options[@]}" "${few[@]}" \
        --metrics.jsonl="$name.jsonl"
    [ $status = 0 ] || fail "status $status"
    said '^1 on m1$'
    said '^2 on m0$'
    said '^ranks:  4 on 2 machines, '
    same "$name.jsonl" here.jsonl
done

# On fake GPUs, by NCCL, whose address goes by the MPI.
if [ -e "$FSDP_BUILD/tests/libfsdp-cuda.so" ]; then
    mpi=${mpis[0]}
    for carrier in staged nccl; do
        name=gpus-$carrier
        status_of srun_on "$mpi" env FSDP_PLUGIN_PATH="$FSDP_BUILD/tests:$FSDP_BUILD" FSDP_FAKECUDA_DEVICES=2 "$fsdp" \
            train "${options[@]}" --training.steps=2 --training.device=cuda --comm.carrier=$carrier \
            --metrics.jsonl="$name.jsonl"
        [ $status = 0 ] || fail "status $status"
        said "group 'dp' of 4 ranks exchanges by carrier '$carrier'"
    done
    same gpus-nccl.jsonl gpus-staged.jsonl
fi

for mpi in "${first[@]}"; do
    name=other-number-$mpi
    status_of srun_on "$mpi" "$fsdp" train "${options[@]}" "${few[@]}" -n 3
    refused 2
    said '^fsdp: -n is 3, but .* has started 4 ranks'

    name=wrong-path-$mpi
    status_of srun_on "$mpi" --kill-on-bad-exit=0 "$fsdp" train "${options[@]}" "${few[@]}" --data.path=nowhere
    refused 1
    said "^fsdp: .*nowhere"
done

name=no-mpi
status_of srun_on none "$fsdp" train "${options[@]}" "${few[@]}"
[ $status = 1 ] || fail "status $status"
said '^fsdp: .*: srun has started this process, but without an MPI: with srun say --mpi=pmix for Open MPI, --mpi=pmi2 for MPICH'

name=uneven
status_of machines_on 0 srun --mpi="${mpis[0]}" -N2 -n3 "$fsdp" train "${options[@]}" "${few[@]}"
refused 1
said "machine 'm0' has 2 ranks, machine 'm1' has 1"

# ---- what ranks did last, for who asks by scancel, and of one that is killed ----

for mpi in "${first[@]}"; do
    name=flight-$mpi
    srun_on "$mpi" "$fsdp" train "${options[@]}" --training.steps=1000000 --metrics.flight_recorder="$name" \
        >"$name.txt" 2>&1 &
    run=$!
    until grep -qs '^step:  2' "$name.txt"; do
        kill -0 "$run" 2>/dev/null || fail "has ended by itself"
        sleep 0.05
    done
    machines_on 0 scancel --signal=USR2 "$(machines_on 0 squeue -h -s -o %i | grep '\.[0-9]*$' | head -n 1)"
    until [ "$(grep -c "the last calls of rank [0-3] are in .*$name'" "$name.txt")" = 4 ]; do
        kill -0 "$run" 2>/dev/null || fail "has ended by itself"
        sleep 0.05
    done
    killed=$(ranks_of 1 | tail -n 1)
    kill -9 "$killed"
    end_stuck "Killed" eval '! kill -0 "$run" 2>/dev/null'
    ! wait "$run"
    nothing_left
    name=read-$name
    status_of "$fsdp" flight "${name#read-}" --calls 3
    [ $status = 0 ] || fail "status $status"
    said '^train, 4 ranks'
    said "^rank [0-3] \\(machine 'm1', process [0-9]*\\): in step "
done

# ---- what ends a run ----

is_over() { ! kill -0 "$run" 2>/dev/null; }

# Slurm 22.05 does not always get a step started on a busy machine (a JobLaunchFailure): srun ends without a word then.
start() { # MPI [OPTION OF SRUN...]
    for try in 1 2 3; do
        srun_on "$@" "$fsdp" train "${options[@]}" "${endless[@]}" --checkpoint.folder="$name" >"$name.txt" 2>&1 &
        run=$!
        until has_saved 2 || is_over; do sleep 0.05; done
        if has_saved 2; then return; fi
        [ ! -s "$name.txt" ] || died_in_mpi_init || break
    done
    fail "has no checkpoint"
}

over() { # STATUS
    local status=0
    wait "$run" || status=$?
    [ $status = "$1" ] || fail "srun's status is $status, not $1"
    nothing_left
}

died="^fsdp: .*rank 2( .machine 'm1'. has died|: MPI says)" # what MPI says comes first at times

for mpi in "${first[@]}"; do
    name=killed-$mpi
    start "$mpi" --kill-on-bad-exit=0
    kill -9 "$(ranks_of 1 | head -n 1)"
    end_stuck "$died" is_over
    over 137
    said "$died" # somebody: MPICH's UCX may abort a process before it can

    name=cancelled-$mpi # SIGTERM to the ranks: the last step is saved
    start "$mpi"
    machines_on 0 scancel "$(machines_on 0 squeue -h -o %i)"
    over 143
    said '^fsdp: interrupted after step [0-9]+, which has a checkpoint'
done

# srun that is told itself kills them.
name=srun-told
start "${mpis[0]}"
kill -TERM "$(pgrep -xo srun)"
over 137
if grep -q interrupted "$name.txt"; then fail "has saved"; fi

# A machine whose plug-in cannot be loaded.
mkdir broken
echo >broken/libfsdp-openmpi.so
echo >broken/libfsdp-mpich.so
cat >some_broken <<END
#!/usr/bin/env bash
[ "\$(hostname)" = m0 ] || export FSDP_PLUGIN_PATH=$PWD/broken
exec $fsdp "\$@"
END
chmod +x some_broken
for mpi in "${first[@]}"; do
    name=broken-$mpi # without --kill-on-bad-exit the others wait until somebody ends them
    srun_on "$mpi" --kill-on-bad-exit=0 ./some_broken train "${options[@]}" "${few[@]}" >"$name.txt" 2>&1 &
    run=$!
    # srun says it of both at once, or of one after the other.
    until grep -qs 'm1: tasks 2-3: Exited' "$name.txt" ||
        [ "$(grep -cs 'm1: task [23]: Exited' "$name.txt")" = 2 ]; do
        kill -0 $run 2>/dev/null || fail "has ended by itself"
        sleep 0.05
    done
    said "^fsdp: .*: cannot load $PWD/broken/libfsdp-"
    until [ "$(ranks_of 0 | wc -l)" = 2 ]; do # they may have to start yet
        kill -0 $run || fail "the others do not wait"
        sleep 0.05
    done
    machines_on 0 scancel "$(machines_on 0 squeue -h -o %i)"
    over 143
done

# ---- a job that starts itself again; commands that stand in for Slurm's do it in tests/tools/test_sbatch.sh ----

[ "${TEST_LONG:-}" = 1 ] || exit 0

export FSDP=$fsdp FSDP_SRUN_MPI=${mpis[0]}

submit() { # KEYS...
    job=$(machines_on 0 sbatch --parsable --ntasks-per-node=2 --cpus-per-task=1 --output="$name.txt" \
        "$FSDP_SOURCE/examples/cluster/train.sbatch" steps.yaml "${options[@]}" --checkpoint.folder="$name" \
        --metrics.jsonl="$name.jsonl" "$@")
}

field() { machines_on 0 scontrol show job "$job" | sed -n "s/^.*\\b$1=\\([^ ]*\\).*/\\1/p"; }

is_live() { [[ $(field JobState) =~ PENDING|RUNNING ]]; }

is_waiting() { # requeued, and all processes of the run before have ended
    [ "$(field JobState) $(field Reason)" = "PENDING BeginTime" ] && no_steps
}

# A job with a checkpoint of step 2: another one where Open MPI has died before.
begin_job() { # KEYS...
    for try in 1 2 3; do
        submit "$@"
        until has_saved 2 || is_waiting || ! is_live; do sleep 0.05; done
        if has_saved 2; then return; fi
        died_in_mpi_init || break
        machines_on 0 scancel "$job"
        nothing_left
        rm -rf "$name" "$name.jsonl" "$name.txt"
    done
    fail "has no checkpoint"
}

# Slurm has it wait for two minutes.
go_on() {
    until [ "$(field JobState)" != PENDING ]; do
        machines_on 0 scontrol update "JobId=$job" StartTime=now 2>/dev/null || true
        sleep 0.1
    done
}

name=job
printf 'training:\n  steps: 1000000\n' >steps.yaml
begin_job --checkpoint.interval=2
kill -9 "$(ranks_of 1 | head -n 1)"
end_stuck "$died" is_waiting
said '^status 137: a rank has failed; restart 1 goes on from the newest checkpoint$'
said "$died"
[ "$(field Comment)" = failures:1 ] || fail "the failure is not counted"
newest=$(find "$name" -maxdepth 1 -name 'step-*' | grep -Eo '[0-9]+$' | sort -n | tail -n 1)
go_on
until_saved $((newest + 2)) is_live
machines_on 0 scancel --batch --signal=USR1 "$job" # as --signal does when the time is nearly over
end_stuck '^fsdp: interrupted' is_waiting
said '^status 143: the time is over; restart 2 goes on from the newest checkpoint$'
said '^fsdp: interrupted after step [0-9]+, which has a checkpoint'
[ "$(field Comment)" = failures:1 ] || fail "the end of the time is counted as a failure"
steps=$(($(curve "$name.jsonl" | wc -l) + 2))
printf 'training:\n  steps: %d\n' $steps >steps.yaml
go_on
while is_live; do sleep 0.1; done
[ "$(field JobState)" = COMPLETED ] || fail "ends as $(field JobState)"
[ "$(grep -c '^resume:' "$name.txt")" = 2 ] || fail "has not gone on from a checkpoint twice"
FSDP_TEST_MACHINES=2 "$fsdp" train -n 4 "${options[@]}" --training.steps=$steps --metrics.jsonl=all.jsonl >here.txt 2>&1
same "$name.jsonl" all.jsonl
nothing_left

# A job that is cancelled stays so.
name=cancelled-job
begin_job "${endless[@]}"
machines_on 0 scancel "$job"
while is_live || [ "$(field JobState)" = COMPLETING ] || ! no_steps; do sleep 0.05; done
[ "$(field JobState)" = CANCELLED ] || fail "it is $(field JobState)"
if grep -q 'goes on from the newest' "$name.txt"; then fail "starts itself again"; fi
nothing_left

# What can never start is not started for ever: those that wait for it die of SIGTERM, which is no end of the time. (srun of
# Slurm 22.05 may end with status 0 here on a busy machine, and the job then as if done.)
name=broken-job
FSDP=$PWD/some_broken MOST_RESTARTS=1 submit
end_stuck '^status' is_waiting
said '^status 143: a rank has failed; restart 1 goes on'
go_on
while is_live; do sleep 0.1; done
said '^status 143: not started again after 1 failures$'
[ "$(field JobState)" = FAILED ] || fail "ends as $(field JobState)"
nothing_left
