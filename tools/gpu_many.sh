# gpu_many.sh - the stage many of gpu_check.sh, which reads this file: several GPUs of a machine, in two tables. The first
# has the bus bandwidth of each collective by nccl-tests' formulae (bench/bench_gpus.c), by our carriers and by NCCL's own
# order of sums; the second what steps of a model take, what of that is exposed communication, and how it scales.
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

stage_many() {
    local gpus ranks model
    gpus=${GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
    if [ "$gpus" -lt 2 ]; then
        echo "skipped: there are $gpus GPUs here, and it takes two"
        return 0
    fi
    nvidia-smi topo -m 2>/dev/null
    nvidia-smi topo -p2p r 2>/dev/null
    for ranks in 2 4 8; do
        [ $ranks -gt "$gpus" ] || links $ranks
    done
    for model in llama-1b llama-8b; do
        for ranks in 1 2 4 8; do
            [ $ranks -gt "$gpus" ] || steps $model $ranks
        done
    done
    if figures links "$work/links" && figures scaling "$work/steps"; then
        say tables right "$(figures summary "$work/links" "$work/steps")"
    else
        say tables wrong "a table is missing"
    fi
    finish
}
