#!/bin/sh
# The English text of Debian's `fortunes` package, an empty line between two texts. FORTUNES is the folder that has it.
set -eu
fortunes=${FORTUNES:-/usr/share/games/fortunes}

if [ ! -d "$fortunes" ]; then
    echo "no text in $fortunes: install the packages fortunes and fortunes-min, or set FORTUNES" >&2
    exit 1
fi
for file in "$fortunes"/*; do
    case $file in
    *.dat | *.u8 | */ascii-art | */art) ;; # indexes, links, and pictures made of letters
    *) sed '/^%$/s/.*//' "$file" ;;
    esac
done
