"""The page of advice: the recommendation and its reasons, the data's properties, and the effect of each policy."""

from __future__ import annotations

from typing import Any

from fencepost.pages.charts import Chart
from fencepost.pages.drawings import bars
from fencepost.pages.page import Command, Page, Section
from fencepost.pages.tables import Table, table_of
from fencepost.words import plural

VERDICTS = {
    "ACCEPTED": "Accepted",
    "UNTRACKED": "Without a producer",
    "DUPLICATE": "Duplicate",
    "OUT_OF_ORDER": "Out of order",
    "FENCED": "Fenced",
}
COLORS = {
    "ACCEPTED": "rows",
    "UNTRACKED": "soft",
    "DUPLICATE": "duplicates",
    "OUT_OF_ORDER": "refused",
    "FENCED": "stale",
}


def advice_page(advice: Any) -> Page:
    """Return the page of an `Advice`."""
    part = "all" if advice.is_all else "the first"
    facts = [("Rows read", f"{part} {advice.rows:,}"), ("Columns", ", ".join(advice.policy.columns.names))]
    sections = [_recommended(advice), _shape(advice), _policies(advice)]
    return Page("Advice", advice.source or "rows in memory", facts, sections)


def _recommended(advice: Any) -> Section:
    reasons = Table(
        "Reasons",
        ["what", "why"],
        [it.split(": ", 1) for it in advice.reasons],
        len(advice.reasons),
        kinds={"why": "text"},
    )
    figure = advice.reasons[0].partition(":")[0]
    answer = "is the policy to begin with. The command below has all options."
    commands = [Command("Write a copy without repeats by this policy", advice.command)]
    return Section("recommended", "What is recommended?", figure, answer, "note", tables=[reasons], commands=commands)


def _shape(advice: Any) -> Section:
    rows = [[it.question, it.answer, it.evidence] for it in advice.facts]
    table = Table(
        "What the data looks like",
        ["question", "answer", "evidence"],
        rows,
        len(rows),
        kinds=dict.fromkeys(("answer", "evidence"), "text"),
    )
    known = {it.question: it.answer for it in advice.facts}
    order = "in order" if known["Do rows come out of order?"] == "no" else "out of order"
    twice = "each of them once" if known["Do rows come twice?"] == "no" else "some of them twice"
    contiguous = known["Are sequences contiguous?"]
    answer = f"Rows come {order}, {twice}. Sequences are contiguous: {contiguous}."
    figure = order.capitalize()
    return Section("shape", "What does the data look like?", figure, answer, "note", tables=[table])


def _policies(advice: Any) -> Section:
    found = advice.policies
    kinds = {name: said for name, said in VERDICTS.items() if name in found.column_names}
    rows = [(row["policy"], {name: row[name] for name in kinds}) for row in found.to_pylist()]
    counts = dict.fromkeys([*kinds, "missing", "stale"], "count")
    table = table_of("Rows by verdict and policy", found, counts)
    kept = [sum(row.get(name, 0) for name in ("ACCEPTED", "UNTRACKED")) for _, row in rows]
    chart = Chart(
        "policies",
        "Rows by verdict and policy",
        "Each bar has all rows that were read.",
        "Bars by policy: " + ", ".join(f"{name} keeps {count:,}" for (name, _), count in zip(rows, kept, strict=True)),
        bars(rows, kinds, COLORS),
        table,
        ("wide", "narrow"),
    )
    least, most = min(kept), max(kept)
    answer = f"keep {least:,} to {most:,} of these rows." if least < most else f"keep {most:,} rows each."
    figure = plural(len(rows), "policy", "policies")
    return Section("policies", "What does each policy do?", figure, answer, "note", [chart])
