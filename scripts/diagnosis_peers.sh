#!/usr/bin/env bash
# diagnosis_peers.sh: make .venv-peers, an interpreter for the other tools that diagnose runs (used by benchmarks).
set -euo pipefail

cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
python=.venv-peers/bin/python
stage=scripts/stage.sh
stamp=.venv-peers/.installed-$(cksum <scripts/diagnosis_peers.sh | tr -d ' ')
[[ -e $stamp ]] && exit 0

pip() { "$python" -m pip --disable-pip-version-check --no-input "$@"; }
export -f pip
export python

"$stage" --quiet "virtual environment for rl-doctor and rlprobe" "$PYTHON" -m venv --clear .venv-peers
"$stage" --quiet "rldoctor 0.2.0, rlprobe 0.1.0" bash -c 'pip install rldoctor==0.2.0 rlprobe==0.1.0'
touch "$stamp"
