# Everything works from a fresh clone with Python 3.11 to 3.13 and make; what else is needed is fetched into .penstock/.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3; do \
	$$each -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$each && break; done)

BIN := .penstock/venv/bin
READY := .penstock/venv/.complete
CODE := penstock ops consumers resources dagster_project tools tests benchmarks
FOLDERS = $(wildcard $(CODE))

# Compiled code is kept, whatever the environment says: the tests are compiled in three processes, and the programs that
# they start, some hundreds, compile what they import.
unexport PYTHONDONTWRITEBYTECODE

# Caches go where everything else goes that a run leaves.
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.penstock/cache/hypothesis

# A command that needs Java: stops where there is none. JAVA_OPTIONAL goes on, so that tests can name the gap.
JAVA := home="$$($(BIN)/python -m tools.java --print-home)" && JAVA_HOME="$$home"
JAVA_OPTIONAL := home="$$($(BIN)/python -m tools.java --print-home || true)"; JAVA_HOME="$$home"

# MySQL, MariaDB, etcd, Redis and Kafka for the tests: before them, because a download has no place in a test's time limit.
# What cannot be had is named by the tests.
SERVERS_OPTIONAL := $(BIN)/python -m tools.servers all fetch >/dev/null || true

# Where `make dev` keeps its state: its own, or what `make demo` left.
STATE := $(CURDIR)/.penstock$(if $(DEMO),/demo)
# The demo's policies are for the demo's database, whatever the environment names.
NO_DATABASE := PENSTOCK_DATABASE_URL= DB_TYPE= DB_HOST= DB_PORT= DB_NAME= DB_USER= DB_PASSWORD=
DEMO_SETTINGS := $(if $(DEMO),$(NO_DATABASE) PENSTOCK_EMBEDDED_DIRECTORY="$(STATE)/postgres" PENSTOCK_POLICIES="$(STATE)/policies.yaml")

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## Create the environment in .penstock/venv

$(READY): requirements.lock pyproject.toml tools/environment.py
	@if [ -z "$(PYTHON)" ]; then echo "error: install Python 3.11, 3.12 or 3.13" >&2; exit 1; fi
	@$(PYTHON) -m tools.environment

.PHONY: demo
demo: $(READY) ## A bank publishes, consumers follow, one is killed: then all balances are compared
	@$(JAVA) exec $(BIN)/python -m tools.demo $(ARGS)

.PHONY: demo-rebalance
demo-rebalance: $(READY) ## Three consumers share partitions, one is removed; PARTITIONS=16 REGISTRY=memory|postgres|etcd|redis
	@exec $(BIN)/python -m tools.demo_rebalance $(if $(PARTITIONS),--partitions $(PARTITIONS)) $(if $(REGISTRY),--registry $(REGISTRY)) $(ARGS)

.PHONY: demo-queue
demo-queue: $(READY) ## 11 workers of a queue, one fails, one is killed, one is paused: each of 20,000 jobs is done once
	@exec $(BIN)/python -m tools.demo_queue $(ARGS)

.PHONY: demo-kafka
demo-kafka: $(READY) ## The bank's events go through Kafka while the relay is killed: what is there is added up and compared
	@$(JAVA) exec $(BIN)/python -m tools.demo_broker kafka $(ARGS)

.PHONY: demo-pulsar
demo-pulsar: $(READY) ## The same through Pulsar
	@$(JAVA) exec $(BIN)/python -m tools.demo_broker pulsar $(ARGS)

.PHONY: test
test: $(READY) ## The tests, in three processes; ARGS="-k name" chooses, ARGS=-v names each, ARGS="-n 0" is one process
	@$(SERVERS_OPTIONAL)
	@$(JAVA_OPTIONAL) $(BIN)/python -m pytest -m "not long" -n auto --dist worksteal $(ARGS)

.PHONY: test-long
test-long: $(READY) ## The tests with 100,000 events and ten kills, and what else is too long for every day; then the matrix
	@$(SERVERS_OPTIONAL)
	@$(JAVA_OPTIONAL) $(BIN)/python -m pytest -m long --timeout 7200 $(ARGS)
	$(if $(ARGS),,@$(MAKE) test-matrix)

.PHONY: test-matrix
test-matrix: $(READY) ## The contract on PostgreSQL 14 to 17 and MariaDB 10.11 too; ARGS="--only postgres-14" chooses
	@$(JAVA_OPTIONAL) $(BIN)/python -m tools.servers.matrix $(ARGS)

.PHONY: check
check: $(READY) ## Lint, format, types, import direction, house rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(FOLDERS)
	$(BIN)/lint-imports --cache-dir .penstock/cache/imports
	$(BIN)/python -m tools.check_house
	$(BIN)/python -m tools.sql_lint
	$(BIN)/python -m tools.prose
	$(BIN)/python -m tools.words
	$(if $(wildcard tools/check_coverage.py),$(BIN)/python -m tools.check_coverage)

.PHONY: format
format: $(READY) ## Format the code and repair what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(READY) ## Measure against the bare table; ONLY=publish measures one thing, ENGINE=mysql on one engine, ENGINE=postgres-15 on an older version; SHORT=1 what has an aim
	@$(JAVA_OPTIONAL) $(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(ENGINE),--engine $(ENGINE)) $(if $(SHORT),--short) $(ARGS)

.PHONY: chart
chart: $(READY) ## Draw who holds how many partitions while consumers come, go and are killed
	@exec $(BIN)/python -m tools.chart_shares $(ARGS)

.PHONY: dev
dev: $(READY) ## Dagster's web pages and daemon, with its home under .penstock, PostgreSQL up until make clean; DEMO=1: on what the demo left
	@mkdir -p $(STATE)/dagster && cp tools/dagster.yaml $(STATE)/dagster/dagster.yaml
	@$(JAVA) PENSTOCK_EMBEDDED=1 DAGSTER_HOME="$(STATE)/dagster" PATH="$(CURDIR)/$(BIN):$$PATH" $(DEMO_SETTINGS) \
		exec $(BIN)/python -m tools.dev $(ARGS)

.PHONY: pulsar
pulsar: $(READY) ## Fetch and start a Pulsar standalone broker; ARGS=stop stops it
	@$(JAVA) $(BIN)/python -m tools.pulsar $(or $(ARGS),start)

.PHONY: docs
docs: $(READY) ## Build the site of the pages into .penstock/site/html; ARGS=serve shows it and follows changes
	@$(BIN)/python -m tools.site $(ARGS)

.PHONY: lock
lock: $(READY) ## Re-make requirements.lock from pyproject.toml; UPGRADE=1 takes newer versions
	@$(BIN)/python -m tools.lock $(if $(UPGRADE),--upgrade)

.PHONY: release
release: $(READY) ## Build the sdist and the wheel into dist/, and check them
	@$(BIN)/python -m tools.release $(ARGS)

.PHONY: figures
figures: $(READY) ## Words, prose, lines, promises; sizes of the last release and images; time of the last whole test
	@$(BIN)/python -m tools.figures

.PHONY: clean
clean: ## Stop what runs below .penstock and remove its data; ALL=1 removes the environment too
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m tools.pulsar stop && $(BIN)/python -m tools.clean; fi
	@rm -rf build dist spark-warehouse metastore_db $(if $(ALL),.penstock)
