"""Finds, for the repeats of a shard, the rows of the same run that they repeat, and repeats that cannot be copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost import Verdict
from fencepost.lake.scan import LENGTH
from fencepost.policy import Policy
from fencepost.resets import ROWS_TOGETHER, UNKNOWN, KeptRows, Numbers, milliseconds, newest_before
from fencepost.state.changelog import numbered


@dataclass(frozen=True)
class Stretches:
    """Consecutive rows of one span with the same verdict, in the order of the rows."""

    spans: Numbers
    """The index of the span."""
    offsets: Numbers
    """The number of earlier rows of the span."""
    counts: Numbers
    verdicts: npt.NDArray[np.uint8]

    def take(self, wanted: npt.NDArray[np.bool_]) -> Stretches:
        return Stretches(self.spans[wanted], self.offsets[wanted], self.counts[wanted], self.verdicts[wanted])

    @staticmethod
    def of(spans: pa.Table, codes: npt.NDArray[np.uint8], verdicts: list[Verdict]) -> Stretches:
        """Return the stretches of some verdicts. `codes`: a verdict per row of the spans."""
        is_wanted = np.zeros(len(Verdict), bool)
        is_wanted[verdicts] = True
        lengths = spans[LENGTH].to_numpy().astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        if len(codes) == len(starts):  # every span has one row
            places = np.flatnonzero(is_wanted[codes])
            return Stretches(places, np.zeros(len(places), np.int64), np.ones(len(places), np.int64), codes[places])
        # A stable sort of two sorted lists merges them.
        cuts = np.concatenate([starts, np.flatnonzero(codes[1:] != codes[:-1]) + 1])
        cuts.sort(kind="stable")
        cuts = cuts[np.append(True, cuts[1:] != cuts[:-1])]
        counts = np.diff(np.append(cuts, len(codes)))
        wanted = is_wanted[codes[cuts]]
        cuts, counts = cuts[wanted], counts[wanted]
        places = np.searchsorted(starts, cuts, side="right") - 1
        return Stretches(places, cuts - starts[places], counts, codes[cuts])


NOT_HERE, UNCLEAR = -1, -2


@dataclass(frozen=True)
class Repeats:
    """DUPLICATE rows of a shard, some at a time, row by row."""

    stretch: Numbers
    """The index of each row's stretch."""
    offsets: Numbers
    """The number of earlier rows of the stretch."""
    kept: Numbers
    """The index of the stretch that contains the row it repeats. NOT_HERE if no earlier one does; UNCLEAR if the key's
    sequences wrapped within the run."""
    kept_offsets: Numbers


def find_repeats(spans: pa.Table, some: Stretches, policy: Policy) -> Iterator[Repeats]:
    """Yield the DUPLICATE rows of `some` (accepted and duplicate stretches), with the rows of this run that they
    repeat."""
    groups = numbered(pa.table(key_columns(spans, policy, by_epoch=True)))[some.spans]
    seqs = spans[policy.columns.seq].to_numpy().astype(np.int64)[some.spans] + some.offsets
    if policy.wrap is not None:
        seqs %= policy.wrap
    accepted = np.flatnonzero(some.verdicts == Verdict.ACCEPTED)
    kept_of = KeptRows(*_unwrapped(groups[accepted], seqs[accepted], some.counts[accepted], policy.wrap))
    duplicates = np.flatnonzero(some.verdicts == Verdict.DUPLICATE)
    ends = np.cumsum(some.counts[duplicates])
    for first in range(0, int(ends[-1]) if len(ends) else 0, ROWS_TOGETHER):
        rows = np.arange(first, min(first + ROWS_TOGETHER, int(ends[-1])))
        at = np.searchsorted(ends, rows, side="right")
        stretch = duplicates[at]
        offsets = rows - (ends - some.counts[duplicates])[at]
        wanted = seqs[stretch] + offsets
        if policy.wrap is not None:
            wanted %= policy.wrap
        places, behind = kept_of.find(groups[stretch], wanted)
        is_second = places >= len(accepted)  # the part of a stretch after the wrap
        if is_second.any():
            split = np.flatnonzero(_is_wrapped(seqs[accepted], some.counts[accepted], policy.wrap))
            of = split[places[is_second] - len(accepted)]
            behind[is_second] += policy.wrap - seqs[accepted[of]]
            places[is_second] = of
        kept = np.where(places >= 0, accepted[places] if len(accepted) else NOT_HERE, NOT_HERE)
        kept[kept > stretch] = NOT_HERE  # accepted later, in the next lap
        kept[np.isin(groups[stretch], kept_of.unclear)] = UNCLEAR
        yield Repeats(stretch, offsets, kept, behind)


def _is_wrapped(seqs: Numbers, counts: Numbers, wrap: int | None) -> npt.NDArray[np.bool_]:
    return np.zeros(len(seqs), bool) if wrap is None else seqs + (counts - 1) >= wrap


def _unwrapped(groups: Numbers, seqs: Numbers, counts: Numbers, wrap: int | None) -> tuple[Numbers, Numbers, Numbers]:
    """Split ranges at the wrap. The parts after it are appended at the end."""
    is_cut = _is_wrapped(seqs, counts, wrap)
    if wrap is None or not is_cut.any():
        return groups, seqs, counts
    before = np.where(is_cut, wrap - seqs, counts)
    return (
        np.concatenate([groups, groups[is_cut]]),
        np.concatenate([seqs, np.zeros(int(is_cut.sum()), np.int64)]),
        np.concatenate([before, (counts - before)[is_cut]]),
    )


def find_resets(
    spans: pa.Table, codes: npt.NDArray[np.uint8], ages: pa.Table, policy: Policy, rows_min: int
) -> pa.Table:
    """Return entries that seem to restart their numbers: those with `rows_min` retimed repeats (`fencepost.resets`).

    `codes`: a verdict per row of the spans; `ages`: key, epoch and last timestamp of every entry before the run.
    Returns key columns, epoch if entries have one, rows, duplicates and retimed, unordered.
    """
    columns = policy.columns
    keys = key_columns(spans, policy, by_epoch=policy.epochs == "key")
    tables = [pa.table(keys)]
    if len(ages):  # an empty table does not know the parts of keys
        tables.append(pa.table([ages[name].cast(column.type) for name, column in keys.items()], names=list(keys)))
    numbers = numbered(pa.concat_tables(tables, promote_options="permissive"))
    of_span, of_entry = numbers[: len(spans)], numbers[len(spans) :]
    count = int(numbers.max()) + 1
    last = np.full(count, UNKNOWN)
    if len(ages):
        last[of_entry] = ages["last_timestamp"].to_numpy()
    some = Stretches.of(spans, codes, [Verdict.ACCEPTED, Verdict.DUPLICATE])
    is_duplicate = some.verdicts == Verdict.DUPLICATE
    has_repeats = np.zeros(count, bool)
    has_repeats[of_span[some.spans[is_duplicate]]] = True
    some = some.take(has_repeats[of_span[some.spans]])
    is_duplicate = some.verdicts == Verdict.DUPLICATE
    # A column of `order_by` has the type of the file.
    times = milliseconds(spans[columns.timestamp or "timestamp"]).to_numpy()[some.spans]
    entries = of_span[some.spans]
    newest, _, _ = newest_before(entries, np.where(is_duplicate, UNKNOWN, times), lambda wanted: last[wanted])
    is_newer = (newest != UNKNOWN) & (times > newest)
    retimed = np.zeros(count, np.int64)
    for repeats in find_repeats(spans, some, policy):
        is_other = np.where(repeats.kept >= 0, times[repeats.kept] != times[repeats.stretch], is_newer[repeats.stretch])
        retimed += np.bincount(entries[repeats.stretch[is_other]], minlength=count)
    suspects = np.flatnonzero(retimed >= rows_min)
    firsts = np.full(count, len(spans))
    np.minimum.at(firsts, of_span, np.arange(len(spans)))
    lengths = spans[LENGTH].to_numpy().astype(np.int64)
    figures = {
        "rows": np.bincount(of_span, lengths, count)[suspects],
        "duplicates": np.bincount(entries[is_duplicate], some.counts[is_duplicate], count)[suspects],
        "retimed": retimed[suspects],
    }
    found = pa.table(keys).take(pa.array(firsts[suspects]))
    for name, values in figures.items():
        found = found.append_column(name, pa.array(values.astype(np.int64)))
    return found


def key_columns(spans: pa.Table, policy: Policy, by_epoch: bool) -> dict[str, pa.ChunkedArray]:
    """Return the key columns, and the epoch if wanted and read, with the names of `StateTable.entries`."""
    columns = policy.columns
    keys: dict[str, pa.ChunkedArray] = {}
    for role in ("pid", "partition"):
        names = columns.parts(role)
        keys |= {role if len(names) == 1 else f"{role}_{place}": spans[name] for place, name in enumerate(names)}
    if columns.epoch is not None and by_epoch and policy.epochs != "ignore":
        keys["epoch"] = spans[columns.epoch]
    return keys
