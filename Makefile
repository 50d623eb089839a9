# make demo | test | check, each from a bare checkout: Python 3.11+, g++ and make are enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Compiled DeepSpeed ops of two environments must not overwrite each other's.
export TORCH_EXTENSIONS_DIR := $(CURDIR)/$(VENV)/torch_extensions
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types rooms golden constraints clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(STAMP): pyproject.toml constraints.txt
	@echo "==> $(VENV): zerowiz with DeepSpeed, torch and the development tools (some minutes, once)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[train]" --group dev
	@touch $@

# NVIDIA GPUs where there are any, else DeepSpeed's CPU accelerator with 2 ranks.
DEVICES := $(shell nvidia-smi -L >/dev/null 2>&1 || echo --accelerator cpu --gpus-per-node 2)

demo: $(STAMP)  ## train a small model twice: with room, and under a budget that needs ZeRO
	@$(BIN)/python -m tests.demo $(DEVICES)

test: $(STAMP)  ## every test (the end-to-end ones start real DeepSpeed ranks)
	@echo "==> tests, with real DeepSpeed on 2 CPU ranks where one is needed"
	$(BIN)/python -m pytest

check: $(STAMP) lint types rooms test demo  ## what CI runs: lint, types, rooms, tests, the demo

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)
	$(BIN)/mypy

rooms: $(STAMP)
	$(BIN)/lint-imports

golden: $(STAMP)  ## rewrite the golden files; read the diff
	$(BIN)/python -m pytest --update-golden -q tests/core tests/cli
	git diff --stat tests/golden

clean:  ## remove the environment and what the demo wrote
	rm -rf $(VENV) demo
