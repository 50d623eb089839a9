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
.PHONY: help demo test test-slow test-all truth cluster test-nodes test-slurm test-pictures test-shells test-kills test-faults test-real net net-update net-bench docs image check lint types rooms golden words bench accuracy schema clean

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

# A job of two ranks uses one core for half of its time: two run at once, of different files. Of the
# other tests many wait for a terminal, but few of those that are asked for by an option.
ALONE := deepspeed or package
ALONE_FILES = $(shell grep -rlE "mark\.(deepspeed|package)" tests --include="test_*.py")
define PYTEST
	@echo "==> tests that start no ranks, $(if $(1),three,four) at a time"
	$(BIN)/python -m pytest $(1) -n $(if $(1),3,4) --dist worksteal -m "not ($(ALONE))"
	@echo "==> tests with real DeepSpeed ranks, two at a time"
	$(BIN)/python -m pytest $(1) -n 2 --dist loadfile -m "$(ALONE)" $(ALONE_FILES)
endef

test: $(STAMP)  ## the tests, and some on real DeepSpeed ranks
	$(call PYTEST,)

test-slow: $(STAMP)  ## what takes longer: trainings, measurements, traces, more ways to kill a job, recipes; more tries of each law
	$(call PYTEST,--slow)
	@echo "==> more tries of each law"
	$(BIN)/python -m pytest -n 2 --dist worksteal -m hypothesis --hypothesis-profile=more tests/core

test-all: $(STAMP)  ## both, the whole of what they sample, and `make truth`
	$(call PYTEST,--thorough)
	$(call PYTEST,--thorough --slow)
	$(BIN)/python -m pytest --truth --thorough tests/lint

truth: $(STAMP)  ## every config of tests/lint trained by DeepSpeed, the Trainer and Accelerate
	$(BIN)/python -m pytest --truth tests/lint

cluster: $(STAMP)  ## many nodes over a real sshd (Debian's package, as root)
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

test-shells: $(STAMP)  ## complete in a real zsh and fish (installs Debian's, as root)
	tests/shells/install.sh
	$(BIN)/python -m pytest --shells tests/shells

REPEAT ?= 50
AT_ONCE ?= 1

test-kills: $(STAMP)  ## kill real jobs in every way, REPEAT times each, AT_ONCE side by side
	$(BIN)/python tests/kills/repeat.py $(REPEAT) --at-once $(AT_ONCE)

LINES ?= 2000
GPU_FAULTS ?= 500
FILES ?= 500
# Disks that are full, folders that vanish and clocks that are set back are tried where they belong.
FAULTS := tests/faults tests/emit/test_job.py tests/worker/test_rank.py \
	tests/probe/test_output_folder.py tests/templates/test_portable_files.py tests/cli/test_errors.py

test-faults: $(STAMP)  ## random command lines, faults of the driver, damaged files; full disks, lost folders, clocks that are set back
	$(BIN)/python -m pytest -n 2 --thorough $(FAULTS)
	$(BIN)/python tests/faults/repeat.py lines $(LINES)
	$(BIN)/python tests/faults/repeat.py gpus $(GPU_FAULTS)
	$(BIN)/python tests/faults/repeat.py files $(FILES)

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

net: $(STAMP)  ## hold plans, screens, launches, claims about public scripts and findings in configs against tests/net
	$(BIN)/python tests/net/run.py $(PARTS)

net-update: $(STAMP)  ## rewrite tests/net; read the diff
	$(BIN)/python tests/net/run.py --update $(PARTS)
	git diff --stat tests/net

net-bench:  ## run `make bench`, and print its figures beside those of tests/net
	@$(MAKE) --no-print-directory -s bench | $(PYTHON) tests/net/beside.py

DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.installed

$(DOCS_STAMP): pyproject.toml constraints.txt
	@echo "==> $(DOCS_VENV): what builds the site"
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(DOCS_VENV)/bin/python -m pip install --quiet -c constraints.txt --group docs
	@touch $@

docs: $(DOCS_STAMP)  ## build the site of docs/ into site/, without a warning (installs Zensical and mkdocs-material)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict
	$(PYTHON) tests/docs/built_site.py site
	rm -rf site
	$(DOCS_VENV)/bin/zensical build --strict
	$(PYTHON) tests/docs/built_site.py site

image:  ## build the image for jobs (Dockerfile; needs docker, and fetches torch's image)
	docker build -t zerowiz .

CHECKED := lint types rooms test test-slow truth demo

check: $(STAMP)  ## what CI runs
	@for part in $(CHECKED); do SECONDS=0; $(MAKE) $$part || exit; echo "==> time of $$part: $$SECONDS s"; done

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/vulture

types: $(STAMP)
	$(BIN)/mypy

rooms: $(STAMP)
	$(BIN)/lint-imports

golden: $(STAMP)  ## rewrite the golden files, the configs of templates/ and the blocks of pages; read the diff
	$(BIN)/python -m pytest --update-golden -q tests/core/dsconfig/test_write.py  # others read these
	env -u ZEROWIZ_LANG LANGUAGE=en $(BIN)/cog -r -I tests $$(grep -rl '\[\[\[cog' docs zerowiz --include='*.md' --include='*.py')
	$(BIN)/python -m pytest --update-golden -q tests/core tests/cli tests/docs tests/ui/test_screens.py
	git diff --stat tests/golden templates docs

words: $(STAMP)  ## bring the catalogs of other languages up to date with the texts of the code
	$(BIN)/python tests/words/catalog.py
	git diff --stat zerowiz/data/locale

bench: $(STAMP)  ## time `plan` against DeepSpeed's own estimator, a search, a script of many files, `machine`, and the merge of 1,000 nodes
	$(BIN)/python tests/bench/command_speed.py
	$(BIN)/python tests/bench/search_speed.py
	$(BIN)/python tests/bench/imports_speed.py
	$(BIN)/python tests/bench/fleet_merge.py
	$(BIN)/python tests/bench/jsontext_speed.py
	$(BIN)/python tests/bench/launch_speed.py
	$(BIN)/python tests/bench/wizard_speed.py

accuracy: $(STAMP)  ## every measured run against its prediction, beside the rivals'; fails when worse
	$(BIN)/python tests/accuracy/report.py --check

schema: $(STAMP)  ## read DeepSpeed's config keys out of it again, every minor version (fetches them)
	$(BIN)/python tests/schema/make_schema.py

clean:  ## remove the environment and what the demo wrote
	rm -rf $(VENV) $(REAL_VENV) $(DOCS_VENV) site demo
