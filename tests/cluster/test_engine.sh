#!/usr/bin/env bash
# Checks that the engine over several machines equals unsharded modules in any order of calls, with an odd number of
# machines and with several ranks on one. With TEST_LONG it tries every option with all shapes, too, and repeats the
# runs of PyTorch.
set -eu
# shellcheck source=tests/cluster/machines.sh
. "$FSDP_SOURCE/tests/cluster/machines.sh"
machines_enter "$@"
export OMP_NUM_THREADS=1

report() { # WHAT
    echo "$machines_count machines with $1 failed:"
    grep -v ' OK \| RUN ' "$machines_folder/out" | tail -n 60
    exit 1
}

# joined K FILE: the tests' ranks are processes of these machines
joined() {
    local before
    before=$(machines_bytes 1)
    machines_run "$1" env FSDP_TEST_JOINED=1 FSDP_ORDER_COUNT=$orders "$FSDP_BUILD/tests/test_shard" "$2" \
        >"$machines_folder/out" 2>&1 || report "$1 ranks each in $2"
    [ $(($(machines_bytes 1) - before)) -gt 1000000 ] || report "$1 ranks each in $2, which has sent too little"
}

engine() { # K
    joined "$1" parity
    joined "$1" random_order
}

# PyTorch's runs of as many ranks as can be dealt out evenly
reference() {
    local starter=$machines_folder/starter
    cat >"$starter" <<END
#!/usr/bin/env bash
ranks=\$1
shift
exec nsenter -t $(cat "$machines_folder/m0.pid") --net --uts --mount --wd="\$PWD" \
    mpirun.openmpi -np "\$ranks" --map-by ppr:\$((ranks / $machines_count)):node "\$@"
END
    chmod +x "$starter"
    FSDP_TEST_STARTER=$starter FSDP_TEST_STARTER_MACHINES=$machines_count "$FSDP_BUILD/tests/test_train" reference \
        >"$machines_folder/out" 2>&1 || report "the runs of PyTorch"
    grep -q '\[  PASSED  \] [1-9]' "$machines_folder/out" || report "none of PyTorch's runs"
}

orders=$([ "${TEST_LONG:-}" = 1 ] && echo 1000 || echo 6)
machines_up 3
if [ "${TEST_LONG:-}" = 1 ]; then
    engine 1
    engine 2
    machines_fewer 2
    engine 1
    engine 2
    reference
else
    joined 1 random_order
    machines_fewer 2
    joined 2 random_order
fi
