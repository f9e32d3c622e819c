#!/usr/bin/env bash
# stage.sh [--quiet] NAME COMMAND...: run one stage and print one line with its seconds.
# --quiet keeps the command's output to itself unless it fails.
set -euo pipefail

quiet=0
if [[ $1 == --quiet ]]; then quiet=1; shift; fi
name=$1; shift
start=$SECONDS

if ((quiet)); then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if "$@" >"$log" 2>&1 </dev/null; then code=0; else code=$?; fi
  ((code == 0)) || cat "$log" >&2
else
  if "$@"; then code=0; else code=$?; fi
fi

if ((code)); then
  echo "--- $name: failed with exit code $code after $((SECONDS - start)) s" >&2
else
  echo "--- $name: $((SECONDS - start)) s"
fi
exit "$code"
