"""The checks of a run before its decision: every row has a verdict, and nothing looks like a mistake."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]

import fencepost
from fencepost.errors import PolicyError, SourceError
from fencepost.findings import reset_rule
from fencepost.lake.conflicts import joined, listed
from fencepost.lake.judge import Judged
from fencepost.state.decision import Marked, Outputs, kept_in
from fencepost.words import plural

if TYPE_CHECKING:
    from fencepost.lake.found import Found
    from fencepost.lake.run import Run

_NOT_REFUSED = ("ACCEPTED", "UNTRACKED", "DUPLICATE", "CONFLICT")


def check_verdicts(run: Run, found: Found, judged: list[Judged]) -> dict[str, int]:
    """Return the number of rows by verdict, which must add up to the rows read.

    Raises PolicyError for results that a person should check first.
    """
    total = Counter(UNTRACKED=found.untracked) + found.refused
    for shard in judged:
        total.update(shard.counts)
    counts = {verdict.name: total[verdict.name] for verdict in fencepost.Verdict if total[verdict.name]}
    _check_read(run, found)
    rows = int(found.rows.sum())
    if sum(counts.values()) != rows:
        raise AssertionError(f"{rows} rows were read, but the verdicts are {counts}")
    _check_refused(run, counts, rows)
    _check_noted(run, counts.get("ACCEPTED", 0), judged)
    _check_conflicts(run, counts.get("CONFLICT", 0), judged)
    _check_resets(run, judged)
    return counts


def _check_read(run: Run, found: Found) -> None:
    """Later runs must read what this run leaves out."""
    unread = run.source.unread(found, is_rebase=run.is_rebase)
    if unread:
        files = plural(len(unread), "file")
        named = ", ".join(unread[:10])
        text = (
            f"{run.source.place}: cannot read {files}: {named}. This run must read all files, because later runs do "
            "not read them again, and would keep repeats of their rows as new. Repair these files, or remove them from "
            "the source"
        )
        raise SourceError(text, path=f"{run.source.place}/{unread[0]}")


def _check_refused(run: Run, counts: dict[str, int], rows: int) -> None:
    refused = {name: count for name, count in counts.items() if name not in _NOT_REFUSED}
    share = sum(refused.values()) / rows if rows else 0
    if share > run.job.rejected_max:
        listed = ", ".join(f"{count:,} {name}" for name, count in refused.items())
        forgotten = (
            "FORGOTTEN rows are older than the horizon of the state (see max_idle_ms), which no longer knows whether "
            "they are repeats. A higher rejected_max continues without them"
        )
        others = "Check that order_by gives the true order and that the policy fits"
        raise PolicyError(
            f"{share:.1%} of {rows:,} new rows would be refused ({listed}), more than rejected_max="
            f"{run.job.rejected_max:.1%}; nothing was written. {forgotten if 'FORGOTTEN' in refused else others}"
        )
    if run.is_seed and (refused or counts.get("DUPLICATE") or counts.get("CONFLICT")):
        listed = ", ".join(
            f"{count:,} {name}" for name, count in counts.items() if name not in ("ACCEPTED", "UNTRACKED")
        )
        raise SourceError(
            f"{run.source.place}: not clean ({listed}), so no state can be seeded from it; run() writes a clean copy",
            path=run.source.place,
        )


def _check_noted(run: Run, accepted: int, judged: list[Judged]) -> None:
    """Check that each accepted row has a checksum, if checksums are kept."""
    noted = sum(it.kept.noted for it in judged if it.kept is not None)
    if run.checksums is not None and noted != accepted:
        raise AssertionError(f"{accepted} rows were accepted, checksums of {noted} were kept")


def _check_conflicts(run: Run, count: int, judged: list[Judged]) -> None:
    if not count or run.job.on_conflict != "stop":
        return
    rows = plural(count, "row")
    raise PolicyError(
        f"found {rows} with the identity of another row but other content "
        f"({listed(joined([it.conflicts for it in judged]))}); nothing was written. Check whether a "
        "counter restarted, and whether the columns identify a row. compare_content=[columns] leaves out "
        "columns that differ between copies; on_conflict='quarantine' writes such rows to _rejects"
    )


def _check_resets(run: Run, judged: list[Judged]) -> None:
    count = sum(it.reset_keys for it in judged)
    if not count or run.job.on_reset == "report":
        return
    resets = [table for it in judged for table in it.resets if len(table)]
    worst = pa.concat_tables(resets, promote_options="permissive").sort_by([("retimed", "descending")])
    listed = "; ".join(str(line) for line in worst.slice(0, 3).to_pylist())
    keys = plural(count, "key")
    raise PolicyError(
        f"the numbering of {keys} seems to have restarted: {reset_rule(run.job.reset_rows_min)} "
        f"({listed}); nothing was written. If a counter did restart (a topic was recreated, a cluster "
        "rebuilt or a device reset), read the new rows with a second job with its own source, scope, state and sink. "
        "If none did, for example because the timestamps are not those of the events, pass on_reset='report': such "
        "rows then count as duplicates and are not kept"
    )


def check_kept(run: Run, counts: dict[str, int], outputs: Outputs, marked: Marked) -> None:
    """Check that kept rows are written or, if files stay in place, that all others are removed."""
    kept = kept_in(counts)
    refused = sum(counts.values()) - kept
    if not run.job.is_in_place and sum(outputs.rows) != kept:
        raise AssertionError(f"{kept} rows are kept, the outputs have {sum(outputs.rows)}")
    if run.job.is_in_place and sum(marked.refused) != refused:
        raise AssertionError(f"{refused} rows are refused, but {sum(marked.refused)} are removed")
