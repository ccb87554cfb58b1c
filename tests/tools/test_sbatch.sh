#!/usr/bin/env bash
# Runs examples/cluster/train.sbatch with commands that stand in for Slurm's, and checks what it requeues and what it
# does not. tests/cluster/test_slurm.sh runs it with Slurm itself.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/srun" <<'EOF'
#!/usr/bin/env bash
echo "srun $*"
[ "$TIME" != over ] || kill -USR1 $PPID # as Slurm does beforehand
[ "$TIME" != over ] || until [ -e "$FOLDER/told" ]; do sleep 0.01; done
exit "$STATUS"
EOF
cat >"$folder/scontrol" <<'EOF'
#!/usr/bin/env bash
echo "scontrol $*" >&2
[ "$1" != show ] || printf 'JobId=17 JobName=fsdp\n   Comment=%s \n   Power=\n' "$COMMENT"
EOF
cat >"$folder/scancel" <<'EOF'
#!/usr/bin/env bash
echo "scancel $*"
touch "$FOLDER/told"
EOF
cat >"$folder/fsdp" <<'EOF'
#!/usr/bin/env bash
printf 'training:\n  enable: false\ncheckpoint:\n'
[ -z "${OFF:-}" ] || printf '  enable: false\n'
[ -n "${NO_FOLDER:-}" ] && printf '  # folder:\n' || printf '  folder: f\n'
EOF
chmod +x "$folder/fsdp" "$folder/srun" "$folder/scontrol" "$folder/scancel"

# job TIME STATUS COMMENT EXPECTED TEXT: srun ends with STATUS, the script with EXPECTED, and prints TEXT
job() {
    local status=0
    rm -f "$folder/told"
    TIME=$1 STATUS=$2 COMMENT=$3 FOLDER=$folder SLURM_RESTART_COUNT=3 SLURM_JOB_ID=17 SLURM_CPUS_PER_TASK=8 \
        PATH=$folder:$PATH bash "$FSDP_SOURCE/examples/cluster/train.sbatch" c.yaml --checkpoint.folder=f \
        >"$folder/out" 2>&1 || status=$?
    if [ $status != "$4" ] || ! grep -qF -- "$5" "$folder/out"; then
        echo "srun ends with $2, '$3' before, time $1: status $status, expected $4 and '$5':"
        cat "$folder/out"
        exit 1
    fi
}

stays() { # it has requeued nothing
    ! grep 'scontrol requeue' "$folder/out" || exit 1
}

job left 0 '' 0 'srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task=8 fsdp train c.yaml --checkpoint.folder=f'
stays
job over 143 failures:10 0 'status 143: the time is over; restart 4 goes on'
job over 143 '' 0 'scancel --signal=TERM 17'
job over 143 '' 0 'scontrol requeue 17'
job over 0 '' 0 'scancel --signal=TERM 17' # it was done already
stays
job over 1 failures:10 1 'not started again after 10 failures'
stays
job left 143 failures:10 143 'not started again after 10 failures' # SIGTERM because of another rank
stays
job left 137 failures:9 0 'scontrol update JobId=17 Comment=failures:10'
job left 137 '' 0 'status 137: a rank has failed; restart 4 goes on'
job left 1 '' 0 'scontrol update JobId=17 Comment=failures:1'
job left 1 '' 0 'scontrol requeue 17'
job left 2 '' 2 'the command line is wrong'
stays
NO_FOLDER=1 job left 0 '' 2 'there are no checkpoints (checkpoint.folder, checkpoint.enable): every start'
! grep 'srun' "$folder/out" || exit 1
OFF=1 job left 0 '' 2 'there are no checkpoints'
