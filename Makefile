# posttrain: every target makes what it needs. Another Python: make test PYTHON=python3.12

PYTHON ?= python3
export PYTHON
# Nothing here talks to a model hub, and nothing is left in the home directory.
export HF_HUB_OFFLINE := 1
export HF_HOME := $(CURDIR)/.cache/huggingface

PY := .venv/bin/python
STAGE := scripts/stage.sh

.PHONY: help demo demo-faults test test-long check format vllm trl bench clean

help:
	@echo 'make demo       train a small real model on a real task, on a CPU, and prove the gain'
	@echo 'make demo-faults  break three tiny runs on purpose, and let the doctor say what was broken'
	@echo 'make test       checks and tests (minutes)'
	@echo 'make test-long  the tests that take long, too'
	@echo 'make check      ruff, pyright, import contracts'
	@echo 'make format     let ruff format and fix'
	@echo 'make bench      the benchmarks'
	@echo 'make vllm       an interpreter for a vLLM server on CPU (.venv-vllm)'
	@echo 'make trl        an interpreter for TRL (.venv-trl), to compare with'
	@echo 'make clean      remove what can be made again'

demo:
	@scripts/install.sh demo
	@$(PY) scripts/demo.py

demo-faults:
	@scripts/install.sh demo
	@$(PY) scripts/demo_faults.py

test: check
	@$(STAGE) 'tests' $(PY) -m pytest -m 'not long'

test-long: check
	@$(STAGE) 'all tests' $(PY) -m pytest

check:
	@scripts/install.sh test
	@$(STAGE) 'ruff check' $(PY) -m ruff check .
	@$(STAGE) 'ruff format' $(PY) -m ruff format --check .
	@$(STAGE) 'pyright' $(PY) -m pyright
	@$(STAGE) 'import contracts' .venv/bin/lint-imports

format:
	@scripts/install.sh test
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

vllm:
	@scripts/vllm.sh

trl:
	@scripts/trl.sh

bench: vllm trl
	@scripts/install.sh test
	@scripts/bench.sh
	@$(PY) benchmarks/harness/document.py

clean:
	rm -rf .venv .venv-vllm .venv-trl .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
