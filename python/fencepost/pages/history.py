"""The page of a state: what each run kept and refused, what it skipped, how long it took, and how the state grew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fencepost.pages.charts import Chart
from fencepost.pages.commands import command
from fencepost.pages.drawings import over_versions
from fencepost.pages.page import Command, Page, Section
from fencepost.pages.tables import Table, share, size
from fencepost.words import plural

COUNTS = (
    "files", "rows", "kept", "not_kept", "missing_rows", "missing_open", "missing_opened", "missing_closed",
    "stale_epoch", "entries", "state_bytes", "seconds",
)  # fmt: skip
COLUMNS = ("version", "kind", "status", "decided", *COUNTS)
NAMES = {
    "decided": "decided (UTC)",
    "not_kept": "not kept",
    "missing_rows": "missing",
    "missing_open": "missing in the state",
    "missing_opened": "gaps opened",
    "missing_closed": "gaps closed",
    "stale_epoch": "stale",
    "state_bytes": "state bytes",
}
PANELS = {
    "kept": ("Rows kept", "refused"),
    "not_kept": ("Rows not kept", "duplicates"),
    "missing_rows": ("Rows missing after each run", "missing"),
    "missing_open": ("Rows missing in the whole state", "missing"),
    "missing_opened": ("Gaps that each run opened", "missing"),
    "missing_closed": ("Gaps that each run closed", "missing"),
    "state_bytes": ("Bytes of the state", "rows"),
    "seconds": ("Seconds of each run until its decision", "rows"),
}
"""Figures to draw for each version: (name, color)."""


def history_page(about: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]) -> Page:
    """Return the page. `about`: facts about the state by name; `versions`: figures of the newest versions, oldest
    first."""
    counted = _counted(versions)
    return Page(
        "State",
        str(about["state"]),
        [(name.replace("_", " ").capitalize(), _text_of(it)) for name, it in about.items() if name != "state" and it],
        [_kept(versions, counted), _lost(about, counted), _grown(counted), *_seconds(counted)],
        list(_more(counted)),
    )


def _counted(versions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the newest version and those on which it builds.

    The input of the others, which were abandoned or undone, is read again by later ones.
    """
    wanted = next((it["version"] for it in reversed(versions) if it["status"] != "abandoned"), 0)
    found = []
    for it in reversed(versions):
        if it["version"] == wanted:
            found.append(it)
            wanted = it["builds_on"]
    return found[::-1]


def _text_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_text_of(it)}" for name, it in value.items() if it is not None)
    if isinstance(value, list | tuple):
        return ", ".join(map(_text_of, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _kept(versions: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]]) -> Section:
    """`versions`: all, for the table. `counted`: those whose figures count."""
    rows, kept = (sum(it[name] or 0 for it in counted) for name in ("rows", "kept"))
    part = f", {share(kept / rows)}" if rows else ""
    answer = f"were kept by the newest {plural(len(versions), 'version')}, of {rows:,} rows read{part}."
    if len(counted) < len(versions):
        answer += " Versions that were abandoned, or undone by a rollback or a rebase, do not count."
    charts = [_chart(versions, counted)] if len(counted) > 1 else []
    return Section("kept", "What did the runs keep?", f"{kept:,} rows", answer, "note", charts, [_table(versions)])


def _lost(about: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]) -> Section:
    section = partial(Section, "lost", "What was missing?")
    skipped = sum(it["missing_rows"] or 0 for it in versions)
    line = command("state", "export", str(about["state"]), "missing.csv", "--what", "missing")
    still_open = versions[-1]["missing_open"] if versions else None
    commands = [Command("List the gaps that are open now", line)]
    if not skipped and not still_open:
        return section("Nothing", "The rows of each run skip no sequence number.", "good")
    if not skipped:
        answer = "are missing in the whole state. Other versions than those whose figures are known left these gaps."
        return section(f"{still_open:,} rows", answer, "bad", commands=commands)
    worst = max(versions, key=lambda it: it["missing_rows"] or 0)
    answer = (
        f"were missing when the runs ended, most after version {worst['version']}. Later runs may have filled some of "
        "these gaps."
    )
    opened, closed = (sum(it[name] or 0 for it in versions) for name in ("missing_opened", "missing_closed"))
    note = (
        f"Runs opened {plural(opened, 'gap')} and closed {closed:,}. A gap is closed when all its rows have come, when "
        "it is split because some of them have come, or when the policy gives it up."
    )
    return section(f"{skipped:,} rows", answer, "bad", notes=[note] if opened or closed else [], commands=commands)


def _grown(versions: Sequence[Mapping[str, Any]]) -> Section:
    section = partial(Section, "size", "How large is the state?")
    known = [it for it in versions if it["state_bytes"] is not None]
    if not known:
        return section("–", "There is no version yet.", "note")
    first, last = known[0], known[-1]
    sizes = [f"{it['entries'] or 0:,} entries in {size(it['state_bytes'])}" for it in (first, last)]
    answer = f"It has {sizes[1]}. At version {first['version']} it had {sizes[0]}."
    return section(size(last["state_bytes"]), answer, "note")


def _seconds(versions: Sequence[Mapping[str, Any]]) -> Iterator[Section]:
    known = [it for it in versions if it["seconds"] is not None]
    if known:
        last, slowest = known[-1], max(known, key=lambda it: it["seconds"])
        answer = (
            f"is what the run of version {last['version']} took until its decision. The slowest run is that of "
            f"version {slowest['version']}, with {slowest['seconds']:,.2f} seconds."
        )
        yield Section("seconds", "How long do runs take?", f"{last['seconds']:,.2f} seconds", answer, "note")


def _chart(versions: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]]) -> Chart:
    used = {name: panel for name, panel in PANELS.items() if any(it[name] for it in counted)}
    said = ", ".join(f"{name} {counted[-1][key] or 0:,}" for key, (name, _) in used.items())
    return Chart(
        "versions",
        "Each version",
        "One column for each version, the newest to the right.",
        f"Columns by version. The newest: {said}.",
        over_versions(counted, used),
        _table(versions),
        ("wide", "narrow"),
    )


def _table(versions: Sequence[Mapping[str, Any]]) -> Table:
    rows = [[_cell(it, name) for name in COLUMNS] for it in reversed(versions)]
    names = [NAMES.get(name, name) for name in COLUMNS]
    kinds = dict.fromkeys((NAMES.get(it, it) for it in COUNTS), "count")
    return Table("Versions, the newest first", names, rows[:200], len(rows), kinds=kinds)


def _cell(version: Mapping[str, Any], name: str) -> Any:
    value = version.get(name)
    return str(value)[:19].replace("T", " ") if name == "decided" and value else value


def _more(versions: Sequence[Mapping[str, Any]]) -> Iterator[Section]:
    stale = [it for it in versions if it["stale_epoch"]]
    if stale:
        count = sum(it["stale_epoch"] for it in stale)
        versions_with = plural(len(stale), "version")
        answer = f"are of replaced epochs, in {versions_with}. The last of these is version {stale[-1]['version']}."
        yield Section("zombies", "Did zombies write?", plural(count, "row"), answer, "bad")
