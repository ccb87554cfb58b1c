#!/usr/bin/env bash
# fsdp/status.h: no public function follows a NULL pointer, whichever of its arguments it is. All headers are read, so
# that a new function is among them.
set -eu
command -v python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 "$FSDP_SOURCE/tests/tools/null_arguments.py" "$FSDP_SOURCE/include" >"$folder/calls.inc"
cc -std=gnu17 -O0 -I"$FSDP_SOURCE/include" -I"$folder" "$FSDP_SOURCE/tests/tools/null_arguments.c" \
    -L"$FSDP_BUILD" -lfsdp -Wl,-rpath,"$FSDP_BUILD" -o "$folder/null_arguments"
cd "$folder"
./null_arguments "$FSDP_SOURCE/tests/reference/finetune/byte-chat"
