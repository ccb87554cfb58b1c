#!/usr/bin/env bash
# interop.sh BUILD-DIRECTORY: checks that PyTorch, transformers and safetensors read the folders that are written here,
# and the other way round (tests/hub/interop.py). It says so and is skipped if the packages of tests/hub/interop.txt
# cannot be installed (python_with.sh).
set -eu
cd "$(dirname "$0")/.."
build=$1
if ! python=$(tools/python_with.sh "$build" tests/hub/interop.txt torch transformers safetensors tokenizers); then
    echo "test-interop: skipped"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" tests/hub/interop.py "$build/tests/program_interop" "$folder"
