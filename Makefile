# Everything lives in $(VENV), made on demand. `make` alone lists the targets.

PYTHON ?= python3
VENV   ?= .venv
EXTRA  ?= dev
BIN    := $(VENV)/bin
TYPED  := $(wildcard src tests scripts examples benchmarks deploy)

# Tests start hundreds of interpreters. Without byte code, each of them would compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup prometheus chromium test all-tests other-pythons pythons unit hours mutants check lint types compiled demo bench soak format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: $(VENV)/.has-$(EXTRA) ## make the virtual environment (PYTHON=python3.12 chooses the interpreter)

$(VENV)/.has-%: pyproject.toml scripts/make_venv.py
	@$(PYTHON) scripts/make_venv.py $(VENV) $*
	@touch $@

prometheus: ## bring Prometheus for the tests of alerts and metrics, unless it is on PATH
	@$(PYTHON) -m scripts.fetch_prometheus

chromium: ## bring Chromium for the tests of the dashboard, unless it is on PATH
	@$(PYTHON) -m scripts.fetch_chromium

test: setup prometheus chromium ## check, then run all tests, and those that depend on the interpreter on the other Pythons of this machine
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types lint compiled
	@$(MAKE) --no-print-directory --jobs 2 all-tests other-pythons # side by side: half of their time is waiting

all-tests: setup
	$(BIN)/python -m pytest -n 6 --dist worksteal

other-pythons: setup
	@$(BIN)/python scripts/other_pythons.py

pythons: setup prometheus chromium ## run all tests on every supported Python (OPTIONS=--help lists the options; missing ones need root)
	$(BIN)/python -m scripts.pythons $(OPTIONS)

unit: setup ## run the unit tests: under a minute
	$(BIN)/python -m pytest -n 3 -m "not stress and not long" tests/unit tests/architecture

hours: setup ## run the tests that read the date, as if at hours at which clocks change, months and years end
	$(BIN)/python -m scripts.hours

mutants: setup $(VENV)/.has-mutants ## run mutation tests over the pure modules (PARTS="retry cron" chooses some)
	$(BIN)/python -m scripts.mutants $(PARTS)

check: setup ## lint, format check, types, layering, language
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types lint

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_language.py

types: setup
	$(BIN)/mypy $(TYPED)

# In a fresh clone, each process of pytest would compile all tests. One does it while mypy has the other processor.
compiled: setup
	@test -d tests/__pycache__ || $(BIN)/python -m pytest --collect-only -qq > /dev/null || true # pytest will say why

demo: setup ## run the demonstration
	$(BIN)/mainspring demo

# arq asks for a Redis client below version 6 and Celery for a newer one, so arq has an environment of its own.
$(VENV)-arq/.has-bench-arq: pyproject.toml scripts/make_venv.py
	@$(PYTHON) scripts/make_venv.py $(VENV)-arq bench-arq
	@touch $@

bench: setup $(VENV)/.has-bench $(VENV)-arq/.has-bench-arq ## run the benchmarks
	$(BIN)/python -m benchmarks

soak: setup prometheus chromium ## run the tests with more rounds, and the scenarios with real processes for longer: about an hour
	THOROUGH=1 $(BIN)/python -m pytest -n 4 --dist worksteal --timeout 1800
	THOROUGH=1 $(BIN)/python -m scripts.soak

format: setup ## format and repair what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the virtual environments, caches and builds
	rm -rf .venv .venv-* .chromium .prometheus .hypothesis .import_linter_cache .mutants .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
