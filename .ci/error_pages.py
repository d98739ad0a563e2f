"""Writes the pages on errors from the sources: `error_pages.py` writes, `error_pages.py --check` compares.

docs/errors.md lists every class with its code, and docs/errors/ has a page for each code: cause, remedy, and every
message. A new wording shows up there in the diff. Messages are found by reading the sources, nothing is imported: in
Python the calls of the classes, with variables and the arguments of helper functions put in; in Rust the texts in code
that is not a test. A value is shown as `{its name}`, a constant of whole numbers as its value.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "errors"
PACKAGES = (ROOT / "python" / "fencepost", ROOT / "spark_udf" / "fencepost_spark")
CRATES = ("core", "lake", "kafka", "log", "columns", "binding")
LINES_MAX = 280
VARIANTS_MAX = 12
DEPTH_MAX = 4

GROUPS = {
    "0": "Any part of the package",
    "1": "Rows, policies and state tables",
    "2": "Sources",
    "3": "Sinks, states and stores",
    "4": "Producers and transactions",
    "5": "Databases",
    "9": "Warnings",
}
RETIRED: dict[str, str] = {}
"""Codes that were released and are not in use any more, with the class they had. They are never used again."""

SIGNALS = {
    "RacedError": "another transaction was first: the sink tries again",
    "ReplanError": "more is known of the files: the run plans again",
    "Stopped": "a stage is abandoned: its tasks end",
    "TakenError": "the next version of the table is taken: the sink decides again",
    "NotPlainError": "the frame is deduplicated in another way, and the text is in the message of a PolicyError",
    "UnnamedError": "the database does not name the row it refuses: rows are tried one by one",
    "_IncompleteError": "rows are missing in the tables of tasks: the version is written again",
    "_PlacedError": "the row of a call becomes a dead letter",
}
"""Exceptions that this package catches itself. They have no code, and no user sees them."""

PYTHONS = {
    *("AssertionError", "AttributeError", "BadParameter", "FileExistsError", "FileNotFoundError", "ImportError"),
    *("MemoryError", "NotImplementedError", "OSError", "RuntimeError", "SystemExit", "TimeoutError", "TypeError"),
    *("ValueError", "RuntimeWarning"),
}
"""Classes of Python (and of the command line) that this package raises."""

RUST_VARIANTS = {
    "Batch": "BatchError",
    "batch": "BatchError",
    "Arrow": "BatchError",
    "Policy": "PolicyError",
    "Capacity": "CapacityError",
    "Memory": "MemoryError",
    "Snapshot": "SnapshotError",
    "snapshot": "SnapshotError",
    "Poisoned": "PoisonedError",
    "PoisonedLog": "PoisonedError",
    "Locked": "LockedError",
    "Closed": "ValueError",
    "Io": "OSError",
    "io": "OSError",
    "Refused": "OSError",
    "Read": "StoreError",
    "Source": "SourceError",
    "Value": "ValueError",
    "Ranges": "ValueError",
    "PyTypeError": "TypeError",
    "PyValueError": "ValueError",
}
"""How constructors of errors in Rust arrive in Python."""
RUST_FILES = {
    "binding/src/broker.rs": "PolicyError",
    "binding/src/kafka.rs": "SourceError",
    "binding/src/keys.rs": "BatchError",
    "binding/src/names.rs": "PolicyError",
    "binding/src/parquet.rs": "ValueError",
    "binding/src/partition_log.rs": "BatchError",
    "binding/src/rows.rs": "BatchError",
    "binding/src/scan.rs": "ValueError",
    "binding/src/table.rs": "PolicyError",
    "binding/src": "BatchError",
    "columns/src/panics.rs": "SourceError",
    "columns/src/scan.rs": "SourceError",
    "columns/src": "BatchError",
    "core/src/broker.rs": "SnapshotError",
    "core/src/policy.rs": "PolicyError",
    "core/src/snapshot": "SnapshotError",
    "core/src/snapshot.rs": "SnapshotError",
    "core/src/table": "SnapshotError",
    "core/src/table/merge.rs": "PolicyError",
    "core/src/table.rs": "SnapshotError",
    "core/src": "BatchError",
    "kafka/src": "SourceError",
    "lake/src/arrange.rs": "ValueError",
    "lake/src/ranges.rs": "ValueError",
    "lake/src/rewrite.rs": "ValueError",
    "lake/src": "SourceError",
    "log/src/log.rs": "OSError",
    "log/src/repair.rs": "OSError",
    "log/src/segment.rs": "OSError",
    "log/src/sync.rs": "PoisonedError",
    "log/src": "SourceError",
}
"""What a text of a file means where no constructor stands beside it; the longest path counts."""
RUST_SUBJECTS = {
    "lake": "Parquet files",
    "kafka": "Kafka's log",
    "log": "Partition logs",
    "core": "State tables and rows",
    "columns": "State tables and rows",
    "binding": "State tables and rows",
}


@dataclass
class Kind:
    """A class of errors."""

    name: str
    module: str
    code: str
    docstring: str
    bases: list[str]
    messages: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Subject to texts."""

    @property
    def cause(self) -> str:
        return _flowing(self.docstring.partition("What to do:")[0])

    @property
    def remedy(self) -> str:
        text = _flowing(self.docstring.partition("What to do:")[2])
        return text[:1].upper() + text[1:]


def _flowing(text: str) -> str:
    """One line, each paragraph ending where it ends."""
    return " ".join(text.split())


@dataclass
class Source:
    """A parsed module. `scopes`: node to the functions around it, outermost first."""

    path: Path
    module: str
    tree: ast.Module
    constants: dict[str, ast.expr] = field(default_factory=dict)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)


def sources() -> list[Source]:
    found = []
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            module = ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(
                ".__init__"
            )
            source = Source(path, module, ast.parse(path.read_text("utf-8")))
            for node in source.tree.body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    source.constants[node.targets[0].id] = node.value
            for node in ast.walk(source.tree):
                source.parents |= dict.fromkeys(ast.iter_child_nodes(node), node)
            found.append(source)
    return found


def exceptions(modules: Iterable[Source]) -> Iterator[tuple[Source, ast.ClassDef]]:
    """Every class of exceptions and warnings."""
    for source in modules:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                bases = [_last(it) for it in node.bases]
                if any(re.search(r"(Error|Exception|Warning)$", it or "") for it in bases):
                    yield source, node


def kinds(modules: Iterable[Source]) -> dict[str, Kind]:
    """The classes with a code, by name."""
    found = {}
    for source, node in exceptions(modules):
        for it in node.body:
            if isinstance(it, ast.Assign) and _last(it.targets[0]) == "code" and isinstance(it.value, ast.Constant):
                bases = [_last(base) or "" for base in node.bases]
                docstring = ast.get_docstring(node) or ""
                found[node.name] = Kind(node.name, source.module, str(it.value.value), docstring, bases)
    return found


def _last(node: ast.AST | None) -> str | None:
    """The last name of `a.b.c`, of a call that of its function."""
    if isinstance(node, ast.Call):
        return _last(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


class Reader:
    """Finds the texts of errors in Python."""

    def __init__(self, modules: list[Source], names: set[str]) -> None:
        self.modules, self.names = modules, names
        self.calls: dict[str, list[tuple[Source, ast.Call]]] = defaultdict(list)
        self.defined: dict[str, int] = defaultdict(int)
        self.imported: dict[str, dict[str, ast.expr]] = {it.module: it.constants for it in modules}
        for source in modules:
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Call) and (name := _last(node.func)):
                    self.calls[name].append((source, node))
                elif isinstance(node, ast.FunctionDef):
                    self.defined[node.name] += 1

    def messages(self) -> Iterator[tuple[str, str, str]]:
        """(class, module, text)."""
        for source in self.modules:
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Call) and node.args:
                    at = node.args[0]
                    for name in self._classes(source, node):
                        for text in self._texts(source, at, DEPTH_MAX):
                            if is_message(text):
                                yield name, source.module, text

    def _classes(self, source: Source, call: ast.Call) -> list[str]:
        func: ast.AST = call.func
        if isinstance(func, ast.IfExp):
            return [it for it in (_last(func.body), _last(func.orelse)) if it in self.names]
        name = _last(func)
        if name == "warn" and len(call.args) > 1:
            return [it for it in [_last(call.args[1])] if it in self.names]
        if name in self.names:
            return [name]
        if isinstance(func, ast.Name) and (index := self._parameter(source, call, func.id)) is not None:
            found = {_last(it) for _, it in self._arguments(source, call, func.id, index)}
            return sorted(it for it in found if it in self.names)
        return []

    def _function(self, source: Source, node: ast.AST) -> ast.FunctionDef | None:
        while node in source.parents:
            node = source.parents[node]
            if isinstance(node, ast.FunctionDef):
                return node
        return None

    def _parameter(self, source: Source, node: ast.AST, name: str) -> int | None:
        function = self._function(source, node)
        if function is None:
            return None
        given = [it.arg for it in (*function.args.posonlyargs, *function.args.args)]
        if name in given:
            return given.index(name) - (given[:1] in (["self"], ["cls"]))
        return -1 if name in [it.arg for it in function.args.kwonlyargs] else None

    def _arguments(self, source: Source, node: ast.AST, name: str, index: int) -> Iterator[tuple[Source, ast.expr]]:
        """What calls give the enclosing function for a parameter."""
        function = self._function(source, node)
        assert function is not None
        for where, call in self.calls[function.name]:
            if where is not source and (self.defined[function.name] > 1 or function.name.startswith("__")):
                continue
            named = [it.value for it in call.keywords if it.arg == name]
            if named:
                yield where, named[0]
            elif 0 <= index < len(call.args):
                yield where, call.args[index]

    def _texts(self, source: Source, node: ast.expr, depth: int) -> list[str]:
        """The texts that an expression can have."""
        if isinstance(node, ast.Name) and self._is_own(source, node):
            return [hole(node)]
        if isinstance(node, ast.Constant):
            return [node.value if isinstance(node.value, str) else str(node.value)]
        if isinstance(node, ast.JoinedStr):
            parts = [
                self._hole(source, it, depth) if isinstance(it, ast.FormattedValue) else self._texts(source, it, depth)
                for it in node.values
            ]
            return self._joined(node, parts)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._joined(node, [self._texts(source, it, depth) for it in (node.left, node.right)])
        if isinstance(node, ast.IfExp):
            return [*self._texts(source, node.body, depth), *self._texts(source, node.orelse, depth)]
        if isinstance(node, ast.BoolOp):
            return [text for it in node.values for text in self._texts(source, it, depth)]
        if isinstance(node, ast.Name) and depth:
            return self._values(source, node, depth) or [hole(node)]
        return [hole(node)]

    def _hole(self, source: Source, value: ast.FormattedValue, depth: int) -> list[str]:
        if isinstance(value.value, ast.Name) and value.value.id == "self":
            return [f"{{{spaced(self._class(source, value))}}}"]
        if isinstance(value.value, ast.Name) and (number := self._number(source, value.value)) is not None:
            return [number]
        if isinstance(value.value, ast.Name | ast.IfExp) and depth and value.conversion == -1:
            found = self._texts(source, value.value, depth - 1)
            if len(found) <= VARIANTS_MAX and any(" " in re.sub(r"\{.*?\}", "", it).strip() for it in found):
                return found
        return [hole(value.value)]

    def _class(self, source: Source, node: ast.AST) -> str:
        """The name of the class around a node."""
        while not isinstance(node, ast.ClassDef):
            node = source.parents[node]
        return node.name

    def _number(self, source: Source, node: ast.Name) -> str | None:
        """The value of a constant of a module, if it is a number."""
        found = self._values(source, node, 1) if node.id.strip("_").isupper() else []
        values = [source.constants.get(node.id), *(it.get(node.id) for it in self.imported.values())]
        texts = {number_of(ast.unparse(it)) for it in values if it is not None}
        return texts.pop() if len(texts) == 1 and len(found) <= 1 else None

    def _is_own(self, source: Source, node: ast.Name) -> bool:
        """Whether a name is part of its own new value: `text = f"{text}..."`."""
        at: ast.AST = node
        while at in source.parents and not isinstance(at, ast.stmt):
            at = source.parents[at]
        return isinstance(at, ast.Assign) and any(_last(to) == node.id for to in at.targets)

    def _values(self, source: Source, node: ast.Name, depth: int) -> list[str]:
        function = self._function(source, node)
        assigned: list[tuple[Source, ast.expr]] = []
        if function is not None:
            for it in ast.walk(function):
                if isinstance(it, ast.Assign) and any(_last(to) == node.id for to in it.targets):
                    assigned.append((source, it.value))
                elif (
                    isinstance(it, ast.Assign)
                    and isinstance(it.targets[0], ast.Tuple)
                    and isinstance(it.value, ast.Tuple)
                ):
                    pairs = zip(it.targets[0].elts, it.value.elts, strict=False)
                    assigned += [(source, value) for to, value in pairs if _last(to) == node.id]
        if not assigned and (index := self._parameter(source, node, node.id)) is not None:
            assigned = list(self._arguments(source, node, node.id, index))
            texts = [text for where, it in assigned for text in self._texts(where, it, depth - 1)]
            return list(dict.fromkeys(it for it in texts if is_message(it)))
        if not assigned and node.id in source.constants:
            assigned = [(source, source.constants[node.id])]
        if not assigned:
            for it in source.tree.body:
                if isinstance(it, ast.ImportFrom) and any((to.asname or to.name) == node.id for to in it.names):
                    constants = self.imported.get(it.module or "", {})
                    assigned = [(source, constants[node.id])] if node.id in constants else []
        texts = [text for where, it in assigned for text in self._texts(where, it, depth - 1)]
        return list(dict.fromkeys(texts))

    @staticmethod
    def _joined(node: ast.AST, parts: list[list[str]]) -> list[str]:
        count = 1
        for it in parts:
            count *= max(1, len(it))
        if count > VARIANTS_MAX * 4:
            longest = max(range(len(parts)), key=lambda at: len(parts[at]))
            parts = [it if at == longest else it[:1] for at, it in enumerate(parts)]
        return ["".join(it) for it in product(*parts)]


PASSING = {
    *("as_py", "decode", "dumps", "encode", "fspath", "get", "int", "items", "join", "keys", "len", "list"),
    *("lower", "max", "message_of", "min", "presets", "removesuffix", "repr", "rpartition", "sorted", "str", "sum"),
    *("tuple", "upper", "values", "with_suffix", "listed", "get_args", "fields", "bases", "parent", "simpleString"),
}
"""Functions and methods whose result a reader calls by the name of what they take."""


def hole(node: ast.AST) -> str:
    """What stands for a value."""
    return f"{{{_words(node)}}}"


def _words(node: ast.AST) -> str:
    """A name for the value of an expression, as a person would call it."""
    if isinstance(node, ast.Attribute) and node.attr == "__name__":
        of = node.value
        if isinstance(of, ast.Call) and _last(of.func) == "type" and of.args:
            return f"type of {_words(of.args[0])}"
        return _words(of)
    if isinstance(node, ast.Attribute) and node.attr.startswith("__"):
        return f"{_words(node.value)} {spaced(node.attr)}"
    if isinstance(node, ast.Attribute | ast.Name):
        return spaced(_last(node) or "")
    if isinstance(node, ast.Subscript | ast.Starred):
        return _words(node.value)
    if isinstance(node, ast.Call):
        name = (_last(node.func) or "value").lstrip("_")
        if name == "getattr":
            return "value"
        if name == "map" and len(node.args) > 1:
            return _words(node.args[1])
        takes_argument = name in ("join", "dumps", "fspath", "fields", "get_args")
        if name in PASSING and node.args and (takes_argument or not isinstance(node.func, ast.Attribute)):
            return _words(node.args[0])
        if name in PASSING and isinstance(node.func, ast.Attribute):
            return _words(node.func.value)
        return spaced(name.removesuffix("_of"))
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return _words(node.generators[0].iter)
    if isinstance(node, ast.BinOp):
        return _words(node.right if isinstance(node.left, ast.Constant) else node.left)
    return "value"


def spaced(name: str) -> str:
    """A name as words."""
    words = " ".join(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("_", " ").split())
    return "value" if words in ("", "it", "self") else words


def number_of(expression: str) -> str | None:
    """The value of an expression of whole numbers, as text."""
    plain = re.sub(r"_|\bas \w+|(?<=\d)[ui](8|16|32|64|size)\b", "", expression)
    plain = re.sub(r"\b([ui])(8|16|32|64)::MAX\b", lambda it: str((1 << int(it[2]) - (it[1] == "i")) - 1), plain)
    plain = re.sub(r"\b[ui](8|16|32|64)::from\b", "", plain)
    if not re.fullmatch(r"[\d ()+*<-]+", plain) or not re.search(r"\d", plain):
        return None
    value = ast.parse(plain.strip(), mode="eval")
    return str(eval(compile(value, "", "eval"), {"__builtins__": {}}))


def is_message(text: str) -> bool:
    """Whether there are words in it, beside values."""
    return bool(re.search(r"[A-Za-z]{2}.*[ :]|[ :].*[A-Za-z]{2}", re.sub(r"\{.*?\}", "", text)))


TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|r#\"(?P<raw>.*?)\"#|b?\"(?P<text>(?:[^\"\\]|\\.)*)\"|'(?:[^'\\\n]|\\[^\n]+?)'", re.DOTALL
)
NOT_MESSAGES = re.compile(
    r"^[<(]| \(os error|^(Unexpected data type|C Data interface error|Cannot import a StructArray|0 to \d)|^\{\w+\}, |"
    r"^(Parquet error|Parquet argument error|Arrow|External|EOF): $|^\S+=\{\S+ \S+=|^message schema|^\{\{|"
    r"^\{\} rows \{\}$"
)


def rust_messages(path: Path) -> Iterator[tuple[str, str]]:
    """(class, text) of a file of Rust."""
    code = path.read_text("utf-8")
    if (tests := re.search(r"#\[cfg\((all\()?test\b[^\n]*\]\s*(#\[[^\n]*\]\s*)*(pub\S* )?mod ", code)) is not None:
        code = code[: tests.start()]
    begin = 0
    for token in TOKEN.finditer(code):
        text = token["raw"] if token["raw"] is not None else token["text"]
        if text is None or token[0].startswith("b"):
            continue
        before = code[max(begin, token.start() - 400) : token.start()]
        if re.search(r"(\bexpect\(|(asm|panic|assert\w*|unreachable|todo)!|signature = |starts_with)\(?[^;]*$", before):
            continue
        text = re.sub(r"\\\n\s*", "", text).replace('\\"', '"').replace("\\n", " ")
        if not is_message(text) or NOT_MESSAGES.search(text):
            continue
        # The nearest constructor in the same statement.
        statement = re.split(r";\n|\n    \}|\nfn ", before)[-1]
        named = re.findall(r"(?:Error|Failure)::(\w+)|\b(PyTypeError|PyValueError)\b", statement)
        variants = [RUST_VARIANTS[it] for pair in named for it in pair if it in RUST_VARIANTS]
        yield variants[-1] if variants else rust_default(path), _with_names(text, code[token.end() :])


def _with_names(text: str, after: str) -> str:
    """Put names into the holes of a format string of Rust. `after`: the code behind it, with its arguments."""
    arguments = iter(_arguments_of_rust(after))

    def name(found: re.Match[str]) -> str:
        text = found[1] or next(arguments, "value")
        number = text if text.isdigit() else rust_numbers().get(text)
        return number or f"{{{spaced(text)}}}"

    return re.sub(r"(?<!\{)\{(\w*)(?::[^{}]*)?\}", name, text)


def _arguments_of_rust(after: str) -> list[str]:
    """The names of what a call has behind its format string."""
    depth, begin, found = 0, 0, []
    for at, letter in enumerate(after[:1000]):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if depth < 0 or (letter == "," and depth == 0):
            found.append(after[begin:at])
            begin = at + 1
        if depth < 0:
            break
    return [_rust_name(it) for it in found[1:]]


@cache
def rust_numbers() -> dict[str, str]:
    """The constants of the crates that are whole numbers, if all crates agree."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "rust").rglob("*.rs"):
        for name, value in re.findall(r"\bconst (\w+): \w+ = ([^;]+);", path.read_text("utf-8")):
            found[name].add(number_of(value) or "")
    return {name: value for name, (value, *more) in found.items() if value and not more}


def _rust_name(expression: str) -> str:
    """The value of a number, or the last name of an expression that is not a method."""
    if (number := number_of(expression.strip())) is not None:
        return number
    plain = expression
    while plain != (plain := re.sub(r"\.\w+(::<[^>]*>)?\([^()]*\)|\[[^\[\]]*\]|\(\)", "", plain)):
        pass
    names = [it for it in re.findall(r"[A-Za-z_]\w*", plain) if it not in ("self", "it", "as", "u64", "usize", "i64")]
    return names[-1] if names else "value"


def rust_default(path: Path) -> str:
    place = path.relative_to(ROOT / "rust").as_posix()
    fits = [it for it in RUST_FILES if place == it or place.startswith(f"{it}/")]
    return RUST_FILES[max(fits, key=len)]


def collect() -> tuple[dict[str, Kind], dict[str, set[str]]]:
    """The classes with their messages, and those of Python's own classes by class."""
    modules = sources()
    found = kinds(modules)
    plain: dict[str, set[str]] = defaultdict(set)
    for name, module, text in Reader(modules, {*found} | PYTHONS).messages():
        _add(found, plain, name, _subject(module), text)
    for crate in CRATES:
        for path in sorted((ROOT / "rust" / crate / "src").rglob("*.rs")):
            if path.name != "tests.rs":
                for name, text in rust_messages(path):
                    _add(found, plain, name, RUST_SUBJECTS[crate], text)
    return found, plain


def _add(found: dict[str, Kind], plain: dict[str, set[str]], name: str, subject: str, text: str) -> None:
    text = _flowing(text)
    if name in found:
        found[name].messages[subject].add(text)
    else:
        plain[name].add(text)


def _subject(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 or (ROOT / "python" / "/".join(parts)).is_dir() else parts[0]


def pages(found: dict[str, Kind], plain: dict[str, set[str]]) -> dict[Path, str]:
    """Every page, by path. The arguments are what `collect` returns."""
    ordered = sorted(found.values(), key=lambda it: it.code)
    written: dict[Path, str] = {}
    for kind in ordered:
        written |= _pages_of(kind)
    written[FOLDER / "python.md"] = _page_of_pythons(plain)
    written[ROOT / "docs" / "errors.md"] = _index(ordered)
    return written


NOTE = "<!-- Made from the sources by `make errors`. Edit those. -->"


def _index(ordered: list[Kind]) -> str:
    lines = [
        "# Errors",
        "",
        NOTE,
        "",
        "Every error that fencepost raises on purpose has a class and a code. The message begins with the code:",
        "",
        "```text",
        "fencepost.errors.BatchError: [FP101] column 'seq', row 1: value -5 is outside 0..=2147483647",
        "```",
        "",
        "Catch classes, not texts. A class and its code are stable, and a retired code is never used again. The",
        "wording of messages can change in any version. `error.code` is the code, and `error.message` is the text",
        "without the code.",
        "",
        "The page of each code lists its messages. `{name}` stands for a value. A value can be the text of another",
        "line, as `{problem}` in `column '{column}', row {row}: {problem}`. `0..=9` means 0 to 9, both included.",
        "",
        "All classes derive from `fencepost.FencepostError`, and warnings from `UserWarning`.",
        "",
    ]
    for digit, title in GROUPS.items():
        lines += [f"## {title}", "", "| code | class | cause | what to do |", "|---|---|---|---|"]
        for it in ordered:
            if it.code[2] == digit:
                code = f"[{it.code}](errors/{it.code}.md)"
                lines.append(f"| {code} | `{it.name}` | {_cell(it.cause)} | {_cell(it.remedy)} |")
        lines.append("")
    lines += [
        "## Without a code",
        "",
        "Calls with arguments of a wrong type or value raise Python's own classes. Their messages are listed in",
        "[errors without a code](errors/python.md).",
    ]
    if RETIRED:
        lines += ["", "## Retired codes", ""]
        lines += [f"- {code}: `{name}`" for code, name in sorted(RETIRED.items())]
    return "\n".join(lines) + "\n"


def _pages_of(kind: Kind) -> dict[Path, str]:
    """The page of a code. Subjects that would make it too long get a page of their own."""
    sections = {subject: _list(texts) for subject, texts in sorted(kind.messages.items())}
    head = [
        f"# {kind.code}: {kind.name}",
        "",
        NOTE,
        "",
        f"`{kind.module}.{kind.name}`"
        + (f", a kind of `{kind.bases[0]}`." if kind.bases[0].endswith("Error") else "."),
        "",
        f"**Cause.** {kind.cause}",
        "",
        f"**What to do.** {kind.remedy}",
        "",
    ]
    size = len(head) + sum(len(it) + 4 for it in sections.values())
    written, moved = {}, []
    for subject in sorted(sections, key=lambda it: -len(sections[it])):
        if size > LINES_MAX:
            name = f"{kind.code}-{re.sub('[^a-z]+', '-', subject.lower().replace('fencepost.', ''))}.md"
            lines = [f"# {kind.code}: {kind.name}, {subject}", "", NOTE, ""]
            lines += [f"Messages of [{kind.code}]({kind.code}.md).", ""]
            written[FOLDER / name] = "\n".join([*lines, *sections[subject]]) + "\n"
            size -= len(sections.pop(subject)) + 3
            moved.append(f"- [{subject}]({name})")
    for subject, lines in sections.items():
        head += [f"## Messages: {subject}", "", *lines, ""]
    if moved:
        head += ["## More messages", "", *sorted(moved), ""]
    return written | {FOLDER / f"{kind.code}.md": "\n".join(head[:-1]) + "\n"}


def _page_of_pythons(plain: dict[str, set[str]]) -> str:
    lines = ["# Errors without a code", "", NOTE, ""]
    lines += [
        "Arguments of a wrong type or value, and files that do not exist, raise Python's own classes.",
        "`BadParameter` is a usage error of the command line, with exit code 2. `AssertionError` is a defect: please",
        "report it.",
        "",
    ]
    for name in sorted(plain):
        lines += [f"## {name}", "", *_list(plain[name]), ""]
    return "\n".join(lines[:-1]) + "\n"


def _list(texts: set[str]) -> list[str]:
    return [f"- {_code(it)}" for it in sorted(texts, key=lambda it: (it.lower(), it))]


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the pages, or say which of them are out of date."""
    wanted = pages(*collect())
    old = set(FOLDER.glob("*.md")) - wanted.keys()
    if "--check" in sys.argv:
        wrong = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
        for path in sorted({*wrong, *old}):
            print(f"{path.relative_to(ROOT)} is out of date: make errors")
        return 1 if wrong or old else 0
    FOLDER.mkdir(exist_ok=True)
    for path in old:
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
