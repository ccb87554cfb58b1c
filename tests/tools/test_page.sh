#!/usr/bin/env bash
# Opens a report in a browser, as a phone, a desk, in the dark and on paper. Skipped without chromium and python3-websocket.
set -eu
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ] || ! python3 -c "import websocket" 2>/dev/null; then
    echo "skipped: chromium or python3-websocket is missing"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 "$FSDP_SOURCE/tests/tools/page.py" runs "$folder/a.jsonl" "$folder/b.jsonl"
"$FSDP_BUILD/fsdp" report "$folder/a.jsonl" "$folder/b.jsonl" -o "$folder/report.html" >/dev/null
python3 "$FSDP_SOURCE/tests/tools/page.py" check "$browser" "$folder/report.html" "${FSDP_PICTURES:-$folder}"
