# make install      build .venv with the dependencies of the recipes
# make quickstart   build .venv and run the quickstart recipe
# make test         run the tests that fit five minutes on two cores (tests/budget.py)
# make test-all     run those that fit BUDGET seconds, without BUDGET all tests with all examples; GPU tests run if
#                   there is a GPU; then those of make test with checks of shapes
# make lint         check style, types and the direction of imports
# make docs         build the documentation; warnings are errors
# make wheel        build the wheel and test it in new environments with Python 3.11 to 3.13, at most two minutes
# make lowest       the same with the lowest allowed versions, before a release; downloads some GB of torch
# make mutants      list the mutants of MUTANTS that no test detects (tests/mutation/survivors.md)
# make bench        compare speed and memory with the papers' formulas; writes benchmarks/results, docs/performance.md
# make bench-gpu    the same on a GPU
# make clean        remove .venv, builds and caches
#
# Variables: VENV (.venv, the environment), PYTHON (its interpreter), PYTEST_ARGS, PIP_ARGS,
# MUTANTS (e.g. 'ddlib.objective.nelbo.*'), BUDGET (seconds of make test-all; 0: all tests).

PYTHON      ?= python3
PYTEST_ARGS ?= -n 2 --dist worksteal
PIP_ARGS    ?=
BUDGET      ?= 0

VENV := .venv
BIN  := $(VENV)/bin
# --no-compile: Python compiles the files that it imports; pip would compile all files, which takes minutes
PIP  := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --no-input -c constraints/cpu.txt $(PIP_ARGS)
DEPS := pyproject.toml constraints/cpu.txt

# Each pytest worker uses one core; by default every worker would start one thread per core.
test test-all mutants bench: export OMP_NUM_THREADS ?= 1

# The tests start hundreds of Python processes, each of which is seconds faster with bytecode caches.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install quickstart test test-all lint docs wheel lowest mutants bench bench-gpu clean

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: pip runs again only when the requirements change.
$(VENV)/.stamp-recipes: $(DEPS) | $(BIN)/python
	@echo "installing ddlib[recipes] into $(VENV) (a few minutes the first time)"
	@$(PIP) -e '.[recipes]'
	@touch $@

$(VENV)/.stamp-dev: $(DEPS) tests/plugin_example/pyproject.toml | $(BIN)/python
	@echo "installing ddlib[recipes,eval,dev] into $(VENV)"
	@# pip uses one core; the other one compiles torch meanwhile, so that test processes do not do it all at once
	@$(BIN)/python -m compileall -qq $(VENV)/lib & $(PIP) -e '.[recipes,eval,dev]' && wait
	@$(PIP) --no-deps torchtyping==0.1.5 # --no-deps: it requires typeguard < 3, other packages >= 4
	@$(PIP) --no-deps -e tests/plugin_example
	@touch $@

$(VENV)/.stamp-docs: $(DEPS) | $(BIN)/python
	@echo "installing ddlib[recipes,eval,docs] into $(VENV)"
	@$(PIP) -e '.[recipes,eval,docs]' # autodoc imports the code
	@touch $@

install: $(VENV)/.stamp-recipes

# Spinning threads of OpenMP halve the speed if other processes use the machine.
quickstart: export OMP_WAIT_POLICY ?= PASSIVE
quickstart: $(VENV)/.stamp-recipes
	@$(BIN)/python -m recipes.quickstart

test: $(VENV)/.stamp-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-all: $(VENV)/.stamp-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS) --budget $(BUDGET) \
	  -m "$$($(BIN)/python -c 'import torch; print("" if torch.cuda.is_available() else "not gpu")')"
	$(BIN)/python -m pytest $(PYTEST_ARGS) --shapes

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.stamp-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "documentation: docs/_build/html/index.html"

wheel lowest: $(BIN)/python
	@$(PIP) uv==0.13.9
	$(BIN)/python tests/packaging/wheel.py $(if $(filter lowest,$@),--lowest --pythons 3.11)

mutants: $(VENV)/.stamp-dev
	@$(PIP) mutmut==3.8.1
	$(BIN)/mutmut run $(MUTANTS)
	@$(BIN)/mutmut results | grep -v 'not checked' || echo 'no survivor'

bench: $(VENV)/.stamp-dev
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.table --docs docs

bench-gpu: $(VENV)/.stamp-dev
	$(BIN)/python -m benchmarks.gpu_head
	$(BIN)/python -m benchmarks.packing --device cuda
	$(BIN)/python -m benchmarks.run --gpu --times 3
	$(BIN)/python -m benchmarks.table --docs docs

clean:
	rm -rf $(VENV) .venv-docs mutants build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
