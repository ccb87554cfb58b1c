#!/usr/bin/env bash
# Checks that ranks on several machines exchange by NCCL between fake GPUs (tests/backend/fakecuda): MPI
# brings NCCL's address to them, the bits are those of exchanges through the hosts and of processors' order of sums, a
# checkpoint goes on with fewer machines, and a rank that is killed is named.
set -eu
# shellcheck source=tests/cluster/machines.sh
. "$FSDP_SOURCE/tests/cluster/machines.sh"
[ -e "$FSDP_BUILD/tests/libfsdp-cuda.so" ] || skip "there is no plug-in for the fake GPU"
machines_enter "$@"
machines_up 2
cd "$machines_folder"
fsdp=$FSDP
# Each machine has two of them, as each of its ranks sees.
export FSDP_PLUGIN_PATH=$FSDP_BUILD/tests:$FSDP_BUILD FSDP_FAKECUDA_DEVICES=2
export OMPI_MCA_mca_base_env_list='FSDP_PLUGIN_PATH;FSDP_FAKECUDA_DEVICES;OMP_NUM_THREADS;ASAN_OPTIONS'

# train NAME COMMAND...: with the keys that all runs have; metrics are in NAME.jsonl, words in NAME.txt
train() {
    local name=$1
    shift
    "$@" --model.preset=llama-1m --model.n_layers=2 --data.path="$FSDP_SOURCE/tests/reference/tokens.bin" \
        --training.seq_len=16 --training.local_batch_size=1 --training.device=cuda --metrics.log_freq=1 \
        --metrics.jsonl="$name.jsonl" >"$name.txt" 2>&1 || {
        echo "$name failed: $*" >&2
        cat "$name.txt" >&2
        exit 1
    }
}

said() { # NAME TEXT
    grep -qF -- "$2" "$1.txt" || {
        echo "$1 does not say '$2':"
        cat "$1.txt"
        exit 1
    }
}

# ---- the same bits ----

# both NAME ARGUMENTS...: by NCCL, and through the hosts
both() {
    local name=$1
    shift
    train "$name" machines_run 2 "$fsdp" train --training.steps=3 "$@"
    train "$name-staged" machines_run 2 "$fsdp" train --training.steps=3 "$@" --comm.carrier=staged
    same "$name" "$name-staged"
}

both fsdp2
said fsdp2 "group 'dp' of 4 ranks exchanges by carrier 'nccl': NCCL 2.30.7"
said fsdp2-staged "exchanges by carrier 'staged': as comm.carrier says"
[ -z "${TEST_LONG:-}" ] || both ddp --parallelism.strategy=ddp
[ -z "${TEST_LONG:-}" ] || both bf16 --training.mixed_precision_param=bfloat16 --training.mixed_precision_reduce=bfloat16
# Of hybrid sharding the groups of replicas are on both machines, those that shard on one: so they get other carriers.
both hsdp --parallelism.strategy=hsdp
said hsdp "group 'dp_replicate' of 2 ranks exchanges by carrier 'nccl': NCCL 2.30.7, through windows of 64 MiB"
for rank in 0 2; do # the first of each machine
    said hsdp "[rank $rank] group 'dp_shard' of 2 ranks exchanges by carrier 'peer': its ranks are on one machine, and"
done
for group in dp_shard dp_replicate; do
    said hsdp-staged "group '$group' of 2 ranks exchanges by carrier 'staged': as comm.carrier says"
done
train hsdp-nccl machines_run 2 "$fsdp" train --training.steps=3 --parallelism.strategy=hsdp --comm.carrier=nccl \
    --comm.nccl_buffers=copy_engines
said hsdp-nccl "group 'dp_shard' of 2 ranks exchanges by carrier 'nccl': NCCL 2.30.7, by copy engines"
same hsdp-nccl hsdp

# ---- sums by NCCL are near ----

train sums machines_run 2 "$fsdp" train --training.steps=3 --comm.reduce=nccl
said sums "NCCL 2.30.7, through windows of 64 MiB; it adds in its own order"
python3 - <<END || { echo "sums by NCCL are far"; exit 1; }
import json
sums, exact = ([json.loads(l)["loss"] for l in open(f + ".jsonl") if '"loss"' in l] for f in ("sums", "fsdp2"))
exit(len(sums) != 3 or any(abs(a - b) > 1e-4 for a, b in zip(sums, exact)))
END

# ---- a checkpoint of two machines, on two and on one ----

train saved machines_run 2 "$fsdp" train --training.steps=2 --checkpoint.folder=saved
if [ -n "${TEST_LONG:-}" ]; then
    cp -r saved again
    train again machines_run 2 "$fsdp" train --training.steps=3 --checkpoint.folder=again
    [ "$(curve again)" = "$(curve fsdp2 3)" ]
fi
machines_fewer 1
train fewer machines_run 2 "$fsdp" train --training.steps=3 --checkpoint.folder=saved --training.global_batch_size=4 \
    --comm.carrier=nccl
[ "$(curve fewer | wc -l)" = 1 ]

# ---- machines that cannot be joined ----

if FSDP_FAKENCCL_VERSION=21805 machines_run 2 "$fsdp" train --model.preset=llama-1m --training.steps=1 \
    --data.path="$FSDP_SOURCE/tests/reference/tokens.bin" --training.seq_len=16 --training.device=cuda \
    --comm.carrier=nccl >old.txt 2>&1; then
    echo "an NCCL that is too old is taken"
    exit 1
fi
said old "cannot have the carrier 'nccl' (comm.carrier): rank 0: libnccl.so.2 is version 2.18.5"
