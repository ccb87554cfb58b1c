#!/usr/bin/env bash
# gpu_check.sh [STAGE..] - what must hold on a machine with a GPU. It installs nothing, and needs bash, python3 and the
# driver; cublasLt is found where CUDA's toolkit or PyTorch has put it. PACK is the file that tools/gpu_pack.sh wrote
# (build/gpu/pack.tar.xz); OUT gets the logs (gpu_logs). Ends with a table and the number of stages that failed.
#
#   facts     the card, its driver and what is free
#   hold      every kernel against the oracle, twice: the same bits
#   suites    tests of tensors, operations, gradients, modules, optimizers, sharding, checkpoints and runs
#   sanitize  compute-sanitizer over the kernels: memory, then races in shared memory
#   step      tiny models: their losses beside the CPU's, and the same bits in two runs
#   resume    a checkpoint of the GPU goes on on the CPU, and the other way
#   smol      a model of SmolLM2-135M's shape: losses beside the CPU's, memory beside nvidia-smi's
#   llama     Llama-1B in bfloat16, some steps
set -u
cd "$(dirname "$0")/.." || exit 1
pack=${PACK:-build/gpu/pack.tar.xz} logs=${OUT:-gpu_logs}
stages=${*:-facts hold suites sanitize step resume smol llama}
work=$(mktemp -d)
links=()
trap 'rm -rf "$work"; rm -f "${links[@]}"' EXIT
mkdir -p "$logs"
tar -C "$work" -xf "$pack" || exit 1

library=$(compgen -G '/opt/*/*/lib/python3*/site-packages/nvidia/*/lib/libcublasLt.so.1[0-9]' ||
    compgen -G '/usr/local/cuda/lib64/libcublasLt.so.1[0-9]' ||
    find /usr /opt -name 'libcublasLt.so.1[0-9]' 2>/dev/null)
library=$(echo "$library" | head -n 1)
export LD_LIBRARY_PATH="$work/lib${library:+:$(dirname "$library")}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export FSDP_PLUGIN_PATH=$work
fsdp=$work/fsdp
# Tests look for the sources and for the program where they were compiled: links lead there until the end.
link() {
    [ -e "$2" ] || { mkdir -p "$(dirname "$2")" && ln -sfn "$1" "$2" && links+=("$2"); }
}
sources=$(cat "$work/sources")
link "$PWD" "$sources"
link "$work/tests/fsdp" build/tests/fsdp

# ---- stages: each prints its result in one line, last ----

stage_facts() {
    nvidia-smi
    nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,compute_cap --format=csv,noheader
}

# run_files FILE..: files of tests (tensor/view; tensor: all of them), eight at a time, and what became of their cases.
run_files() {
    local file list= died= ok=0 bad=0 left=0
    for file in "$@"; do
        case $file in
        */*) list="$list $file" ;;
        *) list="$list $("$work/tests/test_$file" 2>&1 | sed -n "s|.*/test_\\([a-z0-9_]*\\)\\.c\$|$file/\\1|p")" ;;
        esac
    done
    mkdir -p "$work/cases"
    # shellcheck disable=SC2016 # the shells of xargs expand it
    echo $list | tr ' ' '\n' | xargs -P 8 -I{} bash -c \
        '"$0/tests/test_$(dirname {})" "$(basename {})" >"$0/cases/$(echo {} | tr / .)" 2>&1 || echo "{} ended with $?"' \
        "$work" | grep -v ' 77$'
    for file in $list; do
        file=$work/cases/$(echo "$file" | tr / .)
        ok=$((ok + $(grep -c '^\[       OK \]' "$file")))
        bad=$((bad + $(grep -c '^\[  FAILED  \] [a-z_0-9]*$' "$file") / 2))
        left=$((left + $(grep -c '^\[  SKIPPED \] [a-z]' "$file") / 2))
        tail -n 1 "$file" | grep -qE 'PASSED|SKIPPED|FAILED' || died="$died $(basename "$file")"
        if grep -q '^\[  FAILED  \]' "$file" || [ -n "$(tail -n 1 "$file" | grep -vE 'PASSED|SKIPPED|FAILED')" ]; then
            echo "-- $(basename "$file")"
            grep -vE '^\[ RUN|^\[       OK' "$file" | head -n 25 | cut -c 1-500
        fi
    done
    echo "$ok cases right, $bad wrong, $left not run${died:+, no end:$died}"
    [ "$bad" = 0 ] && [ -z "$died" ] && [ "$ok" -gt 0 ]
}

stage_hold() {
    run_files backend/gpu
}

stage_suites() {
    export FSDP_TEST_DEVICE=cuda
    run_files $SUITES
}
SUITES="tensor ops autograd nn optim checkpoint shard/parity shard/mixed_precision shard/offload shard/overlap shard/memory
        shard/fsdp1 shard/replicate shard/zero shard/hybrid shard/cast train/step train/reference train/float16"

stage_sanitize() {
    local status=0
    for tool in memcheck racecheck; do
        FSDP_TEST_BRIEF=1 compute-sanitizer --tool "$tool" --error-exitcode 9 "$work/tests/test_backend" gpu \
            >"$work/sanitizer" 2>&1 || status=1
        grep -E '=========' "$work/sanitizer" | head -n 60
        echo "$tool: $(grep -E 'SUMMARY' "$work/sanitizer" | tail -n 1)"
    done
    return $status
}

# losses FILE: the losses of a run, one a line.
losses() {
    python3 -c 'import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "loss" in row: print(repr(row["loss"]))' "$1"
}

# apart FILE FILE: the largest difference of two runs' losses, over the loss.
apart() {
    python3 -c 'import sys
a, b = ([float(x) for x in open(f)] for f in sys.argv[1:])
assert len(a) == len(b) > 0, "other numbers of steps: %d and %d" % (len(a), len(b))
print("%.2e" % max(abs(x - y) / abs(x) for x, y in zip(a, b)))' "$1" "$2"
}

# train NAME ARGUMENTS: a run, its losses in NAME.losses.
train() {
    local name=$1
    shift
    rm -f "$work/$name.jsonl"
    if ! "$fsdp" train "$@" --metrics.jsonl="$work/$name.jsonl" >"$work/$name.log" 2>&1; then
        tail -n 15 "$work/$name.log"
        return 1
    fi
    head -n 12 "$work/$name.log"
    tail -n 2 "$work/$name.log"
    losses "$work/$name.jsonl" >"$work/$name.losses"
}

# beside NAME BOUND ARGUMENTS: the run on the CPU, and twice on the GPU.
beside() {
    local name=$1 bound=$2
    shift 2
    train cpu "$@" --training.device=cpu && train one "$@" --training.device=cuda &&
        train two "$@" --training.device=cuda || { results="$results $name failed,"; return 1; }
    local far bits=same
    far=$(apart "$work/cpu.losses" "$work/one.losses") || far=nan
    cmp -s "$work/one.losses" "$work/two.losses" || bits=OTHER
    results="$results $name $far from the CPU, $bits bits twice;"
    [ "$bits" = same ] && python3 -c "exit(0 if float('$far') <= $bound else 1)"
}

tiny="--data.path=tests/reference/tokens.bin --training.steps=20 --training.local_batch_size=4 --training.seq_len=32
      --optimizer.lr=1e-3 --metrics.log_freq=10"

stage_step() {
    local status=0 results=
    for model in tiny-llama tiny-gpt2; do
        beside "$model" 2e-3 --model.path=tests/reference/models/$model $tiny || status=1
        beside "$model-bf16" 2e-2 --model.path=tests/reference/models/$model $tiny \
            --training.mixed_precision_param=bfloat16 || status=1
    done
    beside two-ranks 2e-3 --model.path=tests/reference/models/tiny-llama $tiny -n 2 || status=1
    echo "$results"
    return $status
}

stage_resume() {
    local status=0 results= from to
    for from in cpu cuda; do
        to=$([ $from = cpu ] && echo cuda || echo cpu)
        rm -rf "$work/saved"
        set -- --model.path=tests/reference/models/tiny-llama $tiny --checkpoint.folder="$work/saved"
        train half "$@" --training.steps=10 --training.device=$from &&
            train rest "$@" --training.device=$to &&
            train whole --model.path=tests/reference/models/tiny-llama $tiny --training.device=$to || status=1
        tail -n 10 "$work/whole.losses" >"$work/tail.losses"
        results="$results saved on $from, gone on on $to: $(apart "$work/tail.losses" "$work/rest.losses" 2>&1 | tail -n 1) apart;"
    done
    echo "$results"
    return $status
}

# The largest figure of nvidia-smi while a command runs, in MiB, in $work/used.
watch_memory() {
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 100 >"$work/polls" 2>/dev/null &
    local poll=$!
    "$@"
    local status=$?
    kill $poll
    sort -n "$work/polls" | tail -n 1 >"$work/used"
    return $status
}

stage_smol() {
    cat docs/*.md README.md >"$work/text.txt"
    local status=0 results=
    set -- --model.preset=llama-100m --model.dim=576 --model.n_layers=30 --model.n_heads=9 --model.n_kv_heads=3 \
        --model.ffn_dim=1536 --model.vocab_size=49152 --model.max_seq_len=512 --model.tie_word_embeddings=true \
        --data.path="$work/text.txt" --training.steps=6 --training.local_batch_size=4 --training.seq_len=512 \
        --optimizer.lr=3e-4 --metrics.log_freq=1
    watch_memory beside f32 2e-3 "$@" || status=1
    watch_memory beside bf16 2e-2 "$@" --training.mixed_precision_param=bfloat16 || status=1
    cat "$work/one.log"
    echo "$results nvidia-smi $(cat "$work/used") MiB"
    return $status
}

stage_llama() {
    [ -f "$work/text.txt" ] || cat docs/*.md README.md >"$work/text.txt"
    local status=0
    watch_memory train llama --model.preset=llama-1b --data.path="$work/text.txt" --training.steps=8 \
        --training.local_batch_size=8 --training.seq_len=2048 --training.mixed_precision_param=bfloat16 \
        --metrics.log_freq=1 --training.device=cuda || status=1
    cat "$work/llama.log"
    echo "$(tail -n 1 "$work/llama.log") nvidia-smi $(cat "$work/used") MiB"
    return $status
}

# ---- the table ----

declare -A limit=([facts]=20 [hold]=120 [suites]=150 [sanitize]=300 [step]=90 [resume]=60 [smol]=150 [llama]=90)
failed=0 table=
for stage in $stages; do
    echo "==== $stage"
    began=$SECONDS
    # A subshell of its own group, so that its limit ends all that it has started.
    setsid bash -c "$(declare -f); $(declare -p work logs fsdp tiny SUITES); stage_$stage" >"$logs/$stage.log" 2>&1 &
    pid=$!
    (sleep "${limit[$stage]}" && kill -- -$pid) 2>/dev/null &
    watch=$!
    if wait $pid; then result=ok; else result=FAILED failed=$((failed + 1)); fi
    kill $watch 2>/dev/null
    tail -n 30 "$logs/$stage.log" | cut -c 1-400
    table+=$(printf '%-9s %4d s  %-7s %s' "$stage" $((SECONDS - began)) "$result" \
        "$(tail -n 1 "$logs/$stage.log" | cut -c 1-300)")$'\n'
done
echo "==== $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null), $(date -I), gpu_check.sh $stages"
printf '%s' "$table"
exit $failed
