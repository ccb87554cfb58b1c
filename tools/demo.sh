#!/bin/sh
# Trains a small language model on English text over two rank processes, and lets it speak. From the project's root;
# FSDP is the program, FORTUNES the folder with the text of Debian's `fortunes` package.
set -eu
cd "$(dirname "$0")/.."
fsdp=${FSDP:-build/fsdp}
fortunes=${FORTUNES:-/usr/share/games/fortunes}

if [ ! -d "$fortunes" ]; then
    echo "demo: no text in $fortunes: install the packages fortunes and fortunes-min, or set FORTUNES" >&2
    exit 1
fi
for file in "$fortunes"/*; do
    case $file in
    *.dat | *.u8 | */ascii-art | */art) ;; # indexes, links, and pictures made of letters
    *) sed '/^%$/s/.*//' "$file" ;;        # an empty line between two texts
    esac
done >demo/data.txt

echo "text:   $(wc -c <demo/data.txt) bytes from $fortunes"
"$fsdp" train demo/config.yaml -n 2 "$@"
echo
echo "\$ fsdp generate demo/model --prompt \"The \" --max-new-tokens 400 --temperature 0.5 --seed 3"
"$fsdp" generate demo/model --prompt "The " --max-new-tokens 400 --temperature 0.5 --seed 3
