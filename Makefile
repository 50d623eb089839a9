# make demo | test | check, each from a bare checkout: what README lists is enough.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Compiled DeepSpeed ops of two environments must not overwrite each other's.
export TORCH_EXTENSIONS_DIR := $(CURDIR)/$(VENV)/torch_extensions
export PATH := $(CURDIR)/$(BIN):$(PATH)
# The tests start thousands of Pythons: what they import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all truth cluster test-nodes test-slurm test-pictures test-kills test-real check lint types rooms golden bench accuracy schema clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(STAMP): pyproject.toml constraints.txt
	@echo "==> $(VENV): zerowiz with DeepSpeed, torch and the development tools (some minutes, once)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[train]" --group dev
	@touch $@

demo: $(STAMP)  ## train a small model twice: with room, and under a budget that needs ZeRO
	$(BIN)/python tests/make_demo/train_twice.py

# What starts ranks takes all cores of a small machine.
ALONE := deepspeed or package
define PYTEST
	@echo "==> tests that start no ranks, three at a time: many wait for a terminal"
	$(BIN)/python -m pytest $(1) -n 3 --dist worksteal -m "not ($(ALONE))"
	@echo "==> tests with real DeepSpeed ranks"
	$(BIN)/python -m pytest $(1) -m "$(ALONE)"
endef

test: $(STAMP)  ## the tests, and some on real DeepSpeed ranks
	$(call PYTEST,)

test-slow: $(STAMP)  ## what takes longer: trainings, traces, each way to kill a job, recipes; more tries of each law
	$(call PYTEST,--slow)
	@echo "==> more tries of each law"
	$(BIN)/python -m pytest -n 3 --dist worksteal -m hypothesis --hypothesis-profile=more tests/core

test-all: $(STAMP)  ## both, the whole of what they sample, and `make truth`
	$(call PYTEST,--thorough)
	$(call PYTEST,--thorough --slow)
	$(MAKE) truth

truth: $(STAMP)  ## every config of tests/lint trained by DeepSpeed, the Trainer and Accelerate
	$(BIN)/python -m pytest --truth tests/lint

cluster: $(STAMP)  ## many nodes over a real sshd and pdsh (Debian's packages, as root)
	$(BIN)/python -m pytest --cluster tests/cluster

test-nodes: $(STAMP)  ## launch over a hostfile on nodes made of namespaces (installs sshd and pdsh, as root)
	tests/nodes/install.sh
	$(BIN)/python -m pytest --nodes tests/nodes

test-slurm: $(STAMP)  ## train and ask nodes under a real SLURM on this host (installs Debian's, as root)
	tests/slurm/install.sh
	$(BIN)/python -m pytest --slurm tests/slurm

test-pictures: $(STAMP)  ## look at pages of `plan --html` in a real browser (installs chromium and npm modules, as root)
	tests/pictures/install.sh
	$(BIN)/python -m pytest --pictures -s tests/pictures

REPEAT ?= 50
AT_ONCE ?= 1

test-kills: $(STAMP)  ## kill real jobs in every way, REPEAT times each, AT_ONCE side by side
	$(BIN)/python tests/kills/repeat.py $(REPEAT) --at-once $(AT_ONCE)

REAL_VENV := .venv-real
REAL_STAMP := $(REAL_VENV)/.installed

$(REAL_STAMP): pyproject.toml tests/real/constraints.txt
	@echo "==> $(REAL_VENV): zerowiz, and what public scripts import (some minutes, once)"
	test -x $(REAL_VENV)/bin/python || $(PYTHON) -m venv $(REAL_VENV)
	$(REAL_VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(REAL_VENV)/bin/python -m pip install --quiet -c tests/real/constraints.txt -e ".[train]" \
		trl datasets evaluate loguru scikit-learn wandb
	@touch $@

test-real: export TORCH_EXTENSIONS_DIR := $(CURDIR)/$(REAL_VENV)/torch_extensions
test-real: export PATH := $(CURDIR)/$(REAL_VENV)/bin:$(PATH)
test-real: $(REAL_STAMP)  ## really train public scripts, from GitHub at pinned commits (or REAL_SCRIPTS_MIRROR)
	$(REAL_VENV)/bin/python tests/real/run.py $(CASES)

check: $(STAMP) lint types rooms test test-slow truth demo  ## what CI runs

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/vulture

types: $(STAMP)
	$(BIN)/mypy

rooms: $(STAMP)
	$(BIN)/lint-imports

golden: $(STAMP)  ## rewrite the golden files and the configs of templates/; read the diff
	$(BIN)/python -m pytest --update-golden -q tests/core/dsconfig/test_write.py  # others read these
	$(BIN)/python -m pytest --update-golden -q tests/core tests/cli tests/docs tests/ui/test_screens.py
	git diff --stat tests/golden templates docs

bench: $(STAMP)  ## time `plan` against DeepSpeed's own estimator, a search, `machine`, and the merge of 1,000 nodes
	$(BIN)/python tests/bench/plan_speed.py
	$(BIN)/python tests/bench/search_speed.py
	$(BIN)/python tests/bench/plan_rows.py
	$(BIN)/python tests/bench/start_speed.py
	$(BIN)/python tests/bench/machine_speed.py
	$(BIN)/python tests/bench/fleet_merge.py
	$(BIN)/python tests/bench/jsontext_speed.py
	$(BIN)/python tests/bench/check_speed.py
	$(BIN)/python tests/bench/launch_speed.py
	$(BIN)/python tests/bench/wizard_speed.py

accuracy: $(STAMP)  ## every measured run against its prediction, beside the rivals'; fails when worse
	$(BIN)/python tests/accuracy/report.py --check

schema: $(STAMP)  ## read DeepSpeed's config keys out of it again, every minor version (fetches them)
	$(BIN)/python tests/schema/make_schema.py

clean:  ## remove the environment and what the demo wrote
	rm -rf $(VENV) .venv-real demo
