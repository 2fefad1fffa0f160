# Every target makes what it needs: a machine with Python >= 3.11, make and a package index is enough.
# A stamp inside a virtual environment says what is installed there; it is written last, so an interrupted install leaves none.

PYTHON ?= python3
# The requirement of PyTorch for test-all and bench, e.g. TORCH=torch==2.13.0
TORCH ?= torch

VENV := .venv
VENV_ALL := .venv-all
BIN := $(VENV)/bin
BIN_ALL := $(VENV_ALL)/bin
# One stamp for each requirement of PyTorch and choice of extras; a checksum, because a requirement may hold characters such as < and *
STAMP_ALL = $(VENV_ALL)/.installed-all-$(shell printf %s '$(TORCH) $(EXTRAS)' | cksum | cut -d ' ' -f 1)
# Without bytecode of thousands of modules that nothing imports: what is imported is compiled then
PIP_INSTALL := -m pip install --no-compile --quiet --disable-pip-version-check

# What test-all installs, and so which of its tests are skipped, e.g. EXTRAS=arrow,hf for these alone
EXTRAS ?= audio,image,peers,stores,report,jax,graphs,arrow,hf,text,ray,ray-train,transformers,lightning,notebooks
# Much of a test's time goes by in waiting: three processes for two cores, each with whole files, since fixtures watch what a
# test leaves behind.
IN_PARALLEL ?= -n 3 --dist loadfile

.PHONY: help demo test test-all test-long test-installs mutants check lint types imports examples docs bench goals soak clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      convert the spoken numbers to HDF5, run epochs over them, train, kill, resume"
	@echo "make test      the tests of the core, without optional packages (no torch): minutes"
	@echo "make test-all  the tests that need torch, trainers, pyarrow, Ray or a peer (TORCH=torch==2.13.0 pins torch)"
	@echo "make test-long everything: all dimensions, many random examples, mutants, clean installs, soak: hours"
	@echo "make check     lint, types, import rules, the examples in the docs, the docs themselves"
	@echo "make bench     run the benchmarks against the peers (BENCH_ARGS=--quick for their short forms)"
	@echo "make goals     run them and print every number to reach, and where it stands"
	@echo "make mutants   change the heart in sixty ways, and see which changes the tests do not find"
	@echo "make test-installs  the wheel in an empty environment, with each Python at hand (EACH_EXTRA=1: and with each extra)"
	@echo "make soak      20 minutes of random SIGKILL of workers (SOAK_SECONDS=...)"
	@echo "make clean     remove the virtual environments, caches and build outputs"

demo: $(VENV)/.installed-core
	@PYTHONPATH=examples $(BIN)/python -m demo

test: $(VENV)/.installed-test
	@$(BIN)/python -m pytest $(IN_PARALLEL) -m 'not extra and not long' $(PYTEST_ARGS)

test-all: $(STAMP_ALL)
	@$(BIN_ALL)/python -m pytest $(IN_PARALLEL) -m 'extra and not long' $(PYTEST_ARGS)

test-long: $(VENV)/.installed-test $(STAMP_ALL) mutants test-installs soak
	@$(BIN)/python -m pytest $(IN_PARALLEL) --hypothesis-profile=long --random-order -m 'not extra' $(PYTEST_ARGS)
	@$(BIN_ALL)/python -m pytest $(IN_PARALLEL) --hypothesis-profile=long -m extra $(PYTEST_ARGS)

mutants: $(VENV)/.installed-test
	@$(BIN)/python tests/mutants.py

test-installs: $(VENV)/.installed-test
	@TORCH='$(TORCH)' HEADRACE_TEST_INSTALLS=$(if $(EACH_EXTRA),extras,core) $(BIN)/python -m pytest -o faulthandler_timeout=0 tests/test_clean_installs.py $(PYTEST_ARGS)

check: lint types imports examples docs

lint: $(VENV)/.installed-dev
	@echo "== lint"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	@echo "== types"
	@$(BIN)/mypy

imports: $(VENV)/.installed-dev
	@echo "== import rules"
	@$(BIN)/lint-imports

examples: $(VENV)/.installed-dev
	@echo "== examples in README.md, docs/ and docstrings"
	@PYTHONPATH=docs $(BIN)/python -m pytest -q -p run_examples --doctest-modules --doctest-ignore-import-errors --ignore=src/headrace/adapters --ignore=src/headrace/torch README.md docs src

docs: $(VENV)/.installed-dev
	@echo "== docs"
	@export NO_MKDOCS_2_WARNING=1; site=$$(mktemp -d) && trap 'rm -rf "$$site"' EXIT && $(BIN)/mkdocs build --quiet --strict --site-dir "$$site"

bench: $(VENV_ALL)/.installed-bench
	@set -e; for script in $(filter-out benchmarks/goals.py,$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(BIN_ALL)/python "$$script" $(BENCH_ARGS); done

goals: $(VENV_ALL)/.installed-bench
	@$(BIN_ALL)/python benchmarks/goals.py $(BENCH_ARGS)

SOAK_SECONDS ?= 1200
soak: $(VENV)/.installed-test
	@HEADRACE_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -s tests/faults/test_soak.py

clean:
	rm -rf $(VENV) $(VENV_ALL) build dist site demo_out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests docs benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# --- virtual environments ---

# $(call make_venv,FOLDER): refuse an old Python; start from nothing unless an earlier install was complete, then drop its stamps.
define make_venv
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(v < (3, 11) and "Headrace needs Python >= 3.11, but $(PYTHON) is %d.%d: make PYTHON=python3.12 ..." % v)'
	@if ls $(1)/.installed-* >/dev/null 2>&1; then rm -f $(1)/.installed-*; else echo "== making $(1)"; $(PYTHON) -m venv --clear $(1); fi
endef

$(VENV)/.installed-core: pyproject.toml
	$(call make_venv,$(VENV))
	@echo "== installing Headrace into $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) --editable '.[audio]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed-core
	@echo "== installing what the tests need into $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) --editable '.[audio,test]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-test
	@echo "== installing what the checks need into $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) --editable '.[audio,image,test,dev]'
	@touch $@

$(STAMP_ALL): pyproject.toml
	$(call make_venv,$(VENV_ALL))
	@echo "== installing Headrace, $(TORCH) and the peers into $(VENV_ALL) (minutes, for a large torch)"
	@$(BIN_ALL)/python $(PIP_INSTALL) --editable '.[test,$(EXTRAS)]' '$(TORCH)'
	@# What torchtitan's loaders import, and no more: its other requirements hold datasets and s3fs back.
	@$(if $(findstring transformers,$(EXTRAS)),$(BIN_ALL)/python $(PIP_INSTALL) --no-deps 'torchtitan>=0.3' torchdata torch_checkpointing spmd_types tyro docstring_parser typeguard)
	@touch $@

$(VENV_ALL)/.installed-bench: $(STAMP_ALL)
	@echo "== installing the peers of the benchmarks into $(VENV_ALL)"
	@$(BIN_ALL)/python $(PIP_INSTALL) --editable '.[bench]' '$(TORCH)'
	@touch $@
