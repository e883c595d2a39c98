# Everything runs from a virtual environment in .venv that the targets build themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/base.stamp
	@$(BIN)/dubito demo

test: lint
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q

lint: $(VENV)/dev.stamp
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo

bench: $(VENV)/dev.stamp
	@$(BIN)/python -m benchmarks; status=$$?; $(BIN)/python -m benchmarks.page; $(BIN)/python -m benchmarks.tables; exit $$status

clean:
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/base.stamp: pyproject.toml constraints.txt
	@echo "Installing dubito into $(VENV) (once, about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/base.stamp
	@echo "Installing the development tools into $(VENV) (once)"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@
