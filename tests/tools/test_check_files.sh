#!/usr/bin/env bash
# Checks that tools/check_files.py finds circles of symbols, of headers and of both, and uses of rooms above, and no
# others.
set -eu
command -v python3 >/dev/null || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
src=$folder/src build=$folder/build

# write FILE TEXT...: one line each
write() {
    mkdir -p "$(dirname "$src/$1")"
    printf '%s\n' "${@:2}" >"$src/$1"
}

# The way round is through a file in a folder below.
write symbols/a.c 'int b(void); int a(void); int a(void) { return b(); }'
write symbols/deep/b.c 'int c(void); int b(void); int b(void) { return c(); }'
write symbols/c.c 'int a(void); int c(void); int c(void) { return a(); }'
write symbols/top.c 'int a(void); int top(void); int top(void) { return a(); }'
write headers/a.h '#include "headers/b.h"'
write headers/b.h '#include "headers/a.h"'
write both/a.h '#include "both/b.h"'
write both/a.c 'int a(void); int a(void) { return 1; }'
write both/b.h 'int b(void);'
write both/b.c 'int a(void); int b(void); int b(void) { return a(); }'
# Names that only look alike, a diamond, and a file that includes the header of one that uses it.
write free/a.c '#include "free/c.h"' 'int b(void); int a(void) { return b() + c(); }' 'static int helper(void) { return 1; }' \
    'int use_a(void) { return helper(); }'
write free/b.c '#include "free/c.h"' 'static int helper(void) { return 2; }' 'int b(void) { return c() + helper(); }'
write free/c.h 'int c(void); int later(void);'
write free/c.c '#include "free/a.h"' 'int c(void) { return A; }'
write free/a.h '#define A 1'

# Rooms: in `house` each uses those below it; in the others one thing goes up, or a folder has no name.
for layer in house symbol include nameless; do
    write $layer/low/a.c "int ${layer}_a(void); int ${layer}_a(void) { return 1; }"
    write $layer/low/deep/d.c "int ${layer}_a(void); int ${layer}_d(void) { return ${layer}_a(); }"
    write $layer/high/b.h '#define B 1'
    write $layer/high/b.c "int ${layer}_d(void); int ${layer}_b(void); int ${layer}_b(void) { return ${layer}_d(); }"
    write $layer/top.c "#include \"$layer/high/b.h\"" "int ${layer}_b(void); int ${layer}_top(void) { return B + ${layer}_b(); }"
done
write house/low/e.c 'int house_top(void); int house_e(void) { return house_top(); }' # which rules of rooms do not see
write symbol/low/e.c 'int symbol_b(void); int symbol_e(void) { return symbol_b(); }'
write include/low/deep/e.c '#include "include/high/b.h"' 'int include_e(void) { return B; }'
write nameless/third/t.c 'int nameless_b(void); int nameless_t(void) { return nameless_b(); }'
write LAYERS 'rooms house: low high' 'rooms symbol: low high .' 'rooms include: low high .' 'rooms nameless: low high'

mkdir "$build"
entries=()
for file in $(cd "$src" && find . -name '*.c' -printf '%P\n' | sort); do
    object=${file//\//_}.o
    command="${CC:-cc} -w -c -I$src $src/$file -o $object"
    (cd "$build" && $command)
    entries+=("{\"directory\": \"$build\", \"file\": \"$src/$file\", \"command\": \"$command\"}")
done
(IFS=,; echo "[${entries[*]}]") >"$build/compile_commands.json"

check() {
    python3 "$FSDP_SOURCE/tools/check_files.py" "$build" "$src" "$@"
}

# refused LAYER TEXT: the layer's circle is reported, with that in it
refused() {
    if output=$(check "$1"); then
        echo "the circle of '$1' was not found: $output"
        exit 1
    fi
    if ! grep -qF "$2" <<<"$output"; then
        echo "'$2' is not in: $output"
        exit 1
    fi
}

check free
refused symbols "src/symbols: 3 files go round in a circle"
refused symbols "symbols/a.c uses b of symbols/deep/b.c"
refused headers "headers/b.h includes headers/a.h"
refused both "both/b.c uses a of both/a.c"
refused both "both/a.h includes both/b.h"
check house
refused symbol "src/symbol: low may not use high: symbol/low/e.c uses symbol_b of symbol/high/b.c"
refused include "src/include: low may not use high: include/low/deep/e.c includes include/high/b.h"
refused nameless "does not name third"
sed -i 's/rooms house: low high/& ./' "$src/LAYERS"
refused house "src/house: low may not use .: house/low/e.c uses house_top of house/top.c"
if check symbols | grep -q top; then
    echo "a file that stands outside the circle was reported"
    exit 1
fi
