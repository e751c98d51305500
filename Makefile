# Every target does all its own set-up: a virtual environment in .venv, pinned by constraints.txt.
# Another interpreter: make PYTHON=/path/to/python3.12 demo

CANDIDATES := python3 python3.11 python3.12 python3.13 python
PYTHON ?= $(shell for p in $(CANDIDATES); do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
# They ask for other versions than our pins, and for what they need where they train; their readers run with these.
READERS := ai2-olmo-core cached-path litdata

# Most of their tests import torch, and many start processes that do: 0.1 GB more each with PyTorch's CUDA build.
LOADING := episodes trainers scale preferences export examples

# Files in the order of tests/conftest.py, the long ones first, which the last option keeps.
PYTEST = $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Tests start some thousand processes; with this variable set, each of them would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo quick test slow lowest newest check docs man licences dist sbom bench format clean

help:  ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: .venv/installed  ## the main job on bundled sample data: tokenizer, caches, batches, one example in colour
	$(BIN)/niels-gpt demo

quick: .venv/installed  ## a useful answer in a minute: a case or two of each test without assets, processes, browser
	$(BIN)/python -m pytest -n 2 --dist loadfile -m quick

# One part after another, each in new processes: what libraries keep in memory adds up from file to file. They share a
# cache directory, in which the proofs of real tokenizers are kept.
test: .venv/installed  ## all tests but the slow ones, every case
	cache=$$(mktemp -d) && trap 'rm -rf "$$cache"' EXIT && export NIELS_GPT_TEST_CACHE="$$cache" && \
	$(PYTEST) tests/renderers && \
	$(PYTEST) tests/doctor tests/explorer tests/museum tests/tokenizer && \
	$(PYTEST) $(addprefix tests/,$(LOADING)) && \
	$(PYTEST) $(addprefix --ignore=tests/,renderers doctor explorer museum tokenizer $(LOADING))

SEED = 0

slow: .venv/installed  ## the long ones: every combination of options, millions of rows, hours of damage; SEED=7: others
	$(PYTEST) -m slow --hypothesis-profile seeded --hypothesis-seed $(SEED)

lowest: .venv/installed  ## the quick tests with the lowest versions that pyproject.toml allows; then the base install alone
	$(BIN)/python -m tools.bounds lowest
	$(BIN)/python -m tools.bounds lowest --extras "" --no-torch

newest: .venv/installed  ## the quick tests with the newest versions of everything
	$(BIN)/python -m tools.bounds newest

# mypy takes three quarters of the time, on one core: the rest runs beside it.
check: .venv/installed  ## style, types, names that are imported, and which floor may import which
	$(MAKE) --no-print-directory -j 2 types style

.PHONY: types style
types: .venv/installed
	$(BIN)/mypy

style: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.imported_names
	$(BIN)/lint-imports

docs: .venv/installed  ## the site, into site/; fails on links that lead nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

man: .venv/installed  ## the manual page from the texts of --help: docs/niels-gpt.1, which `make dist` puts into wheels
	$(BIN)/python -m docs.man_page

licences: .venv/installed  ## docs/licences.md, from the metadata of what is installed
	$(BIN)/python -m docs.licences

dist: man  ## the source distribution and the wheel, into dist/
	rm -rf dist
	$(BIN)/python -m uv build --quiet --out-dir dist
	ls dist

sbom: .venv/installed  ## what an installation consists of, as CycloneDX, into dist/
	$(BIN)/python -m tools.sbom dist/niels_gpt.cdx.json

bench: .venv/installed  ## ours beside the alternatives; prints ratios
	$(BIN)/python -m benchmarks

format: .venv/installed  ## let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment, caches of tools, and the demo
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache niels-gpt-demo site dist .bounds

# Libraries have 25,000 files, which pip would compile one by one; some are for other versions of Python, and fail.
.venv/installed: pyproject.toml constraints.txt hatch_build.py
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; install one, or: make PYTHON=/path/to/python3" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[torch,hub,hf,explorer,dev,docs]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --no-deps $(READERS)
	@$(BIN)/python -W ignore -m compileall -qq -j 0 -x '/tests/' .venv/lib || true
	@touch $@
