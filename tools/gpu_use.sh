# gpu_use.sh - stages of gpu_check.sh, which reads this file: what a user does on a GPU, and with several ranks on it.
# shellcheck shell=bash disable=SC2154,SC2086 # the variables are gpu_check.sh's, and some are lists of arguments

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
    if within $bound "${far:-nan}"; then
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
        within 1e-4 "${far:-nan}"; then
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

# kills CARRIER [RANKS [STOP]]: one of four ranks is killed, or stopped for longer than comm.timeout: the others end, and
# the last line names it.
kills() {
    local run rank status stat begun watch name=killed-$1 signal=${3:-KILL} said='rank [0-3] was killed by signal 9' log
    [ $signal = KILL ] || name=stopped-$1 said='comm.timeout is 5 s.* rank [0-3], which is stopped'
    log=$work/$name.log
    "$fsdp" train $llama $data --training.steps=1000000 --training.device=cuda --comm.carrier=$1 \
        ${3:+--comm.timeout=5} -n ${2:-4} >"$log" 2>&1 &
    run=$!
    until grep -q '^step: ' "$log" || ! kill -0 $run; do sleep 0.1; done
    # Rank processes are the program's children; the last one is a rank.
    rank=$(for stat in /proc/[0-9]*/stat; do
        [ "$(sed 's/.*) . \([0-9]*\) .*/\1/' "$stat" 2>/dev/null)" = $run ] && basename "$(dirname "$stat")"
    done | sort -n | tail -n 1)
    begun=$SECONDS
    kill -$signal "$rank"
    (sleep $((20 * patience)) && kill -9 $run) >/dev/null 2>&1 &
    watch=$!
    wait $run
    status=$?
    kill $watch
    cat "$log"
    if [ $status != 0 ] && [ $((SECONDS - begun)) -lt $((20 * patience)) ] &&
        tail -n 1 "$log" | grep -q "$said"; then
        say $name right "$(tail -n 1 "$log"), after $((SECONDS - begun)) s"
    else
        say $name wrong "$(tail -n 1 "$log")"
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
    aside kills staged
    finish
}

# carries CARRIER-NAME ARGUMENTS: a run by the carrier has the bits of one through the host.
carries() {
    local name=$1 by=${1%%-*} carrier
    shift
    for carrier in $by staged; do
        if ! train $name.$carrier "$@" --training.device=cuda --comm.carrier=$carrier; then
            say $name wrong "a run by '$carrier' has failed: $(tail -n 1 "$work/$name.$carrier.log")"
            return
        fi
    done
    grep -h 'exchanges by carrier' "$work/$name.$by.log"
    if [ -s "$work/$name.$by.losses" ] && cmp "$work/$name.$by.losses" "$work/$name.staged.losses"; then
        say $name right "the losses of staged, by bits"
    else
        say $name wrong "other losses than staged"
    fi
}

# Processes that hold memory of one GPU in common: gathers move no byte, and they end in any order.
region() {
    local said verdict=right
    said=$(CUDA_VISIBLE_DEVICES=0 run_files 'comm/device_region:processes_*' 'comm/device_region:a_rank_that_*' \
        'comm/device_region:writers_*') || verdict=wrong
    echo "$said"
    say region $verdict "$(echo "$said" | tail -n 1)"
}

stage_ranks() {
    local ranks
    figures exports
    region
    for ranks in 2 4; do
        aside carries peer-fsdp2-$ranks $llama $tiny -n $ranks
        aside carries peer-ddp-$ranks $gpt2 $tiny --parallelism.strategy=ddp -n $ranks
        aside carries peer-bf16-$ranks $llama $tiny --training.mixed_precision_param=bfloat16 \
            --training.mixed_precision_reduce=bfloat16 -n $ranks
    done
    aside carries peer-3 $gpt2 $tiny -n 3
    aside carries peer-fsdp1-2 $llama $tiny --parallelism.strategy=fsdp1 -n 2
    aside carries peer-zero1-2 $llama $tiny --parallelism.strategy=zero1 -n 2
    aside carries peer-hsdp-2x2 $llama $tiny --parallelism.strategy=hsdp --parallelism.data_parallel_replicate_degree=2 -n 4
    aside carries peer-float8-2 $llama $tiny --parallelism.gather_dtype=float8 -n 2
    aside carries peer-clip-2 $gpt2 $tiny --training.max_norm=0.05 -n 2
    aside kills peer
    aside kills peer 2 STOP
    finish
}

# Prints the version of NCCL that the loader finds, as a number (23007: 2.30.7); nothing where there is none.
nccl_version() {
    python3 -c '
import ctypes, os, sys
name = "libnccl.so.2" # of the pack where there is no GPU
folder = os.environ.get("NCCL", sys.argv[1] if os.path.exists(os.path.join(sys.argv[1], name)) else "")
version = ctypes.c_int()
ctypes.CDLL(os.path.join(folder, name)).ncclGetVersion(ctypes.byref(version))
print(version.value)' "$work" 2>/dev/null
}

# adds NAME BOUND ARGUMENTS: a run whose sums NCCL makes, beside the CPU's.
adds() {
    local name=$1 bound=$2 far
    shift 2
    if ! train $name.cpu "$@" --training.device=cpu || ! train $name.sums "$@" --training.device=cuda --comm.reduce=nccl; then
        say $name wrong "a run has failed: $(tail -qn 1 "$work/$name".*.log | tail -n 1)"
        return
    fi
    grep -h 'exchanges by carrier' "$work/$name.sums.log"
    far=$(apart "$work/$name.cpu.losses" "$work/$name.sums.losses") || far=nan
    if within $bound "${far:-nan}"; then
        say $name right "$far from the CPU" "$bound" "$far"
    else
        say $name wrong "$far from the CPU"
    fi
}

stage_nccl() {
    local version gpus
    version=$(nccl_version)
    gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
    if [ -z "$version" ] || { [ "$gpus" -lt 2 ] && [ "$version" -lt 23000 ]; }; then
        say nccl right "skipped: $gpus GPU, and NCCL ${version:-is not there}: two ranks of one GPU need 23000 (2.30)"
        finish
        return
    fi
    [ "$gpus" -ge 2 ] || export NCCL_MULTI_RANK_GPU_ENABLE=1
    figures exports
    carries nccl-fsdp2-2 $llama $tiny -n 2
    carries nccl-ddp-2 $gpt2 $tiny --parallelism.strategy=ddp -n 2
    carries nccl-bf16-2 $llama $tiny --training.mixed_precision_param=bfloat16 \
        --training.mixed_precision_reduce=bfloat16 -n 2
    carries nccl-teams-2 $llama $tiny --parallelism.tensor_parallel_degree=2 -n 2
    # What comes of memory that NCCL is shown the runs' logs say: windows, registered memory or why nothing.
    carries nccl-copies-2 $llama $tiny --comm.nccl_buffers=copy_engines -n 2
    carries nccl-copies-bf16-2 $gpt2 $tiny --comm.nccl_buffers=copy_engines --training.mixed_precision_param=bfloat16 -n 2
    carries nccl-plain-2 $llama $tiny --comm.nccl_buffers=plain -n 2
    adds nccl-sums-2 2e-3 $llama $tiny -n 2
    adds nccl-sums-bf16-2 5e-3 $llama $tiny --training.mixed_precision_param=bfloat16 \
        --training.mixed_precision_reduce=bfloat16 -n 2
    kills nccl 2
    unset NCCL_MULTI_RANK_GPU_ENABLE
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
    if within 2e-3 "${far:-nan}"; then
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
