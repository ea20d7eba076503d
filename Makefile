# Everything that CI does is a target here; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo serve test test-all perturbed soak mutants pictures bench coverage lint \
	format types imports lines lock deb clean
SHELL := bash

PYTHON_RUN := .venv/bin/python -P
# On two cores: while one waits, two work. A choice of tests is over before three have started.
JOBS ?= $(if $(ARGS),0,3)
DATA ?= ferryman-data
SOAK_SECONDS ?= 600
# Chosen at random each time, and printed: PERTURB=SEED repeats what one of them showed.
SEEDS ?= $(shell shuf -i 1-9999 -n 3)
ARGS ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what running needs (system packages, .venv); does nothing when it is there
	@scripts/setup

setup-dev: ## the same, and what tests and checks need
	@scripts/setup --dev

demo: setup ## start everything in a temporary folder, run an example bundle, show each step, stop
	@$(PYTHON_RUN) scripts/demo.py $(ARGS)

serve: setup ## server and agent in the foreground, data kept in ./ferryman-data (DATA=folder)
	@.venv/bin/ferryman dev --data-dir $(DATA) $(ARGS)

test: setup-dev ## the tests of every change, about four minutes on two cores (ARGS="-k name" or a path to choose)
	@$(PYTHON_RUN) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-all: setup-dev ## everything, within an hour: slow tests, fresh programs, other interleavings, soak, mutants, bench
	@SEEDS="$(SEEDS)" scripts/test-all

perturbed: setup-dev ## each seed another order of threads and requests (SEEDS="1 2 3", ARGS=paths)
	@for seed in $(SEEDS); do \
		echo "PERTURB=$$seed"; \
		PERTURB=$$seed $(PYTHON_RUN) -m pytest -q -n 3 --dist worksteal $(or $(ARGS),$(wildcard \
			$(addprefix tests/,server store model fleet agent client))) || exit; \
	done

soak: setup-dev ## jobs for SOAK_SECONDS (600) while all is killed, reloaded and restored; then fuzz as long
	@$(PYTHON_RUN) -m tests.soak --seconds $(SOAK_SECONDS)
	@SOAK_SECONDS=$(SOAK_SECONDS) $(PYTHON_RUN) -m pytest -m soak $(ARGS)

mutants: setup-dev ## take each protection out in turn; a test must fail (ARGS=--help)
	@.venv/bin/python -m tests.mutants $(ARGS)

coverage: setup-dev ## which lines no test runs, programs that tests start included; htmlcov/ shows them
	@$(PYTHON_RUN) -m pytest -n $(JOBS) --dist worksteal --timeout=600 --cov --cov-report=html --cov-report=term:skip-covered $(ARGS)

pictures: setup-dev ## look at every page, and take the pictures of docs/pictures again
	@PICTURES=1 $(PYTHON_RUN) -m pytest -q -m slow -n $(JOBS) tests/journeys/dashboard/test_looks.py

bench: setup-dev ## measure, and print medians and ratios
	@.venv/bin/python -m tests.bench $(ARGS)

lint: setup-dev ## ruff, its formatting, codespell
	@$(PYTHON_RUN) -m ruff check .
	@$(PYTHON_RUN) -m ruff format --check .
	@.venv/bin/codespell

format: setup-dev ## let ruff lay out the code
	@$(PYTHON_RUN) -m ruff format $(ARGS)

types: setup-dev ## mypy, strict
	@$(PYTHON_RUN) -m mypy

imports: setup-dev ## who may import whom
	@.venv/bin/lint-imports

lines: ## how long the product, its tests and its pages are
	@$(PYTHON_RUN) scripts/lines.py

lock: ## write requirements/*.txt from pyproject.toml (ARGS=--upgrade moves versions)
	@scripts/lock $(ARGS)

deb: setup ## a Debian package of both programs, dist/ferryman_*.deb
	@deploy/debian/build

clean: ## remove .venv and every cache; never data
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache htmlcov .coverage* dist
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
