# Tidelog. `make help` lists the targets; every one works from a bare clone.

SHELL := /bin/sh
.DEFAULT_GOAL := help
# The order of what is printed is part of the result: pytest's summary comes last.
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
# Test processes side by side; more than four rarely help, the longest file decides.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); [ $$n -gt 4 ] && n=4; echo $$n)
# What more to tell pytest: make unit PYTEST="-k fencing -x"
PYTEST ?=
LONG := integration or compat or spark or spark_cluster or chaos or chaos_cluster or moves or attack or slow
CODE := tidelog storage wal coordinator broker spark_source localstack examples tests benchmarks scripts scripts/typing-links

# The same order of sets in every process: a simulation's seed replays, test processes agree on names.
export PYTHONHASHSEED ?= 0
# Brokers and commands are started by the hundred: each is slow where nothing keeps what is compiled.
unexport PYTHONDONTWRITEBYTECODE

SEEDS ?= 200
FIRST ?= 1
DURATION ?= 120
FLIPS ?= 40
RECORDS ?= inf
RATE ?= 630
HOURS ?= 3
# Brokers of a simulated cluster, 3 if it is 1: make simulate CLUSTER=5
CLUSTER ?=
# One workload for all seeds: make simulate CLUSTER=100 WORKLOAD=crowd
WORKLOAD ?=
# A file that keeps finished seeds: make simulate RESULTS=build/seeds.jsonl
RESULTS ?=
SCALE ?= 1

BOOTSTRAP := scripts/bootstrap pyproject.toml requirements/test.txt

.venv/.installed-test: $(BOOTSTRAP)
	@scripts/bootstrap test

.venv/.installed-integration: $(BOOTSTRAP) requirements/integration.txt
	@scripts/bootstrap test integration

##@ Start
.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: venv
venv: .venv/.installed-test ## Create .venv with everything that `test` and `demo` need
	@$(PY) scripts/typing-links

.PHONY: demo
demo: venv ## Real flights through three brokers, one is killed; topics derived exactly once, read as tables
	@$(PY) -m scripts.demo

.PHONY: demo-spark
demo-spark: venv ## Spark on the demo's bucket with no broker; then a change stream into two topics, its driver killed
	@$(PY) -m scripts.tools java
	@$(PY) -m scripts.demo_spark

##@ Check
.PHONY: test
test: lint types imports unit spark ## Everything that is quick: lint, types, imports, tests

.PHONY: lint
lint: venv ## ruff: rules and format
	@$(PY) -m ruff check --quiet $(wildcard $(CODE))
	@$(PY) -m ruff format --check --quiet $(wildcard $(CODE)) \
		|| { echo "run: make format" >&2; exit 1; }

.PHONY: format
format: venv ## Format, and mend what ruff can mend
	@$(PY) -m ruff check --fix --quiet $(wildcard $(CODE)); $(PY) -m ruff format $(wildcard $(CODE))

.PHONY: types
types: venv ## mypy: strict over the package, typed bodies over tests and scripts
	@$(PY) -m mypy --no-error-summary
	@$(PY) -m mypy --no-error-summary $(wildcard tests benchmarks scripts)

.PHONY: imports
imports: venv ## import-linter: who may import whom, which cores are pure
	@cd build/typing && ../../.venv/bin/lint-imports --config ../../pyproject.toml \
		--cache-dir ../../.import_linter_cache --no-logo

.PHONY: unit
unit: venv ## Unit, property and simulation tests (make unit PYTEST="-k fencing")
	@$(PY) -m pytest -n $(WORKERS) --dist worksteal -m "not ($(LONG))" $(PYTEST)

.PHONY: spark
spark: venv ## Spark in local mode reads a bucket (make spark PYTEST="-k stream")
	@$(PY) -m scripts.tools java
	@$(PY) -m pytest -m spark tests/spark $(PYTEST)

.PHONY: coverage
coverage: venv ## Branch coverage of the unit tests, by module
	@rm -f .coverage .coverage.*
	@$(PY) -m coverage run -m pytest -q -n $(WORKERS) --dist worksteal -m "not ($(LONG))" $(PYTEST)
	@$(PY) -m coverage combine --quiet && $(PY) -m coverage report

##@ Long checks
.PHONY: integration
integration: .venv/.installed-integration ## Real S3 servers, kill -9, installation into a fresh environment
	@$(PY) -m pytest -n $(WORKERS) --dist worksteal -m "integration or slow" $(PYTEST)

.PHONY: compat
compat: venv ## Foreign Kafka clients, Kafka's own tools and delta-spark, unmodified
	@$(PY) -m scripts.tools java mvn go node npm kcat
	@$(PY) -m pytest -n $(WORKERS) --dist worksteal -m compat $(PYTEST)

.PHONY: spark-cluster
spark-cluster: .venv/.installed-integration ## Spark on a standalone cluster, code from a wheel, on a folder and on S3
	@$(PY) -m scripts.tools java mvn
	@$(PY) -m pytest -m spark_cluster tests/spark_cluster $(PYTEST)

.PHONY: chaos
chaos: venv ## kill -9 of Spark's driver, its workers and the broker under an exactly-once ETL (minutes)
	@$(PY) -m scripts.tools java
	@$(PY) -m pytest -n $(WORKERS) -m chaos tests/chaos $(PYTEST)

.PHONY: chaos-cluster
chaos-cluster: .venv/.installed-integration ## kill -9, stops, pauses and cut networks of three brokers under exactly-once jobs, a closed cluster too: four times MINUTES=2
	@$(PY) -m scripts.tools java mvn
	@MINUTES=$(or $(MINUTES),2) $(PY) -m pytest -s -m chaos_cluster tests/chaos_cluster $(PYTEST)

.PHONY: moves
moves: venv ## Foreign clients while every partition of three brokers moves once a second: make moves SECONDS=60
	@$(PY) -m scripts.tools java mvn go node npm
	@SECONDS=$(or $(SECONDS),20) $(PY) -m pytest -s -m moves tests/moves $(PYTEST)

.PHONY: attack
attack: venv ## Clients that try to starve the others, beside a well-behaved one: docs/ATTACKS.md
	@$(PY) -m pytest -m attack tests/attack $(PYTEST)

.PHONY: bench
bench: .venv/.installed-integration ## Throughput, latency, CPU and requests, beside Apache Kafka: docs/BENCHMARKS.md
	@$(PY) -m scripts.tools java mvn go
	@$(PY) -m benchmarks

.PHONY: bench-beside
bench-beside: venv ## The broker beside an earlier commit, at the same time: make bench-beside COMMIT=HEAD~1 PAIRS=12
	@$(PY) -m benchmarks.broker.beside $(or $(COMMIT),$(error name the earlier commit: make bench-beside COMMIT=HEAD~1)) --pairs $(or $(PAIRS),12)

.PHONY: damage
damage: venv ## Each damage on each kind of object, at many places: docs/DAMAGE.md (make damage FLIPS=40)
	@$(PY) -m tests.damage --flips $(FLIPS) --jobs $(WORKERS)

.PHONY: growth
growth: venv ## What a bucket on a filesystem holds while a producer writes: make growth MINUTES=60 RECORDS=250
	@$(PY) -m benchmarks.broker.growth --minutes $(or $(MINUTES),60) --rate $(RECORDS)

.PHONY: growth-virtual
growth-virtual: venv ## The same in virtual time: make growth-virtual RATE=630 HOURS=3 SCALE=1
	@$(PY) -m tests.simulation.growth --rate $(RATE) --hours $(HOURS) --scale $(SCALE)

.PHONY: simulate
simulate: venv ## Seeded campaigns in virtual time: make simulate SEEDS=200 FIRST=1 DURATION=120 CLUSTER=1
	@$(PY) -m tests.simulation.campaign --seeds $(SEEDS) --first $(FIRST) --duration $(DURATION) --jobs $(WORKERS) $(if $(CLUSTER),--brokers $(if $(filter 1,$(CLUSTER)),3,$(CLUSTER))) $(if $(WORKLOAD),--workload $(WORKLOAD)) $(if $(RESULTS),--results $(RESULTS))

.PHONY: verify
verify: venv ## All of the above in turn; writes docs/VERIFICATION.md
	@$(PY) -m scripts.verify

##@ Maintain
.PHONY: site
site: .venv/.installed-integration ## The documents as a site, in build/site; links are checked
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	@echo build/site/index.html

.PHONY: lock
lock: venv ## Pin what pyproject.toml asks for (make lock UPGRADE=1: the newest of everything)
	@$(PY) scripts/lock.py $(if $(UPGRADE),--upgrade)

.PHONY: dist
dist: venv ## Source and wheel distributions in dist/
	@rm -rf build/lib build/bdist.* dist
	@$(PY) -m build --no-isolation --outdir dist .

.PHONY: clean
clean: ## Remove what can be made again, the environment too
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
