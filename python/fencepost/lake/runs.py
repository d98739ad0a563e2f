"""Tables of runs (the lines of the exchange): splits them for tasks, and merges them again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost import Verdict
from fencepost.lake.repeats import Stretches, key_columns
from fencepost.lake.scan import FILE, LENGTH, ROW
from fencepost.policy import Policy
from fencepost.state.changelog import sparse_numbers

BLOCK_BITS = 12
"""Blocks of 4096 sequence numbers are assigned to tasks. A hot key has thousands of blocks, so tasks get similar
numbers."""
JOINED_BITS = 31
"""Runs are not merged across multiples of 2^31: a length might exceed its 32 bits."""

Numbers = npt.NDArray[np.int64]


def cut_at_blocks(runs: pa.Table, seq: str) -> tuple[pa.Table, Numbers, Numbers]:
    """Cut runs at block boundaries. Returns the pieces, the run of each piece, and its block.

    `seq`: the column of sequence numbers. The pieces of a run are consecutive.
    """
    first = runs[seq].to_numpy().astype(np.int64)
    last = first + (runs[LENGTH].to_numpy().astype(np.int64) - 1)
    counts = (last >> BLOCK_BITS) - (first >> BLOCK_BITS) + 1
    of_run = np.repeat(np.arange(len(runs)), counts)
    block = (first >> BLOCK_BITS)[of_run] + np.arange(len(of_run)) - np.repeat(np.cumsum(counts) - counts, counts)
    if len(of_run) == len(runs):
        return runs, of_run, block
    begin = np.maximum(first[of_run], block << BLOCK_BITS)
    end = np.minimum(last[of_run], (block << BLOCK_BITS) | ((1 << BLOCK_BITS) - 1))
    return _parts_of_runs(runs, seq, of_run, begin - first[of_run], end - begin + 1), of_run, block


def accepted_runs(runs: pa.Table, codes: npt.NDArray[np.uint8], policy: Policy) -> pa.Table:
    """Return the accepted rows as merged runs (see `joined`). `codes`: a verdict per row of the runs.

    FILE and ROW locate the first row of each run; its other rows may be elsewhere.
    """
    some = Stretches.of(runs, codes, [Verdict.ACCEPTED])
    return _join(runs, some.runs, some.offsets, some.counts, policy)


def joined(runs: pa.Table, policy: Policy) -> pa.Table:
    """Sort runs by key, epoch and sequence number, and merge consecutive ones.

    Only for accepted rows under a policy that accepts any order, if no sequence wrapped: then positions are unique and
    their order does not matter. The order of keys is arbitrary.
    """
    counts = runs[LENGTH].to_numpy().astype(np.int64)
    return _join(runs, np.arange(len(runs)), np.zeros(len(runs), np.int64), counts, policy)


def _join(runs: pa.Table, of_run: Numbers, offsets: Numbers, counts: Numbers, policy: Policy) -> pa.Table:
    """Merge `counts` rows of each of these runs, beginning at `offsets`."""
    columns = policy.columns
    names = [*columns.parts("pid"), *columns.parts("partition"), *([columns.epoch] if columns.epoch else [])]
    runs = runs.select([*names, columns.seq, LENGTH, FILE, ROW])
    entries = sparse_numbers(pa.table(key_columns(runs, policy, by_epoch=True)))[of_run]
    seqs = runs[columns.seq].to_numpy().astype(np.int64)[of_run] + offsets
    if not _is_sorted(entries, seqs):
        order = np.lexsort((seqs, entries))
        entries, seqs, of_run, offsets, counts = (it[order] for it in (entries, seqs, of_run, offsets, counts))
    goes_on = (entries[1:] == entries[:-1]) & (seqs[1:] == seqs[:-1] + counts[:-1])
    goes_on &= (seqs[1:] >> JOINED_BITS) == (seqs[:-1] >> JOINED_BITS)
    firsts = np.flatnonzero(np.append(True, ~goes_on)[: len(seqs)])
    counts = np.add.reduceat(counts, firsts) if len(firsts) else counts
    return _parts_of_runs(runs, columns.seq, of_run[firsts], offsets[firsts], counts)


def _is_sorted(entries: Numbers, seqs: Numbers) -> bool:
    is_next = (entries[1:] > entries[:-1]) | ((entries[1:] == entries[:-1]) & (seqs[1:] >= seqs[:-1]))
    return bool(is_next.all())


def _parts_of_runs(runs: pa.Table, seq: str, of_run: Numbers, offsets: Numbers, counts: Numbers) -> pa.Table:
    """Cut `counts` rows from each run in `of_run` (indexes), beginning at `offsets`."""
    parts = runs.take(pa.array(of_run))
    begin = parts[seq].to_numpy().astype(np.int64) + offsets
    return _with(parts, {seq: begin, LENGTH: counts, ROW: parts[ROW].to_numpy() + offsets.astype(np.uint64)})


def _with(runs: pa.Table, columns: dict[str, npt.NDArray[np.generic]]) -> pa.Table:
    """Replace the values of some columns, with the same types."""
    for name, values in columns.items():
        place = runs.schema.get_field_index(name)
        field = runs.schema.field(place)
        runs = runs.set_column(place, field, pa.array(values).cast(field.type))
    return runs
