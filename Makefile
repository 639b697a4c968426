# make demo: everything from nothing to the main job.  make test: lint, types and all tests.  The environment is made once, in .venv,
# by either or by make install.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TORCH := $(shell sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' setup.py)

.PHONY: install demo test lint bench clean

demo: $(READY)
	$(BIN)/remask demo

install: $(READY)

test: lint
	$(BIN)/pytest -n auto -m "not dist and not slurm and not netns and not kernels and not browser and not gpu and not slow"
	$(BIN)/pytest -m "dist or slurm or netns or browser"
	TRITON_INTERPRET=1 $(BIN)/pytest -n auto -m kernels
	$(BIN)/pytest -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/remask bench startup

clean:
	rm -rf $(VENV) build dist remask.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes in first: a package that asks for a range would otherwise bring another build.
$(READY): setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "remask needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $@
