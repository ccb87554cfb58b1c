#!/bin/sh
# Trains a small language model on English text with two ranks, and lets it continue a text. Run it in the project's
# root. FSDP is the program, FORTUNES the folder with the text of Debian's `fortunes` package.
set -eu
cd "$(dirname "$0")/.."
fsdp=${FSDP:-build/fsdp}

tools/fortunes.sh >demo/data.txt
echo "text:   $(wc -c <demo/data.txt) bytes from ${FORTUNES:-/usr/share/games/fortunes}"
"$fsdp" train demo/config.yaml -n 2 "$@"
echo
echo "\$ fsdp generate demo/model --prompt \"The \" --max-new-tokens 400 --temperature 0.5 --seed 3"
"$fsdp" generate demo/model --prompt "The " --max-new-tokens 400 --temperature 0.5 --seed 3
