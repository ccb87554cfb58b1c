# shellcheck shell=bash
# machines.sh - several machines on one, for the tests of this folder, which source it and call machines_enter first.
#
# A machine is a network and a UTS namespace (and a mount namespace where MACHINES_MOUNTS=1), with an interface eth0 on
# a bridge that they all share. All of it lies in namespaces of the script's own, processes too: when the script ends,
# in whatever way, the kernel ends them all, and nothing is left of the networks.
#
#   machines_enter "$@"        starts the script again inside; exit status 77 where that cannot be done
#   machines_up COUNT [RATE]   makes machines m0, m1, ...; RATE as tc writes it ("100mbit"), of each of their interfaces
#   machines_fewer COUNT       from now on only the first of them
#   machines_run K COMMAND...  on K ranks of each machine, by mpirun on m0; MACHINES_MAP=node deals them out in turns
#   machines_on I COMMAND...   as a process of machine I
#   machines_bytes I           what has come into machine I, by the counters of its interface
#   machines_delay MS          on the way into each machine; fails where the kernel has no netem
#   machines_cut I             takes machine I off the network
#   machines_mend I            and back; returns when it is reached again
#   machines_answers I J       whether machine I reaches machine J
#   machines_kill I            ends all processes of machine I
#   machines_pids I            lists them
#   machines_ranks I           those of them that are ranks
#   $machines_folder           for files of the script's own
#   MACHINES_MPI               openmpi, or mpich: the MPI that connects them
: "${MACHINES_MPI:=openmpi}"

skip() {
    echo "skipped: $1"
    exit 77
}

machines_enter() {
    [ "${MACHINES_INSIDE:-}" != 1 ] || return 0
    local way=(--mount --net --pid --fork --kill-child --mount-proc) tool
    [ "$(id -u)" = 0 ] || way=(--user --map-root-user "${way[@]}")
    for tool in unshare nsenter ip tc "mpirun.$MACHINES_MPI"; do
        command -v "$tool" >/dev/null || skip "there is no $tool here"
    done
    [ -e "$FSDP_BUILD/libfsdp-$MACHINES_MPI.so" ] || skip "the plug-in for $MACHINES_MPI is not built"
    unshare "${way[@]}" sh -c 'mount -t tmpfs none /run && ip netns add a && ip -n a link add name b type bridge' \
        >/dev/null 2>&1 || skip "network namespaces are not allowed here"
    MACHINES_INSIDE=1 exec unshare "${way[@]}" bash "$0" "$@"
}

machines_add() { # I RATE
    local name=m$1 own=(--uts)
    [ "${MACHINES_MOUNTS:-}" != 1 ] || own+=(--mount)
    ip netns add "$name"
    ip -n switch link add name "p$1" type veth peer name eth0 netns "$name"
    ip -n switch link set "p$1" master bridge up
    ip -n "$name" link set eth0 addrgenmode none # nothing but what is sent
    ip -n "$name" addr add "10.77.0.$(($1 + 1))/24" dev eth0
    ip -n "$name" link set eth0 up
    ip -n "$name" link set lo up
    [ -z "${2:-}" ] || tc -n "$name" qdisc add dev eth0 root tbf rate "$2" burst 256kb latency 50ms
    nsenter --net="/run/netns/$name" unshare "${own[@]}" \
        sh -c "hostname $name; echo \$\$ >$machines_folder/$name.new; mv $machines_folder/$name.new $machines_folder/$name.pid
               exec sleep infinity" &
    while [ ! -e "$machines_folder/$name.pid" ]; do sleep 0.01; done
    echo "$name slots=64" >>"$machines_folder/hosts"
}

# Who does not end is ended from outside, in FSDP_TEST_SECONDS: what there is before that.
machines_watch() {
    sleep $((FSDP_TEST_SECONDS * 9 / 10))
    echo "does not end; what the newest words and processes are:"
    # shellcheck disable=SC2012
    ls -tr "$machines_folder"/{out,*.txt,slurm/*.log} 2>/dev/null | tail -n 4 | xargs -r tail -n 15
    ps axf -o pid,ppid,stat,etimes,args | cut -c 1-200
}

machines_up() {
    machines_count=$1
    # Of this script alone; what lies there goes with it. Open MPI names its memory in /dev/shm by host and process: those
    # of two scripts that run at once would be the same.
    mount -t tmpfs none /run
    mount -t tmpfs none /dev/shm
    machines_folder=/run/machines
    mkdir $machines_folder
    export TMPDIR=$machines_folder # what lay in /dev/shm is out of sight
    [ -z "${FSDP_TEST_SECONDS:-}" ] || machines_watch &
    ip netns add switch
    ip -n switch link add name bridge type bridge
    ip -n switch link set bridge addrgenmode none up
    for ((i = 0; i < $1; i++)); do machines_add $i "${2:-}"; done
    cat >"$machines_folder/agent" <<END
#!/usr/bin/env bash
# in place of ssh
while [[ \$1 == -* ]]; do shift; done
host=\$1
shift
exec nsenter -t \$(cat $machines_folder/\$host.pid) --net --uts --mount /bin/sh -c "\$*"
END
    chmod +x "$machines_folder/agent"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_orte_tmpdir_base=$machines_folder
    export OMPI_MCA_plm_rsh_agent=$machines_folder/agent OMPI_MCA_orte_default_hostfile=$machines_folder/hosts
    export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include=eth0
    export OMPI_MCA_oob_tcp_if_include=eth0 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
    # All of them have the kernel of one, so UCX would take shared memory, and the address of lo for that of a machine.
    export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0
    export OMP_NUM_THREADS=1 # they share the cores of one
    export OMPI_MCA_hwloc_base_binding_policy=none FSDP_PLUGIN_PATH=$FSDP_BUILD
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # an MPI keeps memory of its own, and unloads who asked for it
}

machines_fewer() {
    machines_count=$1
    sed -i "$1q" "$machines_folder/hosts"
}

machines_on() {
    local pid
    pid=$(cat "$machines_folder/m$1.pid")
    shift
    nsenter -t "$pid" --net --uts --mount --wd="$PWD" "$@"
}

# machines_mpich_stayed FILE: whether ranks of MPICH have said nothing in it but that they cannot leave. MPICH before 4.2
# does not always come back from MPI_Finalize (docs/cluster.md). Nothing else is forgiven: no other word of ours, and no
# assertion ("test.c:12: ...").
machines_mpich_stayed() {
    local left='the work of all of them was done'
    mpichversion | grep -q 'Version:[[:space:]]*\(3\|4\.[01]\)\.' && grep -q "^fsdp: .*$left" "$1" &&
        ! grep '^fsdp: ' "$1" | grep -qv "$left" && ! grep -q '\.c:[0-9][0-9]*: ' "$1"
}

machines_run() {
    local each=$1 ranks=$(($1 * machines_count)) hosts said status=0
    shift
    if [ "$MACHINES_MPI" = openmpi ]; then
        machines_on 0 mpirun.openmpi -np $ranks --map-by "${MACHINES_MAP:-ppr:$each:node}" "$@"
    else
        [ "${MACHINES_MAP:-}" != node ] || each=1
        hosts=$(sed "s/ .*/:$each/" "$machines_folder/hosts" | paste -sd ,)
        said=$(mktemp -p "$machines_folder")
        machines_on 0 mpirun.mpich -launcher ssh -launcher-exec "$machines_folder/agent" -iface eth0 -localhost m0 \
            -hosts "$hosts" -n $ranks "$@" 2> >(tee "$said" >&2) || status=$?
        wait $!
        if machines_mpich_stayed "$said"; then
            status=0
        fi
        rm "$said"
        return $status
    fi
}

machines_bytes() {
    ip -n "m$1" -s -j link show eth0 | sed 's/.*"rx":{"bytes":\([0-9]*\).*/\1/'
}

machines_delay() {
    for ((i = 0; i < machines_count; i++)); do
        tc -n switch qdisc add dev "p$i" root netem delay "$1ms" 2>/dev/null || return 1
    done
}

machines_cut() { ip -n switch link set "p$1" down; }

# Machine I gets an answer from machine J: that it refuses a connection.
machines_answers() {
    machines_on "$1" timeout 5 bash -c "exec 3<>/dev/tcp/10.77.0.$(($2 + 1))/9" 2>&1 | grep -q refused
}

machines_mend() {
    local other=$(($1 == 0))
    ip -n switch link set "p$1" up
    until machines_answers "$1" $other && machines_answers $other "$1"; do sleep 0.05; done
}

machines_pids() {
    stat -L -c '%i %n' /proc/[0-9]*/ns/net 2>/dev/null |
        awk -F '[ /]' -v wanted="$(stat -L -c %i "/run/netns/m$1")" -v not="$(<"$machines_folder/m$1.pid")" '
            $1 == wanted && $4 != not { print $4 }'
}

# machines_ranks I: of these the ranks
machines_ranks() {
    local pid comm
    for pid in $(machines_pids "$1"); do
        { read -r comm <"/proc/$pid/comm"; } 2>/dev/null || continue
        [ "$comm" != fsdp ] || echo "$pid"
    done
}

machines_kill() {
    # shellcheck disable=SC2046
    kill -9 $(machines_pids "$1") 2>/dev/null || true
}

# ---- runs, whose metrics are in NAME.jsonl ----

# curve NAME [FIRST]: loss and norm of the gradients, from a step on
curve() {
    grep -o '^{"step": [0-9]*, "loss": [^,]*, "grad_norm": [^,]*' "$1.jsonl" | tail -n "+${2:-1}"
}

same() { # NAME NAME [FIRST]
    diff <(curve "$1" "${3:-1}") <(curve "$2" "${3:-1}") || {
        echo "$1 and $2 differ"
        exit 1
    }
    [ "$(curve "$1" "${3:-1}" | wc -l)" -gt 0 ]
}
