#!/usr/bin/env bash
# Runs examples/interrupted.sh on a very small model: it is killed, continues with another number of ranks, and the
# result is read again.
set -eu
export FSDP="$FSDP_BUILD/fsdp" OMP_NUM_THREADS=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for i in $(seq 60); do
    echo "$i bottles of beer on the wall, $i bottles of beer."
done >"$folder/text.txt"
if ! "$FSDP_SOURCE/examples/interrupted.sh" "$FSDP_SOURCE/tests/reference/models/tiny-llama" "$folder/text.txt" \
    "$folder/out" --training.steps=40 --checkpoint.interval=2 >"$folder/log" 2>&1; then
    cat "$folder/log"
    exit 1
fi
grep -q '^resume: from step [0-9]*[02468] of .*, of 2 ranks' "$folder/log" || { cat "$folder/log"; exit 1; }
grep -q '^ranks:  3' "$folder/log"
grep -q 'model written to ' "$folder/log"
test -d "$folder/out-checkpoints/step-40"
"$FSDP" inspect "$folder/out" >/dev/null
