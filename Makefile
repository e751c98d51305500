# Every target does all its own set-up: a virtual environment in .venv, pinned by constraints.txt.
# Another interpreter: make PYTHON=/path/to/python3.12 demo

CANDIDATES := python3 python3.11 python3.12 python3.13 python
PYTHON ?= $(shell for p in $(CANDIDATES); do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin

.PHONY: help demo test test-s3 check bench format clean

help:  ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: .venv/installed  ## the main job on bundled sample data: tokenizer, caches, batches, one example in colour
	$(BIN)/niels-gpt demo

test: .venv/installed  ## all tests, file by file in two processes (some need gigabytes: real vocabularies)
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-s3: .venv-s3/installed  ## the tests of publishing and of the read cache, with an S3 server (moto) on loopback
	.venv-s3/bin/python -m pytest tests/scale/test_publish.py

check: .venv/installed  ## style, types, and which floor may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed  ## ours beside the alternatives; prints ratios
	$(BIN)/python -m benchmarks

format: .venv/installed  ## let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment, caches of tools, and the demo
	rm -rf .venv .venv-s3 .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache niels-gpt-demo

.venv/installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; install one, or: make PYTHON=/path/to/python3" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torch,hub,hf,explorer,dev]'
	@touch $@

# Everything of .venv, and beside it what cannot be installed there.
.venv-s3/installed: .venv/installed constraints-s3.txt
	$(BIN)/python -m venv .venv-s3
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(.venv-s3/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/main-environment.pth"
	grep -v '^python-dateutil' constraints.txt > .venv-s3/constraints.txt
	.venv-s3/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv-s3/constraints.txt --constraint constraints-s3.txt 's3fs>=2024.6' 'moto[s3,server]>=5'
	ln -sf ../../.venv/bin/niels-gpt .venv-s3/bin/niels-gpt
	@touch $@
