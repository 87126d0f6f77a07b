# `make demo` and `make test` do all the set-up alone: a virtual environment in .venv, torch, the package with its compiled core.
# TORCH= chooses the torch requirement, PYTHON= the interpreter, VENV= the folder, PYTEST_ARGS= what pytest gets besides.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= $(shell nvidia-smi >/dev/null 2>&1 && echo 'torch>=2.11' || echo torch==2.13.0)
WORKERS ?= 2
BIN := $(VENV)/bin
SOURCES := pyproject.toml setup.py $(wildcard csrc/*)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint bench clean
.DELETE_ON_ERROR:

$(VENV)/.torch:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "gpukey needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) 'setuptools>=77' wheel
	$(PIP) '$(TORCH)'
	@touch $@

# A demo needs no compiler: where the core cannot be built, the Python backend gives the same bytes.
$(VENV)/.demo: $(VENV)/.torch $(SOURCES)
	$(PIP) --no-build-isolation --editable '.[engine]'
	@touch $@

$(VENV)/.test: $(VENV)/.torch $(SOURCES)
	GPUKEY_BUILD=require $(PIP) --no-build-isolation --editable '.[engine,triton,cupy,bench,test]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	@echo 'An engine that keys its prefix cache by token ids alone:'
	@$(BIN)/gpukey audit --identity tokens; code=$$?; test $$code -eq 1 || { echo "expected blind reuse (exit code 1), got $$code"; exit 1; }
	@echo 'The same engine keyed by content:'
	@$(BIN)/gpukey audit --identity content

test: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)
	@# pytest's 5: PYTEST_ARGS chose none of these tests.
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m interpret tests/triton $(PYTEST_ARGS) $(if $(PYTEST_ARGS),|| test $$? -eq 5)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test
	$(BIN)/python -m pytest bench --benchmark-only --benchmark-columns=min,median,rounds -s $(PYTEST_ARGS)

clean:
	rm -rf build *.egg-info gpukey/*.so gpukey/_build_report.json $(VENV)
