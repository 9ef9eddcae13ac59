# `make help` lists the targets. Each works from a fresh clone: what needs the environment makes it first.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
PYTHON_DIRS := broker_state checkpoints connectors expectations pipelines popstream tests
# Code must not lean on the order of a set or on hash(): another seed every time, printed so that a failure can be repeated.
PYTHONHASHSEED := $(or $(PYTHONHASHSEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
PYTEST = echo "PYTHONHASHSEED=$(PYTHONHASHSEED)" && PYTHONHASHSEED=$(PYTHONHASHSEED) $(BIN)/pytest
# Three of the workers run the tests with Spark and Kafka (tests/support/pytest_hooks/schedule.py); the tests of a file stay together.
WORKERS ?= 4
PARALLEL = -n $(WORKERS) --dist loadfile
UV ?= uv
COMPILE = $(UV) pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--fork-strategy fewest --custom-compile-command "make lock" --quiet

.PHONY: help alerts-test browser-test image-test environment setup demo example test quick busy-test all-tests model check format integration compiled-test bench bench-peers conformance soak simulate fuzz mutants crash docs cluster-test lock lock-jars clean s3-jars s3-test cluster-demo secure-demo

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

environment:
	@scripts/setup.sh

setup: environment ## make .venv, fetch the jars and compile the kernel; does nothing when all is up to date
	@$(BIN)/python -m scripts.compile_kernel

demo: environment ## run the whole pipeline once, on this machine
	@$(BIN)/popstream demo

cluster-demo: setup ## the same on a Spark cluster of this machine: an executor, a worker and the driver are killed meanwhile
	@$(BIN)/popstream demo --on-cluster --count 20000

secure-demo: environment ## two tenants on a secured Kafka, what one tries against the other, and a verdict; in 3 minutes
	@$(BIN)/python -m pipelines.demo.secured_demo

example: environment ## play docs/examples/coffee_bar: a worker that is killed, and the account of every delivery
	@rm -rf var/coffee_bar && $(BIN)/python docs/examples/coffee_bar/play.py

test: environment ## every kind of test in 10 minutes: unit, property and doc tests, and those with Spark and a real Kafka
	@$(PYTEST) $(PARALLEL) -m "not (crash or long or cluster or browser or image)"

NOT_QUICK = tests/cluster tests/integration tests/fuzz tests/packaging tests/conformance/test_conformance_mutants.py
quick: environment ## in 90 seconds: tests without Spark and Kafka, but for fuzzing, seeded mistakes and the wheel
	@$(PYTEST) $(PARALLEL) $(addprefix --ignore=,$(NOT_QUICK)) -m "not (integration or crash or long or cluster or browser or image)"

compiled-test: setup ## the tests of the kernel, with the kernel compiled
	@TEST_FORM=compiled $(PYTEST) $(PARALLEL) tests/property tests/unit/broker_state tests/conformance -m "not pure and not long"

BUSY_RUNS ?= 3
busy-test: environment ## run `make test` BUSY_RUNS times beside a program that uses every core
	@scripts/busy_test.sh $(BUSY_RUNS)

SUITES ?= check quick compiled-test integration cluster-test crash model mutants conformance simulate fuzz example
all-tests: environment ## run the suites in SUITES, also after one has failed, and print what ran, its result and its duration
	@scripts/all_tests.sh $(SUITES)

PROMTOOL_VERSION := v0.316.0
PROMTOOL ?= var/promtool/promtool
alerts-test: environment ## the alert rules, played by Prometheus's promtool, which Go builds in minutes (or PROMTOOL=/path/to/it)
	@[[ -x $(PROMTOOL) ]] || GOBIN=$(CURDIR)/var/promtool go install github.com/prometheus/prometheus/cmd/promtool@$(PROMTOOL_VERSION)
	@export PROMTOOL=$(abspath $(PROMTOOL)); $(PYTEST) tests/unit/test_monitoring.py -k promtool

model: environment ## the kernel against the reference model over 1,000,000 records; the other property tests with more seeds
	@export TEST_MODEL_RECORDS=1000000 TEST_CUT_SEEDS=20 TEST_ORDERLY_HISTORIES=1500 \
		TEST_POSITION_HISTORIES=300 TEST_UNIT_HISTORIES=200; \
		$(PYTEST) tests/property --timeout 3600

check: environment ## format, lint, types, layers and words
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_words.py

format: environment ## rewrite the code the way `check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

integration: environment ## tests with Spark and a real Kafka broker, the longest among them
	@$(PYTEST) $(PARALLEL) -m "integration and not crash and not cluster"

browser-test: environment ## the pages in a headless Chromium (CHROMIUM=/path/to/it), with screenshots in var/browser
	@$(PYTEST) tests/browser

image-test: environment ## the image, built and run by Podman or Docker (ENGINE=/path/to/it, PYTHON_IMAGE=NAME for another base)
	@$(PYTEST) tests/packaging/test_image.py

bench: setup ## measure all, or PART=drain, or PART="kernel latency", REPEATS=3 for medians; results are written as each part ends
	@$(BIN)/python -m tests.benchmarks $(PART) $(if $(REPEATS),--repeats $(REPEATS))

bench-peers: setup ## popstream beside RocketMQ and Kafka share groups; PEERS="popstream rocketmq", WORKLOADS=loop, MESSAGES=20000, ROUNDS=1
	@$(BIN)/python -m tests.benchmarks.peers $(PEERS) $(if $(WORKLOADS),--workloads $(WORKLOADS)) \
		$(addprefix --messages=,$(MESSAGES)) $(addprefix --rounds=,$(ROUNDS))

# make ends with 2 whatever fails; `python -m tests.conformance` with 1 when one fails, with 2 when a file cannot be read.
conformance: environment ## the kernel beside RocketMQ: VECTORS=FILE, HISTORIES=FILE, or both; without, all of tests/data
	@status=0; \
	$(if $(or $(VECTORS),$(if $(HISTORIES),,all)),$(BIN)/python -m tests.conformance vectors \
		$(or $(VECTORS),$(wildcard tests/data/*_vectors.json)) || status=$$?;) \
	$(if $(or $(HISTORIES),$(if $(VECTORS),,all)),$(BIN)/python -m tests.conformance histories \
		$(or $(HISTORIES),$(wildcard tests/data/*_histories.jsonl)) || status=$$?;) \
	exit $$status

SOAK_MINUTES ?= 60
soak: setup ## SOAK_MINUTES of half the load this machine can bear, with kills and broker restarts; the report is JSON
	@$(BIN)/python -m tests.soak.soak_job --minutes $(SOAK_MINUTES)

SEEDS ?= 10000
simulate: environment ## the protocol with simulated Kafka, Delta and deaths; SEEDS=10000, SEEDS=500-600, or one: SEEDS==4711
	@$(BIN)/python -m tests.simulation.check_seeds '$(SEEDS)'

FUZZ_INPUTS ?= 1000000
fuzz: environment ## fuzz five targets with FUZZ_INPUTS inputs each, and search the costliest record; inputs that fail stay in var/fuzz
	@status=0; for target in record_decoder handle_parser value_codecs settings_loader kernel; do \
		$(BIN)/python -m tests.fuzz.fuzz_target $$target --inputs $(FUZZ_INPUTS) || status=1; done; \
		$(BIN)/python -m tests.fuzz.record_cost --inputs $$(($(FUZZ_INPUTS) / 100)) || status=1; exit $$status

mutants: environment ## each of the seeded mistakes in the kernel has to fail the suite
	@$(PYTEST) -n $(WORKERS) tests/mutants tests/conformance/test_conformance_mutants.py

CLUSTER_TESTS ?= tests/cluster
cluster-test: setup ## the job on Spark clusters: equal decisions, poison, lost executors and drivers; CLUSTER_TESTS=FILE... for some
	@$(PYTEST) $(CLUSTER_TESTS) -m "cluster and not long" --ignore=tests/cluster/s3

s3-test: setup s3-jars ## checkpoint and tables of a job on a cluster, and a replica of an embedded job's tables, in an S3 that runs here
	@[[ requirements/s3_server.txt -ot var/s3-server/bin/moto_server ]] || { $(BIN)/python -m venv --clear var/s3-server && var/s3-server/bin/python -m pip install \
		--disable-pip-version-check --no-input --quiet --require-hashes -r requirements/s3_server.txt; }
	@$(PYTEST) tests/cluster/s3

s3-jars: environment ## the optional jars for s3a://, 13 MB
	@$(BIN)/python -m connectors.jars.resolve --s3

crash: environment ## kill the job at its fail-points and compare what it left
	@export TEST_KILLS=500 TEST_WAL_DAMAGES=900 TEST_CRASHES=60 TEST_DAMAGES=200 TEST_RUNNING_DAMAGES=16 TEST_COST_INPUTS=1000; $(PYTEST) tests/crash tests/fuzz/test_record_cost.py tests/integration/job/test_outages.py tests/integration/job/test_one_job_a_prefix.py -rP

lock: ## resolve requirements/*.txt anew (needs uv)
	$(COMPILE) --extra pipeline --group build --output-file requirements/pipeline.txt
	$(COMPILE) --extra pipeline --group dev --constraints requirements/pipeline.txt --output-file requirements/dev.txt
	$(subst pyproject.toml,,$(COMPILE)) --group kernel --constraints requirements/dev.txt --output-file requirements/kernel.txt
	$(COMPILE) --extra cluster --constraints requirements/pipeline.txt --no-emit-package pyspark --no-emit-package py4j \
		--output-file connectors/spark_cluster/requirements.txt
	$(COMPILE) --group s3-server --output-file requirements/s3_server.txt
	$(subst pyproject.toml,,$(COMPILE)) --group docs --output-file requirements/docs.txt

DOCS_BIN = var/docs-venv/bin
docs: ## build the documentation site in var/site, and check its links
	@[[ requirements/docs.txt -ot $(DOCS_BIN)/mkdocs ]] || { python3 -m venv --clear var/docs-venv \
		&& $(DOCS_BIN)/pip install --quiet --require-hashes -r requirements/docs.txt && touch $(DOCS_BIN)/mkdocs; }
	@$(DOCS_BIN)/mkdocs build --site-dir var/site && echo var/site/index.html

lock-jars: ## rewrite connectors/jars/sha256.txt, and that of s3/, after a change of ivy.xml
	$(BIN)/python -m connectors.jars.resolve --lock
	$(BIN)/python -m connectors.jars.resolve --lock --s3

clean: ## remove caches and run-time data; keeps .venv and the jars
	find $(PYTHON_DIRS) -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	[[ ! -d var ]] || find var -mindepth 1 -maxdepth 1 ! -name jars ! -name ivy ! -name setup.lock -exec rm -rf {} +
