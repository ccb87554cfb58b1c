#!/usr/bin/env bash
# Reads real Parquet files, written by Python's package pyarrow. The library that reads is Arrow GLib where
# FSDP_ARROW_LIBRARIES names its folder; otherwise pyarrow's C++ libraries, with the few functions of Arrow GLib over
# them (arrow_shim.cpp). It is skipped without pyarrow (FSDP_PYARROW names a python3 that has it), or without a compiler
# of C++20.
set -eu
python=${FSDP_PYARROW:-python3}
here=$FSDP_SOURCE/tests/cli
chat=$FSDP_SOURCE/tests/reference/finetune/byte-chat
skip() {
    echo "skipped: $1"
    exit 77
}
"$python" -c 'import pyarrow.parquet' 2>/dev/null || skip "there is no pyarrow (FSDP_PYARROW names a python3 that has it)"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
if [ -z "${FSDP_ARROW_LIBRARIES:-}" ]; then
    libraries=$("$python" -c 'import pyarrow; print(pyarrow.get_library_dirs()[0])')
    headers=$("$python" -c 'import pyarrow; print(pyarrow.get_include())')
    version=$(basename "$libraries"/libparquet.so.* | sed 's/.*so\.//')
    "${CXX:-g++}" -std=c++20 -shared -fPIC -isystem "$headers" "$here/arrow_shim.cpp" -Wl,-rpath,"$libraries" \
        -o "libparquet-glib.so.$version" "$libraries/libarrow.so.$version" "$libraries/libparquet.so.$version" ||
        skip "the compiler does not build arrow_shim.cpp"
    export FSDP_ARROW_LIBRARIES=$folder
fi
"$python" "$here/write_parquet.py"
echo '{% for message in messages %}{{ message | tojson }}{% endfor %}' >json.jinja

# same NAME OPTION...: the rows of NAME.parquet and NAME.jsonl are the same tokens.
same() {
    name=$1
    shift
    for kind in parquet jsonl; do
        mkdir -p $kind
        "$FSDP" tokenize "$name.$kind" -o "$kind/$name" --tokenizer "$chat" "$@" >out 2>&1 ||
            { echo "$name.$kind $*:"; cat out; exit 1; }
    done
    cmp "parquet/$name" "jsonl/$name"
}
for name in messages prompt alpaca sharegpt pairs text empty; do
    same $name --threads 2
done
same types --chat-template json.jinja --train-on all

# refused NAME TEXT: it is, and this is said.
refused() {
    ! "$FSDP" tokenize "$1.parquet" -o bad --tokenizer "$chat" >out 2>&1 || { echo "$1.parquet is read"; exit 1; }
    grep -qF -- "$2" out || { echo "$1.parquet does not say '$2' but:"; cat out; exit 1; }
}
refused decimal "column 'price' is of Arrow's type 'd:9,2'"
refused null "null.parquet': row 2: field 'text' is not a string"
refused latin "latin.parquet': row 2: it is not UTF-8 at column 10 (byte 0xff)"
refused cut "it does not end with PAR1"
refused damaged "damaged.parquet': Arrow cannot read group 1 of "

# A run, its mixture and its end are those of the JSON lines.
mkdir mixed
mv messages.parquet messages.jsonl mixed
train() {
    "$FSDP" train --model.preset=llama-1m --model.n_layers=1 --model.dim=48 --model.n_heads=3 --model.n_kv_heads=1 \
        --model.ffn_dim=100 --model.vocab_size=512 --model.max_seq_len=1024 --training.seq_len=1024 \
        --training.local_batch_size=1 --training.threads=1 --data.tokenizer="$chat" --data.cache="$1" \
        --checkpoint.folder="$1/run" "${@:2}" >"$1.log" 2>&1 || { tail -5 "$1.log" >&2; exit 1; }
    grep -o 'step: *6  loss: *[0-9.]*' "$1.log"
}
for kind in parquet jsonl; do
    mix="[{path: mixed/messages.$kind, weight: 2}, {path: prompt.$kind}]"
    train $kind -n 2 --data.mixture="$mix" --training.steps=6 --checkpoint.interval=3 >$kind.end
    rm -r $kind/run/step-6
    train $kind -n 2 --data.mixture="$mix" --training.steps=6 >$kind.again
done
cmp parquet.end jsonl.end
cmp parquet.end parquet.again
grep -q loss parquet.end
