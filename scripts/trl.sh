#!/usr/bin/env bash
# trl.sh: make .venv-trl, an interpreter of its own for TRL (used by the benchmarks).
set -euo pipefail

cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
python=.venv-trl/bin/python
stage=scripts/stage.sh
stamp=.venv-trl/.installed-$(cksum <scripts/trl.sh | tr -d ' ')
[[ -e $stamp ]] && exit 0

pip() { "$python" -m pip --disable-pip-version-check --no-input "$@"; }
export -f pip
export python

"$stage" --quiet "virtual environment for TRL" "$PYTHON" -m venv --clear .venv-trl
# torch first and alone: whatever comes later then finds it and takes no other build.
"$stage" --quiet "torch 2.13.0" bash -c 'pip install torch==2.13.0'
"$stage" --quiet "trl 1.16.0" bash -c 'pip install trl==1.16.0 transformers==5.24.0'
touch "$stamp"
