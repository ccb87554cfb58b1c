#!/usr/bin/env bash
# interop.sh BUILD-DIRECTORY: what PyTorch, transformers and safetensors make of the folders that are written here, and
# the other way round (tests/hub/interop.py). Where the packages of tests/hub/interop.txt cannot be had (python_with.sh)
# it says so, and is skipped.
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
