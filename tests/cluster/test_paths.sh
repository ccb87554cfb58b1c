#!/usr/bin/env bash
# Checks that a path which some machine cannot see, or cannot write to, is an error at the start that names the machine
# and the path: for the first machine and for another, with every command. Machines have mounts of their own here.
set -eu
export MACHINES_MOUNTS=1
# shellcheck source=tests/cluster/machines.sh
. "$FSDP_SOURCE/tests/cluster/machines.sh"
machines_enter "$@"
machines_up 2
cd "$machines_folder"
fsdp=$FSDP
mkdir data model checkpoints exports
cp "$FSDP_SOURCE/tests/reference/tokens.bin" data
cp -r "$FSDP_SOURCE/tests/reference/models/tiny-gpt2" model
train=("$fsdp" train --model.preset=llama-1m --training.steps=2 --training.seq_len=32 --training.local_batch_size=1
    --metrics.log_freq=1)
tokens=--data.path=data/tokens.bin
seen=--data.path=$FSDP_SOURCE/tests/reference/tokens.bin

fail() {
    echo "$1; it said:"
    cat out
    exit 1
}

# refused TEXT COMMAND...: by one line that has the text, before the first step
refused() {
    local text=$1
    shift
    if machines_run 1 timeout 1200 "$@" >out 2>&1; then fail "not refused: $*"; fi
    grep '^fsdp: ' out | grep -Eq -- "$text" || fail "$* does not say '$text'"
    if grep -q '^step:' out; then fail "there were steps: $*"; fi
}

# without FOLDER I: machine I has nothing there; read_only FOLDER I; back FOLDER I: as it was
without() { machines_on "$2" mount -t tmpfs none "$1"; }
read_only() { machines_on "$2" mount --bind "$1" "$1" && machines_on "$2" mount -o remount,bind,ro "$1"; }
back() { machines_on "$2" umount "$1"; }

machines_run 1 "${train[@]}" $tokens --checkpoint.folder=checkpoints/a --export.path=exports/a >out 2>&1 ||
    fail "nothing is hidden, and it fails"
odd=$'data/with a\ttab\nand a line.bin'
cp data/tokens.bin "$odd"
machines_run 1 "${train[@]}" "--data.path=$odd" >out 2>&1 || fail "a path with a tab is not seen"

# What is there, but is something else: ranks would mix the two.
cp -r model other-model
python3 - other-model/tiny-gpt2/model.safetensors data/tokens.bin other-tokens.bin <<'END'
import sys
weights, tokens = (bytearray(open(name, "rb").read()) for name in sys.argv[1:3])
at = 8 + int.from_bytes(weights[:8], "little")
weights[at : at + 4096] = bytes(reversed(weights[at : at + 4096]))
open(sys.argv[1], "wb").write(weights)
open(sys.argv[3], "wb").write(tokens[:1024] + bytes(byte for i in range(len(tokens) - 2, 1023, -2) for byte in tokens[i : i + 2]))
END
others="ranks 0 and 1 \(machine 'm1'\)"
machines_on 1 mount --bind other-model model
refused "$others have different configs: what model.path holds is" "$fsdp" train --model.path=model/tiny-gpt2 \
    --training.seq_len=32 $tokens
refused "$others evaluate different things: what the model's folder holds is" "$fsdp" eval model/tiny-gpt2 \
    --data data/tokens.bin
refused "$others generate different things: what the model's folder holds is" "$fsdp" generate model/tiny-gpt2 \
    --tokens 1,2
back model 1
machines_on 1 mount --bind other-tokens.bin data/tokens.bin
refused "$others have different configs: what data.path holds is" "${train[@]}" $tokens
refused "$others evaluate different things: what --data holds is" "$fsdp" eval model/tiny-gpt2 --data data/tokens.bin
back data/tokens.bin 1

# in_turn COMMAND...: runs each case of the loop on one machine of the two in turn; with TEST_LONG on both
in_turn() {
    turn=$((turn + 1))
    if [ "${TEST_LONG:-}" = 1 ] || [ $((turn % 2)) = "$machine" ]; then "$@"; fi
}

# Each machine has a folder of its own: rank 0 writes, and the other does not see it.
own_folder() {
    without "$folder" $machine
    refused "$key: machine 'm1' does not see what machine 'm0' \(rank 0\) writes to '$folder/b'" "${train[@]}" \
        $tokens "--$key=$folder/b"
    back "$folder" $machine
}

read_only_folder() {
    read_only "$folder" $machine
    refused "$key: .*Read-only file system" "${train[@]}" $tokens "--$key=$folder/b"
    grep -q "$key: machine 'm$machine' cannot write to '$folder/b'" out || fail "the machine is not named"
    back "$folder" $machine
}

missing=("machine 'm0' \(rank 0\) does not see" "machine 'm1' does not see")
for machine in 0 1; do
    turn=0
    misses=${missing[machine]}
    who="mpirun's rank $machine \(machine 'm$machine'\): "
    without data $machine
    in_turn refused "data.path: $misses 'data/tokens.bin'" "${train[@]}" $tokens
    in_turn refused "validation.path: $misses 'data/tokens.bin'" "${train[@]}" "$seen" --validation.path=data/tokens.bin
    in_turn refused "${who}--data: cannot open 'data/tokens.bin'" "$fsdp" eval model/tiny-gpt2 --data data/tokens.bin
    back data $machine
    without model $machine
    in_turn refused "model.path: $misses 'model/tiny-gpt2'" "$fsdp" train --model.path=model/tiny-gpt2 $tokens
    in_turn refused "initial_load_path: $misses 'model/tiny-gpt2'" "${train[@]}" $tokens \
        --checkpoint.folder=checkpoints/b --checkpoint.initial_load_path=model/tiny-gpt2
    in_turn refused "${who}there is no 'model/tiny-gpt2'" "$fsdp" eval model/tiny-gpt2 --data data/tokens.bin
    in_turn refused "${who}there is no 'model/tiny-gpt2'" "$fsdp" generate model/tiny-gpt2 --tokens 1,2
    back model $machine
    for kind in "checkpoint.folder checkpoints" "export.path exports"; do
        read -r key folder <<<"$kind"
        in_turn own_folder
        in_turn read_only_folder
        turn=$((turn + 1)) # the other kind on the other machine
    done
done
left=$(find checkpoints exports -mindepth 1 -maxdepth 1 | sort | xargs)
[ "$left" = "checkpoints/a exports/a" ] || fail "something is left: $left"

# The config is for rank 0 to see.
mkdir config
printf 'model:\n  preset: llama-1m\n' >config/c.yaml
without config 1
machines_run 1 "${train[@]}" $tokens config/c.yaml >out 2>&1 || fail "a config that rank 0 alone sees is no error"
back config 1

# Another build, or another command line, on one machine.
python3 "$FSDP_SOURCE/tests/support/other_build.py" "$fsdp" other
# shellcheck disable=SC2016
refused "MPI's rank 0 \(machine 'm0'\) runs fsdp [^ ]+, build [0-9a-f]+, and its rank 1 \(machine 'm1'\) fsdp " \
    sh -c '[ "$(hostname)" = m0 ] || exec ./other "$@"; exec "$0" "$@"' "${train[@]}" $tokens
# shellcheck disable=SC2016
refused "$others were given different command lines: --training.seed is not given and 3" \
    sh -c '[ "$(hostname)" = m0 ] || set -- "$@" --training.seed=3; exec "$0" "$@"' "${train[@]}" $tokens
