"""Formats command lines that a reader can copy, quoted for a shell."""

from __future__ import annotations

import dataclasses
import shlex

from fencepost.policy import Columns, Policy


def command(*words: str) -> str:
    """Join words to a command line, quoted where necessary."""
    return " ".join(it if it in _PLACES else shlex.quote(it) for it in ("fencepost", *words))


def place(source: str | None) -> str:
    """Return the source for a command line, or a placeholder for rows in memory and for several sources."""
    return "SOURCE" if source is None or ", " in source else source


STATE, SINK = "STATE", "CLEAN"
"""Placeholders for the reader's state and sink."""
_PLACES = {STATE, SINK}


def dedup(source: str, policy: Policy, *words: str) -> str:
    """Return the command line of a job with this policy. A policy that depends on the order gets that of the files."""
    order = ["--file-order"] if policy.depends_on_order else []
    return command("dedup", source, STATE, SINK, *options(policy), *words, *order)


def options(policy: Policy) -> list[str]:
    """Return the command-line options for this policy and its columns."""
    base = Policy.any_order()
    words = []
    if policy.name is not None and policy.name != "any_order":
        words += ["--policy", policy.name]
        base = getattr(Policy, policy.name)()
    for field in dataclasses.fields(Policy):
        value = getattr(policy, field.name)
        if field.name != "columns" and value != getattr(base, field.name):
            words += ["--set", f"{field.name}={'none' if value is None else value}"]
    known = Columns(epoch=None) if policy.epochs == "ignore" else Columns()
    if policy.name is not None:
        known = base.columns
    return words + column_options(policy.columns, known)


def column_options(columns: Columns, known: Columns) -> list[str]:
    """Return the options for columns that differ from `known`."""
    words: list[str] = []
    for role in ("pid", "partition"):
        if columns.parts(role) != known.parts(role):
            parts = [word for name in columns.parts(role) for word in (f"--{role}", name)]
            words += parts or ["--no-partition"]
    for role in ("epoch", "seq", "timestamp"):
        name = getattr(columns, role)
        if name is not None and name != getattr(known, role):
            words += [f"--{role}", name]
    return words
