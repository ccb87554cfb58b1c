#!/usr/bin/env bash
# tools/gpu_figures.py many: lines of collectives and of runs become one table with the same numbers of GPUs; what was not
# measured is empty; one GPU's run is that of every carrier. And the stage says that it was skipped where no GPUs are.
set -eu
cd "$FSDP_SOURCE"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "test_gpu_many: $*" >&2
    exit 1
}

cat >"$work/links" <<'END'
peer exact 2 1 all_gather bfloat16 8192 1.0 2.00 1.00
peer exact 2 1 all_gather bfloat16 65536 1.0 2.00 3.00
peer exact 3 1 all_gather bfloat16 8190 1.0 2.00 1.50
peer exact 3 1 all_gather bfloat16 65532 1.0 2.00 3.50
peer exact 3 1 gather_buffers bfloat16 65536 1.0 2.00 4.25
nccl nccl 3 1 all_reduce float32 8190 1.0 2.00 1.75
END
# run NAME MS EXPOSED: two steps of ten tokens
run() {
    printf '{"tokens": %d, "step_ms": %s, "gather_ms": %s, "reduce_ms": 1}\n' 10 "$2" "$3" 20 "$2" "$3" >"$work/$1"
}
run alone 10 -1
run two 12.5 1.5
python3 tools/gpu_figures.py steps llama-1b 1 peer-exact "$work/alone" >"$work/steps"
python3 tools/gpu_figures.py steps llama-1b 2 peer-exact "$work/two" >>"$work/steps"
python3 tools/gpu_figures.py steps llama-1b 2 nccl-copies "$work/two" >>"$work/steps"
python3 tools/gpu_figures.py steps llama-8b 2 peer-exact "$work/two" >>"$work/steps"
python3 tools/gpu_figures.py steps llama-8b 3 peer-exact "$work/two" >>"$work/steps"
python3 tools/gpu_figures.py many "$work/links" "$work/steps" "3 x A" >"$work/many" || fail "it ended with $?"
sed '/^## /,$d' "$work/many" | grep '^| ' >"$work/table"
cat >"$work/expected" <<'END'
| | by | unit | 1 GPU | 2 GPUs | 3 GPUs |
| all_gather, bfloat16, 65,536 bytes | peer | GB/s: bytes / time x (n-1)/n |  | 3.00 | 3.50 |
| gather_buffers, bfloat16, 65,536 bytes | peer | GB/s: bytes / time x (n-1)/n |  |  | 4.25 |
| llama-1b: a step | peer | ms | 10.00 | 12.50 |  |
| llama-1b: a step | nccl by copies | ms | 10.00 | 12.50 |  |
| llama-1b: exposed communication of it | peer | ms (share of the step) | 0.00 (0 %) | 2.50 (20 %) |  |
| llama-1b: exposed communication of it | nccl by copies | ms (share of the step) | 0.00 (0 %) | 2.50 (20 %) |  |
| llama-1b: tokens | peer | tokens/s of all GPUs | 1,000 | 800 |  |
| llama-1b: tokens | nccl by copies | tokens/s of all GPUs | 1,000 | 800 |  |
| llama-1b: scaling | peer | a GPU's tokens/s over those with 1 | 100 % | 40 % |  |
| llama-1b: scaling | nccl by copies | a GPU's tokens/s over those with 1 | 100 % | 40 % |  |
| llama-8b: a step | peer | ms |  | 12.50 | 12.50 |
| llama-8b: exposed communication of it | peer | ms (share of the step) |  | 2.50 (20 %) | 2.50 (20 %) |
| llama-8b: tokens | peer | tokens/s of all GPUs |  | 800 | 800 |
| llama-8b: scaling | peer | a GPU's tokens/s over those with 2 |  | 100 % | 67 % |
END
diff "$work/expected" "$work/table" || fail "the table is another one"
grep -qF '| all_gather, bfloat16, 8,192 bytes | peer | GB/s: bytes / time x (n-1)/n |  | 1.00 | 1.50 |' "$work/many" ||
    fail "a smaller size is missing"
grep -qF '| all_reduce, float32, 8,190 bytes | nccl, its own sums | GB/s: bytes / time x 2 (n-1)/n |  |  | 1.75 |' \
    "$work/many" || fail "another dtype is missing"
python3 tools/gpu_figures.py summary "$work/links" "$work/steps" >"$work/summary"
grep -qxF '3 GPUs: gathers at 4.2 GB/s by peer; llama-8b 67% by peer' "$work/summary" || fail "$(cat "$work/summary")"
if python3 tools/gpu_figures.py many "$work/none" "$work/steps" "3 x A" >"$work/many"; then
    fail "a report without collectives is complete"
fi

# shellcheck source=tools/gpu_many.sh
. tools/gpu_many.sh
[ "$(GPUS=1 stage_many)" = "skipped: there are fewer than two GPUs here (1)" ] || fail "$(GPUS=1 stage_many)"
