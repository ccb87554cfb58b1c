#!/usr/bin/env bash
# gpu_check.sh [STAGE..] - what must hold on a machine with a GPU. It installs nothing, and needs bash, python3 and the
# driver; cublasLt is found where CUDA's toolkit or PyTorch has put it. PACK is the file that tools/gpu_pack.sh wrote
# (build/gpu/pack.tar.xz); OUT gets a log of each stage (gpu_logs). Ends with a table of a line a stage and the number of
# stages that failed. Without arguments it runs all of these, in this order:
#
#   facts      the card, its driver and what is free
#   hold       every kernel against the oracle, twice: the same bits
#   step       tiny models: their losses beside the CPU's, and the same bits in two runs
#   use        what a user does: generate, eval, train on text, export, compare, recompute, offload, own kernels
#   gathers    2 and 4 ranks on the one GPU: every strategy, gathers in one byte, and a rank that is killed
#   ranks      2 and 4 processes on the one GPU by the carriers peer and staged: the same bits; one that is killed, and
#              one that is stopped; and memory that all of them have, in which gathers move nothing
#   nccl       2 ranks by the carrier nccl, with the bits of staged, memory that NCCL is shown in windows, registered or
#              not at all, copy engines where they can be had, and NCCL's sums: a GPU each, or one for both, where that
#              can be had (NCCL 2.30, experimental); otherwise skipped. NCCL=folder names another libnccl.so.2
#   many       several GPUs by each carrier, in one table (OUT/many.md): bus bandwidth of each collective by nccl-tests'
#              formulae, step time, exposed time and scaling of Llama-1B and 8B on 1, 2, 4, 8 and all of them; skipped with
#              fewer than two GPUs (GPUS: how many)
#   reference  PyTorch's runs again (those of FSDP_REFERENCE where it was packed): losses, norms, weights, collectives
#   profile    a trace with the GPU's own record (CUPTI): complete, on our clock, and nothing is slower after it; then a
#              step of Llama-1B and of GPT-2 124M by kernel: ms, bytes, FLOPs, and its share of the floor (RATES="4.27 676"
#              are TB/s of a copy and TFLOP/s of products, where the card is none of those in gpu_figures.py; ATTENTION=fast:
#              by cuDNN)
#   bench      Llama-1B and GPT-2 124M beside PyTorch (FSDP_PEER of gpu_pack.sh), in turns, twice: tokens/s, peak, reserved
#   oom        no memory: one message, and a smaller batch goes on; then a kernel that writes to a bad address
#   sanitize   compute-sanitizer's memcheck over all kernels
#   racecheck  its racecheck over the kernels with shared memory
#   initcheck  its initcheck over some kernels
#   suites     tests of tensors, operations, gradients, modules, optimizers, sharding, checkpoints and runs
#   resume     a checkpoint of the GPU goes on on the CPU, and the other way
#   smol       a model of SmolLM2-135M's shape: losses beside the CPU's, memory beside nvidia-smi's
#   llama      Llama-1B in bfloat16, some steps
#   algorithms  which of cuBLAS's algorithms computes each product of Llama-1B and GPT-2 124M fastest; its log has rows
#              for src/backend/cuda/product_rows.inc
#   attention  cuDNN's attention beside our own: losses of tiny models, bits in two runs, Llama-1B's speed
#   cpu        the processor alone: the speed of steps and collectives beside that of older builds (see gpu_pack.sh)
#
# A stage ends at its limit (below), PATIENCE times as long (1); STEPS is the length of runs of tiny models (20). With
# both, BENCH_STEPS=2, SMALL=1 (smaller models) and a pack of "gpu_pack.sh --fake", the script itself is tried where there is no GPU.
set -u
cd "$(dirname "$0")/.." || exit 1
pack=${PACK:-build/gpu/pack.tar.xz} logs=${OUT:-gpu_logs}
declare -A limit=([facts]=20 [hold]=120 [step]=60 [use]=200 [gathers]=120 [ranks]=120 [nccl]=120 [many]=1500 [reference]=150 [profile]=150 [bench]=400 [oom]=60 [sanitize]=100
    [racecheck]=150 [initcheck]=60 [suites]=150 [resume]=60 [smol]=150 [llama]=90 [algorithms]=90 [attention]=150 [cpu]=240)
listed=$(sed -n 's/^#   \([a-z]*\)  .*/\1/p' "$0")
if [ "${1:-}" = --help ]; then
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
    exit 0
fi
stages=${*:-$listed}
for stage in $stages; do
    if [ -z "${limit[$stage]:-}" ]; then
        echo "gpu_check: there is no stage '$stage': one of $(echo $listed)" >&2
        exit 2
    fi
done
patience=${PATIENCE:-1} steps=${STEPS:-20} bench_steps=${BENCH_STEPS:-10}
work=$(mktemp -d)
links=() group=
trap '[ -z "$group" ] || kill -9 -- "-$group" 2>/dev/null; rm -rf "$work"; rm -f "${links[@]}"' EXIT
mkdir -p "$logs"
tar -C "$work" -xf "$pack" || exit 1

library=$(compgen -G '/opt/*/*/lib/python3*/site-packages/nvidia/*/lib/libcublasLt.so.1[0-9]' ||
    compgen -G '/usr/local/cuda/lib64/libcublasLt.so.1[0-9]' ||
    find /usr /opt -name 'libcublasLt.so.1[0-9]' 2>/dev/null)
library=$(echo "$library" | head -n 1)
cupti=$(compgen -G '/opt/*/*/lib/python3*/site-packages/nvidia/*/lib/libcupti.so.1[0-9]' ||
    find -L /usr/local/cuda /usr/local/cuda-1* /usr/lib -name 'libcupti.so.1[0-9]' 2>/dev/null)
cupti=$(echo "$cupti" | head -n 1)
export LD_LIBRARY_PATH="$work/lib${library:+:$(dirname "$library")}${cupti:+:$(dirname "$cupti")}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
for name in libcudnn.so.9 libnvrtc.so.13 libnccl.so.2; do
    found=$(compgen -G "/opt/*/*/lib/python3*/site-packages/nvidia/*/lib/$name" ||
        find -L /usr/local/cuda /usr/local/cuda-1* /usr/lib -name "$name" 2>/dev/null)
    [ -z "$found" ] || LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$(dirname "$(echo "$found" | head -n 1)")
done
[ -z "${NCCL:-}" ] || export FSDP_CUDA_LIBRARIES=$NCCL
export FSDP_PLUGIN_PATH=$work XDG_CACHE_HOME=$work/cache
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
    "$fsdp" inspect --devices
    nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,compute_cap --format=csv,noheader
}

# run_files FILE..: files of tests (tensor/view; tensor: all of them; train/replay:ddp-*: some cases), eight at a time, and
# what became of their cases.
run_files() {
    local file name list=() died= ok=0 bad=0 left=0
    for file in "$@"; do
        case $file in
        */*) list+=("$file") ;;
        # test_gpu.c takes all of the card's memory, or is the stage "hold".
        *) for name in $("$work/tests/test_$file" 2>&1 | sed -n "/test_gpu/d;s|.*/test_\([a-z0-9_]*\)\.c\$|\1|p"); do
            list+=("$file/$name")
        done ;;
        esac
    done
    rm -rf "$work/cases"
    mkdir "$work/cases"
    # shellcheck disable=SC2016 # the shells of xargs expand it
    printf '%s\n' "${list[@]}" | xargs -P 8 -I{} bash -c 'file=${1%%:*} pattern=${1#"${1%%:*}"}
        "$0/tests/test_${file%/*}" "${file#*/}" ${pattern:+"${pattern#:}"} >"$0/cases/${1//\//.}" 2>&1 ||
            echo "$1 ended with $?"' "$work" {} | grep -v ' 77$'
    for file in "${list[@]}"; do
        name=${file//\//.} file=$work/cases/${file//\//.}
        ok=$((ok + $(grep -c '^\[       OK \]' "$file")))
        bad=$((bad + $(grep -c '^\[  FAILED  \] [-a-z_0-9]*$' "$file") / 2))
        left=$((left + $(grep -c '^\[  SKIPPED \] [a-z]' "$file") / 2))
        tail -n 1 "$file" | grep -qE 'PASSED|SKIPPED|FAILED' || died="$died $name"
        if grep -q '^\[  FAILED  \]' "$file" || [ -n "$(tail -n 1 "$file" | grep -vE 'PASSED|SKIPPED|FAILED')" ]; then
            echo "-- $name"
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
SUITES=${SUITES:-"tensor ops autograd nn optim checkpoint shard/parity shard/mixed_precision shard/offload shard/overlap
    shard/memory shard/fsdp1 shard/replicate shard/zero shard/hybrid shard/cast train/step train/float16"}

stage_reference() {
    export FSDP_TEST_DEVICE=cuda FSDP_REFERENCE=$work/reference TEST_LONG=1 # all runs, and all of their steps
    [ -d "$FSDP_REFERENCE" ] || unset FSDP_REFERENCE
    run_files 'train/reference:gpt2-*' 'train/reference:llama-*' 'train/reference:fsdp2-*' 'train/reference:*1-gpt2-*' \
        'train/reference:ddp-*' 'train/replay:fsdp2-*' 'train/replay:fsdp1-*' 'train/replay:ddp-*' train/ddp_buckets \
        train/fsdp1_states hub/golden shard/fsdp1_options shard/wrap_units
}

stage_oom() {
    local status=0 said
    [ -f "$work/text.txt" ] || cat docs/*.md README.md >"$work/text.txt"
    FSDP_TEST_DEVICE=cuda run_files nn/gpu || status=1
    # The whole program: one message, of the memory.
    if "$fsdp" train --model.preset=llama-1b --data.path="$work/text.txt" --training.steps=1 --training.device=cuda \
        --training.local_batch_size=56 --training.seq_len=2048 --training.mixed_precision_param=bfloat16 \
        >"$work/oom.log" 2>&1; then
        echo "56 sequences of Llama-1B had room"
        status=1
    fi
    cat "$work/oom.log"
    said=$(grep '^fsdp: .*memory' "$work/oom.log") || status=1
    echo "$(grep -hE 'cases right' "$logs/oom.log"); the program says: $said"
    return $status
}

# sanitize TOOL SECONDS KERNEL..: each kernel's cases in a process of its own, six at a time; FSDP_TEST_DEVICE makes them
# few.
sanitize() {
    local tool=$1 seconds=$2 kernel clean=0 late= found=
    shift 2
    for kernel in "$@"; do
        while [ "$(jobs -rp | wc -l)" -ge 6 ]; do wait -n; done
        (FSDP_TEST_DEVICE=cuda timeout "$((seconds * patience))" compute-sanitizer --tool "$tool" --error-exitcode 9 \
            "$work/tests/test_backend" gpu "${kernel}_agrees_with_the_oracle" >"$work/$tool.$kernel" 2>&1
        echo "ended with $?" >>"$work/$tool.$kernel") &
    done
    wait
    for kernel in "$@"; do
        echo "-- $kernel: $(tail -n 1 "$work/$tool.$kernel")"
        grep -E '=========|FAILED' "$work/$tool.$kernel" | head -n 20
        if grep -q '^ended with 124' "$work/$tool.$kernel"; then
            late="$late $kernel"
        elif grep -q '^ended with 0' "$work/$tool.$kernel" && grep -q 'PASSED  \] 1 test' "$work/$tool.$kernel"; then
            clean=$((clean + 1))
        else
            found="$found $kernel"
        fi
    done
    echo "$tool: $clean of $# kernels clean${found:+, found something in:$found}${late:+, did not end:$late}"
    [ "$clean" = $# ]
}
# The longest first.
with_shared_memory="attention_backward attention_forward conv2d_weight conv2d_input conv2d_forward norm_backward
    channel_norm_backward norm_forward channel_norm_forward embedding_backward scatter reduce cross_entropy
    softmax_forward softmax_backward topk power_sum copy rope cast_spans reduce_ranks gather"

stage_sanitize() {
    local status=0
    compute-sanitizer --tool memcheck --error-exitcode 9 "$work/tests/test_backend" gpu >"$work/sanitizer" 2>&1 || status=1
    grep -E '=========' "$work/sanitizer" | head -n 60
    echo "memcheck: $(grep -E 'SUMMARY' "$work/sanitizer" | tail -n 1)"
    return $status
}

stage_racecheck() {
    sanitize racecheck 70 $with_shared_memory
}

stage_initcheck() {
    sanitize initcheck 50 attention_backward attention_forward norm_backward embedding_backward cross_entropy reduce topk \
        cast_spans
}

figures() {
    python3 tools/gpu_figures.py "$@"
}

# apart FILE FILE: the largest difference of two runs' losses, over the loss.
apart() {
    figures apart "$@"
}

# within BOUND FAR: whether it is at most that; a NaN is not.
within() {
    figures within "$@"
}

# train NAME ARGUMENTS: a run, its losses in NAME.losses.
train() {
    local name=$1
    shift
    rm -f "$work/$name.jsonl"
    if ! "$fsdp" train "$@" --metrics.jsonl="$work/$name.jsonl" >"$work/$name.log" 2>&1; then
        echo "-- $name: fsdp train $*"
        tail -n 15 "$work/$name.log"
        return 1
    fi
    figures losses "$work/$name.jsonl" >"$work/$name.losses"
}

# say NAME right|wrong TEXT [BOUND FAR]: what came of one of a stage's points.
say() {
    mkdir -p "$work/said"
    printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:-}" "${5:-}" >"$work/said/$1"
}

# finish: waits for what runs beside, and sums up what was said; the result is wrong where something is.
finish() {
    wait
    figures said "$work"
}

# beside NAME BOUND ARGUMENTS: the run on the CPU, and twice on the GPU.
beside() {
    local name=$1 bound=$2 far bits=same verdict=right
    shift 2
    if ! train "$name.cpu" "$@" --training.device=cpu || ! train "$name.one" "$@" --training.device=cuda ||
        ! train "$name.two" "$@" --training.device=cuda; then
        say "$name" wrong "a run has failed"
        return
    fi
    far=$(apart "$work/$name.cpu.losses" "$work/$name.one.losses") || far=nan
    cmp -s "$work/$name.one.losses" "$work/$name.two.losses" || bits=OTHER verdict=wrong
    within $bound "${far:-nan}" || verdict=wrong
    say "$name" $verdict "$far from the CPU, $bits bits twice" "$bound" "$far"
}

# unfinished: what a stage had said when its limit came; a point that is missing was still running.
unfinished() {
    figures said "$work"
}

# aside COMMAND: the command beside others, four at a time; finish waits for them.
aside() {
    while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n; done
    "$@" &
}

data="--data.path=tests/reference/tokens.bin --training.local_batch_size=4 --training.seq_len=32 --optimizer.lr=1e-3
    --metrics.log_freq=10 --training.threads=2"
tiny="$data --training.steps=$steps"
llama=--model.path=tests/reference/models/tiny-llama gpt2=--model.path=tests/reference/models/tiny-gpt2

stage_step() {
    aside beside llama 2e-3 $llama $tiny
    aside beside gpt2 2e-3 $gpt2 $tiny
    aside beside llama-bf16 5e-3 $llama $tiny --training.mixed_precision_param=bfloat16
    aside beside gpt2-bf16 5e-3 $gpt2 $tiny --training.mixed_precision_param=bfloat16
    aside beside llama-2-ranks 2e-3 $llama $tiny -n 2
    finish
}

# shellcheck source=tools/gpu_use.sh
. tools/gpu_use.sh
# shellcheck source=tools/gpu_speed.sh
. tools/gpu_speed.sh
# shellcheck source=tools/gpu_many.sh
. tools/gpu_many.sh

# ---- the table ----

failed=0 table=
for stage in $stages; do
    echo "==== $stage"
    began=$SECONDS
    rm -rf "$work/said"
    # A group of its own, so that its limit ends all that it has started.
    timeout -k 3 $((limit[$stage] * patience)) bash -c "$(declare -f); $(declare -p work logs fsdp patience steps bench_steps data tiny \
        llama gpt2 SUITES with_shared_memory); trap unfinished TERM; stage_$stage" >"$logs/$stage.log" 2>&1 &
    group=$!
    wait $group
    status=$? result=ok
    kill -9 -- -$group 2>/dev/null # what it has left
    [ $status = 0 ] || result=FAILED failed=$((failed + 1))
    case $status in 124 | 137) echo "did not end within $((limit[$stage] * patience)) s" >>"$logs/$stage.log" ;; esac
    tail -n 30 "$logs/$stage.log" | cut -c 1-400
    table+=$(printf '%-9s %4d s  %-7s %s' "$stage" $((SECONDS - began)) "$result" \
        "$(tail -n 1 "$logs/$stage.log" | cut -c 1-500)")$'\n'
done
echo "==== $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null), $(date -I), gpu_check.sh $stages"
printf '%s' "$table"
exit $failed
