"""Builds a `DedupJob` from command-line options.

Options that the user did not pass are left out, so the job's defaults apply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from fencepost.cli.terminal import quit_at_once, usage_errors
from fencepost.errors import PolicyError

if TYPE_CHECKING:
    from fencepost.lake import DedupJob
    from fencepost.policy import Policy

_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def make_job(source: Sequence[str], state: str, sink: str, policy: Policy, options: dict[str, Any]) -> DedupJob:
    """Build the job. `options`: maps arguments to values, None if not passed. Raises a usage error."""
    with quit_at_once():
        from fencepost.lake import DedupJob, LocalEngine

    given = {name: value for name, value in options.items() if value is not None}
    if "threads" in given:
        given["engine"] = LocalEngine(given.pop("threads"))
    if given.get("keep_versions") == "all":
        given["keep_versions"] = None  # for the job, None is all
    with usage_errors(PolicyError, ValueError):
        return DedupJob(source[0] if len(source) == 1 else source, state, sink, policy=policy, **given)


def number_or_all(name: str, text: str | None) -> int | str | None:
    """Parse the value of option `name`: a number or "all". Raises a usage error."""
    if text is None or text == "all":
        return text
    if not text.isdecimal():
        raise typer.BadParameter(f"{name} {text}: expected a number, or all")
    return int(text)


def milliseconds(text: str | None) -> int | None:
    """Parse a duration such as "7d", "12h", "30m", "45s" or "500ms". Raises a usage error."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text)
    if match is None:
        raise typer.BadParameter(f"expected a duration such as 7d, 12h, 30m, 45s or 500ms, found '{text}'")
    return int(match[1]) * _MILLISECONDS[match[2]]
