#!/usr/bin/env bash
# Checks what ptxas says of the kernels for GPUs: none spills a register or keeps something in local memory, and their
# registers leave room for two blocks of 256 threads on a multiprocessor. It is skipped if the plug-in is not built.
set -eu

# file: the most registers of its kernels, and why
limits='
attention_forward: 255 operands and results of tensor cores stay in registers, a block of 128 threads
attention_backward: 255 the same
'

# check REPORT: prints what is wrong in it.
check() {
    awk -v file="$(basename "$1" .ptxas)" -v limits="$limits" '
        BEGIN {
            most = 128
            for (n = split(limits, lines, "\n"); n > 0; n--)
                if (index(lines[n], file ": ") == 1) {
                    split(lines[n], words, " ")
                    most = words[2]
                }
        }
        /Compiling entry function/ { name = $6 " " $8; kernels++ }
        / bytes stack frame/ && ($1 > 0 || $5 > 0 || $9 > 0) { print file ": " name ": " $0 }
        / Used [0-9]+ registers/ {
            match($0, /Used [0-9]+/)
            used = substr($0, RSTART + 5, RLENGTH - 5) + 0
            told++
            if (used > most)
                print file ": " name ": " used " registers, at most " most
        }
        END {
            if (kernels == 0 || told != kernels)
                print file ": " kernels + 0 " kernels, of which " told + 0 " have a line of their registers"
        }' "$1"
}

# expect TEXT REPORT_LINES...: a made report is told of.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expect() {
    printf '%s\n' "ptxas info    : Compiling entry function 'k' for 'sm_90'" "${@:2}" >"$folder/made.ptxas"
    check "$folder/made.ptxas" >"$folder/said"
    if [ -z "$1" ] && [ -s "$folder/said" ] || ! grep -qF -- "$1" "$folder/said" && [ -n "$1" ]; then
        echo "a made report should say '$1', and says:"
        cat "$folder/said"
        exit 1
    fi
}
none='    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads'
few='ptxas info    : Used 32 registers, used 1 barriers'
expect '' "$none" "$few"
expect '8 bytes spill stores' '    0 bytes stack frame, 8 bytes spill stores, 0 bytes spill loads' "$few"
expect '40 bytes stack frame' '    40 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' "$few"
expect '129 registers, at most 128' "$none" 'ptxas info    : Used 129 registers, used 1 barriers'
expect '1 kernels, of which 0' "$none"

[ -n "$(ls "$FSDP_BUILD"/cuda/*.ptxas 2>/dev/null)" ] || exit 77
for source in "$FSDP_SOURCE"/src/backend/cuda/kernels/*.cu; do
    check "$FSDP_BUILD/cuda/$(basename "$source" .cu).ptxas"
done >"$folder/all"
if [ -s "$folder/all" ]; then
    cat "$folder/all"
    exit 1
fi
echo "ptxas: ok ($(grep -h 'Compiling entry' "$FSDP_BUILD"/cuda/*.ptxas | wc -l) kernels)"
