# GNU make, Python 3.10 or newer with venv and pip: nothing else needs to be there.
PYTHON ?= python3
VENV ?= .venv
PACKAGE := template
EXTRAS := dev,coco,dicom-seg,encoders,export,fast,medical,notebooks
BIN := $(VENV)/bin
# Files of tests run beside each other, one on each core up to four, one thread each; those of a file in their order.
SIDE_BY_SIDE := -n auto --maxprocesses=4 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help train test test-slow test-gpu bench lint format clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

train: $(VENV)/.core ## Set up, fetch a real CT, train on it, score the slices it has not seen
	$(BIN)/python -m $(PACKAGE) fit --config configs/liver.yaml
	$(BIN)/python -m $(PACKAGE) test --config configs/liver.yaml --ckpt_path best

test: $(VENV)/.dev ## Set up, run the quick tests, count the lines they cover
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not gpu" $(SIDE_BY_SIDE) --cov --cov-report=term-missing:skip-covered --cov-fail-under=90

test-slow: $(VENV)/.dev ## Run what takes longer: launchers, kills, notebooks
	$(BIN)/python -m pytest -m "slow and not gpu" -o faulthandler_timeout=900

test-gpu: $(VENV)/.dev ## Run the tests that need a GPU
	$(BIN)/python -m pytest -m gpu -o faulthandler_timeout=900

bench: $(VENV)/.bench ## Measure side by side with other libraries, write docs/benchmarks.md (about 20 minutes)
	$(BIN)/python -m benchmarks

lint: $(VENV)/.dev ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## Format, and fix what can be fixed by rule
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove caches and build files; runs, downloads and the environment stay
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .coverage .coverage.*
	find . -name __pycache__ -not -path './$(VENV)/*' -type d -prune -exec rm -rf {} +

# The stamps are as new as the last installation; a changed pyproject.toml installs again.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "make: $(PYTHON) must be Python 3.10 or newer; name another one: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml Makefile | $(BIN)/python
	$(BIN)/python -m pip install --editable ".[$(EXTRAS)]"
	@touch $(VENV)/.core $@

$(VENV)/.bench: pyproject.toml Makefile | $(BIN)/python
	$(BIN)/python -m pip install --editable ".[bench]"
	@touch $(VENV)/.core $@
