#!/usr/bin/env bash
# examples/cluster/train.sbatch, with an srun and an scontrol that stand in for Slurm's: what it requeues, and what not.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/srun" <<'EOF'
#!/usr/bin/env bash
echo "srun $*"
exit "$STATUS"
EOF
cat >"$folder/scontrol" <<'EOF'
#!/usr/bin/env bash
echo "scontrol $*"
EOF
chmod +x "$folder/srun" "$folder/scontrol"

# job STATUS RESTARTS EXPECTED TEXT: srun ends with STATUS, the script with EXPECTED, and prints TEXT
job() {
    local status=0
    STATUS=$1 SLURM_RESTART_COUNT=$2 SLURM_JOB_ID=17 SLURM_CPUS_PER_TASK=8 PATH=$folder:$PATH \
        bash "$FSDP_SOURCE/examples/cluster/train.sbatch" c.yaml --checkpoint.folder=f >"$folder/out" 2>&1 || status=$?
    if [ $status != "$3" ] || ! grep -qF -- "$4" "$folder/out"; then
        echo "srun ends with $1 after $2 restarts: status $status, expected $3 and '$4':"
        cat "$folder/out"
        exit 1
    fi
}

stays() { # it has requeued nothing
    ! grep scontrol "$folder/out" || exit 1
}

job 0 0 0 'srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task=8 fsdp train c.yaml --checkpoint.folder=f'
stays
job 143 0 0 'status 143: the time is over; restart 1 goes on'
job 143 50 0 'scontrol requeue 17'
job 137 3 0 'status 137: a rank has failed; restart 4 goes on'
job 1 0 0 'scontrol requeue 17'
job 137 10 137 'not started again after 10 restarts'
stays
job 2 0 2 'the command line is wrong'
stays
