#!/usr/bin/env bash
# Trains a model folder on a text into a new model folder, with a power cut in between: a run on two ranks is killed,
# and goes on with three.
#
#     examples/interrupted.sh MODEL TEXT OUT [--section.key=value ...]
#
# MODEL is a Hugging Face folder, TEXT what it is trained on; OUT and OUT-checkpoints are made. $FSDP is the program.
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n '5p' "$0" >&2
    exit 2
fi
fsdp=${FSDP:-build/fsdp} model=$1 text=$2 out=$3
shift 3

train() {
    exec "$fsdp" train --model.path="$model" --data.path="$text" --data.order=shuffled --export.path="$out" \
        --training.steps=300 --training.seq_len=64 --training.global_batch_size=12 --training.local_batch_size=1 \
        --optimizer.lr=1e-3 --lr_scheduler.warmup_steps=20 --lr_scheduler.decay_type=cosine \
        --checkpoint.folder="$out-checkpoints" --checkpoint.interval=50 "$@"
}

(train -n 2 "$@") &
run=$!
until compgen -G "$out-checkpoints/step-*[0-9]" >/dev/null || ! kill -0 $run 2>/dev/null; do
    sleep 0.05
done
ranks=$(pgrep -d, -P $run || true)
kill -KILL $run 2>/dev/null || true
while ps -o stat= -p "${ranks:-0}" 2>/dev/null | grep -qv Z; do # they end with it, but a moment later
    sleep 0.05
done
wait $run || echo "killed: $(ls "$out-checkpoints")"

(train -n 3 "$@")
