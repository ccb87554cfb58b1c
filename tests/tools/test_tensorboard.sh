#!/usr/bin/env bash
# TensorBoard's own reader reads what a run and its continuation have written: see event_files.py. It needs the package
# tensorboard in python3, or in the Python that FSDP_PYTHON names.
set -eu
python=${FSDP_PYTHON:-python3}
if ! "$python" -c "import tensorboard" 2>/dev/null; then
    echo "skipped: $python has no package tensorboard"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for i in $(seq 400); do echo "$i green bottles"; done >"$work/text.txt"

# train STEPS: as far as that, from the newest checkpoint
train() {
    "$FSDP_BUILD/fsdp" train -n 2 --model.preset=llama-1m --model.n_layers=2 --data.path="$work/text.txt" \
        --training.steps="$1" --training.seq_len=16 --training.local_batch_size=1 --validation.share=0.1 \
        --validation.freq=5 --checkpoint.folder="$work/run" --checkpoint.interval=4 --metrics.jsonl="$work/m.jsonl" \
        --metrics.tensorboard="$work/board" --metrics.histogram_freq=3 --metrics.mfu=measured >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
}

train 7
rm -r "$work/run/step-7" # the work after step 4 is lost
train 11
"$python" "$FSDP_SOURCE/tests/tools/event_files.py" "$work/board" "$work/m.jsonl"
