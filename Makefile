# Needs only make and a Python >= 3.11 that has venv and pip; everything else is installed into $(VENV).

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready

# A name on PATH may be a shim that fails, and a distribution may split venv off: ask by running.
USABLE := -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
PYTHON ?= $(firstword $(shell for p in python3 python3.13 python3.12 python3.11; do $$p $(USABLE) && echo $$p; done))

.DEFAULT_GOAL := help
.PHONY: help setup run test test-lab test-slow test-all test-faults test-pythons lint format bench measured docs requirements clean

help:
	@echo 'make setup         create $(VENV) with everything pinned in requirements-dev.txt'
	@echo 'make run           run the main job into out/'
	@echo 'make test          lint, then every test of the product that takes seconds'
	@echo 'make test-lab      the same for the papers in narrowcast.lab, without lint'
	@echo 'make test-slow     tests that take minutes; SHARE=1/3 for the first of three shares of the files'
	@echo 'make test-all      all of these'
	@echo 'make test-faults   kill, cut off and overload real brokers, about an hour; FAULTS=... for some of it'
	@echo 'make test-pythons  make test on each of Python 3.11 to 3.14 that is found'
	@echo 'make lint          ruff, mypy, import contracts, map of packages, measured tables, plain words'
	@echo 'make format        let ruff mend what it can'
	@echo 'make bench         the benchmarks'
	@echo 'make measured      fill the tables of README and docs/performance.md from benchmarks/results'
	@echo 'make docs          build the site into site/'
	@echo 'make requirements  pin the versions that pyproject.toml asks for (UPGRADE=1 takes newer ones)'
	@echo 'make clean         remove what was built, not the environment'

setup: $(READY)

# The environment of a folder that was moved or copied still points at the old place: make it again.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

# .unfinished stands while the environment is being changed, so one that was interrupted starts afresh. So does
# one whose pins have changed: pip would leave behind what they no longer name.
$(READY): requirements.txt requirements-dev.txt pyproject.toml
	@test -n "$(PYTHON)" && $(PYTHON) $(USABLE) || { \
	  echo "'$(PYTHON)' is no Python >= 3.11 with venv and pip; install one, or name one: make PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@if test -e $(VENV)/.unfinished || ! $(BIN)/python -m pip --version >/dev/null 2>&1 \
	  || { test -e $(READY) && test "$$(cat $(READY)) $(filter requirements%,$?)" != "$(CURDIR) "; }; \
	  then rm -rf $(VENV); fi
	@mkdir -p $(VENV) && rm -f $(READY) && touch $(VENV)/.unfinished
	@if test -x $(BIN)/python; then echo "updating $(VENV)"; \
	  else echo "creating $(VENV), about two minutes the first time"; $(PYTHON) -m venv $(VENV); fi
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@rm $(VENV)/.unfinished && echo "$(CURDIR)" > $(READY)

run: $(READY)
	$(BIN)/narrowcast run --out out/

# Side by side: as many processes as cores and memory permit, and all tests of a file in one of them.
SPREAD := -n auto --dist loadfile --no-loadscope-reorder

test: lint
	$(BIN)/python -m pytest $(SPREAD) -m "not slow and not lab"

test-lab: $(READY)
	$(BIN)/python -m pytest $(SPREAD) -m "lab and not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest $(SPREAD) -m slow $(if $(SHARE),--share $(SHARE))

test-all: test test-lab test-slow

# Scenarios by name, as FAULTS='"node killed" soak'; what came of all of them is written down.
test-faults: $(READY)
	PYTHONPATH=tests $(BIN)/python -m faults.run $(if $(FAULTS),$(FAULTS),--out benchmarks/results/faults.json)

# Each Python keeps an environment of its own; pyenv's are found even when they are not switched on.
test-pythons:
	@found=; for v in 3.11 3.12 3.13 3.14; do \
	  for p in python$$v "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$v.*/bin/python$$v; do \
	    if "$$p" $(USABLE); then \
	      echo "== Python $$v"; $(MAKE) test VENV=.venv-$$v PYTHON="$$p" || exit 1; found="$$found $$v"; break; \
	    fi; \
	  done; \
	done; test -n "$$found" && echo "passed on Python$$found"

SOURCES := $(wildcard src tests benchmarks examples scripts)

lint: $(READY)
	$(BIN)/ruff check --quiet $(SOURCES)
	$(BIN)/ruff format --check --quiet $(SOURCES)
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports
	$(BIN)/python scripts/package_map.py
	$(BIN)/python scripts/measured.py
	$(BIN)/python scripts/words.py

format: $(READY)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(READY)
	$(BIN)/python benchmarks/run.py

measured: $(READY)
	$(BIN)/python scripts/measured.py --write

docs: $(READY)
	$(BIN)/zensical build --clean --strict

# One version of each package on every Python, so that what is tested is what is installed.
COMPILE = $(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --fork-strategy fewest \
  --generate-hashes --custom-compile-command "make requirements" --quiet $(if $(UPGRADE),--upgrade)

requirements:
	@test -x $(BIN)/uv || $(MAKE) setup
	$(COMPILE) --output-file requirements.txt
	$(COMPILE) --group dev --constraints requirements.txt --output-file requirements-dev.txt

clean:
	rm -rf build dist out site .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
