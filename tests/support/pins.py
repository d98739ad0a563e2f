"""Finds tests that pin sentences: literals that are compared with what an error or a program says, and their prose."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

BREAK = "\0"
# What is in quotes is prose of its own. The apostrophe of "the rows' order" is not a quote.
QUOTED = re.compile(r"(?<!\w)(['\"`])(.*?)\1(?!\w)")
# What a regular expression leaves open, and the columns of a printed table.
OPEN = re.compile(r"\[[^\]]*\]|\\[dswDSWbB]|\.[*+?]|\.?\{[\d,]*\}|\(\?[a-z:=!<]+\)?|[|\n]| {2,}")
LIST_ITEM = re.compile(r"(?<=,) ?\w+(?= *(?:[,;)$\0]|$))")
WORD = re.compile(r"[A-Z]?[a-z]+(?:['-][a-z]+)*|[aAI]")
EDGES = "'\"`.,;:!?()[]{}^$\\"

# How a test gets a text of an error or of a program: the call, the attribute, or the name of a variable.
TEXT_CALLS = {"str", "message_of"}
TEXT_METHODS = {"readouterr", "to_text"}
TEXT_ATTRIBUTES = {"message", "reason", "title", "detail", "stdout", "stderr", "out", "err", "output"} | TEXT_METHODS
TEXT_NAMES = {"message", "stdout", "stderr", "out", "err", "output", "complaints"}
SEARCHES = {"search", "match", "fullmatch", "startswith", "endswith"}

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, order=True)
class Pin:
    """A literal that a test compares with a message."""

    line: int
    text: str
    """With `\\0` where a value is put in."""


def longest_prose(text: str) -> str:
    """The longest row of plain words that follow each other in a text or pattern; `\\0` stands for a value put in.

    A row ends at a value, at a quote, at what a regular expression leaves open, at the border of a column, and at
    whatever is no plain word: numbers, names such as `buffer_rows`, `BatchError`, `SQL` or `--set`, paths, and the
    single words of a list with commas. Other punctuation does not end it.
    """
    text = OPEN.sub(BREAK, text)
    text = re.sub(r"\\(\W)", r"\1", text)
    text = LIST_ITEM.sub(BREAK, QUOTED.sub(rf"{BREAK}\2{BREAK}", text))
    rows: list[list[str]] = [[]]
    for token in text.replace(BREAK, f" {BREAK} ").split():
        word = token.strip(EDGES)
        if WORD.fullmatch(word) and not token.endswith(("()", "=")):
            rows[-1].append(word)
        elif word:
            rows.append([])
    return " ".join(max(rows, key=len))


class _Module:
    """Follows the names of a test module to the literals that they stand for."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.scopes: dict[ast.AST, Scope] = {}
        self.bindings: dict[tuple[Scope, str], list[ast.expr]] = {}
        self.calls: dict[str, list[ast.Call]] = {}
        self._enter(tree, tree)
        nodes = list(ast.walk(tree))
        for node in nodes:
            self._bind(node)
        for node in nodes:
            self._bind_each(node)

    def _enter(self, node: ast.AST, scope: Scope) -> None:
        for child in ast.iter_child_nodes(node):
            self.scopes[child] = scope
            self._enter(child, child if isinstance(child, FUNCTIONS) else scope)

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._unpack(self.scopes[node], target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._unpack(self.scopes[node], target, value)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                self.calls.setdefault(name, []).append(node)

    def _bind_each(self, node: ast.AST) -> None:
        match node:
            case ast.For(target=target, iter=values) | ast.comprehension(target=target, iter=values):
                self._each(self.scopes[node], target, values)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for it in node.decorator_list:
                    if isinstance(it, ast.Call) and getattr(it.func, "attr", "") == "parametrize" and len(it.args) > 1:
                        self._each(node, _names_of(it.args[0]), it.args[1])

    def _each(self, scope: Scope, target: ast.expr, values: ast.expr) -> None:
        for element in self._elements(scope, values):
            self._unpack(scope, target, element)

    def _unpack(self, scope: Scope, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Name(id=name), _:
                self.bindings.setdefault((scope, name), []).append(value)
            case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), (ast.Tuple(elts=values) | ast.List(elts=values))):
                for one, its in zip(targets, values, strict=False):
                    self._unpack(scope, one, its)
            case (ast.Tuple(elts=targets), ast.Call(func=ast.Attribute(attr="param"), args=values)):
                for one, its in zip(targets, values, strict=False):
                    self._unpack(scope, one, its)
            case (ast.Tuple(elts=targets), _):
                for one in targets:
                    self._unpack(scope, one, value)

    def _elements(self, scope: Scope, values: ast.expr, seen: frozenset[str] = frozenset()) -> Iterator[ast.expr]:
        """The members of a literal to iterate over, or of the literal that a name stands for."""
        match values:
            case ast.List(elts=found) | ast.Tuple(elts=found) | ast.Set(elts=found):
                for it in found:
                    yield from self._elements(scope, it.value, seen) if isinstance(it, ast.Starred) else [it]
            case ast.Dict(keys=keys):
                yield from (it for it in keys if it is not None)
            case ast.ListComp(elt=it) | ast.GeneratorExp(elt=it) | ast.SetComp(elt=it):
                yield it
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                yield from self._elements(scope, left, seen)
                yield from self._elements(scope, right, seen)
            case ast.Call(func=ast.Attribute(attr="items" | "values" as what, value=mapping)):
                for it in self._values(scope, mapping):
                    if isinstance(it, ast.Dict):
                        pairs = zip(it.keys, it.values, strict=True)
                        yield from (
                            ast.Tuple([key, value]) if what == "items" and key is not None else value
                            for key, value in pairs
                        )
            case ast.Name(id=name) if name not in seen:
                for it in self._values(scope, values):
                    yield from self._elements(scope, it, seen | {name})

    def _values(self, scope: Scope, node: ast.expr) -> list[ast.expr]:
        """What a name was bound to, in its function or in the module; else the node itself."""
        if not isinstance(node, ast.Name):
            return [node]
        while True:
            found = self.bindings.get((scope, node.id), []) or list(self._arguments(scope, node.id))
            if found or scope is self.tree:
                return found
            scope = self.scopes[scope]

    def _arguments(self, scope: Scope, name: str) -> Iterator[ast.expr]:
        """What the calls of a function pass for one of its parameters."""
        if isinstance(scope, ast.Module):
            return
        names = [it.arg for it in [*scope.args.posonlyargs, *scope.args.args]]
        for call in self.calls.get(scope.name, []):
            skipped = 1 if names[:1] == ["self"] else 0
            if name in names and 0 <= (place := names.index(name) - skipped) < len(call.args):
                yield call.args[place]
            yield from (it.value for it in call.keywords if it.arg == name)

    def texts(self, node: ast.expr, scope: Scope | None = None, seen: frozenset[str] = frozenset()) -> Iterator[Pin]:
        """The literals in an expression, and those that its names stand for."""
        scope = scope or self.scopes[node]
        match node:
            case ast.Constant(value=str()) | ast.JoinedStr() | ast.BinOp(op=ast.Add()):
                yield Pin(node.lineno, "".join(it if isinstance(it, str) else BREAK for it in _parts(node)))
                for it in _parts(node):
                    if isinstance(it, ast.expr):
                        yield from self.texts(it, scope, seen)
            case ast.Name(id=name) if name not in seen:
                for it in self._values(scope, node):
                    yield from self.texts(it, self.scopes.get(it, scope), seen | {name})
            case ast.Name() | ast.Attribute() | ast.Compare() | ast.Lambda():
                pass
            case ast.Call(func=ast.Attribute(attr="escape"), args=[it]) | ast.Subscript(value=it):
                yield from self.texts(it, scope, seen)
            case ast.Dict(values=values) | ast.List(elts=values) | ast.Tuple(elts=values) | ast.Set(elts=values):
                for it in values:
                    yield from self.texts(it, scope, seen)
            case ast.IfExp(body=one, orelse=other):
                yield from self.texts(one, scope, seen)
                yield from self.texts(other, scope, seen)

    def is_text(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        """Whether an expression is the text of an error, or what a program prints."""
        match node:
            case ast.Call(func=ast.Name(id=name)):
                return name in TEXT_CALLS
            case ast.Attribute(attr=name, value=value):
                return name in TEXT_ATTRIBUTES or self.is_text(value, seen)
            case ast.Call(func=value) | ast.Subscript(value=value):
                return self.is_text(value, seen)
            case ast.Name(id=name):
                bound = self._values(self.scopes[node], node) if name not in seen and node in self.scopes else []
                return name in TEXT_NAMES or any(self.is_text(it, seen | {name}) for it in bound)
        return False

    def pins(self) -> Iterator[Pin]:
        for node in ast.walk(self.tree):
            match node:
                case ast.keyword(arg="match", value=value):
                    yield from self.texts(value)
                case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() | ast.Eq() | ast.NotEq()], comparators=[right]):
                    yield from self._compared(left, right)
                case ast.Call(func=ast.Attribute(attr=name, value=value), args=[*arguments]) if name in SEARCHES:
                    if self.is_text(value):
                        yield from (pin for it in arguments for pin in self.texts(it))
                    elif arguments[1:] and self.is_text(arguments[1]):
                        yield from self.texts(arguments[0])

    def _compared(self, left: ast.expr, right: ast.expr) -> Iterator[Pin]:
        if isinstance(left, ast.Tuple) and isinstance(right, ast.Tuple):
            for one, other in zip(left.elts, right.elts, strict=False):
                yield from self._compared(one, other)
        for text, other in [(left, right), (right, left)]:
            if self.is_text(text):
                yield from self.texts(other)


def _names_of(names: ast.expr) -> ast.expr:
    """The names of a parametrization, as the target of an assignment."""
    if isinstance(names, ast.Constant):
        parts = [ast.Name(it.strip()) for it in str(names.value).split(",")]
    else:
        parts = [ast.Name(it.value) for it in getattr(names, "elts", []) if isinstance(it, ast.Constant)]
    return parts[0] if len(parts) == 1 else ast.Tuple(parts)


def _parts(node: ast.expr) -> list[str | ast.expr]:
    """A text, an f-string or a sum of both as its literal texts and the expressions between them."""
    match node:
        case ast.Constant(value=str() as text):
            return [text]
        case ast.FormattedValue(value=value):
            return [value]
        case ast.JoinedStr(values=values):
            return [part for it in values for part in _parts(it)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _parts(left) + _parts(right)
    return [node]


def pins(source: str) -> list[Pin]:
    """The literals of a test module that stand for the text of an error or for what a program prints, by line.

    They are the arguments `match=`, the literals compared with the text of an error or of an output, and those that
    such a text is searched for. Names are followed to assignments, loops, parametrizations and the calls of helpers.
    """
    return sorted(set(_Module(ast.parse(source)).pins()))
