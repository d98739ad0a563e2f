"""Tables of spans (the lines of the exchange): splits them for tasks, and merges them again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from fencepost import Verdict
from fencepost.lake.repeats import Stretches, key_columns
from fencepost.lake.scan import FILE, LENGTH, ROW, cut_spans, numbers_within
from fencepost.policy import Policy
from fencepost.state.changelog import sparse_numbers

BLOCK_BITS = 12
"""Blocks of 4096 sequence numbers are assigned to tasks. A hot key has thousands of blocks, so tasks get similar
numbers."""
JOINED_BITS = 31
"""Spans are not merged across multiples of 2^31: a length might exceed its 32 bits."""

Numbers = npt.NDArray[np.int64]


def cut_at_blocks(spans: pa.Table, seq: str) -> tuple[pa.Table, Numbers, Numbers]:
    """Cut spans at block boundaries. Returns the pieces, the span of each piece, and its block.

    `seq`: the column of sequence numbers. The pieces of a span are consecutive.
    """
    first = spans[seq].to_numpy().astype(np.int64)
    last = first + (spans[LENGTH].to_numpy().astype(np.int64) - 1)
    counts = (last >> BLOCK_BITS) - (first >> BLOCK_BITS) + 1
    of_span = np.repeat(np.arange(len(spans)), counts)
    block = (first >> BLOCK_BITS)[of_span] + numbers_within(counts)
    if len(of_span) == len(spans):
        return spans, of_span, block
    begin = np.maximum(first[of_span], block << BLOCK_BITS)
    end = np.minimum(last[of_span], (block << BLOCK_BITS) | ((1 << BLOCK_BITS) - 1))
    return cut_spans(spans, seq, of_span, begin - first[of_span], end - begin + 1), of_span, block


def accepted_spans(spans: pa.Table, codes: npt.NDArray[np.uint8], policy: Policy) -> pa.Table:
    """Return the accepted rows as merged spans (see `joined`). `codes`: a verdict per row of the spans.

    FILE and ROW locate the first row of each span; its other rows may be elsewhere.
    """
    some = Stretches.of(spans, codes, [Verdict.ACCEPTED])
    return _join(spans, some.spans, some.offsets, some.counts, policy)


def joined(spans: pa.Table, policy: Policy) -> pa.Table:
    """Sort spans by key, epoch and sequence number, and merge consecutive ones.

    Only for accepted rows under a policy that accepts any order, if no sequence wrapped: then positions are unique and
    their order does not matter. The order of keys is arbitrary.
    """
    counts = spans[LENGTH].to_numpy().astype(np.int64)
    return _join(spans, np.arange(len(spans)), np.zeros(len(spans), np.int64), counts, policy)


def _join(spans: pa.Table, of_span: Numbers, offsets: Numbers, counts: Numbers, policy: Policy) -> pa.Table:
    """Merge `counts` rows of each of these spans, beginning at `offsets`."""
    columns = policy.columns
    names = [*columns.keys, *([columns.epoch] if columns.epoch else [])]
    spans = spans.select([*names, columns.seq, LENGTH, FILE, ROW])
    entries = sparse_numbers(pa.table(key_columns(spans, policy, by_epoch=True)))[of_span]
    seqs = spans[columns.seq].to_numpy().astype(np.int64)[of_span] + offsets
    if not _is_sorted(entries, seqs):
        order = np.lexsort((seqs, entries))
        entries, seqs, of_span, offsets, counts = (it[order] for it in (entries, seqs, of_span, offsets, counts))
    continues = (entries[1:] == entries[:-1]) & (seqs[1:] == seqs[:-1] + counts[:-1])
    continues &= (seqs[1:] >> JOINED_BITS) == (seqs[:-1] >> JOINED_BITS)
    firsts = np.flatnonzero(np.append(True, ~continues)[: len(seqs)])
    counts = np.add.reduceat(counts, firsts) if len(firsts) else counts
    return cut_spans(spans, columns.seq, of_span[firsts], offsets[firsts], counts)


def _is_sorted(entries: Numbers, seqs: Numbers) -> bool:
    is_next = (entries[1:] > entries[:-1]) | ((entries[1:] == entries[:-1]) & (seqs[1:] >= seqs[:-1]))
    return bool(is_next.all())
