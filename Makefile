# `make demo` and `make test` need nothing but Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-fast test-slow test-flower-smoke test-faults lint format bench bench-peers docs clean

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

demo: .venv/installed
	$(BIN)/fedpd compare --out runs/demo --overwrite

# COVERAGE=1 measures which branches of src/fedpd the tests take, and prints the share of every file.
test: .venv/installed
	$(BIN)/python -m pytest $(if $(COVERAGE),--cov --cov-report=term:skip-covered)

test-fast: .venv/installed
	$(BIN)/python -m pytest -m 'fast and not slow and not faults'

test-slow: .venv/installed
	$(BIN)/python -m pytest -m slow

test-flower-smoke: .venv/installed
	$(BIN)/python -m pytest -m smoke --numprocesses 0 tests/flower

test-faults: .venv/installed
	$(BIN)/python -m pytest -m faults --numprocesses 0 tests/flower

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/exports.py --check
	$(BIN)/python tools/architecture.py

format: .venv/installed
	$(BIN)/python tools/exports.py
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed
	$(BIN)/python -m benchmarks

bench-peers: .venv/installed
	$(BIN)/python -m benchmarks.peers

docs: .venv/installed-docs
	# Most of the time is compilation. No --quiet: it would hide warnings from --strict too.
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv .venv-peers .pytest_cache runs site
