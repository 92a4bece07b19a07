# The two commands of a newcomer: `make demo` and `make test`. They need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST ?= $(BIN)/python -m pytest
CHECKED := pqrun tests examples

.PHONY: demo test faults check full build clean

demo: $(VENV)/.demo  ## index the standard library with jobs, on a database of its own
	$(BIN)/pqrun demo

test: $(VENV)/.test  ## the tests, on the embedded PostgreSQL (PQRUN_TEST_DSN for another)
	$(PYTEST) -m "not slow" --ignore=tests/faults

faults: $(VENV)/.test  ## real processes killed, databases taken away
	$(PYTEST) -m "not slow" tests/faults

check: $(VENV)/.test  ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CHECKED)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

full: check  ## everything, faults and slow tests too
	$(PYTEST)

build: $(VENV)/.test  ## the wheel and the source archive
	$(BIN)/python -m build --no-isolation

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

# Dependency groups need pip 25.1.
$(VENV)/.test: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,uvloop]" --group test
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) dist build .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis
