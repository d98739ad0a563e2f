# Every task by name: `make help`. Each sets up what it needs; nothing is installed outside this folder.

PYTHON ?= python3
JAVA ?= java
MVN ?= mvn
GO ?= go
VENV := .venv
VENV41 := .venv-spark41
VENV43 := .venv-spark43
VENV_MINIMUM := .venv-minimum
VENV_RELEASE := .venv-release
VENV_DOCS := .venv-docs
VENV_AIRFLOW := .venv-airflow
# Classes of Spark as its JVMs map them.
SPARK_CLASSES := .tools/spark-classes.jsa
BIN := $(VENV)/bin
UV := .tools/bin/uv
MATURIN := .tools/bin/maturin
# An S3 server whose conditional puts are exact while many are answered at once.
S3_SERVER := .tools/versitygw-1.8.0/versitygw
ACTIONLINT := .tools/actionlint-1.7.7/actionlint
CARGO_DENY := .tools/cargo-deny-0.18.5/bin/cargo-deny
CARGO_MUTANTS := .tools/cargo-mutants-27.1.0/bin/cargo-mutants
CARGO_LLVM_COV := .tools/cargo-llvm-cov-0.9.1/bin/cargo-llvm-cov
# Draws the diagrams of the documentation without a network.
MERMAID := .tools/mermaid.min.js
# Spark's workers must run the Python that has the wheels.
export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYTHONDONTWRITEBYTECODE := 1
# The certificates that the system trusts: behind a proxy there are more than the installer brings along.
export UV_SYSTEM_CERTS := 1

# Cargo would look for the jobserver of a make that it is not part of. Variables of the command line go by the environment.
unexport MAKEFLAGS MFLAGS

# An interpreter without the global lock.
FREE_THREADED ?= python3.14t

HOST = $(shell rustc -vV | sed -n 's/^host: //p')
# The sanitizers come with the stable compiler too; only their flags are not stable.
NIGHTLY := RUSTC_BOOTSTRAP=1
# What libFuzzer needs to see which branches an input takes, and which values it compares.
COVERAGE := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1
FUZZ_SECONDS ?= 3600
# Empty: without AddressSanitizer, which leaves time for more inputs.
SANITIZE ?= -Zsanitizer=address
FUZZ_DIR := target/fuzz$(if $(SANITIZE),,-quick)
# The decoders of Kafka's files.
LOG_TARGETS := log_headers log_records log_payload log_snapshot log_aborted log_index
# The binding, without an interpreter: Arrow and Parquet.
BINDING_TARGETS := binding_rows binding_spans binding_restore binding_parquet
# Set by `make test`: runs a command of a suite, keeps its output in a log and its time for the report.
TIMED ?=
# Set by `make test`: options of Rust's test runner that print the time of each test.
RUST_TIMES ?=
# Between the commands that a foreach makes.
define newline


endef
# Runs a target on the committed corpus and on what earlier runs found; what breaks it is left beside that.
libfuzzer = mkdir -p target/fuzz/found/$(1) && $(TIMED) $(FUZZ_DIR)/$(HOST)/fuzz/$(1) -print_final_stats=1 -verbosity=0 \
	-artifact_prefix=target/fuzz/found/$(1)- $(2) target/fuzz/found/$(1) fuzz/corpus/$(1)

# A folder that a build was to fill is there only when it did: one that was broken off must not look done.
built = rm -rf $@ $@.unfinished && $(1) $@.unfinished && mv $@.unfinished $@

# Makes the environment that a requirement file, the first prerequisite, describes; $(1): more options of the installer.
define environment
$(UV) venv --quiet --allow-existing --python $(PYTHON) $(@D)
$(TIMED) $(UV) pip install --quiet --python $(@D)/bin/python --require-hashes $(1) -r $<
@touch $@
endef

# Runs tests that need jars. Where they cannot be fetched it says what is left out; CI leaves nothing out.
JARS_IF_MAVEN := $(if $(shell command -v $(MVN)),jars)
S3A_IF_MAVEN := $(if $(shell command -v $(MVN)),.tools/s3a)
with_jars = @if command -v $(MVN) >/dev/null; then $(TIMED) $(BIN)/python -m pytest $(1); \
	elif [ -n "$$CI" ]; then echo "Maven is missing: apt-get install maven"; exit 1; \
	else echo "SKIPPED: $(1), for Maven is missing: apt-get install maven"; fi

RUST_SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find rust -name '*.rs' -o -name Cargo.toml)
PACKAGE_SOURCES := $(shell find python/fencepost -name '*.py' -o -name '*.pyi' -o -name py.typed -o -name '*.css' -o -name '*.js')
SPARK_SOURCES := Cargo.toml spark_udf/README.md spark_udf/pyproject.toml spark_udf/hatch_build.py $(shell find spark_udf/fencepost_spark -name '*.py')

.DEFAULT_GOAL := help
.PHONY: help demo demo-chain check test-quick test test-matrix test-marked lint test-rust test-portable test-aarch64 test-fuzz test-fuzz-part test-python test-core test-product test-jobs test-tables test-bench test-sql postgresql mariadb model coverage coverage-python coverage-rust mutants mutants-rules mutants-broker mutants-transactions \
	faults test-spark test-spark-frames test-spark-jobs test-spark43 test-spark41 test-minimum test-free-threaded asan asan-part miri fuzz test-spark-connect \
	test-spark-connect-part test-spark-delta test-kafka test-cluster test-stores test-docs test-airflow docs jars fuzz-corpus fuzz-targets bench bench-full bench-rust bench-curve wheels release-check \
	develop format errors requirements tools java clean

help: ## Show every task
	@awk -F ':.*## ' '/^[a-z0-9 -]+:.*## / { sub(" .*", "", $$1); printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: java $(VENV)/installed ## Run the main job on generated and on real data, and show what it finds
	$(BIN)/python spark_udf/demo.py

demo-chain: postgresql $(VENV)/installed ## Producers, a log, a stage, a consumer and PostgreSQL, while processes die
	PYTHONPATH=$(abspath tests) $(BIN)/python -m chain.run --demo

check: $(VENV)/tests ## Lint, types and quick tests: what to run before each commit
	@$(MAKE) --no-print-directory --jobs=2 lint test-quick

test: ## Everything that must pass; ends with the slowest tests of each suite, and what each took
	$(call together,$(SUITES),-m 'not matrix')

test-matrix: ## All of what `make test` runs in part: libFuzzer, benchmarks, the newest PySpark, Connect, ...
	$(call together,$(MATRIX))

# What others wait for first, then what takes longest. Last come those that keep a processor busy: in the end, a suite that
# waits for servers would leave it idle.
SUITES := java postgresql mariadb $(VENV)/tests $(SPARK_CLASSES) $(JARS_IF_MAVEN) asan-part test-sql test-jobs test-spark-jobs test-kafka \
	test-product test-spark-frames test-tables test-spark-delta test-core test-cluster test-bench test-spark-connect-part test-rust \
	lint test-fuzz-part test-docs
MATRIX := java postgresql mariadb $(S3_SERVER) test-fuzz test-spark43 test-spark41 test-minimum asan test-spark-connect test-portable test-aarch64 test-marked test-airflow test-stores

# Suites at a time. Each waits for servers, JVMs and other processes: six leave a seventh of two cores idle.
JOBS ?= 8
# Rust's test runner prints times only where unstable options are welcome.
together = @$(PYTHON) .ci/suite.py --clear || exit 1; \
	PYTEST_ADDOPTS="--durations=20 --durations-min=0.05 $(2) $$PYTEST_ADDOPTS" \
	CARGO_TARGET_$(subst -,_,$(shell echo $(HOST) | tr a-z A-Z))_RUNNER="env RUSTC_BOOTSTRAP=1" \
	$(MAKE) --no-print-directory --keep-going --jobs=$(JOBS) $(if $(filter output-sync,$(.FEATURES)),--output-sync=line) \
		TIMED='$$(PYTHON) $$(CURDIR)/.ci/suite.py $$@' RUST_TIMES='-Zunstable-options --report-time' $(1); \
	code=$$?; $(PYTHON) .ci/suite.py; exit $$code

# The JVMs of tests are short-lived: their second compiler and a collector's threads would take a quarter of the time,
# and reading and verifying classes from jars another third. A JVM with other jars passes over the archive; what it has
# to say of it must not be in the text that tests read.
BRIEF_JVM := -Djava.io.tmpdir=$(or $(TMPDIR),/tmp) -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr
WITH_JVM := test-core test-product test-minimum test-bench test-marked test-spark-frames test-spark-jobs test-spark41 test-spark43 \
	test-spark-delta test-spark-connect test-spark-connect-part test-kafka test-cluster test-stores
$(WITH_JVM): export JDK_JAVA_OPTIONS = $(BRIEF_JVM) -XX:SharedArchiveFile=$(abspath $(SPARK_CLASSES))
$(WITH_JVM): $(SPARK_CLASSES)

lint: $(VENV)/tests ## Formatting, clippy, ruff, mypy
	$(TIMED) cargo fmt --all --check
	$(TIMED) cargo clippy --locked --workspace --all-targets -- -D warnings
	$(TIMED) $(BIN)/ruff check .
	$(TIMED) $(BIN)/ruff format --check .
	$(TIMED) $(BIN)/mypy python/fencepost spark_udf/fencepost_spark

# Built as the wheel of the tests is, here and for the fuzz targets, so that what all need is compiled once. None calls an
# interpreter: on Linux they need not be linked to one.
AS_WHEEL := $(if $(filter Linux,$(shell uname)),PYO3_BUILD_EXTENSION_MODULE=1 \
	PYO3_CONFIG_FILE="$$(ls $(abspath target/maturin)/pyo3-config-*-abi3.txt)")
test-rust: $(VENV)/tests ## The core, the lake and the testkit
	$(AS_WHEEL) $(TIMED) cargo test --locked --tests -- $(RUST_TIMES) --skip more_long
	$(TIMED) cargo test --locked --doc --package fencepost-core

# Its NEON instructions and its prefetch are other code than that of x86-64.
test-aarch64: tools ## The core on an emulated ARM processor
	@for tool in qemu-aarch64 aarch64-linux-gnu-gcc; do \
		command -v $$tool >/dev/null || { echo "$$tool is missing: apt-get install qemu-user gcc-aarch64-linux-gnu"; exit 1; }; done
	@rustup target list --installed | grep -q aarch64-unknown-linux-gnu || { echo "Rust for ARM is missing: rustup target add aarch64-unknown-linux-gnu"; exit 1; }
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
		$(TIMED) cargo test --locked --package fencepost-core --lib --test rulebook --test oracle --test golden --target aarch64-unknown-linux-gnu -- --skip every_short

test-portable: tools ## The core without the CPU's wide instructions
	$(TIMED) cargo test --locked --package fencepost-core --features portable -- $(RUST_TIMES)

# Without the small worlds, which take longest: they ask for every verdict, but touch few bytes. The part has the unit
# tests, which reach every unsafe block, but for those of holes, where there is none. It compiles in a folder of its own,
# so it need not wait for the wheel. Optimised, it would take longer: most of its time is to compile.
ASAN_PART := --lib
asan asan-part: tools ## The core's tests under AddressSanitizer
	@mkdir -p target/asan
	$(NIGHTLY) rustc -Zsanitizer=address --edition 2024 --target $(HOST) rust/canary.rs -o target/asan/canary
	@if target/asan/canary >target/asan/canary.log 2>&1 || ! grep -q heap-use-after-free target/asan/canary.log; then \
		cat target/asan/canary.log; echo "AddressSanitizer did not object to rust/canary.rs"; exit 1; fi
	$(NIGHTLY) CARGO_PROFILE_DEV_DEBUG=line-tables-only CARGO_PROFILE_DEV_OPT_LEVEL=$(if $(findstring part,$@),0,1) \
		RUSTFLAGS="-Zsanitizer=address" $(TIMED) cargo test --locked --package fencepost-core \
		$(if $(findstring part,$@),$(ASAN_PART),--lib --tests) --target $(HOST) --target-dir target/asan \
		-- $(RUST_TIMES) --skip every_short --skip small_world $(if $(findstring part,$@),--skip holes::)

miri: tools ## The core's unit tests under Miri
	@cargo +nightly miri --version >/dev/null 2>&1 || { echo "Miri is missing: rustup toolchain install nightly --component miri --component rust-src"; exit 1; }
	MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-num-cpus=2" cargo +nightly miri test --locked --package fencepost-core --lib --target-dir target/miri

# With the binding, which has no tests: its dependencies are then built with the features that its wheel has.
test-fuzz-part: $(VENV)/tests ## The fuzz targets over the corpus and over random changes of it
	$(AS_WHEEL) $(TIMED) cargo test --locked --package fencepost-fuzz --package fencepost-python --tests -- $(RUST_TIMES)

test-fuzz: test-fuzz-part fuzz-targets ## The same, and some thousand runs of libFuzzer under AddressSanitizer
	$(call libfuzzer,snapshot,-runs=20000 -seed=1)
	$(call libfuzzer,operations,-runs=1000 -seed=1 -max_len=400)
	$(call libfuzzer,broker,-runs=20000 -seed=1)
	$(foreach target,$(LOG_TARGETS),$(call libfuzzer,$(target),-runs=20000 -seed=1)$(newline)	)
	$(foreach target,$(BINDING_TARGETS),$(call libfuzzer,$(target),-runs=1000 -seed=1)$(newline)	)

fuzz: fuzz-targets ## Look for inputs that break the core: FUZZ_SECONDS (3600) for each target
	$(call libfuzzer,snapshot,-max_total_time=$(FUZZ_SECONDS))
	$(call libfuzzer,operations,-max_total_time=$(FUZZ_SECONDS))
	$(call libfuzzer,broker,-max_total_time=$(FUZZ_SECONDS))
	$(foreach target,$(LOG_TARGETS) $(BINDING_TARGETS),$(call libfuzzer,$(target),-max_total_time=$(FUZZ_SECONDS))$(newline)	)

fuzz-corpus: tools ## Write the fuzz targets' corpus again, after a change of the snapshot format or of a target
	rm -f fuzz/corpus/*/seed-*
	cargo test --locked --package fencepost-fuzz -- --ignored write_the_corpus

fuzz-targets: tools
	@command -v c++ >/dev/null || { echo "A C++ compiler is missing, which libFuzzer is built with: apt-get install build-essential"; exit 1; }
	$(NIGHTLY) RUSTFLAGS="--cfg fuzzing $(SANITIZE)" COVERAGE="$(COVERAGE)" \
		RUSTC_WORKSPACE_WRAPPER=$(abspath fuzz/instrument.sh) $(TIMED) cargo build --locked --profile fuzz --package fencepost-fuzz \
		--features libfuzzer --bins --target $(HOST) --target-dir $(FUZZ_DIR)

test-free-threaded: dist/native-free-threaded ## The thread tests on a CPython without the global lock
	$(UV) venv --quiet --allow-existing --python $(FREE_THREADED) .venv-free-threaded
	$(UV) pip install --quiet --python .venv-free-threaded/bin/python numpy pyarrow pytest
	$(UV) pip install --quiet --python .venv-free-threaded/bin/python --no-deps --reinstall dist/native-free-threaded/*.whl
	.venv-free-threaded/bin/python -W error -c 'import fencepost, sys; assert not sys._is_gil_enabled()'
	.venv-free-threaded/bin/python -m pytest tests/core/test_threads.py tests/core/test_serial_order.py -m 'not global_lock'

CORE_TESTS := $(addprefix tests/,core frames parquet)
PRODUCT_TESTS := $(addprefix tests/,kafka_logs producers product)
test-python: test-core test-product ## test-core and test-product

test-core: $(VENV)/tests ## The state table, DataFrames and Parquet files
	$(TIMED) $(BIN)/python -m pytest $(CORE_TESTS)

test-product: $(VENV)/tests ## Kafka's logs, producers, command line, reports and pages
	$(TIMED) $(BIN)/python -m pytest $(PRODUCT_TESTS)

# Rules, tables, frames and errors: what most changes break first.
QUICK_TESTS := $(patsubst %,tests/%.py,core/test_rulebook core/test_broker_rulebook core/test_table frames/test_deduplicate \
	frames/test_inputs jobs/test_segments producers/test_client_rulebook producers/test_stamping \
	product/test_errors product/test_metrics product/test_telemetry)
test-quick: $(VENV)/tests ## The quick tests of `make check`
	$(TIMED) $(BIN)/python -m pytest --quiet -m 'not matrix' $(QUICK_TESTS)

test-jobs: $(VENV)/tests ## Jobs on local engines, their states, and faults
	$(TIMED) $(BIN)/python -m pytest tests/jobs

test-tables: $(VENV)/tests ## Jobs on Delta and Iceberg tables and in object stores
	$(TIMED) $(BIN)/python -m pytest tests/tables

test-bench: java $(VENV)/tests ## The benchmarks with few rows: every answer is right
	$(TIMED) $(BIN)/python -m pytest tests/benchmarks

# Contestants of the benchmarks beside ours, and stubs of modules that are their own stubs.
test-marked: java postgresql mariadb docs $(VENV)/tests $(JARS_IF_MAVEN) $(S3A_IF_MAVEN) ## The tests that `make test` leaves out
	$(TIMED) $(BIN)/python -m pytest -m matrix $(CORE_TESTS) $(PRODUCT_TESTS) tests/jobs tests/tables tests/benchmarks
	$(TIMED) $(BIN)/python -m pytest -m matrix tests/sql tests/spark
	$(call with_jars,-m matrix tests/spark_delta)
	$(call with_jars,-m matrix tests/kafka)

test-sql: postgresql mariadb $(VENV)/tests ## Producers, transactions and consumers on SQLite, and on a real PostgreSQL and MariaDB
	$(TIMED) $(BIN)/python -m pytest tests/sql

model: $(VENV)/dependencies ## The commit protocol's model in larger bounds than the tests': minutes
	FENCEPOST_MODEL=deep $(BIN)/python -m pytest -s -v tests/jobs/test_protocol.py

# Rounds of each family of faults; FAMILY: only families whose names have this.
ROUNDS ?= 200
faults: java postgresql jars $(S3_SERVER) $(VENV)/tests ## Kill, stop, starve and deceive real runs, and compare each with an undisturbed one: hours
	FENCEPOST_S3_SERVER=$(abspath $(S3_SERVER)) PYTHONPATH=$(abspath tests) $(BIN)/python -m faults.run --rounds $(ROUNDS) $(FAMILY)

# Two sessions of Spark: in one, its tests would take longer than all others together.
SPARK_FRAMES := $(patsubst %,tests/spark/test_spark_%.py,deduplicate explain plain_scan rules sql udf)
test-spark: test-spark-frames test-spark-jobs ## The Spark suite on the PySpark it is developed on

test-spark-frames: java $(VENV)/tests ## DataFrames and SQL
	$(TIMED) $(BIN)/python -m pytest $(SPARK_FRAMES)

test-spark-jobs: java postgresql $(VENV)/tests ## Jobs, streams, and sources of Spark
	$(TIMED) $(BIN)/python -m pytest $(filter-out $(SPARK_FRAMES),$(wildcard tests/spark/test_*.py)) tests/spark/extras

# The doors for DataFrames and SQL, and the engine of jobs; the part has each door once.
CONNECT_WHOLE := deduplicate.py explain.py udf.py sql.py engine.py
CONNECT_PART := sql.py::test_the_function sql.py::test_the_table_function sql.py::test_it_keeps_what_deduplicate_keeps \
	engine.py::test_results_come_in_the_order_of_the_items engine.py::test_a_task_that_fails_once_is_tried_again
test-spark-connect test-spark-connect-part: java $(VENV)/tests ## DataFrames, SQL and the engine of jobs in a session of Spark Connect
	FENCEPOST_SPARK=connect $(TIMED) $(BIN)/python -m pytest \
		$(addprefix tests/spark/test_spark_,$(if $(findstring part,$@),$(CONNECT_PART),$(CONNECT_WHOLE)))

test-spark-delta: java $(VENV)/tests $(JARS_IF_MAVEN) ## Jobs and Delta's own jars on the same tables; without Maven it says so and continues
	$(call with_jars,tests/spark_delta)

test-kafka: java $(VENV)/tests $(JARS_IF_MAVEN) ## Topics of a real broker, batch and stream; without Maven it says so and continues
	$(call with_jars,tests/kafka)

test-cluster: java $(VENV)/tests dist/environment.tar.gz ## A cluster of two workers, and the environment that is shipped to it
	$(TIMED) $(BIN)/python -m pytest tests/cluster

# Without npm a browser that shows a diagram loads the script from the network.
SITE = NO_MKDOCS_2_WARNING=1 $(TIMED) $(VENV_DOCS)/bin/python -m mkdocs build --quiet --site-dir
docs: $(if $(shell command -v npm),$(MERMAID)) $(VENV_DOCS)/tests ## Build the documentation site into dist/site
	$(SITE) $(abspath dist/site)
	@echo "open dist/site/index.html"

test-docs: $(VENV_DOCS)/tests ## The documentation site builds: no link and no reference is broken
	$(SITE) $(abspath target/site)

# `make test` runs the commands of its tasks without Airflow.
test-airflow: $(VENV_AIRFLOW)/dependencies ## Airflow reads the DAG of the examples
	AIRFLOW_HOME=$(abspath target/airflow) AIRFLOW__CORE__LOAD_EXAMPLES=False \
		$(TIMED) $(VENV_AIRFLOW)/bin/python tests/support/airflow_dag.py examples/airflow/fencepost_dedup.py

# What `make test` runs on moto.
test-stores: java $(S3_SERVER) $(VENV)/tests dist/environment.tar.gz ## Jobs in object stores and a cluster without a shared disk, on a real S3 server
	FENCEPOST_S3_SERVER=$(abspath $(S3_SERVER)) $(TIMED) $(BIN)/python -m pytest tests/tables/test_object_sinks.py tests/tables/test_object_sources.py \
		tests/tables/test_delta_stores.py tests/cluster/test_spark_cluster.py::test_workers_that_share_no_folder

# Without tests/spark/extras: this environment has no S3 server, no PyIceberg and no command line.
test-spark43: java postgresql $(VENV43)/tests ## The Spark suite on the newest PySpark
	PYSPARK_PYTHON=$(abspath $(VENV43)/bin/python) $(TIMED) $(VENV43)/bin/python -m pytest $(wildcard tests/spark/test_*.py)

# Vectorized functions over Arrow came with PySpark 4.1.
MINIMUM_PART := $(patsubst %,tests/%.py,core/test_table frames/test_deduplicate jobs/test_lake tables/test_delta tables/test_object_sinks \
	product/test_cli product/test_pages product/test_telemetry) \
	$(addprefix tests/spark/test_spark_,job.py deduplicate.py::TestColumns sql.py::test_the_function \
	sql.py::test_the_table_function udf.py::test_each_row_gets_its_verdict streams.py::test_each_batch_is_a_version \
	kafka_log.py::test_records_are_those_of_the_log)
test-minimum: java $(VENV_MINIMUM)/tests ## Tables, jobs, command line and Spark on the oldest versions of their packages
	PYSPARK_PYTHON=$(abspath $(VENV_MINIMUM)/bin/python) $(TIMED) $(VENV_MINIMUM)/bin/python -m pytest $(MINIMUM_PART) \
		-k 'not test_each_row_gets_its_verdict[arrow]'

# Each door once: DataFrames, SQL, functions, jobs, streams, Kafka's log, a table of a database.
SPARK_PART := $(addprefix tests/spark/test_spark_,package.py engine.py::test_results_come_in_the_order_of_the_items \
	job.py::test_spark_and_threads_agree job.py::test_repeats_of_earlier_runs_are_compared_in_tasks \
	deduplicate.py::TestColumns sql.py::test_the_function sql.py::test_the_table_function \
	udf.py::test_each_row_gets_its_verdict udf.py::test_detail_names_the_sequences_jumped_over \
	udf.py::test_large_integers_beside_nulls_are_exact_or_refused streams.py::test_each_batch_is_a_version \
	streams.py::test_a_restart_continues_where_it_was streams.py::test_a_batch_that_is_delivered_again \
	kafka_log.py::test_records_are_those_of_the_log staged.py::test_a_job_on_spark)
test-spark41: java postgresql $(VENV41)/tests ## Every function of the Spark package on PySpark 4.1
	PYSPARK_PYTHON=$(abspath $(VENV41)/bin/python) $(TIMED) $(VENV41)/bin/python -m pytest $(SPARK_PART)

bench: java $(S3_SERVER) $(S3A_IF_MAVEN) $(VENV)/installed ## Minutes: small sizes, every contestant, answers checked
	FENCEPOST_S3_SERVER=$(abspath $(S3_SERVER)) $(BIN)/python bench/run.py --quick

bench-full: java jars postgresql mariadb $(S3_SERVER) $(S3A_IF_MAVEN) $(VENV)/installed ## 80 minutes on an idle machine: every page of bench/results
	FENCEPOST_S3_SERVER=$(abspath $(S3_SERVER)) $(BIN)/python bench/run.py --full

bench-rust: tools ## The core alone
	cargo bench --locked -p fencepost-bench

bench-curve: tools $(VENV)/dependencies ## The state table from 10 k to 100 M entries: seven minutes, 8 GB
	$(BIN)/python bench/curve.py

wheels: dist/native dist/spark ## Build both wheels into dist/

# What the release workflow checks, as far as one machine can: metadata, sizes, workflows, licences of crates and of Python
# packages, sources of crates, and that the sdist builds without a network, from the versions of the lock. It lacks crates
# of benchmarks and fuzzing, so cargo removes what only they need from its copy of the lock (which --locked would refuse),
# and may add nothing.
release-check: dist/native dist/spark dist/sdist $(ACTIONLINT) $(CARGO_DENY) ## Check packages and the release workflow
	$(VENV_RELEASE)/bin/python .ci/smaller.py dist/native
	$(VENV_RELEASE)/bin/twine check --strict dist/native/* dist/spark/* dist/sdist/*
	$(BIN)/python .ci/packages.py dist/native dist/spark dist/sdist
	$(ACTIONLINT)
	$(CARGO_DENY) check licenses bans sources
	$(BIN)/python .ci/licences.py
	rm -rf dist/unpacked && mkdir dist/unpacked && tar -xzf dist/sdist/fencepost-*.tar.gz -C dist/unpacked --strip-components 1
	cd dist/unpacked && CARGO_TARGET_DIR=$(abspath target) cargo check --offline --package fencepost-python && \
		diff Cargo.lock $(abspath Cargo.lock) | { ! grep '^<'; }

dist/sdist: $(RUST_SOURCES) $(PACKAGE_SOURCES) $(SPARK_SOURCES) $(UV) $(VENV_RELEASE)/dependencies
	$(call built,$(VENV_RELEASE)/bin/python -m build --sdist spark_udf --outdir)
	$(MATURIN) sdist --out $@

$(VENV_RELEASE)/dependencies: requirements/release.txt $(UV)
	$(environment)

$(ACTIONLINT):
	@command -v $(GO) >/dev/null || { echo "Go is missing, which actionlint is built with: apt-get install golang"; exit 1; }
	GOBIN=$(abspath $(@D)) $(GO) install github.com/rhysd/actionlint/cmd/actionlint@v1.7.7

$(CARGO_DENY): | tools
	cargo install --quiet --locked cargo-deny@0.18.5 --root $(abspath $(dir $(@D)))

# Which lines no test runs. Reports: target/coverage. COVERED_TESTS: tests of Python, a third of whose lines the quick ones run.
COVERED_TESTS ?= $(QUICK_TESTS)
coverage: coverage-python coverage-rust ## Which lines of Python the quick tests run (COVERED_TESTS), and which of Rust its tests
coverage-python: export COVERAGE_FILE = target/coverage/python
coverage-python: $(VENV)/tests .tools/coverage/installed
	@mkdir -p target/coverage
	PYTHONPATH=.tools/coverage $(BIN)/python -m coverage run --source=fencepost -m pytest --quiet -m 'not matrix' $(COVERED_TESTS)
	PYTHONPATH=.tools/coverage $(BIN)/python -m coverage html --directory target/coverage/html
	PYTHONPATH=.tools/coverage $(BIN)/python -m coverage report --sort=cover

coverage-rust: tools $(CARGO_LLVM_COV)
	@rustup component list 2>/dev/null | grep -q 'llvm-tools.*(installed)' || { echo "llvm-tools are missing: rustup component add llvm-tools"; exit 1; }
	$(CARGO_LLVM_COV) llvm-cov --locked --package $(COVERED) --tests --html --output-dir target/coverage/rust -- --skip every_short
	$(CARGO_LLVM_COV) llvm-cov report --locked --package $(COVERED)
# A crate of rust/.
COVERED ?= fencepost-core

# Changes an operator, a constant or a body at a time, and lists the changes that no test objects to: missed.txt in
# target/mutants. Some cannot be noticed, so these are no error. A quick test reads each change first; what it does not notice
# goes to the slower tests. The small worlds are left out: they take longest, and the rule book asks the same. A change takes 2
# seconds of CPU time to build and read (87 of mutants-broker: 4 minutes); the hour is an estimate from that, on two free cores.
mutants: mutants-rules mutants-broker mutants-transactions ## Which changes of the rules' code no test notices: about an hour
RULES := judge fast_path union position table/merge
mutants-rules: tools $(CARGO_MUTANTS)
	$(call mutate,$(RULES),test=rulebook)
	$(call mutate,$(RULES),lib test=golden test=oracle test=forgetting test=snapshots,--iterate)
mutants-broker: tools $(CARGO_MUTANTS)
	$(call mutate,broker/judge,test=broker)
mutants-transactions: tools $(CARGO_MUTANTS)
	$(call mutate,transactions transactions/cut,lib test=transactions test=memory)

# $(1): files of rust/core/src; $(2): tests; $(3): more options. Tests are arguments of the build too: otherwise each change
# would compile all tests of the package.
define mutate
@mkdir -p target/mutants/$@
CARGO_PROFILE_DEV_OPT_LEVEL=1 $(CARGO_MUTANTS) mutants $(patsubst %,--file rust/core/src/%.rs,$(1)) --package fencepost-core \
	--jobs 2 --timeout 60 --output target/mutants/$@ $(addprefix --cargo-arg=--,locked $(2)) $(3) \
	-- -- --skip every_short --skip small_world || { code=$$?; [ $$code = 2 ] || [ $$code = 3 ] || exit $$code; }
endef

.tools/coverage/installed: requirements/coverage.txt $(VENV)/dependencies
	$(UV) pip install --quiet --python $(BIN)/python --target $(@D) --require-hashes -r $<
	@touch $@

$(CARGO_LLVM_COV): | tools
	cargo install --quiet --locked cargo-llvm-cov@0.9.1 --root $(abspath $(dir $(@D)))

$(CARGO_MUTANTS): | tools
	cargo install --quiet --locked cargo-mutants@27.1.0 --root $(abspath $(dir $(@D)))

develop: $(VENV)/dependencies ## Install editable: Python changes show at once, Rust changes after another `make develop`
	$(UV) pip install --quiet --python $(BIN)/python --no-build-isolation --no-deps --editable spark_udf
	. $(BIN)/activate && PATH="$(abspath .tools/bin):$$PATH" maturin develop --uv --release --locked

format: $(VENV)/dependencies ## Put every file in its form
	cargo fmt --all
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

errors: $(VENV)/dependencies ## Write the pages on errors from the sources
	$(BIN)/python .ci/error_pages.py

requirements: $(UV) ## Compile the requirement files, hashes included
	for name in tools dev spark41 spark43 workers release docs airflow coverage; do $(UV) pip compile --quiet --generate-hashes --universal --python-version 3.11 \
		--no-header --no-annotate requirements/$$name.in -o requirements/$$name.txt || exit 1; done
	$(UV) pip compile --quiet --generate-hashes --python-version 3.11 --no-header --no-annotate requirements/minimum.in \
		-o requirements/minimum.txt

tools:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is missing: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: apt-get install python3 python3-venv, or name one: make PYTHON=python3.12"; exit 1; }
	@command -v cargo >/dev/null || { echo "Rust is missing: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"; exit 1; }
	@command -v cc >/dev/null || { echo "A C linker is missing: apt-get install build-essential"; exit 1; }

# Three minutes, once.
$(S3_SERVER):
	@command -v $(GO) >/dev/null || { echo "Go is missing, which the S3 server of tests is built with: apt-get install golang"; exit 1; }
	GOBIN=$(abspath $(@D)) $(TIMED) $(GO) install github.com/versity/versitygw/cmd/versitygw@v1.8.0

jars: .tools/jars .tools/broker ## The jars that tests need beside those of PySpark

.tools/jars: tests/jars/pom.xml
	@command -v $(MVN) >/dev/null || { echo "Maven is missing: apt-get install maven"; exit 1; }
	rm -rf $@ $@.unfinished
	$(TIMED) $(MVN) -q -B -f $< dependency:copy-dependencies -DincludeGroupIds=io.delta,io.unitycatalog \
		-DoutputDirectory=$(abspath $@.unfinished)
	mv $@.unfinished $@ && touch $@

.tools/broker: tests/jars/broker/pom.xml
	@command -v $(MVN) >/dev/null || { echo "Maven is missing: apt-get install maven"; exit 1; }
	rm -rf $@ $@.unfinished
	$(TIMED) $(MVN) -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(abspath $@.unfinished)
	mv $@.unfinished $@ && touch $@

# The benchmark of object stores has Spark's own way there beside ours.
.tools/s3a: tests/jars/s3a/pom.xml
	@command -v $(MVN) >/dev/null || { echo "Maven is missing: apt-get install maven"; exit 1; }
	rm -rf $@ $@.unfinished
	$(TIMED) $(MVN) -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(abspath $@.unfinished)
	mv $@.unfinished $@ && touch $@

java:
	@$(JAVA) -version >/dev/null 2>&1 || { echo "Java 17 is missing: apt-get install openjdk-17-jre-headless"; exit 1; }
	@$(JAVA) -version 2>&1 | awk -F '[".]' '/ version / && $$2 < 17 { exit 1 }' || { echo "Java is older than 17: apt-get install openjdk-17-jre-headless"; exit 1; }

postgresql:
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { echo "PostgreSQL is missing: apt-get install postgresql"; exit 1; }

mariadb:
	@PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v mariadbd >/dev/null || { echo "MariaDB is missing: apt-get install mariadb-server"; exit 1; }

$(UV): requirements/tools.txt | tools
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .tools
	.tools/bin/python -m pip install --quiet --require-hashes -r requirements/tools.txt
	@touch $@

# Tests start some thousand processes, which write no bytecode: to compile what they import once takes 17 seconds of CPU
# time, in each process up to a second.
$(VENV)/dependencies: requirements/dev.txt $(UV)
	$(call environment,--compile-bytecode)

# Installs wheels without touching their dependencies: $(call install_wheels,environment,wheels).
install_wheels = $(UV) pip install --quiet --python $(1)/bin/python --no-deps --reinstall $(if $(filter $(VENV),$(1)),--compile-bytecode) $(2)

dist/native: $(RUST_SOURCES) $(PACKAGE_SOURCES) $(UV)
	$(call built,$(MATURIN) build --quiet --release --locked --features few-zones --compression-level 9 --out)

# In the profile of `cargo test`, which it shares its dependencies with: built in a minute, and with every assertion on.
dist/tests: $(RUST_SOURCES) $(PACKAGE_SOURCES) $(UV)
	$(call built,$(TIMED) $(MATURIN) build --quiet --profile dev --strip true --locked --out)

dist/native-free-threaded: $(RUST_SOURCES) $(PACKAGE_SOURCES) $(UV)
	@command -v $(FREE_THREADED) >/dev/null || { echo "No free-threaded CPython: $(UV) python install 3.14t, then name it: make $(MAKECMDGOALS) FREE_THREADED=python3.14t"; exit 1; }
	$(call built,$(MATURIN) build --quiet --release --locked --interpreter $(FREE_THREADED) --out)

dist/spark: $(SPARK_SOURCES) $(VENV)/dependencies
	$(call built,$(UV) build spark_udf --quiet --python $(BIN)/python --no-build-isolation --wheel --out-dir)

# As docs/cluster.md tells users to, but for the versions, which are those that everything else is tested with.
dist/environment.tar.gz: requirements/workers.txt dist/tests dist/spark
	$(UV) venv --quiet --clear --python $(PYTHON) dist/environment
	$(UV) pip install --quiet --python dist/environment/bin/python --require-hashes -r requirements/workers.txt
	$(call install_wheels,dist/environment,dist/tests/*.whl dist/spark/*.whl)
	$(BIN)/venv-pack --quiet --force --prefix dist/environment --format tar.gz --compress-level 1 --output $@.unfinished
	mv $@.unfinished $@

# Either wheel may be the one that is installed; the file of the other goes.
$(VENV)/installed: dist/native dist/spark
	$(call install_wheels,$(VENV),dist/native/*.whl dist/spark/*.whl)
	@rm -f $(VENV)/tests && touch $@

$(VENV)/tests: dist/tests dist/spark
	$(call install_wheels,$(VENV),dist/tests/*.whl dist/spark/*.whl)
	@rm -f $(VENV)/installed && touch $@

# A JVM that cannot archive leaves no file: an empty one is passed over.
$(SPARK_CLASSES): tests/support/spark_classes.py tests/support/spark_session.py $(VENV)/dependencies | java
	@rm -f $@
	PYTHONPATH=$(abspath tests) JDK_JAVA_OPTIONS="$(BRIEF_JVM) -XX:ArchiveClassesAtExit=$(abspath $@.unfinished)" \
		$(TIMED) $(BIN)/python -m support.spark_classes
	@if [ -e $@.unfinished ]; then mv $@.unfinished $@; else touch $@; fi

$(VENV41)/dependencies: requirements/spark41.txt $(UV)
	$(environment)

$(VENV43)/dependencies: requirements/spark43.txt $(UV)
	$(environment)

$(VENV_MINIMUM)/dependencies: requirements/minimum.txt $(UV)
	$(environment)

$(VENV_MINIMUM)/tests: $(VENV_MINIMUM)/dependencies dist/tests dist/spark
	$(call install_wheels,$(VENV_MINIMUM),dist/tests/*.whl dist/spark/*.whl)
	@touch $@

$(VENV41)/tests: $(VENV41)/dependencies dist/tests dist/spark
	$(call install_wheels,$(VENV41),dist/tests/*.whl dist/spark/*.whl)
	@touch $@

$(VENV43)/tests: $(VENV43)/dependencies dist/tests dist/spark
	$(call install_wheels,$(VENV43),dist/tests/*.whl dist/spark/*.whl)
	@touch $@

$(VENV_DOCS)/dependencies: requirements/docs.txt $(UV)
	$(environment)

# The command-line reference is the help of the installed commands.
$(VENV_DOCS)/tests: $(VENV_DOCS)/dependencies dist/tests
	$(call install_wheels,$(VENV_DOCS),dist/tests/*.whl)
	@touch $@

$(VENV_AIRFLOW)/dependencies: requirements/airflow.txt $(UV)
	$(environment)

MERMAID_SHA256 := 07e37dfa97b337ccc85365d57eddf99b9706f09db3b59b260d0333b23b343c4b
$(MERMAID):
	@mkdir -p $(@D)/mermaid
	npm pack --silent --pack-destination $(@D)/mermaid mermaid@11.12.0
	tar -xzf $(@D)/mermaid/mermaid-11.12.0.tgz -C $(@D)/mermaid package/dist/mermaid.min.js
	echo "$(MERMAID_SHA256)  $(@D)/mermaid/package/dist/mermaid.min.js" | sha256sum --check --quiet
	mv $(@D)/mermaid/package/dist/mermaid.min.js $@

clean: ## Remove everything that was built, environments included
	rm -rf .venv .venv-* .tools dist target demo-out
