# Two commands do everything: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
REQS := python/requirements/cpu.txt python/requirements/dev.txt
CLIENTS ?= .venv-clients
PYTEST := $(BIN)/python -m pytest -c python/pyproject.toml --rootdir=. -p no:cacheprovider
ARGS ?=
MODEL ?= smol
PORT ?= 8888

.PHONY: help venv clients demo test lint format types unit integration clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: $(STAMP) ## install everything into .venv

$(STAMP): $(REQS) python/pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"error: Python 3.11 or newer is needed, this is {sys.version.split()[0]}\n  mend: make PYTHON=/path/to/python3.11 ...") if v < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --requirement python/requirements/cpu.txt --requirement python/requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable python
	@touch $@

clients: $(CLIENTS)/.stamp ## install the client libraries that the examples use into .venv-clients

$(CLIENTS)/.stamp: python/requirements/clients.txt | $(STAMP)
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --no-deps --no-compile --requirement $<
	@touch $@

demo: $(STAMP) ## serve the demo model on a two-node pair (MODEL=smol|tiny-glm, PORT, ARGS=--once)
	@$(BIN)/sparkloom demo run --model $(MODEL) --port $(PORT) $(ARGS)

test: lint types unit integration ## everything that CI checks

lint: $(STAMP) ## style of Python, shell and CUDA sources
	$(BIN)/ruff check --config python/pyproject.toml python/src tests
	$(BIN)/ruff format --check --config python/pyproject.toml python/src tests
	@if command -v shellcheck >/dev/null; then git ls-files '*.sh' .ci/run | xargs -r shellcheck; else echo "lint: shellcheck is not installed: shell scripts were not checked"; fi
	@if command -v clang-format >/dev/null; then git ls-files 'kernels/*.cu' 'kernels/*.cuh' 'kernels/*.cpp' 'kernels/*.h' | xargs -r clang-format --dry-run -Werror; else echo "lint: clang-format is not installed: CUDA sources were not checked"; fi

format: $(STAMP) ## rewrite Python sources in the project's style
	$(BIN)/ruff check --fix --config python/pyproject.toml python/src tests
	$(BIN)/ruff format --config python/pyproject.toml python/src tests

types: $(STAMP) ## mypy --strict
	cd python && ../$(BIN)/mypy

unit: $(STAMP) $(CLIENTS)/.stamp ## fast tests, no server
	$(PYTEST) tests -m "not heavy" -n $${SPARKLOOM_TEST_JOBS:-2}

integration: $(STAMP) $(CLIENTS)/.stamp ## tests that start real vLLM ranks, one at a time
	$(PYTEST) tests -m heavy

clean: ## remove the virtual environments
	rm -rf $(VENV) $(CLIENTS)
