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
#   reference  PyTorch's runs again (those of FSDP_REFERENCE where it was packed): losses, norms, weights, collectives
#   profile    a trace with the GPU's own record (CUPTI): complete, on our clock, and nothing is slower after it
#   oom        no memory: one message, and a smaller batch goes on; then a kernel that writes to a bad address
#   sanitize   compute-sanitizer's memcheck over all kernels
#   racecheck  its racecheck over the kernels with shared memory
#   initcheck  its initcheck over some kernels
#   suites     tests of tensors, operations, gradients, modules, optimizers, sharding, checkpoints and runs
#   resume     a checkpoint of the GPU goes on on the CPU, and the other way
#   smol       a model of SmolLM2-135M's shape: losses beside the CPU's, memory beside nvidia-smi's
#   llama      Llama-1B in bfloat16, some steps
#   cpu        the processor alone: the speed of steps and collectives beside that of older builds (see gpu_pack.sh)
#
# A stage ends at its limit (below), PATIENCE times as long (1); STEPS is the length of runs of tiny models (20). With
# both, and a pack of "gpu_pack.sh --fake", the script itself is tried where there is no GPU.
set -u
cd "$(dirname "$0")/.." || exit 1
pack=${PACK:-build/gpu/pack.tar.xz} logs=${OUT:-gpu_logs}
declare -A limit=([facts]=20 [hold]=120 [step]=60 [use]=120 [gathers]=120 [reference]=150 [profile]=90 [oom]=60 [sanitize]=100
    [racecheck]=150 [initcheck]=60 [suites]=150 [resume]=60 [smol]=150 [llama]=90 [cpu]=240)
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
patience=${PATIENCE:-1} steps=${STEPS:-20}
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
    local status=0
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
    grep -q 'memory' <(tail -n 1 "$work/oom.log") || status=1
    echo "$(grep -hE 'cases right' "$logs/oom.log") the program says: $(tail -n 1 "$work/oom.log")"
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
        echo "-- $name: fsdp train $*"
        tail -n 15 "$work/$name.log"
        return 1
    fi
    losses "$work/$name.jsonl" >"$work/$name.losses"
}

# say NAME right|wrong TEXT [BOUND FAR]: what came of one of a stage's points.
say() {
    mkdir -p "$work/said"
    printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "${4:-}" "${5:-}" >"$work/said/$1"
}

# finish: waits for what runs beside, and sums up what was said; the result is wrong where something is.
finish() {
    wait
    python3 -c 'import glob, sys
said = [open(f).read().rstrip("\n").split("\t") for f in sorted(glob.glob(sys.argv[1] + "/said/*"))]
for name, verdict, text, _, _ in said: print("%-24s %-5s %s" % (name, verdict, text))
line = "%d of %d right" % (sum(s[1] == "right" for s in said), len(said))
for bound in sorted({s[3] for s in said if s[3]}, key=float):
    far = max((float(s[4]), s[0]) for s in said if s[3] == bound)
    line += "; within %s of the CPU: at most %.2e (%s)" % (bound, *far)
line += "".join("; WRONG %s: %s" % (s[0], s[2]) for s in said if s[1] != "right")
print(line)
sys.exit(any(s[1] != "right" for s in said) or not said)' "$work"
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
    python3 -c "exit(0 if float('$far') <= $bound else 1)" || verdict=wrong
    say "$name" $verdict "$far from the CPU, $bits bits twice" "$bound" "$far"
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

# ---- what a user does ----

# same_tokens NAME ARGUMENTS: greedy tokens of both devices.
same_tokens() {
    local name=$1
    shift
    "$fsdp" generate "$@" --temperature 0 --max-new-tokens $((steps * 4)) >"$work/$name.cpu.tokens" &&
        "$fsdp" generate "$@" --temperature 0 --max-new-tokens $((steps * 4)) --device cuda >"$work/$name.cuda.tokens"
    if [ -s "$work/$name.cpu.tokens" ] && cmp "$work/$name.cpu.tokens" "$work/$name.cuda.tokens"; then
        say "$name" right "the CPU's $((steps * 4)) tokens"
    else
        say "$name" wrong "$(head -c 120 "$work/$name.cuda.tokens")"
    fi
}

# samples NAME ARGUMENTS: the same tokens twice, and others by another seed.
samples() {
    local name=$1 seed
    shift
    for seed in 7 7. 8; do
        "$fsdp" generate "$@" --seed ${seed%.} --max-new-tokens $((steps * 4)) --device cuda >"$work/$name.$seed"
    done
    if [ -s "$work/$name.7" ] && cmp "$work/$name.7" "$work/$name.7." && ! cmp -s "$work/$name.7" "$work/$name.8"; then
        say "$name" right "the same tokens by the same seed"
    else
        say "$name" wrong "$(head -c 120 "$work/$name.7")"
    fi
}

# evaluates NAME BOUND ARGUMENTS
evaluates() {
    local name=$1 bound=$2 device far
    shift 2
    for device in cpu cuda; do
        "$fsdp" eval "$@" --data tests/reference/tokens.bin --seq-len 32 --steps $((steps / 2)) --device $device \
            >"$work/$name.$device" 2>&1 || cat "$work/$name.$device"
        sed -n 's/^loss: \([0-9.]*\) .*/\1/p' "$work/$name.$device" >"$work/$name.$device.losses"
    done
    far=$(apart "$work/$name.cpu.losses" "$work/$name.cuda.losses") || far=nan
    if python3 -c "exit(0 if float('$far') <= $bound else 1)"; then
        say "$name" right "$far from the CPU" "$bound" "$far"
    else
        say "$name" wrong "$far from the CPU"
    fi
}

# A run's export: whole, read again by both devices, and each tensor near that of the CPU's run.
exports() {
    local device far
    for device in cpu cuda; do
        train export.$device $llama $tiny --export.path="$work/export.$device" --training.device=$device
    done
    "$fsdp" verify "$work/export.cuda"
    "$fsdp" diff --brief "$work/export.cpu" "$work/export.cuda" >"$work/export.diff"
    tail -n 1 "$work/export.diff"
    far=$(sed -n 's/^differs .* by \([-+0-9.e]*\) at most.*/\1/p' "$work/export.diff" | sort -g | tail -n 1)
    if grep -q '30 different, 0 only in A, 0 only in B' "$work/export.diff" &&
        python3 -c "exit(0 if float('${far:-nan}') <= 1e-4 else 1)"; then
        say export right "30 tensors, each within ${far} of the CPU's"
        evaluates export-eval 2e-3 "$work/export.cuda"
    else
        say export wrong "$(tail -n 1 "$work/export.diff"), ${far:-nan} apart"
    fi
}

# What is computed again changes no bit.
recomputes() {
    local mode
    for mode in none full selective op; do
        set -- --activation_checkpoint.mode=${mode/op/selective}
        [ $mode != op ] || set -- "$@" --activation_checkpoint.selective_ac_option=op
        train recompute.$mode $llama $tiny --training.device=cuda "$@"
        if [ -s "$work/recompute.none.losses" ] && cmp "$work/recompute.none.losses" "$work/recompute.$mode.losses"; then
            say recompute-$mode right "the losses of none, by bits"
        else
            say recompute-$mode wrong "other losses than none"
        fi
    done
}

compares() {
    "$fsdp" compare llama-1m -n 2 --strategies fsdp2,ddp,zero2 --steps 2 --rounds 1 --worlds 2 --model.n_layers=1 \
        --training.device=cuda --training.local_batch_size=2 --training.seq_len=32 >"$work/compare.log" 2>&1
    if grep -q '^equal to the first .*all bits' "$work/compare.log"; then
        say compare right "$(grep '^tokens/s' "$work/compare.log")"
    else
        tail -n 30 "$work/compare.log"
        say compare wrong "$(tail -n 1 "$work/compare.log")"
    fi
}

own_kernel() {
    "$work/11_own_kernel" >"$work/own.log" 2>&1
    cat "$work/own.log"
    if grep -q '^trained on cuda' "$work/own.log"; then
        say own-kernel right "$(tail -n 1 "$work/own.log")"
    else
        say own-kernel wrong "$(tail -n 1 "$work/own.log")"
    fi
}

stage_use() {
    cat docs/*.md README.md >"$work/text.txt"
    aside beside text 2e-3 --model.preset=llama-1m --data.path="$work/text.txt" --data.order=shuffled \
        --validation.share=0.02 --validation.freq=$((steps / 2)) --validation.steps=4 --training.steps="$steps" \
        --training.seq_len=64 --training.local_batch_size=4 --training.threads=2
    aside same_tokens greedy-llama tests/reference/models/tiny-llama --tokens 1,2,3
    aside same_tokens greedy-gpt2 tests/reference/models/tiny-gpt2 --tokens 5
    aside same_tokens greedy-2-ranks tests/reference/models/tiny-llama --tokens 1,2,3 -n 2
    aside samples sample tests/reference/models/tiny-llama --tokens 1,2,3
    aside samples sample-bf16 tests/reference/models/tiny-llama --tokens 1,2,3 --dtype bfloat16 --top-k 40 --top-p 0.9
    aside evaluates eval 2e-3 tests/reference/models/tiny-gpt2
    aside evaluates eval-bf16 5e-3 tests/reference/models/tiny-gpt2 --dtype bfloat16
    aside evaluates eval-2-ranks 2e-3 tests/reference/models/tiny-llama -n 2
    aside exports
    aside compares
    aside recomputes
    aside own_kernel
    aside beside offload 2e-3 $llama $tiny --training.enable_cpu_offload=true
    aside beside offload-2-ranks 2e-3 $llama $tiny --training.enable_cpu_offload=true -n 2
    aside beside accumulate 2e-3 $llama $tiny --training.global_batch_size=12
    aside beside clip 2e-3 $gpt2 $tiny --training.max_norm=0.05
    aside beside sgd 2e-3 $gpt2 $tiny --optimizer.name=sgd --optimizer.momentum=0.9
    aside beside adafactor 2e-3 $llama $tiny --optimizer.name=adafactor -n 2
    aside beside dropout 2e-3 $gpt2 $tiny --model.dropout=0.1
    aside beside float16 5e-3 $llama $tiny --training.mixed_precision_param=float16
    aside beside float16-reduce 5e-3 $llama $tiny --training.mixed_precision_param=float16 \
        --training.mixed_precision_reduce=float16 -n 2
    finish
}

# ---- several ranks on the one GPU ----

# One of four ranks is killed: the others end, and the last line names it.
kills() {
    local run rank status stat begun watch
    "$fsdp" train $llama $data --training.steps=1000000 --training.device=cuda -n 4 >"$work/killed.log" 2>&1 &
    run=$!
    until grep -q '^step: ' "$work/killed.log" || ! kill -0 $run; do sleep 0.1; done
    # Rank processes are the program's children; the last one is a rank.
    rank=$(for stat in /proc/[0-9]*/stat; do
        [ "$(sed 's/.*) . \([0-9]*\) .*/\1/' "$stat" 2>/dev/null)" = $run ] && basename "$(dirname "$stat")"
    done | sort -n | tail -n 1)
    begun=$SECONDS
    kill -9 "$rank"
    (sleep $((20 * patience)) && kill -9 $run) >/dev/null 2>&1 &
    watch=$!
    wait $run
    status=$?
    kill $watch
    cat "$work/killed.log"
    if [ $status != 0 ] && [ $((SECONDS - begun)) -lt $((20 * patience)) ] &&
        tail -n 1 "$work/killed.log" | grep -q 'rank [0-3] was killed by signal 9'; then
        say killed-rank right "$(tail -n 1 "$work/killed.log"), after $((SECONDS - begun)) s"
    else
        say killed-rank wrong "$(tail -n 1 "$work/killed.log")"
    fi
}

stage_gathers() {
    local strategy ranks
    for strategy in fsdp2 fsdp1 ddp zero1 zero2 zero3; do
        for ranks in 2 4; do
            aside beside $strategy-$ranks 2e-3 $llama $tiny --parallelism.strategy=$strategy -n $ranks
        done
    done
    aside beside hsdp-2x2 2e-3 $llama $tiny --parallelism.strategy=hsdp --parallelism.data_parallel_replicate_degree=2 -n 4
    aside beside fsdp1-hybrid-2x2 2e-3 $gpt2 $tiny --parallelism.strategy=fsdp1 \
        --parallelism.data_parallel_replicate_degree=2 -n 4
    aside beside float8 5e-3 $llama $tiny --parallelism.gather_dtype=float8 -n 2
    aside beside int8 5e-3 $llama $tiny --parallelism.gather_dtype=int8 -n 2
    aside beside float8-bf16 5e-3 $llama $tiny --parallelism.gather_dtype=float8 --training.mixed_precision_param=bfloat16 \
        -n 2
    aside beside bf16-4 5e-3 $llama $tiny --training.mixed_precision_param=bfloat16 \
        --training.mixed_precision_reduce=bfloat16 -n 4
    aside beside ddp-bf16-buckets 5e-3 $gpt2 $tiny --parallelism.strategy=ddp --parallelism.ddp_compress=bfloat16 -n 2
    aside kills
    finish
}

# resumes FROM TO: a checkpoint half way, and the rest of the losses beside those of a whole run.
resumes() {
    local far
    set -- "$1" "$2" $llama $tiny
    train half.$1 "${@:3}" --checkpoint.folder="$work/saved.$1" --training.steps=$((steps / 2)) --training.device=$1
    train rest.$1 "${@:3}" --checkpoint.folder="$work/saved.$1" --training.device=$2
    train whole.$1 "${@:3}" --training.device=$2
    tail -n $((steps - steps / 2)) "$work/whole.$1.losses" >"$work/tail.$1.losses"
    far=$(apart "$work/tail.$1.losses" "$work/rest.$1.losses") || far=nan
    if python3 -c "exit(0 if float('$far') <= 2e-3 else 1)"; then
        say $1-to-$2 right "$far apart" 2e-3 "$far"
    else
        say $1-to-$2 wrong "$far apart"
    fi
}

stage_resume() {
    aside resumes cpu cuda
    aside resumes cuda cpu
    finish
}

# What a trace has of the GPU's own record: as much as was issued, each with an arrow, and the kernels of calls that
# launch one inside the times that events gave (or 20 us beside).
read_record() {
    python3 -c 'import collections, gzip, json, sys
trace = json.load(gzip.open(sys.argv[1]))
own = trace["otherData"]["ranks"][0].get("gpu_record", {"missing": "no GPU"})
if "missing" in own: sys.exit(print(own["missing"]) or 1)
events = trace["traceEvents"]
gpu = [e for e in events if e.get("cat", "").startswith("gpu_") and e["ph"] == "X"]
ends = collections.defaultdict(list)
for e in events:
    if e["ph"] in "sf": ends[e["id"]].append(e)
at = lambda e: (e["tid"], e["ts"])
rows = {at(e): e for e in events if e["ph"] == "X" and not e.get("cat", "").startswith("gpu_")}
own_rows = {e["tid"] for e in gpu}
runs, tells = {}, collections.defaultdict(list)
for s, f in ([sorted(p, key=lambda e: e["ph"] != "s") for p in ends.values()]):
    if f["tid"] in own_rows: tells[at(s)].append(f["ts"])
    else: runs[at(s)] = rows.get(at(f))
arrows = sum(len(t) for t in tells.values())
alone = [(t[0], runs[k]) for k, t in tells.items() if len(t) == 1 and runs.get(k)]
inside = sum(r["ts"] - 20 <= t <= r["ts"] + r["dur"] + 20 for t, r in alone)
print("%d of at least %d, %d dropped, %d arrows, %d of %d begin inside the times of events" % (
    own["told"], own["issued"], own["dropped"], arrows, inside, len(alone)))
sys.exit(own["told"] < own["issued"] or own["dropped"] > 0 or len(gpu) != own["told"] or arrows < 0.95 * len(gpu) or
         not alone or inside < 0.95 * len(alone))' "$1"
}

# The median time of a step in a run's second half, in ms.
late_step() {
    python3 -c 'import json, statistics, sys
steps = [row["step_ms"] for row in map(json.loads, open(sys.argv[1])) if "step_ms" in row]
print("%.6f" % statistics.median(steps[len(steps) // 2:]))' "$1"
}

stage_profile() {
    local far
    set -- $llama $tiny --training.device=cuda
    train plain "$@" || say plain wrong "$(tail -n 1 "$work/plain.log")"
    if train traced "$@" --metrics.trace.path="$work/trace.json.gz" --metrics.trace.steps=3-5; then
        if read_record "$work/trace.json.gz" >"$work/record"; then
            say record right "$(cat "$work/record")"
        else
            say record wrong "$(cat "$work/record")"
        fi
        grep -c 'has no record\|lacks some' "$work/traced.log"
        if cmp "$work/plain.losses" "$work/traced.losses"; then
            say same-bits right "with and without a trace"
        else
            say same-bits wrong "with and without a trace"
        fi
        far=$(echo "$(late_step "$work/traced.jsonl") $(late_step "$work/plain.jsonl")" | awk '{ printf "%.3f", $1 / $2 }')
        if python3 -c "exit(0 if $far <= 1.1 else 1)"; then
            say speed-after right "steps behind the trace take $far of those without one"
        else
            say speed-after wrong "steps behind the trace take $far of those without one"
        fi
    else
        say traced wrong "$(tail -n 1 "$work/traced.log")"
    fi
    finish
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
    set -- --model.preset=llama-100m --model.dim=576 --model.n_layers=30 --model.n_heads=9 --model.n_kv_heads=3 \
        --model.ffn_dim=1536 --model.vocab_size=49152 --model.max_seq_len=512 --model.tie_word_embeddings=true \
        --data.path="$work/text.txt" --training.steps=6 --training.local_batch_size=4 --training.seq_len=512 \
        --optimizer.lr=3e-4 --metrics.log_freq=1
    watch_memory beside f32 2e-3 "$@"
    say memory-f32 right "nvidia-smi $(cat "$work/used") MiB; the ledger: $(grep '^step:  6' "$work/f32.one.log")"
    watch_memory beside bf16 5e-3 "$@" --training.mixed_precision_param=bfloat16
    say memory-bf16 right "nvidia-smi $(cat "$work/used") MiB; the ledger: $(grep '^step:  6' "$work/bf16.one.log")"
    finish
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

# ---- the processor: this build beside older ones, in turns ----

# collectives BUILD: a line for each size to 16 MB, of two ranks; what would come after is not measured.
collectives() {
    stdbuf -oL "$1/bench/bench_collectives" 2 2>/dev/null | sed '/^ *16384 KB/q'
}

# The ratio of the older build's time to this one's: the median over sizes and collectives, of the shortest of three turns.
compare_collectives() {
    local turn
    for turn in 1 2 3; do
        collectives "$work" >"$work/collectives.now.$turn" && collectives "$1" >"$work/collectives.before.$turn" || return 1
    done
    cat "$work/collectives.now.1"
    python3 -c 'import re, statistics, sys
def cells(which):
    turns = [[[float(x) for x in line.split()[4:]] for line in open(sys.argv[1] + "/collectives.%s.%d" % (which, turn))
              if re.match(r" +\d+ KB ", line)] for turn in range(1, 4)]
    return [min(t[i][j] for t in turns) for i in range(len(turns[0])) for j in range(len(turns[0][i]))]
print("%.2f" % statistics.median(b / n for n, b in zip(cells("now"), cells("before")) if n >= 2))' "$work"
}

# speed NAME RATIO: it is right from 0.98 of the older build's on.
speed() {
    local verdict=right
    python3 -c "exit(0 if $2 >= 0.98 else 1)" || verdict=wrong
    say "$1" $verdict "$2"
}

stage_cpu() {
    local before name ratio row now other
    nproc
    for before in "$work"/before/*/; do
        name=$(basename "$before")
        python3 bench/compare.py --build "$work" --against "$before" --rows llama-100m-2,gpt-10m-2 --steps 5 --warmup 1 \
            --repeats 5 | tee "$work/rows"
        # Of the medians: those of a pair are a few percent apart by chance.
        while IFS='|' read -r _ row _ now _ other _; do
            ratio=$(echo "$now $other" | awk '{ gsub(",", ""); printf "%.2f", $1 / $3 }') row=${row%%,*} row=${row# }
            speed "$row-$name" "$ratio"
        done < <(grep -E '^\| (llama|gpt)' "$work/rows")
        compare_collectives "$before" | tee "$work/rows"
        ratio=$(tail -n 1 "$work/rows")
        speed "collectives-$name" "$ratio"
    done
    finish
    local status=$?
    echo "$(cat "$work"/said/* | cut -f 1,3 | tr '\t\n' ' ;')"
    return $status
}

# ---- the table ----

failed=0 table=
for stage in $stages; do
    echo "==== $stage"
    began=$SECONDS
    rm -rf "$work/said"
    # A group of its own, so that its limit ends all that it has started.
    timeout -k 3 $((limit[$stage] * patience)) bash -c "$(declare -f); $(declare -p work logs fsdp patience steps data tiny \
        llama gpt2 SUITES with_shared_memory); stage_$stage" >"$logs/$stage.log" 2>&1 &
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
