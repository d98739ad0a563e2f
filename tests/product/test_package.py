"""The installed package: its imports, its stubs and documents, and which modules may import which."""

from __future__ import annotations

import ast
import doctest
import fnmatch
import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
import threading
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import fencepost as fp
import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("pyarrow", "numpy", "pandas", "polars", "pyspark", "sqlalchemy", "typer", "rich", "arro3", "duckdb", "obstore")
HEAVY += ("prometheus_client",)
# Folders that hold nothing that was written here.
BUILT = {"target", "dist", "build", "results", "data", "demo-out", "node_modules", "__pycache__"}


def files(*patterns: str, under: str = ".") -> list[Path]:
    """The files of the project that match, but for what was built or installed.

    Other suites build while these tests run, so folders of built files are not entered.
    """
    found: list[Path] = []
    for folder, folders, names in os.walk(ROOT / under):
        folders[:] = [it for it in folders if it not in BUILT and not it.startswith(".")]
        matching = {name for pattern in patterns for name in fnmatch.filter(names, pattern)}
        found += (Path(folder) / name for name in matching)
    return sorted(found)


def run_python(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# What an import costs


def test_the_import_loads_no_other_package() -> None:
    out = run_python("""
        import sys
        before = set(sys.modules)
        import fencepost
        print(*sorted(name.partition('.')[0] for name in set(sys.modules) - before))
    """)
    found = set(out.split())
    assert "fencepost" in found
    assert found.isdisjoint(HEAVY), found & set(HEAVY)
    assert found <= set(sys.stdlib_module_names) | {"fencepost"}, "nothing but the standard library"


def test_it_works_where_nothing_else_is_installed() -> None:
    """Rows as arrays of the standard library, results read by the extension's own classes."""
    out = run_python(
        """
        import sys

        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in sys.argv[1:]:
                    raise ImportError(f"{name} is not installed here")

        sys.meta_path.insert(0, Refuse())
        from array import array
        import fencepost as fp

        rows = {name: array("q", values) for name, values in
                {"pid": [7, 7, 7], "epoch": [0] * 3, "partition": [0] * 3, "seq": [0, 1, 1]}.items()}
        table = fp.StateTable("any_order")
        verdicts = table.apply(rows)
        assert verdicts.counts[fp.Verdict.DUPLICATE] == 1
        assert len(fp.deduplicate(rows).__arrow_c_stream__.__name__) > 0
        for result in (verdicts.verdict, verdicts.kept, verdicts.expected, fp.shards(rows, 4)):
            assert len(result.__arrow_c_array__()) == 2
        for result in (verdicts, verdicts.missing, table.missing(), table.entries(), fp.deduplicate(rows)):
            result.__arrow_c_stream__()
        assert fp.StateTable.from_entries(table.entries(), "any_order").snapshot() == table.snapshot()
        assert fp.StateTable.restore(table.snapshot()).get(7, 0)["last"] == 1
        try:
            table.apply(rows | {"seq": array("d", [0.0] * 3)})
        except fp.BatchError as error:
            print(error.column)
        print(*sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[1:])))
        """,
        *HEAVY,
    )
    assert out.split() == ["seq"]


def test_databases_need_no_package_of_asyncio() -> None:
    """SQLAlchemy brings greenlet along for its own extra only."""
    out = run_python("""
        import sys

        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("greenlet", "aiokafka", "aiosqlite"):
                    raise ModuleNotFoundError(f"{name} is not installed here")

        sys.meta_path.insert(0, Refuse())
        import fencepost.consumer, fencepost.daemon, fencepost.sql, fencepost.transports
        print(fencepost.sql.AsyncSqlSink.__name__)
    """)
    assert out.split() == ["AsyncSqlSink"]


def test_no_hard_dependency() -> None:
    requirements = importlib.metadata.requires("fencepost") or []
    assert requirements
    assert all("extra ==" in requirement for requirement in requirements), requirements


# Which module may import which


# From the bottom up: each may import the entries before it.
LAYERS = [
    "fencepost.errors",
    "fencepost.words",
    "fencepost.sums",
    "fencepost.stopping",
    "fencepost.progress",
    "fencepost.verdict",
    "fencepost.arrow",
    "fencepost.inputs",
    "fencepost.metrics",
    "fencepost.telemetry",
    "fencepost.kafka.finding",
    "fencepost._native",
    "fencepost.policy",
    "fencepost.pages",
    "fencepost.report",
    "fencepost.findings",
    "fencepost.resets",
    "fencepost.content",
    "fencepost.timeline",
    "fencepost.examples",
    "fencepost.auditor",
    "fencepost.advice",
    "fencepost.explained",
    "fencepost.dedup",
    "fencepost.producer",
    "fencepost",
    "fencepost.generate",
    "fencepost.state",
    "fencepost.kafka",
    "fencepost.lake",
    "fencepost.sql",
    "fencepost.consumer",
    "fencepost.transports",
    "fencepost.daemon",
    "fencepost.cli",
    "fencepost.__main__",
    "fencepost_spark",
]
# Those that must be there: a scan of an empty folder finds nothing wrong.
SOURCES_MIN = {"fencepost": 20, "fencepost_spark": 6}
SPARK = {"pyspark", "py4j", "fencepost_spark"}
# Layers, and modules that the others of their layer import only when they are needed.
EXTRAS_AT_IMPORT = {"fencepost.auditor", "fencepost.generate", "fencepost.lake", "fencepost.cli", "fencepost_spark"}
EXTRAS_AT_IMPORT |= {"fencepost.sql", "fencepost.resets", "fencepost.content", "fencepost.state.checksums"}
EXTRAS_AT_IMPORT |= {"fencepost.consumer", "fencepost.daemon", "fencepost.state.task_plan"}
EXTRAS_AT_IMPORT |= {"fencepost.transports.sql"}
EXTRAS_AT_IMPORT |= {"fencepost.timeline", "fencepost.examples", "fencepost.advice", "fencepost.explained"}
EXTRAS_AT_IMPORT |= {"fencepost.kafka.replay", "fencepost.kafka.headers", "fencepost.kafka.sequence_checks"}


def layer(module: str) -> int | None:
    """The layer of a module; None if it is not part of this package."""
    matches = [number for number, name in enumerate(LAYERS) if module == name or module.startswith(f"{name}.")]
    named = [number for number in matches if LAYERS[number] != "fencepost" or module == "fencepost"]
    if not named and module.partition(".")[0] in ("fencepost", "fencepost_spark"):
        raise AssertionError(f"{module} has no place in LAYERS")
    return max(named, default=None)


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The modules that a source imports, and when: at "start", in a "call", or only for "types"."""

    def walk(node: ast.AST, when: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.Import):
            yield from ((alias.name, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            assert node.module is not None
            full = (f"{node.module}.{alias.name}" for alias in node.names)
            # `from fencepost import policy` imports a module, `from fencepost import Policy` a name of the package.
            yield from ((it if it in modules() else node.module, when) for it in full)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            when = "types"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and when == "start":
            when = "call"
        for child in ast.iter_child_nodes(node):
            yield from walk(child, when)

    yield from walk(tree, "start")


def import_complaints(module: str, source: str) -> list[str]:
    found = []
    own = layer(module)
    assert own is not None
    for name, when in imports(ast.parse(source)):
        top = name.partition(".")[0]
        theirs = layer(name)
        if theirs is not None and theirs > own:
            found.append(f"{module} imports {name}, which is above it")
        if own < layer("fencepost_spark") and top in SPARK:  # type: ignore[operator]
            found.append(f"{module} imports {name}: Spark is not its business")
        if when == "start" and top in HEAVY and not {LAYERS[own], module} & EXTRAS_AT_IMPORT:
            found.append(f"{module} imports {name} at once: only when its door is opened")
    return found


def python_sources() -> dict[str, Path]:
    """Every module of the two packages, by name."""
    found = {}
    for folder in (ROOT / "python", ROOT / "spark_udf"):
        for path in files("*.py", under=str(folder.relative_to(ROOT))):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[0] in SOURCES_MIN:
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def modules() -> frozenset[str]:
    return frozenset({*python_sources(), "fencepost._native"})


def circle(sources: dict[str, str]) -> list[str]:
    """Modules of which each imports the next, and the last one is the first; empty if there are none."""
    imported = {
        name: {it for it, when in imports(ast.parse(source)) if when != "types" and it != name}
        for name, source in sources.items()
    }
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_imports_go_downwards() -> None:
    sources = python_sources()
    for package, count_min in SOURCES_MIN.items():
        count = sum(name.partition(".")[0] == package for name in sources)
        assert count >= count_min, f"{count} sources of {package} were looked at"
    complaints = [it for name, path in sources.items() for it in import_complaints(name, path.read_text())]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("fencepost.policy", "import fencepost_spark"),
        ("fencepost.lake.job", "def f():\n    from fencepost_spark.jobs import DedupJob"),
        ("fencepost.lake.job", "def f():\n    import pyspark.sql"),
        ("fencepost.state.versions", "from fencepost.lake import DedupJob"),
        ("fencepost.errors", "from fencepost import StateTable"),
        ("fencepost.policy", "from fencepost import dedup"),
        ("fencepost.dedup", "import numpy as np"),
        ("fencepost", "try:\n    import pyarrow.compute\nexcept ImportError:\n    pass"),
        ("fencepost.state.versions", "class C:\n    import pyarrow"),
    ],
)
def test_an_import_upwards_is_detected(module: str, source: str) -> None:
    assert len(import_complaints(module, source)) >= 1


def test_an_import_downwards_is_accepted() -> None:
    fine = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy\ndef f():\n    import pyarrow\n"
    assert import_complaints("fencepost.dedup", f"{fine}from fencepost import _native\n") == []
    assert import_complaints("fencepost_spark.jobs", "import pyspark\nfrom fencepost.lake import DedupJob") == []


def test_no_imports_form_a_circle() -> None:
    found = circle({name: path.read_text() for name, path in python_sources().items()})
    assert not found, " imports ".join(found)


LAZY = "def f():\n    from fencepost.state.prefix import RunPrefixes"
FOR_TYPES = "if TYPE_CHECKING:\n    from fencepost.state.prefix import RunPrefixes"


@pytest.mark.parametrize(("source", "is_circle"), [(LAZY, True), (FOR_TYPES, False)])
def test_a_circle_of_imports_is_detected(source: str, is_circle: bool) -> None:
    sources = {"fencepost.state.sinks": source, "fencepost.state.prefix": "from fencepost.state import sinks"}
    names = ["fencepost.state.prefix", "fencepost.state.sinks"]
    assert sorted(set(circle(sources))) == (names if is_circle else [])


def crates() -> dict[str, dict[str, Any]]:
    return {
        manifest["package"]["name"]: manifest
        for path in files("Cargo.toml")
        for manifest in [tomllib.loads(path.read_text())]
        if "package" in manifest
    }


def test_crates_depend_downwards() -> None:
    wanted: dict[str, set[str]] = {
        "fencepost-core": set(),
        "fencepost-testkit": {"fencepost-core"},
        "fencepost-kafka": set(),
        "fencepost-lake": set(),
        "fencepost-log": {"fencepost-core", "fencepost-kafka"},
        "fencepost-columns": {"fencepost-core", "fencepost-kafka", "fencepost-lake"},
        "fencepost-python": {
            "fencepost-columns",
            "fencepost-core",
            "fencepost-kafka",
            "fencepost-lake",
            "fencepost-log",
        },
        "fencepost-bench": {"fencepost-core"},
        "fencepost-fuzz": {
            "fencepost-columns",
            "fencepost-core",
            "fencepost-kafka",
            "fencepost-lake",
            "fencepost-testkit",
        },
    }
    found = crates()
    assert found.keys() == wanted.keys()
    for name, manifest in found.items():
        assert {it for it in manifest.get("dependencies", {}) if it.startswith("fencepost")} == wanted[name]
    core = found["fencepost-core"]
    other = {it for target in core.get("target", {}).values() for it in target["dependencies"]}
    assert core["dependencies"].keys() | other == {"crc32fast", "libc", "rustc-hash"}, (
        "a checksum, madvise and a hash, nothing else"
    )
    assert found["fencepost-testkit"]["dependencies"].keys() == {"fencepost-core"}


def test_the_core_knows_no_python_arrow_file_or_clock() -> None:
    sources = files("*.rs", under="rust/core/src")
    assert len(sources) >= 13
    forbidden = re.compile(r"\b(pyo3|arrow_\w+|std::fs|std::env|std::net|SystemTime|Instant|HashMap)\b")
    assert forbidden.search("use std::fs;")
    found = {path.name: it.group() for path in sources if (it := forbidden.search(code_of(path.read_text())))}
    assert found == {}


def test_the_lake_knows_no_python_and_no_rules() -> None:
    sources = files("*.rs", under="rust/lake/src")
    assert len(sources) >= 8
    forbidden = re.compile(r"\b(pyo3\w*|fencepost_core|std::env|std::net|SystemTime|Instant)\b")
    assert forbidden.search("use pyo3_arrow::PyTable;")
    found = {path.name: it.group() for path in sources if (it := forbidden.search(code_of(path.read_text())))}
    assert found == {}
    manifest = crates()["fencepost-lake"]
    assert manifest["lints"]["rust"]["unsafe_code"] == "forbid"
    assert manifest["dependencies"].keys() == {
        "arrow-array",
        "arrow-buffer",
        "arrow-schema",
        "brotli",
        "bytes",
        "crc32fast",
        "flate2",
        "lz4_flex",
        "parquet",
        "snap",
        "zstd",
    }


def test_the_log_reader_knows_no_python_arrow_or_rules() -> None:
    sources = files("*.rs", under="rust/kafka/src")
    assert len(sources) >= 12
    forbidden = re.compile(r"\b(pyo3\w*|arrow_\w+|fencepost_core|std::env|std::net|SystemTime|Instant)\b")
    assert forbidden.search("use fencepost_core::BrokerTable;")
    found = {path.name: it.group() for path in sources if (it := forbidden.search(code_of(path.read_text())))}
    assert found == {}
    manifest = crates()["fencepost-kafka"]
    assert manifest["lints"]["rust"]["unsafe_code"] == "forbid"
    assert manifest["dependencies"].keys() == {"crc32c", "flate2", "lz4_flex", "snap", "zstd"}


def test_judges_share_no_code_with_what_they_judge() -> None:
    for name in ("reference.py", "rulebook.py"):
        tops = {top.partition(".")[0] for top, _ in imports(ast.parse((ROOT / "tests" / "support" / name).read_text()))}
        assert tops
        assert tops.isdisjoint({"fencepost", "fencepost_spark"})
    testkit = files("*.rs", under="rust/testkit/src")
    assert len(testkit) >= 6
    found = {path.name for path in testkit if "fencepost_core" in code_of(path.read_text())}
    assert found == {"pair.rs"}, "which sets the oracle beside the core"


def test_no_test_skips_itself_where_a_package_is_missing() -> None:
    sources = [path for path in files("*.py", under="tests") if path != Path(__file__)]
    assert len(sources) >= 15
    pattern = re.compile(r"importorskip|except (ImportError|ModuleNotFoundError)")
    assert pattern.search(Path(__file__).read_text())
    assert [path.name for path in sources if pattern.search(path.read_text())] == []


def test_no_test_imports_from_another_test() -> None:
    sources = files("*.py", under="tests")
    found = {
        (path.name, name)
        for path in sources
        for name, _ in imports(ast.parse(path.read_text()))
        if name.partition(".")[0].startswith("test_")
    }
    assert found == set(), "what tests share is in tests/support"


# Unsafe code


def code_of(rust: str) -> str:
    """Rust without its line comments."""
    return re.sub(r"//.*", "", rust)


def test_unsafe_code_is_only_in_listed_files() -> None:
    sources = files("*.rs")
    assert len(sources) >= 25
    found = {str(path.relative_to(ROOT)) for path in sources if re.search(r"\bunsafe\b", code_of(path.read_text()))}
    lines = {f"rust/core/src/lines/{name}.rs" for name in ("buffer", "groups", "search")}
    shipped = lines | {f"rust/core/src/{name}.rs" for name in ("dispatch", "prefetch")}
    tests = {"rust/core/tests/no_memory.rs", "rust/core/tests/memory.rs"}
    counting = {"fuzz/src/memory.rs", "bench/rust/src/bin/snapshot.rs"}
    assert found == shipped | tests | counting | {"bench/rust/src/bin/curve/system.rs", "rust/canary.rs"}
    assert not re.search(r"\bunsafe\b", code_of("// unsafe, it says\nfn safe() {}"))


# One version


VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def test_the_version_is_the_same_everywhere() -> None:
    import fencepost_spark

    assert fp.__version__ == VERSION
    assert importlib.metadata.version("fencepost") == VERSION
    assert fencepost_spark.__version__ == VERSION
    assert importlib.metadata.version("fencepost-spark") == VERSION


def test_the_version_is_written_once() -> None:
    for name, manifest in crates().items():
        assert manifest["package"].get("version") in (None, {"workspace": True}), name
    pyprojects = files("pyproject.toml")
    assert len(pyprojects) == 2
    for path in pyprojects:
        project = tomllib.loads(path.read_text())["project"]
        assert "version" not in project, path
        assert "version" in project["dynamic"], path

    written = re.compile(rf"(?<![\w.=]){re.escape(VERSION)}(?![\w.])")
    sources = files("*.toml", "*.py", "*.pyi", "*.rs", "Makefile", "*.md", "*.yml", "*.in")
    assert len(sources) >= 60
    found = [str(path.relative_to(ROOT)) for path in sources if written.search(path.read_text())]
    assert [it for it in found if it != "CHANGELOG.md"] == ["Cargo.toml"]
    assert len(written.findall((ROOT / "Cargo.toml").read_text())) == 1


# Types


@pytest.mark.parametrize("module", ["fencepost._native", pytest.param("fencepost", marks=pytest.mark.matrix)])
def test_stubs_match_the_extension(module: str, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    # Names that an import that fails binds while it fails; types with an option in them, which stubtest takes for
    # classes; a function behind a cache, whose arguments it does not see.
    options = "identity|state|terminal|transactions|kafka_audit|kafka_export|databases|sql"
    options = f"fencepost\\.cli\\.({options})\\.[A-Z].*"
    literals = "job\\.Layout|plan\\.Plan|scan\\.Status|kafka_segments\\.Isolation"
    literals = f"({literals}|schemas\\.SchemaRule|write\\.(InPlace|Rejects))"
    literals = f"fencepost\\.(lake\\.{literals}|sql\\.transaction\\.Outcome|(lake|sql)\\.[a-z_]+\\.On[A-Z][A-Za-z]+)"
    literals += "|fencepost\\.consumer\\.assignment\\.(OnReset|Start)|fencepost\\.sql\\.sink\\.ReapBy"
    literals += "|fencepost\\.(pages\\.charts\\.(Size|Theme)|pages\\.page\\.Mood|timeline\\.Unit)"
    literals += "|fencepost\\.sql\\.(asynchronous\\.AsyncEffect|together\\._claiming)"
    for_types = "fencepost\\.(inputs|(producer|transports)\\.\\w+)\\.pa"
    for_types += "|fencepost\\.consumer\\.asynchronous\\.(AIOKafkaConsumer|ConsumerRecord|Listener.*)"
    allowed.write_text(f"fencepost\\.cli\\.(package|problem)\n{options}\n{literals}\n{for_types}\n")
    config = ROOT / "pyproject.toml"
    if module == "fencepost._native":
        # Without types of other modules, which `fencepost` in the matrix compares as well: they take 15 times as long.
        config = tmp_path / "mypy.ini"
        config.write_text("[mypy]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy.stubtest", module, "--mypy-config-file", str(config)]
    done = subprocess.run(
        [*command, "--allowlist", str(allowed), "--ignore-unused-allowlist"],
        check=False, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^Success: no issues .* \d+ module", done.stdout)


def test_the_package_is_marked_as_typed() -> None:
    folder = Path(fp.__file__).parent
    assert {"py.typed", "_native.pyi"} <= {path.name for path in folder.iterdir()}
    assert Path(importlib.import_module("fencepost._native").__file__ or "").name == "_native.abi3.so"


def test_what_is_public_is_documented() -> None:
    assert sorted(fp.__all__) == fp.__all__
    undocumented = [name for name in fp.__all__ if name != "__version__" and not getattr(fp, name).__doc__]
    assert undocumented == []
    for kind in (fp.StateTable, fp.Verdicts):
        methods = {name: it for name, it in vars(kind).items() if not name.startswith("_")}
        assert len(methods) >= 8
        assert [name for name, it in methods.items() if not it.__doc__] == []


# Documents


DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]


def documents() -> list[Path]:
    """The documents that must be there, and the user guide."""
    return [*(ROOT / name for name in DOCUMENTS), *files("*.md", under="docs")]


def prose(document: str) -> str:
    return re.sub(r"^```.*?^```$", "", document, flags=re.MULTILINE | re.DOTALL)


def paths_named(document: str) -> set[str]:
    """Paths in backticks (with a folder, or a file's ending) and the targets of links."""
    ticked = set(re.findall(r"`([\w./-]+)`", prose(document)))
    paths = {it for it in ticked if "/" in it or re.search(r"\.(rs|py|pyi|md|toml|in|lock|yml)$", it)}
    links = {it.partition("#")[0] for it in re.findall(r"\]\(([^)\s]+)\)", prose(document)) if "://" not in it}
    return (paths | links) - {""}


def missing_paths(document: str, folder: Path) -> set[str]:
    return {it for it in paths_named(document) if not (folder / it).exists() and not (ROOT / it).exists()}


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_paths_that_documents_name_exist(path: Path) -> None:
    assert path.is_file(), f"{path.name} is missing"
    assert missing_paths(path.read_text(), path.parent) == set()


def test_a_path_that_does_not_exist_is_detected() -> None:
    named = sum(len(paths_named(path.read_text())) for path in documents())
    assert named >= 30, f"{named} paths were looked at"
    text = "see `rust/core/src/judge.rs`, `rust/core/src/jury.rs`, [there](README.md#x) and [here](nowhere.md)"
    assert missing_paths(text, ROOT) == {"rust/core/src/jury.rs", "nowhere.md"}


TUTORIALS = ROOT / "docs" / "tutorials"


def code_blocks() -> list[tuple[str, str, bool]]:
    """The Python blocks of the documents: where, the source, whether it runs.

    `python no-run: the reason` is only compiled. `python continued` runs after the blocks above it.
    tests/product/test_tutorials.py and tests/spark/extras/test_spark_tutorials.py run the tutorials, and
    tests/product/test_docs.py checks the marks and other languages.
    """
    found = []
    for path in documents():
        text = path.read_text() if path.is_file() and TUTORIALS not in path.parents else ""
        above = ""
        for match in re.finditer(
            r"^```python( no-run: [^\n]+| continued)?\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL
        ):
            mark = match[1] or ""
            line = text.count("\n", 0, match.start()) + 2
            before = above if mark == " continued" else ""
            source = before + "\n" * (line - 1 - before.count("\n")) + match[2]
            found.append((f"{path.relative_to(ROOT)}:{line}", source, not mark.startswith(" no-run")))
            above = source if not mark.startswith(" no-run") else above
    return found


@pytest.mark.parametrize(("where", "source", "runs"), code_blocks(), ids=[where for where, _, _ in code_blocks()])
def test_code_in_documents_runs(
    where: str, source: str, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = compile(source, where, "exec")
    before = set(threading.enumerate())
    if runs:
        exec(code, {"__name__": "__main__"})
    left = [it.name for it in set(threading.enumerate()) - before if it.name.startswith("fencepost")]
    assert not left, "an example closes what it opens"


def test_every_code_block_was_found() -> None:
    opened = sum(path.read_text().count("```python") for path in documents() if TUTORIALS not in path.parents)
    assert opened == len(code_blocks())
    assert sum(runs for _, _, runs in code_blocks()) >= 3


def test_examples_in_docstrings_run() -> None:
    modules = ["fencepost", *(it.name for it in pkgutil.walk_packages(fp.__path__, "fencepost."))]
    assert len(modules) >= 20
    attempted = 0
    for name in modules:
        tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        assert tried.failed == 0, name
        attempted += tried.attempted
    assert attempted >= 10, f"{attempted} examples"
