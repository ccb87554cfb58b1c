#!/usr/bin/env bash
# Starts the program with a real torchrun: FSDP_TORCHRUN, or the one in PATH. It is skipped if there is none.
set -eu
torchrun=${FSDP_TORCHRUN:-torchrun}
if ! command -v "$torchrun" >/dev/null; then
    echo "skipped: there is no torchrun (FSDP_TORCHRUN names one)"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
seq 1 20000 >data.txt
cat >config.yaml <<'EOF'
model:
  preset: llama-1m
  n_layers: 1
  dim: 48
  n_heads: 3
  n_kv_heads: 1
  ffn_dim: 100
  max_seq_len: 64
data:
  path: data.txt
training:
  steps: 20
  seq_len: 32
  local_batch_size: 2
  threads: 1
EOF

# says TEXT COMMAND...: the command ends well, and says the text
says() {
    text=$1
    shift
    timeout 1200 "$@" >out 2>&1 || { echo "status $? of $*:"; head -c 4000 out; exit 1; }
    grep -qF -- "$text" out || { echo "$* does not say '$text' but:"; head -c 4000 out; exit 1; }
}

says 'done: ' "$FSDP" train config.yaml -n 2
end=$(grep -o 'loss .*' out | tail -1)
says "$end" "$torchrun" --standalone --nproc_per_node 2 --no-python "$FSDP" train config.yaml
says "$end" "$torchrun" --standalone --nproc_per_node 2 --no-python "$FSDP" train config.yaml -n 2

# Started again by torchrun, the ranks meet as those of the restart. The first time one of them fails.
cat >once.sh <<'EOF'
[ "$TORCHELASTIC_RESTART_COUNT" != 0 ] || [ "$RANK" != 1 ] || exit 3
exec "$FSDP" train config.yaml
EOF
says "$end" "$torchrun" --standalone --max-restarts 1 --nproc_per_node 2 --no-python bash once.sh

# Two at once on one machine do not meet.
"$torchrun" --standalone --nproc_per_node 2 --no-python "$FSDP" train config.yaml >other 2>&1 &
says "$end" "$torchrun" --standalone --nproc_per_node 2 --no-python "$FSDP" train config.yaml
wait $! || { head -c 4000 other; exit 1; }
grep -qF -- "$end" other

# On fake GPUs: NCCL's address goes the ranks' own way, whatever MASTER_ADDR says.
if [ -e "$(dirname "$FSDP")/libfsdp-cuda.so" ]; then
    export FSDP_FAKECUDA_DEVICES=2
    gpu=(train config.yaml --training.device=cuda --training.steps=2)
    says 'done: ' "$FSDP" "${gpu[@]}" -n 2 --comm.carrier=staged
    end=$(grep -o 'loss .*' out | tail -1)
    says "$end" "$torchrun" --standalone --nproc_per_node 2 --no-python "$FSDP" "${gpu[@]}" --comm.carrier=nccl
    grep -q "exchanges by carrier 'nccl'" out
fi
