# Everything installs into .venv at the root; nothing outside the checkout is touched but caches in ~/.cache (pip, uv, Matplotlib).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Each worker runs servers of its own; one file's tests stay together, so that fixtures are shared.
TEST_WORKERS ?= 2
export PYTHONPATH := proto/gen:.

.DEFAULT_GOAL := help

##@ Use

.PHONY: run
run: install ## Run the three-minute demo: forecast, prewarm, peak, scale back (ARGS="--json out.json")
	@$(BIN)/forecrest demo $(ARGS)

.PHONY: up
up: install ## Run a controller with embedded PostgreSQL, Valkey and Triton until Ctrl-C
	@$(BIN)/forecrest up $(ARGS)

##@ Develop

.PHONY: install
install: $(VENV)/.installed $(VENV)/triton/.installed ## Install the locked environments into .venv

$(VENV)/.installed: requirements/dev.txt pyproject.toml
	@echo "Installing Forecrest into $(VENV) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python requirements/install.py $(BIN)/python requirements/dev.txt --project .
	@touch $@

$(VENV)/triton/.installed: requirements/triton.txt $(VENV)/.installed
	@echo "Installing Triton Inference Server into $(VENV)/triton …"
	@test -x $(VENV)/triton/bin/python || $(PYTHON) -m venv $(VENV)/triton
	@$(BIN)/python requirements/install.py $(VENV)/triton/bin/python requirements/triton.txt
	@touch $@

.PHONY: triton
triton: $(VENV)/triton/.installed ## Install Triton's own environment (its python backend needs numpy<2)

.PHONY: cluster
cluster: install ## Build the Kubernetes control plane that tests run on, once (needs Go; takes minutes)
	@$(BIN)/python -m tests.e2e.cluster.binary

.PHONY: test
test: install cluster ## Run every test against real PostgreSQL, Valkey, Triton and Kubernetes (ARGS="-k name")
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: check
check: install ## What CI runs beside the tests: lint, types, architecture, generated code, bare imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports
	@$(BIN)/buf lint
	@$(BIN)/buf breaking --against proto/baseline.binpb
	@$(BIN)/python proto/generate.py --check
	@$(BIN)/python -m pytest -q tests/repo

.PHONY: bench
bench: install ## List the benchmarks, or run some (ARGS="--quick", ARGS="accuracy --data DIR")
	@$(BIN)/python requirements/install.py $(BIN)/python requirements/bench.txt
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: soak
soak: install ## Break a real stack for half an hour and look for wrong decisions, lost events and leaks (ARGS="--minutes 5")
	@$(BIN)/python -m benchmarks.soak $(ARGS)

.PHONY: nightly
nightly: install ## Break 20 000 seeded worlds around the core; takes about half an hour
	@$(BIN)/python -m controller.simulation.faults --seeds 0:20000 --keep-going
	@$(BIN)/python -m controller.simulation.shards --seeds 0:5000

.PHONY: proto
proto: install ## Generate code from proto/
	@$(BIN)/python proto/generate.py
	@$(BIN)/python docs/generate_api.py

.PHONY: docs
docs: install ## Build the documentation site into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: format
format: install ## Format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: lock
lock: install ## Resolve requirements/*.txt anew from pyproject.toml
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
	  pyproject.toml -o requirements/run.txt
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
	  --extra embedded --extra demo --extra engines --extra rtx --group dev pyproject.toml -o requirements/dev.txt
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
	  --extra embedded --extra demo --extra engines --extra rtx --group dev --group bench -c requirements/dev.txt pyproject.toml -o requirements/bench.txt
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
	  requirements/triton.in -o requirements/triton.txt

.PHONY: clean
clean: ## Remove environments, caches and local data
	rm -rf $(VENV) .forecrest forecrest-report .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist site

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z]+:.*##/ {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
