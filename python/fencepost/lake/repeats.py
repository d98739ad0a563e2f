"""The repeats among the rows of a shard: which rows of the same run they repeat, and which of them are no copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost import Verdict
from fencepost.lake.scan import LENGTH
from fencepost.policy import Policy
from fencepost.resets import ROWS_TOGETHER, UNKNOWN, KeptRows, Numbers, newest_before
from fencepost.state.changelog import numbered


@dataclass(frozen=True)
class Stretches:
    """Rows that follow each other in one run and have one verdict, in the order of the rows."""

    runs: Numbers
    """The place of the run."""
    offsets: Numbers
    """How many rows of the run come before."""
    counts: Numbers
    verdicts: npt.NDArray[np.uint8]

    def take(self, wanted: npt.NDArray[np.bool_]) -> Stretches:
        return Stretches(self.runs[wanted], self.offsets[wanted], self.counts[wanted], self.verdicts[wanted])

    @staticmethod
    def of(runs: pa.Table, codes: npt.NDArray[np.uint8], verdicts: list[Verdict]) -> Stretches:
        """Those of some verdicts. `codes`: a verdict for each row of the runs."""
        is_wanted = np.zeros(len(Verdict), bool)
        is_wanted[verdicts] = True
        lengths = runs[LENGTH].to_numpy().astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        if len(codes) == len(starts):  # runs of one row
            places = np.flatnonzero(is_wanted[codes])
            return Stretches(places, np.zeros(len(places), np.int64), np.ones(len(places), np.int64), codes[places])
        # Both lists are sorted: merging them is what this sort does.
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
    """The DUPLICATE rows of a shard, some at a time, row by row."""

    stretch: Numbers
    """The place of each row's stretch."""
    offsets: Numbers
    """How many rows of the stretch come before it."""
    kept: Numbers
    """The place of the stretch that holds the row it repeats. NOT_HERE where none before it does; UNCLEAR where the
    sequences of its key came round within the run."""
    kept_offsets: Numbers


def find_repeats(runs: pa.Table, some: Stretches, policy: Policy) -> Iterator[Repeats]:
    """The DUPLICATE rows of `some`, accepted and duplicate stretches, and the rows of this run that they repeat."""
    groups = _numbers(runs, policy, by_epoch=True)[some.runs]
    seqs = runs[policy.columns.seq].to_numpy().astype(np.int64)[some.runs] + some.offsets
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
        is_second = places >= len(accepted)  # the part of a stretch behind the wrap
        if is_second.any():
            split = np.flatnonzero(_is_wrapped(seqs[accepted], some.counts[accepted], policy.wrap))
            of = split[places[is_second] - len(accepted)]
            behind[is_second] += policy.wrap - seqs[accepted[of]]
            places[is_second] = of
        kept = np.where(places >= 0, accepted[places] if len(accepted) else NOT_HERE, NOT_HERE)
        kept[kept > stretch] = NOT_HERE  # accepted later: of the lap that follows
        kept[np.isin(groups[stretch], kept_of.unclear)] = UNCLEAR
        yield Repeats(stretch, offsets, kept, behind)


def _is_wrapped(seqs: Numbers, counts: Numbers, wrap: int | None) -> npt.NDArray[np.bool_]:
    return np.zeros(len(seqs), bool) if wrap is None else seqs + (counts - 1) >= wrap


def _unwrapped(groups: Numbers, seqs: Numbers, counts: Numbers, wrap: int | None) -> tuple[Numbers, Numbers, Numbers]:
    """The ranges, each cut where it passes the wrap: the parts behind it follow at the end."""
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
    runs: pa.Table, codes: npt.NDArray[np.uint8], ages: pa.Table, policy: Policy, rows_min: int
) -> pa.Table:
    """The entries that seem to have begun to number anew: those with `rows_min` retimed repeats (`fencepost.resets`).

    `codes`: a verdict for each row of the runs; `ages`: key, epoch and last timestamp of every entry before the first.
    Gives key columns, epoch where entries have one, rows, duplicates and retimed, in no order.
    """
    columns = policy.columns
    keys = key_columns(runs, policy, by_epoch=policy.epochs == "key")
    tables = [pa.table(keys)]
    if len(ages):  # an empty table knows no parts of keys
        tables.append(pa.table([ages[name].cast(column.type) for name, column in keys.items()], names=list(keys)))
    numbers = numbered(pa.concat_tables(tables, promote_options="permissive"))
    of_run, of_entry = numbers[: len(runs)], numbers[len(runs) :]
    count = int(numbers.max()) + 1
    last = np.full(count, UNKNOWN)
    if len(ages):
        last[of_entry] = ages["last_timestamp"].to_numpy()
    some = Stretches.of(runs, codes, [Verdict.ACCEPTED, Verdict.DUPLICATE])
    is_duplicate = some.verdicts == Verdict.DUPLICATE
    has_repeats = np.zeros(count, bool)
    has_repeats[of_run[some.runs[is_duplicate]]] = True
    some = some.take(has_repeats[of_run[some.runs]])
    is_duplicate = some.verdicts == Verdict.DUPLICATE
    entries, times = of_run[some.runs], runs[columns.timestamp or "timestamp"].to_numpy()[some.runs]
    newest, _, _ = newest_before(entries, np.where(is_duplicate, UNKNOWN, times), lambda wanted: last[wanted])
    is_newer = (newest != UNKNOWN) & (times > newest)
    retimed = np.zeros(count, np.int64)
    for repeats in find_repeats(runs, some, policy):
        is_other = np.where(repeats.kept >= 0, times[repeats.kept] != times[repeats.stretch], is_newer[repeats.stretch])
        retimed += np.bincount(entries[repeats.stretch[is_other]], minlength=count)
    suspects = np.flatnonzero(retimed >= rows_min)
    firsts = np.full(count, len(runs))
    np.minimum.at(firsts, of_run, np.arange(len(runs)))
    lengths = runs[LENGTH].to_numpy().astype(np.int64)
    figures = {
        "rows": np.bincount(of_run, lengths, count)[suspects],
        "duplicates": np.bincount(entries[is_duplicate], some.counts[is_duplicate], count)[suspects],
        "retimed": retimed[suspects],
    }
    found = pa.table(keys).take(pa.array(firsts[suspects]))
    for name, values in figures.items():
        found = found.append_column(name, pa.array(values.astype(np.int64)))
    return found


def _numbers(runs: pa.Table, policy: Policy, by_epoch: bool) -> Numbers:
    return numbered(pa.table(key_columns(runs, policy, by_epoch)))


def key_columns(runs: pa.Table, policy: Policy, by_epoch: bool) -> dict[str, pa.ChunkedArray]:
    """The columns of keys, and of epochs where they are wanted and read, as `StateTable.entries` names them."""
    columns = policy.columns
    keys: dict[str, pa.ChunkedArray] = {}
    for role in ("pid", "partition"):
        names = columns.parts(role)
        keys |= {role if len(names) == 1 else f"{role}_{place}": runs[name] for place, name in enumerate(names)}
    if columns.epoch is not None and by_epoch and policy.epochs != "ignore":
        keys["epoch"] = runs[columns.epoch]
    return keys
