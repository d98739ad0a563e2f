"""`deduplicate(df)` over a plain scan of files, without a shuffle of whole rows.

Most rows have a unique identity, which tasks find out from the identity columns alone, with native reads. The order of
several copies follows from the other columns. Tasks read these columns for the rows with copies, one column at a time,
until they differ. Copies that only Spark can compare remain open.

    files ── identity columns ──> spans ── by shard ──> words: bits of rows ─────── broadcast ─┐
      └───── whole rows ───────────────────────┬── lost: not the first of its copies           │
                                               ├── open: shuffled by identity, the first kept <┤
                                               └── neither: kept where it is scanned <─────────┘

This is one plan, which runs again for each action. A file that has changed since planning fails the query.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from fencepost import Policy, StateTable
from fencepost.lake.judge import gather
from fencepost.lake.order import Numbers, overlapping
from fencepost.lake.plan import groups_of_files
from fencepost.lake.refused import merge_refused, refused_ranges
from fencepost.lake.repeats import key_columns
from fencepost.lake.scan import FILE, LENGTH, ROW
from fencepost.lake.storage import ChangedError, LocalStorage, unchanged
from fencepost.state.changelog import sparse_numbers
from pyspark.sql import DataFrame, SparkSession, Window, functions

from fencepost_spark.frames import Call, unused_name
from fencepost_spark.plain_scan import (
    WORD_ROWS_BITS,
    PlainScan,
    bit_of,
    check_settings_of_task,
    is_known,
    with_places,
    word_of,
)
from fencepost_spark.versions import __version__

SHARD_ROWS_MIN, SHARD_ROWS_MAX = 1 << 20, 1 << 22
"""Rows per task that finds copies: the minimum if there are more cores than shards, and the maximum, 200 MB if each row
is a span of its own. A task reads the columns that order its copies from all files, so there are not more shards."""

SHARDS_MIN = 2
"""Spark exchanges the words of several shards, and both joins use this exchange. With one shard there is no exchange:
Spark would find the copies once for each join."""

SPANS = pa.schema([("shard", pa.int32()), ("spans", pa.binary())])
SPANS_DDL = "shard int, spans binary"
WORDS = pa.schema([("word", pa.int64()), ("lost", pa.int64()), ("open", pa.int64())])
WORDS_DDL = "word bigint not null, lost bigint not null, open bigint not null"

ROW_BITS = 32
"""Bits of a row's number, below the number of its file."""

Batches = Iterator[pa.RecordBatch]
Flags = npt.NDArray[np.bool_]


def deduplicate_scan(call: Call, scan: PlainScan) -> DataFrame:
    """Return the first row, in the order of the call, of each set of copies."""
    df = call.df
    names = [unused_name(df, name) for name in ("path", "row", "word", "bit", "of_word", "lost", "open", "place")]
    path, row, word, bit, of_word, lost, opened, place = names
    words = _words(df, scan).toDF(of_word, lost, opened)
    placed = with_places(df, path, row).where(is_known(path, scan))
    placed = placed.selectExpr("*", f"{word_of(path, row)} as {word}", f"{bit_of(row)} as {bit}").drop(path, row)
    is_word, is_lost, is_open = f"{word} = {of_word}", f"getbit({lost}, {bit}) = 1", f"getbit({opened}, {bit}) = 1"
    has_copies = functions.expr(f"{is_word} and ({is_lost} or {is_open})")
    kept = placed.join(functions.broadcast(words), has_copies, "left_anti").drop(word, bit)
    rows = kept.union(_checked(df, scan))  # kept comes first: union takes its column names
    if scan.has_all_ties:
        return rows
    # a condition with both columns, so that Spark computes the words once
    unknown = functions.broadcast(words.where(f"{opened} != 0"))
    is_unknown = functions.expr(f"{is_word} and {is_open} and not {is_lost}")
    copies = placed.join(unknown, is_unknown, "left_semi").drop(word, bit)
    first = functions.row_number().over(Window.partitionBy(*call.identity.values()).orderBy(*call.order_of_copies))
    return rows.union(copies.select("*", first.alias(place)).where(f"{place} = 1").drop(place))


def _checked(df: DataFrame, scan: PlainScan) -> DataFrame:
    """Return no rows, from a task that fails if a file or a setting has changed.

    Spark may reuse exchanged data of an earlier run, including the words. This task runs each time.
    """
    tasks = df.sparkSession.range(0, 1, 1, 1).mapInArrow(_in_worker("check_files", scan), "nothing boolean")
    return tasks.select(functions.lit(None).cast(df.schema).alias("row")).select("row.*")


def _words(df: DataFrame, scan: PlainScan) -> DataFrame:
    """Return the `WORDS` with set bits, each once."""
    spark = df.sparkSession
    groups = groups_of_files(scan.files.bytes, spark.sparkContext.defaultParallelism)
    shards = _shard_count(scan.rows, spark.sparkContext.defaultParallelism)
    tasks = spark.range(0, len(groups), 1, len(groups))
    keys = _keys_of_partitions(shards)
    spans = tasks.mapInArrow(_in_worker("scan_files", scan, groups, keys), SPANS_DDL).repartition(shards, "shard")
    words = spans.mapInArrow(_in_worker("find_copies", scan), WORDS_DDL)
    return words.groupBy("word").agg(*(functions.bit_or(name).alias(name) for name in ("lost", "open")))


def _shard_count(rows: int, cores: int) -> int:
    at_most, at_least = (-(-rows // size) for size in (SHARD_ROWS_MIN, SHARD_ROWS_MAX))
    return max(at_least, min(at_most, cores), SHARDS_MIN)


@cache
def _keys_of_partitions(shards: int) -> list[int]:
    """Return a number per shard, which Spark's hash sends to a partition of its own."""
    numbers = pa.table({"key": pa.array(range(64 * shards), pa.int32())})
    keys = SparkSession.active().createDataFrame(numbers)  # local: Spark runs no job for it
    partitions = keys.selectExpr("key", f"pmod(hash(key), {shards}) as partition").collect()
    return list({row.partition: row.key for row in partitions}.values())


def _in_worker(work: str, *arguments: Any) -> Callable[[Batches], Batches]:
    driver = __version__
    # unpickled after the comparison of versions, so that a worker of another version reaches it
    pickled = pickle.dumps(arguments)

    def run(batches: Batches) -> Batches:
        from fencepost_spark.versions import check_worker

        check_worker(driver)
        from fencepost_spark import copies, engine

        yield from getattr(copies, work)(batches, *pickle.loads(pickled))
        engine.shorten_collections()

    return run


# In tasks


def scan_files(batches: Batches, scan: PlainScan, groups: list[tuple[int, int]], shards: list[int]) -> Batches:
    """Return the spans of groups of files, as `SPANS`. Raises BatchError (column, row, file) and ChangedError.

    `shards`: the number in `SPANS` of each shard.
    """
    for batch in batches:
        for group in batch.column(0).to_pylist():
            for place in range(*groups[group]):
                yield from _scan_file(scan, place, shards)


def check_files(batches: Batches, scan: PlainScan) -> Batches:
    """Return nothing. Raises ChangedError if a file has changed, PolicyError if a setting has."""
    check_settings_of_task(scan)
    for _ in batches:
        for place in range(len(scan.files)):
            with unchanged(LocalStorage(), scan.files, place):
                pass
    yield from ()


def _scan_file(scan: PlainScan, place: int, shards: list[int]) -> Batches:
    path, storage = scan.files.full_path(place), LocalStorage()
    with unchanged(storage, scan.files, place):
        reading = scan.reading(len(shards))
        opened = reading.open(storage, path, scan.files.facts(place), {}, place)
        if opened.footer_crc != scan.footer_crc[place]:
            raise ChangedError(f"{path}: its footer changed since the first read; run again", path=path)
        while (dealt := opened.next(reading.spans_together)) is not None:
            numbers = pa.array([shards[shard] for shard, _ in dealt], pa.int32())
            spans = pa.array([_packed(pa.record_batch(batch)) for _, batch in dealt], pa.binary())
            yield pa.record_batch([numbers, spans], schema=SPANS)


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def find_copies(batches: Batches, scan: PlainScan) -> Batches:
    """Return the `WORDS` of rows with copies, shard by shard, from all spans of some shards. Raises ChangedError."""
    of_shard: dict[int, list[pa.RecordBatch]] = {}
    for batch in batches:
        for shard, spans in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            of_shard.setdefault(shard, []).extend(pa.ipc.open_stream(spans.as_buffer()))
    while of_shard:
        _, found = of_shard.popitem()
        rows, copies = rows_with_copies(gather(found), scan.policy)
        if not len(copies):
            continue
        lost, opened = order_copies(rows, copies, partial(_read, scan), scan)
        for first_words in scan.words:
            yield _words_of(np.array(first_words)[rows.file], rows.row, lost, opened)


class Rows(NamedTuple):
    """Rows of files, sorted by file and row, without repeats."""

    file: Numbers
    row: Numbers

    def take(self, places: Numbers) -> Rows:
        """Return the rows at these indexes, which must ascend."""
        return Rows(self.file[places], self.row[places])


def rows_with_copies(spans: pa.Table, policy: Policy) -> tuple[Rows, Numbers]:
    """Return the rows whose identity another row has, too, and a number for the identity of each.

    A table refuses all copies except the first one that it sees. Judging forwards and backwards, it refuses all of
    them.
    """
    # Without a wrap, a sequence number is a position that does not depend on the order of rows.
    rules = Policy.any_order().replace(columns=policy.columns, epochs=policy.epochs, wrap=None)
    places = overlapping(spans, rules)
    if places is not None:
        spans = spans.take(pa.array(places))
    refused = []
    for some in (spans, spans.take(pa.array(np.arange(len(spans))[::-1]))):
        verdicts = StateTable(rules).apply_spans(some, LENGTH, rules.columns)
        refused.append(refused_ranges(some, np.asarray(pa.array(verdicts.verdict))))
    ranges = merge_refused(refused)
    file, first, count = (ranges[name].to_numpy().astype(np.int64) for name in ("file", "row", "count"))
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    places = np.unique(np.repeat(file << ROW_BITS | first, count) + within)
    return Rows(places >> ROW_BITS, places & ((1 << ROW_BITS) - 1)), _identities(spans, places, rules)


def _identities(spans: pa.Table, places: Numbers, policy: Policy) -> Numbers:
    """Return a number for the identity of each row: 0, 1, …"""
    firsts = spans[FILE].to_numpy().astype(np.int64) << ROW_BITS | spans[ROW].to_numpy().astype(np.int64)
    order = np.argsort(firsts, kind="stable")
    span = order[np.searchsorted(firsts[order], places, side="right") - 1]
    of_span, span = np.unique(span, return_inverse=True)
    some = spans.take(pa.array(of_span))
    keys = np.unique(sparse_numbers(pa.table(key_columns(some, policy, by_epoch=True))), return_inverse=True)[1]
    seqs = some[policy.columns.seq].to_numpy().astype(np.int64)[span] + places - firsts[of_span][span]
    seqs = np.unique(seqs, return_inverse=True)[1]
    numbers: Numbers = np.unique(keys[span] * len(places) + seqs, return_inverse=True)[1]
    return numbers


def order_copies(
    rows: Rows, copies: Numbers, read: Callable[[Rows, str], pa.ChunkedArray], scan: PlainScan
) -> tuple[Flags, Flags]:
    """Return (whether a row is known not to be the first of its copies, whether only Spark can compare it).

    `copies`: a number for the identity of each row. `read`: returns a column of some rows.
    """
    lost, opened = np.zeros(len(copies), bool), np.zeros(len(copies), bool)
    left = np.arange(len(copies))
    for name in scan.ties:
        if not len(left):
            break
        is_lowest = _are_lowest(read(rows.take(left), name), copies[left])
        lost[left[~is_lowest]] = True
        left = left[is_lowest]
        left = left[np.bincount(copies[left])[copies[left]] > 1]
    if scan.has_all_ties:  # equal in all columns
        lost[np.delete(left, np.unique(copies[left], return_index=True)[1])] = True
    else:
        opened[left] = True
    return lost, opened


def _are_lowest(values: pa.ChunkedArray, copies: Numbers) -> Flags:
    """Return whether a value is the lowest of its copies, or equal to it.

    Most copies are equal in all columns. To compare each with the first of its copies takes a twentieth of the time
    that ranks of texts take, so only values of copies that differ are ranked.
    """
    places = np.arange(len(copies))
    first = np.zeros(copies.max() + 1, np.int64)
    first[copies[::-1]] = places[::-1]  # numpy keeps the last value that it assigns
    is_equal = _are_equal(values, values.take(pa.array(first[copies])))
    differs = np.zeros(len(first), bool)
    differs[copies[~is_equal]] = True
    differing = places[differs[copies]]
    ranks, copies = _ranks(values.take(pa.array(differing))), copies[differing]
    lowest = np.full(len(first), len(places))
    np.minimum.at(lowest, copies, ranks)
    is_lowest = np.ones(len(places), bool)
    is_lowest[differing] = ranks == lowest[copies]
    return is_lowest


def _are_equal(some: pa.ChunkedArray, others: pa.ChunkedArray) -> Flags:
    """Return whether values are equal; nulls are equal to each other."""
    are_equal = np.asarray(pc.fill_null(pc.equal(some, others), False))
    are_null: Flags = np.asarray(some.is_null()) & np.asarray(others.is_null())
    return are_equal | are_null


def _ranks(values: pa.ChunkedArray) -> Numbers:
    """Return the rank of each value in Spark's order: equal for equal values, 0 for nulls, which sort first."""
    ranks: Numbers = np.asarray(pc.rank(values, "ascending", tiebreaker="dense")).astype(np.int64)
    ranks[np.asarray(values.is_null())] = 0
    return ranks


def _read(scan: PlainScan, rows: Rows, name: str) -> pa.ChunkedArray:
    """Read a column of some rows, file by file. Raises ChangedError."""
    kind, chunks = scan.ties[name], []
    files, firsts = np.unique(rows.file, return_index=True)
    for place, of_file in zip(files.tolist(), np.split(rows.row, firsts[1:]), strict=True):
        with unchanged(LocalStorage(), scan.files, place):
            file = pq.ParquetFile(scan.files.full_path(place))
            if pa.types.is_large_string(kind) and _has_only_codes(file.metadata, name):
                file = pq.ParquetFile(scan.files.full_path(place), metadata=file.metadata, read_dictionary=[name])
            column = file.read([name])[name]
        chunks += _taken(column, pa.array(of_file), kind)
    return pa.chunked_array(chunks, kind)


def _taken(column: pa.ChunkedArray, rows: pa.Array, kind: pa.DataType) -> list[pa.Array]:
    """Return a column of some rows. Texts and bytes become large ones first, as far as they are not in dictionaries."""
    if pa.types.is_dictionary(column.type):
        return [it.dictionary.cast(kind).take(it.indices) for it in column.take(rows).chunks]
    is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    taken: list[pa.Array] = (column.cast(kind) if is_large else column).take(rows).cast(kind).chunks
    return taken


DICTIONARY_BYTES = 1 << 20
"""How large a dictionary writers let grow by default before they write plain values."""


def _has_only_codes(metadata: pq.FileMetaData, name: str) -> bool:
    """Return whether no chunk of a column has plain values, so that texts need to be decoded for some rows only."""
    column = metadata.schema.names.index(name)
    chunks = [metadata.row_group(number).column(column) for number in range(metadata.num_row_groups)]
    return all(it.has_dictionary_page and it.total_uncompressed_size <= DICTIONARY_BYTES for it in chunks)


def _words_of(first_words: Numbers, rows: Numbers, lost: Flags, opened: Flags) -> pa.RecordBatch:
    """Return the `WORDS` of some rows, each once. `first_words`: the first word of each row's file."""
    word = first_words | (rows >> WORD_ROWS_BITS)
    bit = np.int64(1) << (rows & ((1 << WORD_ROWS_BITS) - 1))
    order = np.argsort(word)
    words, firsts = np.unique(word[order], return_index=True)
    bits = (np.bitwise_or.reduceat((bit * flags)[order], firsts) for flags in (lost, opened))
    return pa.record_batch([words, *bits], schema=WORDS)
