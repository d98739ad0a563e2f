"""The aligned plan: scans, judges and writes groups of files in one task each, if every key is in one group.

Each task judges its files without other files and without the state, writes what it keeps, and claims the kept
positions: a few ranges per key, which go through the exchange in place of the spans. If every claim is accepted there,
no other file and no earlier run has these rows, so the tasks kept what any plan would have kept. Otherwise their output
is discarded, and the run continues with the exchange of spans.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

import fencepost
from fencepost import StateTable, Verdict
from fencepost.lake.judge import Judged, add_row_figures
from fencepost.lake.refused import merge_refused, refused_ranges, write_refused
from fencepost.lake.scan import FILE, LENGTH, ROW, Exchange, ScanItem, Scanned, deal_spans, scan
from fencepost.lake.write import Places, Rejects, WriteItem, Written, write
from fencepost.policy import Policy
from fencepost.state.scratch import Scratch


@dataclass(frozen=True, kw_only=True)
class AlignItem:
    scan: ScanItem
    rejects: Rejects
    may_link: bool
    tells_schemas: bool


@dataclass(frozen=True, kw_only=True)
class Aligned:
    scanned: Scanned
    """Its exchanges contain claims."""
    written: Written | None = None
    problem: str = ""
    """Why these files cannot be judged alone. Nothing was written then."""
    refused: dict[str, int] = field(default_factory=dict)
    """Number of refused rows by verdict."""
    stale_epoch: int = 0
    stale: list[pa.Table] = field(default_factory=list)


def can_align(policy: Policy, timestamp: bool, order_by: tuple[str, ...]) -> str:
    """Return why a file's verdicts may depend on other files' rows beyond accepted positions; "" if they do not."""
    if policy.admit != "any" or policy.epochs == "fence" or policy.max_jump is not None or policy.reach is not None:
        return f"verdicts of policy {policy.name or policy.rules} depend on the order of all rows"
    if timestamp:
        return "timestamps are kept, and claims have none"
    return "rows are put in an order first" if order_by else ""


def align(places: Places, item: AlignItem) -> Aligned:
    """Scan, judge and write a group of files; see the module's description.

    Memory: the table of the files' keys. Raises BatchError, ChangedError, SourceError.
    """
    reading, scratch = item.scan.reading, places.scratch
    in_one = dataclasses.replace(item.scan, reading=dataclasses.replace(reading, shards=1))
    scanned = scan(places.storage, scratch, in_one)
    table, judged = StateTable(reading.policy), Judged()
    refused_rows = []
    for exchange in scanned.exchanges:
        (data,) = scratch.read_ranges([(exchange.name, 0, int(exchange.bytes[0]))])
        spans = pa.Table.from_batches([pa.ipc.read_record_batch(data, exchange.schema)])
        verdicts = table.apply_spans(spans, LENGTH, reading.policy.columns)
        refused_rows.append(refused_ranges(spans, np.asarray(pa.array(verdicts.verdict))))
        add_row_figures(verdicts, judged)
    claims, problem = _claims(table, item.scan, judged.border)
    if problem:
        return Aligned(scanned=scanned, problem=problem)
    scanned.exchanges = [_deal(claims, item.scan, scratch)] if len(claims) else []
    return Aligned(
        scanned=scanned,
        written=_write(places, item, scanned, [it for it in refused_rows if len(it)]),
        refused={name: count for name, count in judged.counts.items() if name != Verdict.ACCEPTED.name},
        stale_epoch=judged.stale_epoch,
        stale=judged.stale,
    )


def _write(places: Places, item: AlignItem, scanned: Scanned, refused_rows: list[pa.Table]) -> Written:
    refused = write_refused(places.scratch, merge_refused(refused_rows))
    return write(
        places,
        WriteItem(
            files=scanned.files,
            first=scanned.first,
            rows=scanned.rows,
            footer_crc=scanned.footer_crc,
            is_read=scanned.is_read,
            refused_rows=[refused.all()] if refused else [],
            rejects=item.rejects,
            drops_conflicts=False,
            may_link=item.may_link,
            tells_schemas=item.tells_schemas,
        ),
    )


def _claims(table: StateTable, item: ScanItem, border: int) -> tuple[pa.Table, str]:
    """Return the content of the table's entries as spans, or the reason why they have no such form."""
    policy = item.reading.policy
    entries = pa.table(table.entries())
    if not len(entries) and not border:  # without entries, the table does not know the parts of keys
        return pa.table({}), ""
    first, last = entries["first"].to_numpy(), entries["last"].to_numpy()
    wrap = policy.wrap
    if border or (wrap is not None and (first.min() < 0 or last.max() >= wrap)):
        return pa.table({}), "sequences pass the wrap"
    of_entry, low, high = _intervals(entries, first, last)
    length = high - low + 1
    if length.max() > 2**32 - 1:
        return pa.table({}), "a claim has more than 2^32 rows"
    # otherwise each line would contain all holes of its entry
    lines = entries.drop_columns(["holes"]).take(pa.array(of_entry))
    columns: dict[str, Any] = {}
    for role in ("pid", "partition"):
        names = policy.columns.parts(role)
        for number, name in enumerate(names):
            columns[name] = lines[role if len(names) == 1 else f"{role}_{number}"]
    if policy.columns.epoch is not None:
        columns[policy.columns.epoch] = lines["epoch"]
    columns[policy.columns.seq] = pa.array(low)
    columns |= {
        LENGTH: pa.array(length.astype(np.uint32)),
        FILE: pa.array(np.full(len(low), item.first, np.uint32)),
        ROW: pa.array(np.zeros(len(low), np.uint64)),
    }
    return pa.table(columns), ""


Positions = npt.NDArray[np.int64]


def _intervals(entries: pa.Table, first: Positions, last: Positions) -> tuple[Positions, Positions, Positions]:
    """Return (index of the entry, first position, last position) of the intervals between holes."""
    chunks = [chunk.flatten() for chunk in entries["holes"].chunks]
    holes = pa.concat_arrays(chunks) if chunks else None
    counts = pa.compute.list_value_length(entries["holes"]).to_numpy()
    hole_first = holes.field("first").to_numpy() if holes is not None else np.zeros(0, np.int64)
    hole_last = holes.field("last").to_numpy() if holes is not None else np.zeros(0, np.int64)
    of_hole = np.repeat(np.arange(len(first)), counts)
    # Each entry has one interval more than holes: one before the first, and one after each.
    places = np.concatenate([np.arange(len(first)), of_hole])
    lows = np.concatenate([first, hole_last + 1])
    highs = np.concatenate([hole_first - 1, last])
    order = np.lexsort((lows, places))
    order_highs = np.lexsort((highs, np.concatenate([of_hole, np.arange(len(first))])))
    lows, highs = lows[order], highs[order_highs]
    is_held = lows <= highs  # excludes the missing head if sequences begin at zero
    return places[order][is_held], lows[is_held], highs[is_held]


def _deal(claims: pa.Table, item: ScanItem, scratch: Scratch) -> Exchange:
    """Write the claims by shard as an exchange file."""
    reading = item.reading
    shards = pa.array(fencepost.shards(claims, reading.shards, columns=reading.policy.columns)).to_numpy()
    return deal_spans(scratch, claims, shards)
