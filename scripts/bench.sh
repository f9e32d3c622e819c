#!/usr/bin/env bash
# bench.sh [NAME...]: run the benchmarks (all, or benchmarks/NAME.py), one after the other so that none disturbs another.
# Each prints a table, then one line of JSON, and writes benchmarks/results/NAME.json.
set -euo pipefail

cd "$(dirname "$0")/.."
names=("$@")
if ((${#names[@]} == 0)); then
  # Not here: learned.py reads runs that are finished; injection.py and diagnosis.py make an hour of small runs first.
  for file in benchmarks/[!_]*.py; do
    name=$(basename "$file" .py)
    case $name in learned | injection | diagnosis) ;; *) names+=("$name") ;; esac
  done
fi
for name in "${names[@]}"; do
  scripts/stage.sh "benchmark $name" .venv/bin/python "benchmarks/$name.py"
done
