#!/usr/bin/env bash
# Checks that late messages change no bit and are not a failure. If the kernel cannot delay messages, the test is
# skipped after the run without delays.
set -eu
# shellcheck source=tests/cluster/machines.sh
. "$FSDP_SOURCE/tests/cluster/machines.sh"
machines_enter "$@"
machines_up 2
cd "$machines_folder"

# curve NAME: two machines train, and what came of it
curve() {
    machines_run 2 "$FSDP" train --model.preset=llama-1m --model.n_layers=2 --training.steps=4 \
        --data.path="$FSDP_SOURCE/tests/reference/tokens.bin" --training.seq_len=32 --training.local_batch_size=1 \
        --metrics.log_freq=1 --metrics.jsonl="$1.jsonl" --comm.timeout=4 >"$1.txt" 2>&1 || {
        cat "$1.txt"
        exit 1
    }
    grep -o '^{"step": [0-9]*, "loss": [^,]*, "grad_norm": [^,]*' "$1.jsonl"
}

at_once=$(curve at_once)
[ "$(wc -l <<<"$at_once")" = 4 ]
machines_delay 50 || skip "this kernel has no netem (CONFIG_NET_SCH_NETEM): nothing can be delayed"
late=$(curve late)
[ "$late" = "$at_once" ] || {
    diff <(echo "$at_once") <(echo "$late")
    exit 1
}
