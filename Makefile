# Works on a machine that has Python 3.11 or later, pip and make; .ci/setup installs the rest.
# PYTHON=/path/to/python3.12 chooses the Python of a new .venv; ARGS are passed on (make test ARGS="-k loom").

ARGS ?=
BIN := .venv/bin
export PYTHON

.PHONY: help setup demo check test unit lint types format docs pictures vsix release-dry-run bench soak clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-8s %s\n' "$$name" "$$text"; done

setup: ## .venv with the package, all extras and the tools of the checks
	@bash .ci/setup

demo: ## the main job, with no key: a scripted entity mends a real project in a real sandbox
	@bash .ci/setup --demo
	@$(BIN)/cantrip demo $(ARGS)

check: setup ## format, lint, types, imports and unit tests: what to run before each commit (at most 2 minutes)
	@$(MAKE) --no-print-directory -j3 --output-sync=target lint types unit

unit: setup ## the tests that start no process, or few
	@$(BIN)/python -m pytest -q -n 4 -m "not timing and not slow" tests/*/unit tests/repo

test: ## every test: pytest, doctests, the conformance suite (ARGS="-k loom" for some)
	@bash .ci/setup --tests
	@$(BIN)/python .ci/suite.py $(ARGS)

lint: setup ## ruff format --check, ruff check, import-linter
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports

types: setup ## mypy --strict
	@$(BIN)/mypy

format: setup ## let ruff format the code and mend what it can
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

docs: setup ## the reference pages from the code, and the documentation site in build/site (ARGS=--serve shows it while you write)
	@$(BIN)/python tools/reference.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(if $(filter --serve,$(ARGS)),serve,build --strict)

pictures: setup ## the pictures of terminals in docs/pictures, from real commands (ARGS=forks for one)
	@$(BIN)/python tools/pictures.py $(ARGS)

vsix: setup ## the VS Code extension: types, lint, unit tests, vscode-extension/cantrip.vsix with the Python package in it
	@cd vscode-extension && npm ci --no-fund --no-audit --loglevel=error && npm run check && npm run lint && npm test && npm run wheels && npm run package

release-dry-run: setup ## a release up to its upload: sdist, wheel, extension, registry entry (docs/releasing.md)
	@$(BIN)/python tools/release.py dry-run $(ARGS)

bench: setup ## every benchmark (ARGS="turns gate" for some, ARGS=--list for their names)
	@$(BIN)/python -m bench $(ARGS)

soak: ## hundreds of faults over thousands of tuples and casts, and 500 casts of a real model (about an hour; as root it also cuts networks)
	@bash .ci/setup --tests
	@TESTS_SOAK=1 $(BIN)/python -m pytest -q -s tests/tuplespace/integration/test_faults.py tests/crystals/integration/test_sampled_casts.py $(ARGS)

clean: ## remove what the others made: .venv, caches, reports, node modules
	rm -rf .venv .reports .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist bench/.venvs bench/results tests/e2e/clients/typescript/node_modules tests/e2e/clients/acpx/node_modules tests/crystals/integration/aimock/node_modules tests/e2e/clients/yamlls/node_modules vscode-extension/node_modules vscode-extension/dist vscode-extension/dist-test vscode-extension/wheels vscode-extension/cantrip.vsix
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
