#!/usr/bin/env bash
# check_symbols.sh BUILD-DIRECTORY: checks that libfsdp.so exports fsdp_ names only, that the library has no mutable
# globals, and that nothing of src/check is installed.
set -eu
build=$1
failed=0

wrong=$(nm -D --defined-only "$build/libfsdp.so" | awk '$3 !~ /^fsdp_[a-z]/ { print $3 }')
if [ -n "$wrong" ]; then
    printf "libfsdp.so exports '%s'\n" $wrong
    failed=1
fi

plugins=("$build"/libfsdp-*.so)
[ -e "${plugins[0]}" ] || plugins=()
for plugin in "${plugins[@]}"; do
    shown=$(nm -D --defined-only "$plugin" | awk '{ print $3 }')
    case $shown in
    fsdp_device_plugin | fsdp_network_plugin) ;;
    *)
        printf "$plugin exports '%s'\n" $shown
        failed=1
        ;;
    esac
done

# file: why it may keep state outside a context. Thread-local state counts too.
allowed='
status.c  the last error of a thread
probe.c   the subscribers of the process, and how many listen to each point, under a mutex
plugin.c  the plug-ins that are loaded, under a mutex
temporary.c  the names of files that are not whole yet, which a handler of signals must reach
trace_file.c  whether a trace is in its place, which whoever ends the process must know, under a mutex
registry.c  the backends that were registered while there is one thread
allocator.c  the address that blocks of zero bytes have
cpu_thread.c  how many threads OpenMP keeps for a thread, which OpenMP does not tell, and whether forks are watched
'
# Sections that can be written at run time; const tables of pointers are in .data.rel.ro.
globals=$(objdump -t "$build/libfsdp.a" | awk '
    /file format/ { file = $1; sub(/:$/, "", file); sub(/\.o$/, "", file) }
    NF > 3 && $(NF-2) ~ /^\.(data|bss|tdata|tbss|ldata|lbss)(\.|$)/ && $(NF-2) !~ /^\.data\.rel\.ro/ && $NF !~ /^\./ && $(NF-1) !~ /^0+$/ {
        print file, $NF
    }')
while read -r file name; do
    [ -n "$file" ] || continue
    if ! grep -q "^$file " <<<"$allowed"; then
        echo "$file has the mutable global '$name'"
        failed=1
    fi
done <<<"$globals"

# What src/check defines, and the variables that it reads.
own=$(grep -ohE '\bfsdp__[a-z_]+\(|\bfsdp__backend_sim\b' src/check/*.h src/check/sim/*.h | tr -d '(' | sort -u)
for file in "$build/fsdp" "$build/libfsdp.so" "$build/libfsdp.a" "${plugins[@]}"; do
    found=$(nm "$file" 2>/dev/null | awk '{ print $NF }' | grep -Fx "$own" || true)
    found+=$(strings -a "$file" | grep -E 'FSDP_TEST_|FSDP_SIM_' || true)
    if [ -n "$found" ]; then
        printf "$file, which is installed, has '%s' of src/check\n" $found
        failed=1
    fi
done

[ $failed = 0 ] && echo "symbols: ok ($(nm -D --defined-only "$build/libfsdp.so" | wc -l) exported, ${#plugins[@]} plug-ins)"
exit $failed
