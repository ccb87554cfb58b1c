#!/usr/bin/env bash
# python_with.sh BUILD-DIRECTORY REQUIREMENTS MODULES...: prints the name of a Python that has these modules. It is
# FSDP_PYTHON if that is set, otherwise one in the build folder, where the packages of the file REQUIREMENTS are
# installed. Fails, and says why, if they cannot be installed.
set -eu
build=$1 requirements=$2
shift 2
python=${FSDP_PYTHON:-$build/python/bin/python}
modules="import $(echo "$*" | sed 's/ /, /g')"

if ! "$python" -c "$modules" 2>/dev/null; then
    if [ -n "${FSDP_PYTHON:-}" ]; then
        echo "$FSDP_PYTHON lacks one of: $*" >&2
        exit 1
    fi
    echo "installing $(tr '\n' ' ' <"$requirements")into $build/python" >&2
    if ! { python3 -m venv "$build/python" && "$build/python/bin/pip" install -q --extra-index-url \
        https://download.pytorch.org/whl/cpu -r "$requirements" >&2; }; then
        echo "the packages cannot be had" >&2
        exit 1
    fi
fi
echo "$python"
