"""Describes what each version of a state did, by name, for people, programs and pages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fencepost._native import presets
from fencepost.state.decision import Lists, kept_in

if TYPE_CHECKING:
    from fencepost.state.folding import Folded
    from fencepost.state.versions import State


_OF_COMMITS = ("create", "bounds")
"""What `Decision.sink_version` has for the commit to a Delta table: a schema, and the bounds of each output."""
_OF_RUNS = ("missing_opened", "missing_closed", "seconds")
"""Figures of a run in `Decision.report`: the missing ranges that it opened and closed, and the seconds until its
decision. None for other kinds of versions, and in states of earlier versions of this package."""


def explained(state: State, last: int) -> list[dict[str, Any]]:
    """Describe the newest versions, the oldest first, without folded ones."""
    newest = state.decided()
    first = max(state.cached_floor(), newest - last) + 1
    return [explain(state, version, is_whole=False) for version in range(first, newest + 1)]


def about(state: State) -> dict[str, Any]:
    """Describe the state's settings and progress."""
    settings = state.settings()
    assert settings is not None, "a state that opens has settings"
    return {
        "state": state.uri,
        "source": settings.source,
        "sink": settings.sink,
        "layout": settings.layout,
        "policy": _policy_name(settings.policy),
        "columns": settings.columns,
        "scope": settings.scope,
        "keeps": settings.keep,
        "made_by": f"fencepost {settings.fencepost}",
        "versions": state.decided(),
        "unfinished": list(state.unfinished()),
        "folded": _totals(state.folded()),
    }


def _totals(folded: Folded | None) -> dict[str, Any] | None:
    """Return the totals of folded versions."""
    if folded is None:
        return None
    names = ("abandoned", "files", "rows", "kept")
    return {"versions": folded.version} | {name: getattr(folded, name) for name in names} | folded.counts


def explain(state: State, version: int, is_whole: bool = True) -> dict[str, Any]:
    """Describe what a version did and why, by the log if it is collected. `is_whole`: with every file."""
    if state.is_collected(version):
        return _explain_collected(state, version)
    decision = state.version(version)
    inputs, outputs = decision.inputs, decision.outputs
    rows, kept = sum(inputs.rows), kept_in(decision.counts)
    seen = {name: it for name, it in (decision.sink_version or {}).items() if name not in _OF_COMMITS}
    details: dict[str, Any] = {
        "version": version,
        "kind": decision.kind,
        "status": state.status(version),
        "builds_on": decision.builds_on,
        "decided": _time(decision.decided_ms),
        "plan": decision.plan or None,
        "report": _others(decision.report),
        "source_position": decision.source_position,
        "files": len(inputs),
        "bytes": sum(inputs.bytes),
        "rows": rows,
        "counts": dict(decision.counts),
        "kept": kept,
        "not_kept": rows - kept,
        "missing_ranges": decision.missing_ranges,
        "missing_rows": decision.missing_rows,
        "missing_open": decision.missing_open,
        **_figures(decision.report),
        "stale_epoch": decision.stale_epoch,
        "border": decision.border,
        "quarantined": len(decision.quarantined),
        "sink_version": seen or None,
        "written_files": len(outputs),
        "written_rows": sum(outputs.rows),
        "written_bytes": sum(outputs.bytes),
        "shards": len(decision.shards),
        "entries": decision.entries,
        "state_bytes": decision.state_bytes,
        "checksums_kept": sum(decision.checksums.rows) if decision.checksums else None,
        "horizon_ms": decision.horizon_ms,
        "policy": _policy_name(decision.policy),
        "order_by": decision.order_by,
        "attempt": decision.attempt,
        "made_by": f"fencepost {decision.fencepost}",
    }
    if is_whole:
        details["inputs"] = _only(inputs, "path", "rows", "bytes")
        details["quarantined_files"] = _only(decision.quarantined, "path", "reason", "bytes")
        details["outputs"] = _only(outputs, "name", "rows", "bytes")
        details["side_files"] = _only(decision.side_files, "name", "rows", "bytes")
    return details


def _explain_collected(state: State, version: int) -> dict[str, Any]:
    found = state.summary(version)
    unknown = dict.fromkeys(("missing_rows", "missing_open", "stale_epoch"))
    names = ("version", "kind", "status", "builds_on", "files", "rows", "counts", "entries", "state_bytes")
    kept = kept_in(found.counts)  # not `Version.kept`, which is 0 for a seed
    return {
        **{name: getattr(found, name) for name in names},
        "decided": _time(found.decided_ms),
        "kept": kept,
        "not_kept": found.rows - kept,
        **unknown,
        **_figures(found.report),
        "report": _others(found.report),
        "collected": "older than what is kept to go back to, so only this is known",
    }


def _figures(report: dict[str, Any]) -> dict[str, Any]:
    return {name: report.get(name) for name in _OF_RUNS}


def _others(report: dict[str, Any]) -> dict[str, Any] | None:
    return {name: it for name, it in report.items() if name not in _OF_RUNS} or None


def _time(ms: int) -> str | None:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds") if ms else None


def _policy_name(rules: str) -> str:
    """Return the name of the preset with these rules, or the rules."""
    return next((name for name, preset, *_ in presets() if preset == rules), rules)


def _only(files: Lists, *names: str) -> list[dict[str, Any]]:
    return [{name: it[name] for name in names} for it in files.each()]
