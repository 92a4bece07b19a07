# The two commands of a newcomer: `make demo` and `make test`. They need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST ?= $(BIN)/python -m pytest
# Test processes, each with a server of its own.
JOBS ?= 2
CHECKED := pqrun _pqrun_pytestplugin.py tests examples benchmarks
MINUTES ?= 2

.PHONY: demo test faults chaos check docs pictures versions full build clean

demo: $(VENV)/.demo  ## index the standard library with jobs, on a database of its own
	$(BIN)/pqrun demo

test: $(VENV)/.test  ## the tests, on the embedded PostgreSQL (PQRUN_TEST_DSN for another)
	$(PYTEST) -n $(JOBS) -m "not slow" --ignore=tests/faults

faults: $(VENV)/.test  ## real processes killed, databases taken away
	$(PYTEST) -n $(JOBS) -m "not slow" tests/faults

chaos: $(VENV)/.test  ## workers and databases hurt under load for MINUTES, and the proof that nothing was lost
	$(BIN)/python -m benchmarks chaos --minutes $(MINUTES)

check: $(VENV)/.test  ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CHECKED)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

pictures: $(VENV)/.test  ## every page as a picture, in docs/images/pages, with the report of axe
	PQRUN_PICTURES=1 $(PYTEST) tests/web/test_pictures.py

versions:  ## wheel, source archive and tests on each Python, with the lowest dependencies, and on PostgreSQL 16
	.ci/versions

full: check versions  ## everything, faults, slow tests and ten minutes of chaos too
	$(PYTEST)
	$(BIN)/python -m benchmarks chaos --minutes 10

docs: $(VENV)/.docs  ## the site of docs/, in build/site
	$(BIN)/zensical build --strict

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

# Apart from the others: the site's generator is no part of what the tests need.
$(VENV)/.docs: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	touch $@

clean:
	rm -rf $(VENV) dist build .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis
