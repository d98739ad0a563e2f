# Every task by name: `make help`. Each sets up what it needs; nothing is installed outside this folder.

PYTHON ?= python3
JAVA ?= java
VENV := .venv
VENV43 := .venv-spark43
BIN := $(VENV)/bin
UV := .tools/bin/uv
# Spark's workers must run the Python that has the wheels.
export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYTHONDONTWRITEBYTECODE := 1
# The certificates that the system trusts: behind a proxy there are more than the installer brings along.
export UV_SYSTEM_CERTS := 1

RUST_SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find rust -name '*.rs' -o -name Cargo.toml)
PACKAGE_SOURCES := $(shell find python/fencepost -name '*.py' -o -name '*.pyi' -o -name py.typed)
SPARK_SOURCES := Cargo.toml spark_udf/pyproject.toml spark_udf/hatch_build.py $(shell find spark_udf/fencepost_spark -name '*.py')

.DEFAULT_GOAL := help
.PHONY: help demo test lint test-rust test-python test-spark test-spark43 bench bench-full bench-rust wheels \
	develop format requirements tools java clean

help: ## Show every task
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: java $(VENV)/installed ## Run the main job on generated and on real data, and show what it finds
	$(BIN)/python spark_udf/demo.py

test: java lint test-rust test-python test-spark test-spark43 ## Everything that must pass

lint: $(VENV)/installed ## Formatting, clippy, ruff, mypy
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy python/fencepost spark_udf/fencepost_spark

test-rust: tools ## The core and its testkit
	cargo test --locked
	cargo test --locked --package fencepost-core --features portable

test-python: $(VENV)/installed ## Everything in Python but Spark
	$(BIN)/python -m pytest --ignore=tests/spark

test-spark: java $(VENV)/installed ## The Spark suite on the PySpark it is developed on
	$(BIN)/python -m pytest tests/spark

test-spark43: java $(VENV43)/installed ## The Spark suite on the newest PySpark
	PYSPARK_PYTHON=$(abspath $(VENV43)/bin/python) $(VENV43)/bin/python -m pytest tests/spark

bench: java $(VENV)/installed ## Minutes: small sizes, every contestant, answers checked
	$(BIN)/python bench/run.py --quick

bench-full: java $(VENV)/installed bench-rust ## Half an hour: the sizes of the figures in bench/results
	$(BIN)/python bench/run.py --full

bench-rust: tools ## The core alone
	cargo bench --locked -p fencepost-bench

wheels: dist/native dist/spark ## Build both wheels into dist/

develop: $(VENV)/dependencies ## Install editable: Python changes show at once, Rust changes after another `make develop`
	$(UV) pip install --quiet --python $(BIN)/python --no-build-isolation --no-deps --editable spark_udf
	. $(BIN)/activate && PATH="$(abspath .tools/bin):$$PATH" maturin develop --uv --release

format: $(VENV)/dependencies ## Put every file in its form
	cargo fmt --all
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

requirements: $(UV) ## Compile the requirement files, hashes included
	for name in uv dev spark43; do $(UV) pip compile --quiet --generate-hashes --universal --python-version 3.11 \
		--no-header --no-annotate requirements/$$name.in -o requirements/$$name.txt || exit 1; done

tools:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is missing: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: apt-get install python3 python3-venv, or name one: make PYTHON=python3.12"; exit 1; }
	@command -v cargo >/dev/null || { echo "Rust is missing: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"; exit 1; }
	@command -v cc >/dev/null || { echo "A C linker is missing: apt-get install build-essential"; exit 1; }

java:
	@$(JAVA) -version >/dev/null 2>&1 || { echo "Java 17 is missing: apt-get install openjdk-17-jre-headless"; exit 1; }
	@$(JAVA) -version 2>&1 | awk -F '[".]' 'NR == 1 && $$2 < 17 { exit 1 }' || { echo "Java is older than 17: apt-get install openjdk-17-jre-headless"; exit 1; }

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
	rm -rf $@
	$(BIN)/maturin build --quiet --release --locked --out $@

dist/spark: $(SPARK_SOURCES) $(VENV)/dependencies
	rm -rf $@
	$(UV) build --quiet --python $(BIN)/python --no-build-isolation --wheel --out-dir $@ spark_udf

$(VENV)/installed: dist/native dist/spark
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --reinstall dist/native/*.whl dist/spark/*.whl
	@touch $@

$(VENV43)/installed: requirements/spark43.txt dist/native dist/spark
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV43)
	$(UV) pip install --quiet --python $(VENV43)/bin/python --require-hashes -r requirements/spark43.txt
	$(UV) pip install --quiet --python $(VENV43)/bin/python --no-deps --reinstall dist/native/*.whl dist/spark/*.whl
	@touch $@

clean: ## Remove everything that was built, environments included
	rm -rf .venv .venv-spark43 .tools dist target demo-out
