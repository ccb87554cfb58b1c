# gpu_speed.sh - stages of gpu_check.sh, which reads this file: how fast a GPU's steps are and what memory they take, what
# each kernel of a step takes, and the speed of the processor alone.
# shellcheck shell=bash disable=SC2154,SC2086 # the variables are gpu_check.sh's, and some are lists of arguments

# a_model NAME: arguments of a run of one of the models that are measured, and of a peer, in $run and $peer_run. SMALL=1:
# smaller ones, where there is no GPU.
a_model() {
    local batch seq
    case $1${SMALL:+-small} in
    llama-1b) batch=8 seq=2048 ;;
    llama-8b) batch=1 seq=2048 ;;
    gpt2-124m) batch=32 seq=1024 ;;
    *) batch=2 seq=32 ;;
    esac
    [ -f "$work/text.txt" ] || cat docs/*.md README.md >"$work/text.txt"
    run="--model.preset=$1 --data.path=$work/text.txt --training.local_batch_size=$batch --training.seq_len=$seq
        --model.max_seq_len=$seq --model.tie_word_embeddings=false --training.mixed_precision_param=bfloat16
        --optimizer.lr=1e-4 --metrics.log_freq=1 --training.device=cuda --kernels.attention=${ATTENTION:-exact}"
    [ "$1" != llama-8b ] || run="$run --activation_checkpoint.mode=full"
    [ -z "${SMALL:-}" ] || run="$run --model.preset=llama-1m --model.n_layers=2 --training.seq_len=16"
    peer_run="--model $1 --device cuda --mode fsdp2 --bf16 --compile --compile-loss --batch $batch --seq $seq"
}

# What a trace has of the GPU's own record, whether the run with it has the same bits, and whether what comes after is
# slower.
check_trace() {
    local far turn
    set -- $llama $tiny --training.device=cuda
    for turn in 1 2 3; do
        train plain.$turn "$@" || say plain wrong "$(tail -n 1 "$work/plain.$turn.log")"
        if ! train traced.$turn "$@" --metrics.trace.path="$work/trace.json.gz" --metrics.trace.steps=3-5; then
            say traced wrong "$(tail -n 1 "$work/traced.$turn.log")"
            return
        fi
    done
    if figures record "$work/trace.json.gz" >"$work/record"; then
        say record right "$(cat "$work/record")"
    else
        say record wrong "$(cat "$work/record")"
    fi
    grep -c 'has no record\|lacks some' "$work/traced.3.log"
    if cmp "$work/plain.3.losses" "$work/traced.3.losses"; then
        say same-bits right "with and without a trace"
    else
        say same-bits wrong "with and without a trace"
    fi
    far=$(figures ratio "$work/traced" "$work/plain")
    if within 1.1 "$far"; then
        say speed-after right "steps behind the trace take $far of those without one"
    else
        say speed-after wrong "steps behind the trace take $far of those without one"
    fi
}

# kernels_of MODEL: a step of it, kernel by kernel.
kernels_of() {
    local run peer_run
    a_model "$1"
    if train "kernels.$1" $run --training.steps=6 --metrics.trace.path="$work/$1.json.gz" --metrics.trace.steps=4-5 &&
        figures kernels "$work/$1.json.gz" 2 ${RATES:-} >"$work/$1.kernels"; then
        echo "-- a step of $1"
        cat "$work/$1.kernels"
        say "kernels-$1" right "$(tail -n 1 "$work/$1.kernels")"
    else
        say "kernels-$1" wrong "$(tail -n 1 "$work/kernels.$1.log")"
    fi
}

stage_profile() {
    check_trace
    kernels_of llama-1b
    kernels_of gpt2-124m
    finish
}

# Ours, with its own attention and with cuDNN's, and the peer (FSDP_PEER of gpu_pack.sh) in turns, twice.
stage_bench() {
    local model turn kernels run peer_run
    for model in llama-1b gpt2-124m; do
        a_model $model
        for turn in 1 2; do
            if [ -f "$work/peer.py" ]; then
                python3 "$work/peer.py" $peer_run --steps "$bench_steps" --warmup 3 >"$work/peer" 2>"$work/peer.log" ||
                    tail -n 5 "$work/peer.log"
                figures peer "$model" "$turn" "$work/peer" >>"$work/turns" ||
                    say "$model-peer-$turn" wrong "$(tail -n 1 "$work/peer.log")"
            fi
            for kernels in exact fast; do
                watch_memory train "$model.$turn" $run --kernels.attention=$kernels \
                    --training.steps=$((bench_steps + 3)) &&
                    figures ours $kernels "$model" "$turn" "$work/$model.$turn.jsonl" "$(cat "$work/used")" \
                        >>"$work/turns" ||
                    say "$model-$kernels-$turn" wrong "$(tail -n 1 "$work/$model.$turn.log")"
            done
        done
    done
    if figures bench "$work/turns" >"$work/turns.table"; then
        cat "$work/turns.table"
        say bench right "$(tail -n 1 "$work/turns.table")"
    else
        say bench wrong "no table"
    fi
    finish
}

# The largest figure of nvidia-smi while a command runs, in MiB, in $work/used.
watch_memory() {
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 100 >"$work/polls" 2>/dev/null &
    local poll=$!
    "$@"
    local status=$?
    kill $poll 2>/dev/null # it has ended where there is no GPU
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

stage_algorithms() {
    local models="llama-1b:8x2048 gpt2-124m:32x1024" seconds=55
    [ -z "${SMALL:-}" ] || models="llama-1m:1x8 gpt-10m:1x4" seconds=5
    # The library is looked for beside the program, and where there is no GPU it lies beside the plug-in.
    FSDP_CUDA_LIBRARIES=$work:${FSDP_CUDA_LIBRARIES:-} "$work/bench/bench_products" -s $seconds $models
}

# ---- attention by cuDNN ----

# attends NAME BOUND ARGUMENTS: the run by own kernels, by cuDNN's, and twice by its deterministic ones.
attends() {
    local name=$1 bound=$2 far bits=same verdict=right
    shift 2
    if ! train "$name.exact" "$@" || ! train "$name.fast" "$@" --kernels.attention=fast ||
        ! train "$name.one" "$@" --kernels.attention=fast_repeatable ||
        ! train "$name.two" "$@" --kernels.attention=fast_repeatable; then
        say "$name" wrong "a run has failed"
        return
    fi
    far=$(apart "$work/$name.exact.losses" "$work/$name.fast.losses") || far=nan
    cmp -s "$work/$name.one.losses" "$work/$name.two.losses" || bits=OTHER verdict=wrong
    python3 -c "exit(0 if float('$far') <= $bound else 1)" || verdict=wrong
    say "$name" $verdict "fast is $far from exact; fast_repeatable has $bits bits twice"
}

# speed_of KERNELS: tokens a second of Llama-1B.
speed_of() {
    train "llama.$1" --model.preset=llama-1b --data.path="$work/text.txt" --training.steps=8 \
        --training.local_batch_size=8 --training.seq_len=2048 --training.mixed_precision_param=bfloat16 \
        --metrics.log_freq=1 --training.device=cuda --kernels.attention="$1" && tail -n 1 "$work/llama.$1.log"
}

stage_attention() {
    local gpu="--training.device=cuda --training.mixed_precision_param=bfloat16" kernels
    [ -f "$work/text.txt" ] || cat docs/*.md README.md >"$work/text.txt"
    aside attends attention-llama 5e-3 $llama $tiny $gpu
    aside attends attention-gpt2 5e-3 $gpt2 $tiny $gpu
    aside attends attention-2-ranks 5e-3 $llama $tiny $gpu -n 2
    wait
    for kernels in exact fast fast_repeatable exact fast; do
        ! command -v nvidia-smi >/dev/null || speed_of $kernels
    done
    finish
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
    figures collectives "$work"
}

# speed NAME RATIO: it is right from 0.98 of the older build's on.
speed() {
    local verdict=right
    within "$2" 0.98 || verdict=wrong
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
