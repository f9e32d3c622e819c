#!/usr/bin/env bash
# bench.sh [NAME...]: run the benchmarks (all, or benchmarks/NAME.py), one after the other so that none disturbs another.
# Each prints a table, then one line of JSON, and writes benchmarks/results/NAME.json.
set -euo pipefail

cd "$(dirname "$0")/.."
names=("$@")
if ((${#names[@]} == 0)); then
  for file in benchmarks/[!_]*.py; do names+=("$(basename "$file" .py)"); done
fi
for name in "${names[@]}"; do
  scripts/stage.sh "benchmark $name" .venv/bin/python "benchmarks/$name.py"
done
