# gpu_many.sh - the stage many of gpu_check.sh, which reads this file: several GPUs of a machine, in a report that begins
# with one table (OUT/many.md). Its columns are numbers of GPUs. Its first rows are bus bandwidths of each collective by
# nccl-tests' formulae (bench/bench_gpus.c), by our carriers and by NCCL's own order of sums; the others what steps of a
# model take, what of that is exposed communication, and how it scales.
# shellcheck shell=bash disable=SC2154,SC2086,SC2034 # the variables are gpu_check.sh's, and some are lists of arguments

# links RANKS: lines of bench_gpus by each carrier, in $work/links. NCCL's sums are the last.
links() {
    local way sizes="256 64"
    [ -z "${SMALL:-}" ] || sizes="1 1024 3"
    for way in "peer exact" "staged exact" "nccl plain" "nccl exact" "nccl copies" "nccl nccl"; do
        if "$fsdp" run -n "$1" -- "$work/bench/bench_gpus" $way $sizes >"$work/links.now" 2>"$work/links.log"; then
            cat "$work/links.now" >>"$work/links"
        else
            tail -n 5 "$work/links.log"
            say "links-$1-${way/ /-}" wrong "$(tail -n 1 "$work/links.log")"
        fi
    done
}

# steps MODEL RANKS: runs by each carrier, a line each in $work/steps. One rank exchanges nothing, and has one.
steps() {
    local run peer_run way carrier name keys
    a_model "$1"
    for way in peer-exact staged-exact nccl-exact nccl-copies nccl-nccl; do
        carrier=${way%-*} name=many.$1.$2.$way keys=--comm.reduce=${way#*-}
        [ "${way#*-}" != copies ] || keys=--comm.nccl_buffers=copy_engines
        [ "$2" != 1 ] || [ $way = peer-exact ] || continue
        [ "$carrier" != staged ] || [ "$1" = llama-1b ] || continue # it is slow, and there to compare with
        if train $name $run --training.steps=$bench_steps -n "$2" --comm.carrier=$carrier $keys; then
            figures steps "$1" "$2" $way "$work/$name.jsonl" >>"$work/steps"
        elif grep -q 'memory left' "$work/$name.log" && [ "$2" = 1 ]; then
            echo "-- $1 has no room on one GPU, so it is scaled from more"
        else
            say $1-$2-$way wrong "$(tail -n 1 "$work/$name.log")"
        fi
    done
}

# report: what has been measured, in the file that begins with the table; so it is there when the limit ends the stage.
report() {
    local gpus
    gpus=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c |
        sed 's/^ *\([0-9]*\) \(.*\), \(.*\)/\1 x \2, driver \3/' | paste -sd ';')
    figures many "$work/links" "$work/steps" "${gpus:-$1 GPUs}, $(date -I)" >"$logs/many.md"
}

stage_many() {
    local gpus ranks model counts
    gpus=${GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
    if [ "$gpus" -lt 2 ]; then
        echo "skipped: there are fewer than two GPUs here ($gpus)"
        return 0
    fi
    nvidia-smi topo -m 2>/dev/null
    nvidia-smi topo -p2p r 2>/dev/null
    counts=$(for ranks in 1 2 4 8 "$gpus"; do [ $ranks -gt "$gpus" ] || echo $ranks; done | sort -nu)
    for ranks in $counts; do
        [ $ranks = 1 ] || links $ranks
        report "$gpus"
    done
    for model in llama-1b llama-8b; do
        for ranks in $counts; do
            steps $model $ranks
            report "$gpus"
        done
    done
    sed '/^## /,$d' "$logs/many.md"
    if report "$gpus"; then
        say table right "$(figures summary "$work/links" "$work/steps"); $logs/many.md"
    else
        say table wrong "$logs/many.md is incomplete"
    fi
    finish
}
