#!/usr/bin/env bash
# cluster.sh - measures a step on two machines with a network of known rate between them; prints a Markdown table.
#
#     bench/cluster.sh [--build build] [--peer "PYTHON /path/to/torch_bench.py"] [--model gpt-10m] [--batch 4]
#                      [--ranks "1 2"] [--rates "10gbit 1gbit 100mbit"] [--steps 5] [--warmup 2]
#                      [--repeats 1] [--step-options "--parts"]
#     bench/cluster.sh [--ranks ...] [--rates ...] --run "COMMAND"      runs COMMAND by mpirun at each rate instead
#
# The machines are namespaces of this one (tests/cluster/machines.sh). The peer is that of bench/compare.py. --batch is
# for all ranks of a machine together.
#
#   into a machine   bytes of a step by the counters of the interface: those of a long run minus those of a short one
#   closed form      bytes of parameters and gradients that must come in: each once (docs/cluster.md)
#   step             the median of a run's steps, and of --repeats runs (ours only) their median; in turns with
#   alone            the same ranks on one machine, measured again at each rate, since others may use the cores
#   wire             bytes into a machine over the rate of a transfer one way (payload per second), measured then
#   of the bound     a step over the longer of the two
set -euo pipefail

source=$(cd "$(dirname "$0")/.." && pwd)
build=$source/build peer='' model=gpt-10m batch=4 shapes="1 2" rates="10gbit 1gbit 100mbit" steps=5 warmup=2
repeats=1 run='' step_options=''
while [ $# -gt 0 ]; do
    case "$1" in
    --build) build=$(cd "$2" && pwd) ;;
    --peer) peer=$2 ;;
    --model) model=$2 ;;
    --batch) batch=$2 ;;
    --ranks) shapes=$2 ;;
    --rates) rates=$2 ;;
    --steps) steps=$2 ;;
    --warmup) warmup=$2 ;;
    --repeats) repeats=$2 ;;
    --run) run=$2 ;;
    --step-options) step_options=$2 ;;
    *)
        echo "cluster.sh: '$1' is no option; the head of $0 lists them" >&2
        exit 2
        ;;
    esac
    shift 2
done
export FSDP_BUILD=$build
# shellcheck source=tests/cluster/machines.sh
. "$source/tests/cluster/machines.sh"
[ -n "${MACHINES_INSIDE:-}" ] || set -- --build "$build" --peer "$peer" --model "$model" --batch "$batch" \
    --ranks "$shapes" --rates "$rates" --steps "$steps" --warmup "$warmup" \
    --repeats "$repeats" --run "$run" --step-options "$step_options"
machines_enter "$@"
machines_up 2
port=29500

fail() {
    echo "cluster.sh: $1" >&2
    [ ! -e "$machines_folder/said" ] || tail -20 "$machines_folder/said" >&2
    exit 1
}

# number NAME: reads a number from the line that a benchmark has printed
number() {
    sed -n "s/.*\"$1\": \([0-9.]*\).*/\1/p" "$machines_folder/said" | tail -1
}

median() { sort -n | awk '{ of[NR] = $1 } END { print of[int((NR + 1) / 2)] }'; }

calculate() { awk "BEGIN { printf \"$1\", $2 }"; }

set_rate() {
    for ((i = 0; i < machines_count; i++)); do
        tc -n "m$i" qdisc replace dev eth0 root tbf rate "$1" burst 256kb latency 50ms
    done
}

# Measures one way from machine 0 to machine 1 for two seconds: bytes per second at the receiver
one_way() {
    local listener
    machines_on 1 python3 - >"$machines_folder/rate" <<'END' &
import socket, time
s = socket.create_server(("10.77.0.2", 9000))
c, _ = s.accept()
got, start, buffer = 0, None, bytearray(1 << 20)
while n := c.recv_into(buffer):
    start = start or time.monotonic()
    got += n
print(int(got / (time.monotonic() - start)))
END
    listener=$!
    machines_on 0 python3 - <<'END'
import socket, time
for _ in range(500):
    try:
        c = socket.create_connection(("10.77.0.2", 9000))
        break
    except OSError:
        time.sleep(0.01)
end, buffer = time.monotonic() + 2, bytes(1 << 18)
while time.monotonic() < end:
    c.sendall(buffer)
END
    wait $listener
    cat "$machines_folder/rate"
}

options_of() { # RANKS-OF-A-MACHINE STEPS
    echo "--model $model --batch $((batch / $1)) --seq 256 --steps $2 --warmup $warmup --mode fsdp2"
}

run_alone() { # RANKS-OF-A-MACHINE STEPS
    # shellcheck disable=SC2046,SC2086
    "$build/fsdp" run -n $((machines_count * $1)) -- "$build/bench/bench_step" $(options_of "$@") $step_options \
        >"$machines_folder/said" 2>&1 || fail "bench_step failed on one machine"
}

run_ours() {
    # shellcheck disable=SC2046,SC2086
    machines_run "$1" "$build/bench/bench_step" $(options_of "$@") $step_options >"$machines_folder/said" 2>&1 ||
        fail "bench_step failed"
}

run_peer() {
    local rank ranks=$((machines_count * $1)) pids=() pid
    port=$((port + 1))
    : >"$machines_folder/said"
    for ((rank = 0; rank < ranks; rank++)); do
        # shellcheck disable=SC2046,SC2086
        machines_on $((rank / $1)) env RANK=$rank WORLD_SIZE=$ranks MASTER_ADDR=10.77.0.1 MASTER_PORT=$port \
            GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 $peer $(options_of "$@") --threads 1 \
            >>"$machines_folder/said" 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || fail "the peer failed"; done
}

bytes_of() { # COMMAND...: counts what comes into machine 1 while it runs
    local before
    before=$(machines_bytes 1)
    "$@"
    came=$(($(machines_bytes 1) - before))
}

# Computes what a step of FSDP2 must bring in: all parameters gathered, all gradients reduced, and what does not stay
# whole from the forward to the backward gathered again
closed_form() { # PARAMETERS
    local whole norms mlp block last=0
    case $model in
    gpt-10m)
        whole=$((2 * 256 * 384 + 256 * 384 + 2 * 384)) norms=$((6 * 4 * 384))
        mlp=$((2 * 384 * 1536 + 1536 + 384)) block=$((mlp + 4 * 384 * 384 + 4 * 384 + 4 * 384))
        ;;
    llama-100m)
        whole=$((2 * 32000 * 768 + 768)) norms=$((12 * 2 * 768))
        mlp=$((3 * 768 * 2048)) block=$((mlp + 2 * 768 * 768 + 2 * 768 * 256 + 2 * 768))
        ;;
    *) fail "the parameters of '$model' are not known here: add them to closed_form" ;;
    esac
    case $step_options in *--parts*) whole=$((whole + norms)) last=$mlp ;; *) last=$block ;; esac
    case $step_options in *--keep-last*) whole=$((whole + last)) ;; esac
    echo $((4 * (3 * $1 - whole) * (machines_count - 1) / machines_count))
}

# row NAME RATE WIRE-RATE STEP ALONE: prints a row; $few and $came are bytes of the short and the long run
row() {
    local bytes wire
    bytes=$(((came - few) / (steps - 1)))
    wire=$(calculate %.0f "$bytes / $3 * 1000")
    echo "| $shape | $2, $(calculate %.3f "$3 * 8 / 1e9") | $1 | $(calculate %.2f "$bytes / 1e6") |" \
        "$(calculate %.2f "$(closed_form "$(number params)") / 1e6") | $(calculate %.0f "$4") |" \
        "$(calculate %.0f "$5") | $wire | $(calculate %.2f "$4 / ($wire > $5 ? $wire : $5)") |"
}

if [ -n "$run" ]; then
    for each in $shapes; do
        for rate in $rates; do
            set_rate "$rate"
            echo "2 x $each, $rate: $(calculate %.3f "$(one_way) * 8 / 1e9") Gbit/s one way"
            # shellcheck disable=SC2086
            machines_run "$each" $run
        done
    done
    exit
fi
echo "| $model: machines x ranks | rate, measured Gbit/s | who | MB into a machine a step | closed form, MB | step, ms |" \
    "alone, ms | wire, ms | of the bound |"
echo "|---|---|---|---:|---:|---:|---:|---:|---:|"
for each in $shapes; do
    shape="2 x $each"
    set_rate 10gbit
    bytes_of run_ours "$each" 1
    few_ours=$came
    [ -z "$peer" ] || bytes_of run_peer "$each" 1
    few_peer=$came
    for rate in $rates; do
        set_rate "$rate"
        wire_rate=$(one_way)
        rm -f "$machines_folder"/times.*
        for ((repeat = 0; repeat < repeats; repeat++)); do
            run_alone "$each" "$steps"
            number ms >>"$machines_folder/times.alone"
            bytes_of run_ours "$each" "$steps"
            number ms >>"$machines_folder/times.ours"
        done
        alone=$(median <"$machines_folder/times.alone")
        few=$few_ours
        row ours "$rate" "$wire_rate" "$(median <"$machines_folder/times.ours")" "$alone"
        [ -n "$peer" ] || continue
        bytes_of run_peer "$each" "$steps"
        few=$few_peer
        step_options="" row peer "$rate" "$wire_rate" "$(number ms)" "$alone"
    done
done
