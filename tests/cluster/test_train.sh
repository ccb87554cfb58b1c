#!/usr/bin/env bash
# Checks that a training run on several machines has the same bits as the run on one machine that adds in the same
# order, that its checkpoints continue on two machines and on one, and that a machine receives the bytes that it must.
set -eu
# shellcheck source=tests/cluster/machines.sh
. "$FSDP_SOURCE/tests/cluster/machines.sh"
machines_enter "$@"
machines_up 3
cd "$machines_folder"
fsdp=$FSDP

# train NAME COMMAND...: with the keys that all runs have; metrics are in NAME.jsonl, words in NAME.txt
train() {
    local name=$1
    shift
    "$@" --model.preset=llama-1m --data.path="$FSDP_SOURCE/tests/reference/tokens.bin" --training.seq_len=32 \
        --training.local_batch_size=1 --metrics.log_freq=1 --metrics.jsonl="$name.jsonl" >"$name.txt" 2>&1 || {
        echo "$name failed: $*" >&2
        cat "$name.txt" >&2
        exit 1
    }
}

# ---- the same bits; ranks of one machine add first, so 2 x 2 is not the 4 of a machine that was told nothing ----

train three_here "$fsdp" train -n 3 --training.steps=3
train three_there machines_run 1 "$fsdp" train --training.steps=3
same three_here three_there
machines_fewer 2
FSDP_TEST_MACHINES=2 train here "$fsdp" train -n 4 --training.steps=6 --checkpoint.folder=here --checkpoint.interval=3
train there machines_run 2 "$fsdp" train --training.steps=6 --checkpoint.folder=there --checkpoint.interval=3
same here there
[ "$(curve here | wc -l)" = 6 ]
"$fsdp" diff here/step-6 there/step-6 >diff.txt || { cat diff.txt; exit 1; }
grep -q '^ranks:  4 on 2 machines, ' there.txt
grep -q '^net:    sent: [0-9.]*[KMG]iB  received: [0-9.]*[KMG]iB  exposed: [0-9.]* ms$' there.txt
grep -q '"network_sent": [1-9].*"network_received": [1-9].*"gather_ms": .*"reduce_ms": ' there.jsonl
if grep -q 'machines,\|exposed:' here.txt; then exit 1; fi
train two_here "$fsdp" train -n 2 --training.steps=3
train two_there machines_run 1 "$fsdp" train --training.steps=3
same two_here two_there
MACHINES_MAP=node train dealt machines_run 2 "$fsdp" train --training.steps=3 --metrics.trace.path=dealt.json
grep -q '"machine":1,"clock_offset_ns":-\?[0-9]*,"clock_uncertain_ns":[1-9]' dealt.json
[ "$(grep -c '"name":"step [23]"' dealt.json)" = 8 ] # of each rank
[ "$(curve dealt)" = "$(curve here | head -3)" ]

# ---- a checkpoint of two machines, on two machines and on one ----

# keep NAME: a folder with there's checkpoint of step 3 alone
keep() {
    mkdir "$1"
    cp -r there/step-3 "$1"
}

keep again
train again machines_run 2 "$fsdp" train --training.steps=6 --checkpoint.folder=again
[ "$(curve again)" = "$(curve there 4)" ]
"$fsdp" diff again/step-6 there/step-6 >diff.txt || { cat diff.txt; exit 1; }
keep back
FSDP_TEST_MACHINES=2 train back "$fsdp" train -n 4 --training.steps=6 --checkpoint.folder=back
[ "$(curve back)" = "$(curve there 4)" ]
keep fewer
train fewer machines_run 1 "$fsdp" train --training.steps=6 --checkpoint.folder=fewer --training.global_batch_size=4
keep fewer_here
train fewer_here "$fsdp" train -n 2 --training.steps=6 --checkpoint.folder=fewer_here --training.global_batch_size=4
same fewer fewer_here
[ "$(curve fewer | wc -l)" = 3 ]

# ---- bytes into a machine, by the counters of its interface ----

# A step gathers all parameters twice, but those of the root, which stay whole, once, and reduces all gradients: of 2
# machines each gets half of that from the other, once, however many ranks it has.
blocks=$((4 * (128 * 128 * 2 + 2 * 64 * 128 + 3 * 128 * 480 + 2 * 128)))
root=$((2 * 256 * 128 + 128))
expected=$((4 * (3 * blocks + 2 * root) / 2))

# of_a_step K: what 8 steps more bring in, a step
of_a_step() {
    local at few
    at=$(machines_bytes 1)
    train few machines_run "$1" "$fsdp" train --training.steps=2
    few=$(($(machines_bytes 1) - at))
    at=$(machines_bytes 1)
    train many machines_run "$1" "$fsdp" train --training.steps=10
    echo $((($(machines_bytes 1) - at - few) / 8))
}

for ranks in 1 2; do
    bytes=$(of_a_step $ranks)
    echo "2 machines, $ranks ranks each: $bytes bytes into one in a step, $expected of them of parameters and gradients"
    # The rest are headers, acknowledgements, who does what, and the norm of the gradients.
    [ "$bytes" -ge "$expected" ] && [ "$bytes" -le $((expected * 105 / 100)) ]
done
