#!/usr/bin/env bash
# bench/cuda/bench_products.c: the products that it finds in a step, and the rows that it prints for the fake cublasLt.
# It is skipped where CUDA's headers were not found.
set -eu
bench=$FSDP_BUILD/tests/bench_products
[ -x "$bench" ] || { echo "skipped: there is no $bench"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "test_bench_products: $*" >&2
    exit 1
}

# sum FILE PATTERN: how many products a step has, of lines that match.
sum() {
    { grep -E "$2" "$1" || true; } | awk '{ n += $2 } END { print n + 0 }'
}

"$bench" -l llama-1b:8x2048 >"$work/llama" || fail "it ended with $?"
# 16 blocks have 12 each, the head 3 for each of 4 chunks; weights' gradients are in f32.
[ "$(sum "$work/llama" .)" = 204 ] || fail "$(cat "$work/llama")"
[ "$(sum "$work/llama" 'NT bfloat16 to float32')" = 68 ] || fail "$(cat "$work/llama")"
[ "$(sum "$work/llama" 'TN bfloat16 to bfloat16 NONE +16384 x  16384 x   2048')" = 16 ] || fail "$(cat "$work/llama")"
"$bench" -l gpt2-124m:32x1024 >"$work/gpt2" || fail "it ended with $?"
[ "$(sum "$work/gpt2" .)" = 168 ] || fail "$(cat "$work/gpt2")"

# With a gain of 0 each product has a row whose best algorithm is not the heuristic's first.
"$bench" -s 2 -g 0 -n 3 gpt-10m:1x4 >"$work/rows" || fail "it ended with $?: $(cat "$work/rows")"
number='(-1|[0-9]+)'
form="ROW\(\"fake GPU\", 130999, \"[NT]{2}\", BF16, (BF16|F32), [A-Z_]+, ($number, ){14}$number\) /\* [0-9.]+ \*/"
bad=$(grep '^ROW' "$work/rows" | grep -vxE "$form" || true)
[ -z "$bad" ] || fail "rows that the table cannot have: $bad"
grep -qE 'GELU_AUX_BIAS .* ms with GELU; .* for a pass: (the pass is faster|GELU comes along)$' "$work/rows" ||
    fail "$(cat "$work/rows")"
best=$(grep -cE '\([12] of [23],' "$work/rows" || true)
rows=$(grep -c '^ROW' "$work/rows" || true)
[ "$rows" -ge "$best" ] && [ "$rows" -le $((best + 2)) ] || # a pass may be faster than GELU in a product
    fail "$best products have a better algorithm, and $rows a row: $(cat "$work/rows")"
tail -n 1 "$work/rows" | grep -qE "; $rows rows of [0-9]+ products, 0 with other bits each time$" || fail "$(tail -n 1 "$work/rows")"

if "$bench" llama-1b 2>"$work/error"; then fail "a model without a batch was taken"; fi
grep -q "'llama-1b' is no model with a batch" "$work/error" || fail "$(cat "$work/error")"
if "$bench" -n 99 2>"$work/error"; then fail "99 algorithms were taken"; fi
grep -q 'expected 1 to 32' "$work/error" || fail "$(cat "$work/error")"
