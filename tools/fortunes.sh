#!/bin/sh
# Prints the English text of Debian's packages fortunes and fortunes-min, with an empty line between two texts, and
# nothing of other languages' packages, which use the same folder. If FORTUNES is set, it prints all text of that
# folder.
set -eu
fortunes=${FORTUNES:-/usr/share/games/fortunes}

if [ ! -d "$fortunes" ]; then
    echo "no text in $fortunes: install the packages fortunes and fortunes-min, or set FORTUNES" >&2
    exit 1
fi
if [ -n "${FORTUNES:-}" ] || ! files=$(dpkg -L fortunes fortunes-min 2>/dev/null); then
    files=$(printf '%s\n' "$fortunes"/*)
fi
printf '%s\n' "$files" | LC_ALL=C sort | while IFS= read -r file; do
    case $file in
    *.dat | *.u8 | */ascii-art | */art) ;; # indexes, links, and pictures made of letters
    "$fortunes"/*) [ ! -f "$file" ] || sed '/^%$/s/.*//' "$file" ;;
    esac
done
