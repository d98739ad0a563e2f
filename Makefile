# Every task by name: `make help`. Each sets up what it needs; nothing is installed outside this folder.

PYTHON ?= python3
JAVA ?= java
MVN ?= mvn
VENV := .venv
VENV43 := .venv-spark43
BIN := $(VENV)/bin
UV := .tools/bin/uv
# Spark's workers must run the Python that has the wheels.
export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYTHONDONTWRITEBYTECODE := 1
# The certificates that the system trusts: behind a proxy there are more than the installer brings along.
export UV_SYSTEM_CERTS := 1

# Cargo would look for the jobserver of a make that it is not part of. Variables of the command line go by the environment.
unexport MAKEFLAGS

# An interpreter without the global lock.
FREE_THREADED ?= python3.14t

HOST = $(shell rustc -vV | sed -n 's/^host: //p')
# The sanitizers come with the stable compiler too; only their flags are not stable.
NIGHTLY := RUSTC_BOOTSTRAP=1
# What libFuzzer needs to see which branches an input takes, and which values it compares.
COVERAGE := --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1
FUZZ_SECONDS ?= 3600
# The decoders of Kafka's files.
LOG_TARGETS := log_headers log_records log_payload log_snapshot log_aborted log_index
# Between the commands that a foreach makes.
define newline


endef
# Runs a target on the committed corpus and on what earlier runs found; what breaks it is left beside that.
libfuzzer = mkdir -p target/fuzz/found/$(1) && target/fuzz/$(HOST)/debug/$(1) -print_final_stats=1 -verbosity=0 \
	-artifact_prefix=target/fuzz/found/$(1)- $(2) target/fuzz/found/$(1) fuzz/corpus/$(1)

# A folder that a build was to fill is there only when it did: one that was broken off must not look done.
built = rm -rf $@ $@.unfinished && $(1) $@.unfinished && mv $@.unfinished $@

# Runs tests that need jars. Where they cannot be fetched it says what is left out; CI leaves nothing out.
JARS_IF_MAVEN := $(if $(shell command -v $(MVN)),jars)
with_jars = @if command -v $(MVN) >/dev/null; then $(BIN)/python -m pytest $(1); \
	elif [ -n "$$CI" ]; then echo "Maven is missing: apt-get install maven"; exit 1; \
	else echo "SKIPPED: $(1), for Maven is missing: apt-get install maven"; fi

RUST_SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find rust -name '*.rs' -o -name Cargo.toml)
PACKAGE_SOURCES := $(shell find python/fencepost -name '*.py' -o -name '*.pyi' -o -name py.typed)
SPARK_SOURCES := Cargo.toml spark_udf/pyproject.toml spark_udf/hatch_build.py $(shell find spark_udf/fencepost_spark -name '*.py')

.DEFAULT_GOAL := help
.PHONY: help demo demo-chain test suites lint test-rust test-fuzz test-python test-sql postgresql model faults test-spark test-spark43 test-free-threaded asan miri fuzz \
	test-spark-connect test-spark-delta test-kafka test-cluster jars fuzz-corpus fuzz-targets bench bench-full bench-rust bench-curve wheels \
	develop format requirements tools java clean

help: ## Show every task
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: java $(VENV)/installed ## Run the main job on generated and on real data, and show what it finds
	$(BIN)/python spark_udf/demo.py

demo-chain: postgresql $(VENV)/installed ## Producers, a log, a stage, a consumer and PostgreSQL, while processes die
	PYTHONPATH=$(abspath tests) $(BIN)/python -m chain.run --demo

test: ## Everything that must pass, two suites at a time; what a suite prints comes in one piece when it is done
	@$(MAKE) --no-print-directory --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) suites

# The JVMs of tests are short-lived: their second compiler and a collector's threads would take a quarter of the time.
test-python test-spark test-spark43 test-spark-delta test-spark-connect test-kafka test-cluster: \
	export JDK_JAVA_OPTIONS := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC

# What takes longest first, after what everything else waits for.
suites: java postgresql lint test-rust test-python test-sql test-spark test-spark43 test-spark-delta test-fuzz asan test-spark-connect test-kafka test-cluster

lint: $(VENV)/installed ## Formatting, clippy, ruff, mypy
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cd fuzz && cargo clippy --locked --no-default-features --all-targets --target-dir ../target/fuzz -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy python/fencepost spark_udf/fencepost_spark

test-rust: tools ## The core, the lake and the testkit
	cargo test --locked
	cargo test --locked --package fencepost-core --features portable

# Not the small worlds, which take longest: every verdict is asked for there, but few bytes are touched.
asan: tools ## The core's tests under AddressSanitizer
	@mkdir -p target/asan
	$(NIGHTLY) rustc -Zsanitizer=address --edition 2024 --target $(HOST) rust/canary.rs -o target/asan/canary
	@if target/asan/canary >target/asan/canary.log 2>&1 || ! grep -q heap-use-after-free target/asan/canary.log; then \
		cat target/asan/canary.log; echo "AddressSanitizer did not object to rust/canary.rs"; exit 1; fi
	$(NIGHTLY) RUSTFLAGS="-Zsanitizer=address" cargo test --locked --package fencepost-core --lib --tests \
		--target $(HOST) --target-dir target/asan -- --skip every_short --skip small_world

miri: tools ## The core's unit tests under Miri
	@cargo +nightly miri --version >/dev/null 2>&1 || { echo "Miri is missing: rustup toolchain install nightly --component miri --component rust-src"; exit 1; }
	MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --locked --package fencepost-core --lib --target-dir target/miri

test-fuzz: fuzz-targets ## The fuzz targets: over the corpus, over what comes of it by chance, and some thousand runs of libFuzzer
	cd fuzz && cargo test --locked --no-default-features --target-dir ../target/fuzz
	$(call libfuzzer,snapshot,-runs=20000 -seed=1)
	$(call libfuzzer,operations,-runs=1000 -seed=1 -max_len=400)
	$(call libfuzzer,broker,-runs=20000 -seed=1)
	$(foreach target,$(LOG_TARGETS),$(call libfuzzer,$(target),-runs=20000 -seed=1)$(newline)	)

fuzz: fuzz-targets ## Look for inputs that break the core: FUZZ_SECONDS (3600) for each target
	$(call libfuzzer,snapshot,-max_total_time=$(FUZZ_SECONDS))
	$(call libfuzzer,operations,-max_total_time=$(FUZZ_SECONDS))
	$(call libfuzzer,broker,-max_total_time=$(FUZZ_SECONDS))
	$(foreach target,$(LOG_TARGETS),$(call libfuzzer,$(target),-max_total_time=$(FUZZ_SECONDS))$(newline)	)

fuzz-corpus: tools ## Write the fuzz targets' corpus anew, after a change of the snapshot format or of a target
	rm -f fuzz/corpus/*/seed-*
	cd fuzz && cargo test --locked --no-default-features --target-dir ../target/fuzz -- --ignored write_the_corpus

fuzz-targets: tools
	@command -v c++ >/dev/null || { echo "A C++ compiler is missing, which libFuzzer is built with: apt-get install build-essential"; exit 1; }
	cd fuzz && $(NIGHTLY) RUSTFLAGS="$(COVERAGE) -Zsanitizer=address" cargo build --locked --bins \
		--target $(HOST) --target-dir ../target/fuzz

test-free-threaded: dist/native-free-threaded ## The thread tests on a CPython without the global lock
	$(UV) venv --quiet --allow-existing --python $(FREE_THREADED) .venv-free-threaded
	$(UV) pip install --quiet --python .venv-free-threaded/bin/python numpy pyarrow pytest
	$(UV) pip install --quiet --python .venv-free-threaded/bin/python --no-deps --reinstall dist/native-free-threaded/*.whl
	.venv-free-threaded/bin/python -W error -c 'import fencepost, sys; assert not sys._is_gil_enabled()'
	.venv-free-threaded/bin/python -m pytest tests/test_threads.py --deselect tests/test_threads.py::test_the_measure_tells_a_held_interpreter

test-python: $(VENV)/installed ## Everything in Python but Spark
	$(BIN)/python -m pytest --ignore=tests/spark --ignore=tests/spark_delta --ignore=tests/kafka --ignore=tests/cluster --ignore=tests/sql

test-sql: postgresql $(VENV)/installed ## Producers, transactions and consumers on SQLite and on a real PostgreSQL
	$(BIN)/python -m pytest tests/sql

model: $(VENV)/dependencies ## The commit protocol's model in larger bounds than the tests': minutes
	FENCEPOST_MODEL=deep $(BIN)/python -m pytest -s -v tests/test_protocol.py

faults: java postgresql $(VENV)/installed ## Kill, stop, starve and deceive real runs, and compare each with an undisturbed one: minutes
	PYTHONPATH=$(abspath tests) $(BIN)/python -m faults.run; on_threads=$$?; \
		PYTHONPATH=$(abspath tests) $(BIN)/python -m chain.run --seeds 0:100; along_the_chain=$$?; \
		PYTHONPATH=$(abspath tests) $(BIN)/python -m faults.spark && exit $$((on_threads + along_the_chain))

test-spark: java postgresql $(VENV)/installed ## The Spark suite on the PySpark it is developed on
	$(BIN)/python -m pytest tests/spark

test-spark-connect: java $(VENV)/installed ## The doors for DataFrames and SQL, and the engine of jobs, in a session of Spark Connect
	FENCEPOST_SPARK=connect $(BIN)/python -m pytest \
		$(addprefix tests/spark/test_spark_,deduplicate.py udf.py sql.py engine.py)

test-spark-delta: java $(VENV)/installed $(JARS_IF_MAVEN) ## Jobs and Delta's own jars on the same tables; without Maven it says so and goes on
	$(call with_jars,tests/spark_delta)

test-kafka: java $(VENV)/installed $(JARS_IF_MAVEN) ## Topics of a real broker, batch and stream; without Maven it says so and goes on
	$(call with_jars,tests/kafka)

test-cluster: java $(VENV)/installed dist/environment.tar.gz ## A cluster of two workers, and the environment that is shipped to it
	$(BIN)/python -m pytest tests/cluster

test-spark43: java postgresql $(VENV43)/installed ## The Spark suite on the newest PySpark
	PYSPARK_PYTHON=$(abspath $(VENV43)/bin/python) $(VENV43)/bin/python -m pytest tests/spark

bench: java $(VENV)/installed ## Minutes: small sizes, every contestant, answers checked
	$(BIN)/python bench/run.py --quick

bench-full: java $(VENV)/installed bench-rust bench-curve ## Two hours: the sizes of the figures in bench/results
	$(BIN)/python bench/run.py --full

bench-rust: tools ## The core alone
	cargo bench --locked -p fencepost-bench

bench-curve: tools $(VENV)/dependencies ## The state table from 10 k to 100 M entries: half an hour, 20 GB
	$(BIN)/python bench/curve.py

wheels: dist/native dist/spark ## Build both wheels into dist/

develop: $(VENV)/dependencies ## Install editable: Python changes show at once, Rust changes after another `make develop`
	$(UV) pip install --quiet --python $(BIN)/python --no-build-isolation --no-deps --editable spark_udf
	. $(BIN)/activate && PATH="$(abspath .tools/bin):$$PATH" maturin develop --uv --release

format: $(VENV)/dependencies ## Put every file in its form
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

requirements: $(UV) ## Compile the requirement files, hashes included
	for name in uv dev spark43 workers; do $(UV) pip compile --quiet --generate-hashes --universal --python-version 3.11 \
		--no-header --no-annotate requirements/$$name.in -o requirements/$$name.txt || exit 1; done

tools:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is missing: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: apt-get install python3 python3-venv, or name one: make PYTHON=python3.12"; exit 1; }
	@command -v cargo >/dev/null || { echo "Rust is missing: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"; exit 1; }
	@command -v cc >/dev/null || { echo "A C linker is missing: apt-get install build-essential"; exit 1; }

jars: .tools/jars .tools/broker ## The jars that tests need beside those of PySpark

.tools/jars: tests/jars/pom.xml
	@command -v $(MVN) >/dev/null || { echo "Maven is missing: apt-get install maven"; exit 1; }
	rm -rf $@ $@.unfinished
	$(MVN) -q -B -f $< dependency:copy-dependencies -DincludeGroupIds=io.delta,io.unitycatalog \
		-DoutputDirectory=$(abspath $@.unfinished)
	mv $@.unfinished $@ && touch $@

.tools/broker: tests/jars/broker/pom.xml
	@command -v $(MVN) >/dev/null || { echo "Maven is missing: apt-get install maven"; exit 1; }
	rm -rf $@ $@.unfinished
	$(MVN) -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(abspath $@.unfinished)
	mv $@.unfinished $@ && touch $@

java:
	@$(JAVA) -version >/dev/null 2>&1 || { echo "Java 17 is missing: apt-get install openjdk-17-jre-headless"; exit 1; }
	@$(JAVA) -version 2>&1 | awk -F '[".]' '/ version / && $$2 < 17 { exit 1 }' || { echo "Java is older than 17: apt-get install openjdk-17-jre-headless"; exit 1; }

postgresql:
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { echo "PostgreSQL is missing: apt-get install postgresql"; exit 1; }

$(UV): requirements/uv.txt | tools
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .tools
	.tools/bin/python -m pip install --quiet --require-hashes -r requirements/uv.txt
	@touch $@

$(VENV)/dependencies: requirements/dev.txt $(UV)
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@touch $@

dist/native: $(RUST_SOURCES) $(PACKAGE_SOURCES) $(VENV)/dependencies
	$(call built,$(BIN)/maturin build --quiet --release --locked --out)

dist/native-free-threaded: $(RUST_SOURCES) $(PACKAGE_SOURCES) $(VENV)/dependencies
	@command -v $(FREE_THREADED) >/dev/null || { echo "No free-threaded CPython: $(UV) python install 3.14t, then name it: make $(MAKECMDGOALS) FREE_THREADED=python3.14t"; exit 1; }
	$(call built,$(BIN)/maturin build --quiet --release --locked --interpreter $(FREE_THREADED) --out)

dist/spark: $(SPARK_SOURCES) $(VENV)/dependencies
	$(call built,$(UV) build spark_udf --quiet --python $(BIN)/python --no-build-isolation --wheel --out-dir)

# As docs/cluster.md tells users to, but for the versions, which are those that everything else is tested with.
dist/environment.tar.gz: requirements/workers.txt dist/native dist/spark
	$(UV) venv --quiet --clear --python $(PYTHON) dist/environment
	$(UV) pip install --quiet --python dist/environment/bin/python --require-hashes -r requirements/workers.txt
	$(UV) pip install --quiet --python dist/environment/bin/python --no-deps dist/native/*.whl dist/spark/*.whl
	$(BIN)/venv-pack --quiet --force --prefix dist/environment --format tar.gz --output $@.unfinished
	mv $@.unfinished $@

$(VENV)/installed: dist/native dist/spark
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --reinstall dist/native/*.whl dist/spark/*.whl
	@touch $@

$(VENV43)/installed: requirements/spark43.txt dist/native dist/spark
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV43)
	$(UV) pip install --quiet --python $(VENV43)/bin/python --require-hashes -r requirements/spark43.txt
	$(UV) pip install --quiet --python $(VENV43)/bin/python --no-deps --reinstall dist/native/*.whl dist/spark/*.whl
	@touch $@

clean: ## Remove everything that was built, environments included
	rm -rf .venv .venv-spark43 .venv-free-threaded .tools dist target demo-out
