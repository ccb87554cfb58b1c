# shellcheck shell=bash
# mpi.sh - shared by the scripts of this folder that start ranks by an MPI: it allows more ranks than cores, and makes a
# folder, $folder, which is removed at the end.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1
export FSDP_PLUGIN_PATH=$FSDP_BUILD
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # an MPI keeps memory of its own, and unloads who asked for it
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
