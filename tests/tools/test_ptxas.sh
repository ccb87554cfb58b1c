#!/usr/bin/env bash
# Checks what ptxas says of the kernels, for each GPU that they are compiled for: none but those below spills a register
# or keeps something in local memory, and their registers leave room for two blocks of 256 threads on a multiprocessor. It
# is skipped if the plug-in is not built.
set -eu

# file: the most registers of its kernels, and why
limits='
attention_forward: 255 operands and results of tensor cores stay in registers, a block of 128 threads
attention_backward: 255 the same
'

# file and architecture: the most bytes of local memory that its kernels spill to, and which do
spills='
attention_forward sm_90: 24 16 bits, heads of 40 to 64: three blocks fit on a multiprocessor so
attention_forward sm_100: 8 the same
attention_backward sm_80: 16 16 bits, heads of 40 to 64, keys: the tile that is fastest
attention_backward sm_90: 24 the same
attention_backward sm_100: 48 f32, heads of 40 to 64: two blocks
loss sm_80: 24 two blocks of 1,024 threads are faster than one, by a quarter on an H200
loss sm_90: 24 the same
loss sm_100: 24 the same
'

# the most bytes of local memory for attention with windows, documents or caps, which has more to keep
narrow=64

# check REPORT ARCHITECTURES: prints what is wrong in it.
check() {
    awk -v file="$(basename "$1" .ptxas)" -v architectures="$2" -v limits="$limits" -v spills="$spills" -v narrow="$narrow" '
        BEGIN {
            most = 128
            for (n = split(limits, lines, "\n"); n > 0; n--)
                if (index(lines[n], file ": ") == 1) {
                    split(lines[n], words, " ")
                    most = words[2]
                }
            for (n = split(spills, lines, "\n"); n > 0; n--)
                if (index(lines[n], file " ") == 1) {
                    split(lines[n], words, /:? /)
                    spilled["\047" words[2] "\047"] = words[3]
                }
        }
        /Compiling entry function/ {
            name = $7 " " $9; most_spilled = spilled[$9] + 0; kernels++; built[$9]
            if (file ~ /^attention/ && name ~ /Lb1E/ && most_spilled < narrow)
                most_spilled = narrow
        }
        / bytes stack frame/ && ($1 > most_spilled || (most_spilled == 0 && ($5 > 0 || $9 > 0))) {
            print file ": " name ": " $0
        }
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
            count = split(architectures, list, ";")
            for (n = 1; n <= count; n++)
                if (!(("\047sm_" list[n] "\047") in built))
                    print file ": no kernel for sm_" list[n]
        }' "$1"
}

# expect TEXT REPORT_LINES...: a made report is told of.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
expect() {
    printf '%s\n' "ptxas info    : Compiling entry function 'k' for 'sm_90'" "${@:2}" >"$folder/made.ptxas"
    check "$folder/made.ptxas" "${architectures:-90}" >"$folder/said"
    if { [ -z "$1" ] && [ -s "$folder/said" ]; } || ! grep -qF -- "$1" <(echo && cat "$folder/said"); then
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
architectures='80;90' expect 'no kernel for sm_80' "$none" "$few"

[ -n "$(ls "$FSDP_BUILD"/cuda/*.ptxas 2>/dev/null)" ] || exit 77
if grep -q '^FSDP_KERNELS_QUICKLY:BOOL=ON' "$FSDP_BUILD/CMakeCache.txt"; then
    echo "skipped: the kernels are compiled quickly (FSDP_KERNELS_QUICKLY), and ptxas spills"
    exit 77
fi
architectures=$(sed -n 's/^FSDP_CUDA_ARCHITECTURES:STRING=//p' "$FSDP_BUILD/CMakeCache.txt")
for source in "$FSDP_SOURCE"/src/backend/cuda/kernels/*.cu; do
    check "$FSDP_BUILD/cuda/$(basename "$source" .cu).ptxas" "$architectures"
done >"$folder/all"
if [ -s "$folder/all" ]; then
    cat "$folder/all"
    exit 1
fi
echo "ptxas: ok ($(grep -h 'Compiling entry' "$FSDP_BUILD"/cuda/*.ptxas | wc -l) kernels, of $architectures)"
