#!/bin/sh
# nvcc.sh REPORT COMMAND...: runs the command and keeps what it says in the file REPORT, which is shown where it fails, and
# where it warns.
report=$1
shift
"$@" >"$report" 2>&1
code=$?
if [ $code -ne 0 ] || grep -q warning "$report"; then
    grep -v '^ptxas info' "$report" >&2
fi
exit $code
