# `make demo` and `make test` need nothing but Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The tests of the inner loop: every layer that is quick to import and to compile, and each method once.
FAST := tests/base tests/core tests/data tests/experiments \
	tests/test_loggers.py tests/test_oracles.py tests/test_pseudo_code.py tests/test_regularizers.py tests/test_schedules.py \
	tests/algorithms/test_conformance.py::test_bad_hyper_parameters_are_refused_with_a_sentence \
	tests/algorithms/test_conformance.py::test_it_compiles_once \
	tests/algorithms/test_fedavg.py tests/algorithms/test_fedpd.py tests/algorithms/test_fedprox.py \
	tests/engine/measure/test_history.py \
	tests/problems/test_build.py tests/problems/test_logistic.py tests/problems/test_quadratic.py \
	tests/theory/test_constants.py tests/theory/test_dissimilarity.py \
	tests/theory/test_points.py tests/report/test_reach.py

.PHONY: demo demo-cost test test-fast test-slow test-slow-part test-flower-smoke test-faults fuzz lint format bench bench-peers bench-suite figures figures-check pages docs dist test-lowest lock clean

# What a simulation needs. Three lines keep it below 600 MB. Python compiles what it imports, so pip does not compile
# every file: 90 MB less after a demo, and 11 s of processor time less for torch and sympy alone. strip, where there is
# one, removes the symbol table of jaxlib, which only debuggers read (103 MB less); numpy's and scipy's libraries do not
# load any more after it. scipy brings its own tests (18 MB).
.venv/installed-core: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) --no-compile --editable .
	strip --strip-unneeded .venv/lib/python*/site-packages/jaxlib/libjax_common.so 2>/dev/null || true
	find .venv/lib/python*/site-packages/scipy -type d -name tests -prune -exec rm -r {} +
	touch $@

# Everything, for tests and development.
.venv/installed: .venv/installed-core
	$(PIP) --no-compile --editable '.[dev]'
	touch $@

.venv/installed-docs: .venv/installed
	$(PIP) --no-compile --editable '.[docs]'
	touch $@

demo: .venv/installed-core
	$(BIN)/fedpd compare --out runs/demo --overwrite

# The time and the disk that make demo takes in a fresh clone of the last commit.
demo-cost:
	$(PYTHON) tools/demo_cost.py

# COVERAGE=1 measures which branches of src/fedpd the tests take, and prints the share of every file.
test: .venv/installed
	$(BIN)/python -m pytest $(if $(COVERAGE),--cov --cov-report=term:skip-covered)

test-fast: .venv/installed
	$(BIN)/python -m pytest $(FAST)

test-slow: .venv/installed
	$(BIN)/python -m pytest -m slow

# One of PARTS parts of the slow tests, another one in every hour, so that a broken one is seen within a few landings.
PARTS := 24
PART = $(shell expr $$(date +%s) / 3600 % $(PARTS))
test-slow-part: .venv/installed
	$(BIN)/python -m pytest -m slow --part $(PART)/$(PARTS)

test-flower-smoke: .venv/installed
	$(BIN)/python -m pytest -m smoke --numprocesses 0 tests/flower

test-faults: .venv/installed
	$(BIN)/python -m pytest -m faults --numprocesses 0 tests/flower

# Hostile files, command lines and calls, and random runs compared with NumPy: FUZZ times as many as in make test, and
# different ones every time. A difference is reported with its seed and the command that repeats it. If atheris is
# installed (pip install atheris, on Linux), it then fuzzes each parser byte by byte for SECONDS.
FUZZ ?= 40
SECONDS ?= 60
PARSERS := experiment leaf csv parquet history safetensors clocks sites
fuzz: .venv/installed
	FUZZ=$(FUZZ) $(BIN)/python -m pytest --numprocesses 2 tests/fuzz tests/differential
	! $(BIN)/python -c "import atheris" 2>/dev/null || \
		for parser in $(PARSERS); do $(BIN)/python tools/fuzz_bytes.py $$parser -max_total_time=$(SECONDS) || exit 1; done

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/architecture.py

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed
	$(BIN)/python -m benchmarks

bench-peers: .venv/installed
	$(BIN)/python -m benchmarks.peers

# Hours; interrupt it at any time, and run it again to continue. SUITE="--budgets 0" is the part with nothing tuned.
SUITE ?= --budgets 0 --budgets 8 --budgets 64
bench-suite: .venv/installed
	$(BIN)/fedpd benchmark $(SUITE)

# The figures of the README and the documentation, from files in this repository.
figures: .venv/installed
	$(BIN)/python -m tools.figures

# Whether the files show what make figures would draw.
figures-check: .venv/installed
	$(BIN)/python -m tools.figures --check

# The tables in docs/ that are made from the code: methods, columns, loaders, problems and commands.
pages: .venv/installed
	$(BIN)/python docs/_build/hooks.py

docs: .venv/installed-docs
	# Most of the time is compilation. No --quiet: it would hide warnings from --strict too.
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel and the sdist, each installed into an empty environment and used.
dist: .venv/installed
	rm -rf dist
	$(PIP) build
	$(BIN)/python -m build --quiet
	$(BIN)/python tools/smoke.py dist/*.whl dist/*.tar.gz

# The tests of the inner loop with the lowest versions of the dependencies that pyproject.toml allows.
# pip installs torch, so that pip's settings decide between its builds.
test-lowest: .venv/installed
	$(PYTHON) -m venv --clear .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet torch==2.13.0
	$(BIN)/uv pip install --quiet --python .venv-lowest --resolution lowest-direct --editable '.[dev]'
	.venv-lowest/bin/python -m pytest $(FAST)

# The versions with which fedpd is developed: pip install --constraint requirements-dev.lock --editable '.[dev,docs]'
lock: .venv/installed
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --extra docs --no-header \
		--output-file requirements-dev.lock pyproject.toml

clean:
	rm -rf .venv .venv-lowest .venv-peers .pytest_cache dist runs site
