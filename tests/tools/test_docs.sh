#!/usr/bin/env bash
# Checks that the commands on the pages work: see docs.py.
set -eu
if ! command -v python3 >/dev/null; then
    echo "skipped: there is no python3"
    exit 77
fi
if grep -Eq '^FSDP_SANITIZE:STRING=.+' "$FSDP_BUILD/CMakeCache.txt"; then
    echo "skipped: a reader's own program is not built with a sanitizer"
    exit 77
fi
exec python3 "$FSDP_SOURCE/tests/tools/docs.py" "$FSDP_SOURCE" "$FSDP_BUILD"
