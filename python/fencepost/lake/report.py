"""What a run did, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

from fencepost.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What a run did."""

    version: int | None
    """The version that it decided and finished; None where there was nothing new."""
    recovered: tuple[int, ...]
    """Versions of interrupted runs that it finished first. Their rows are not counted below."""
    source: str
    sink: str
    policy: str
    identity: tuple[str, ...]
    """The columns that told rows apart: pid, epoch, partition, seq, composites part by part."""
    engine: str
    files: int
    rows: int
    bytes: int
    """New input: files, their rows, their bytes on disk."""
    counts: dict[str, int]
    """Rows by name of verdict; they add up to `rows`."""
    kept: int
    """Rows written: ACCEPTED and UNTRACKED."""
    missing_ranges: int
    missing_rows: int
    """Ranges of sequences that the run's rows jumped over and none of them filled, and how many rows they stand for."""
    missing: pa.Table
    """The first of them: key columns, epoch, first_seq, last_seq, count."""
    stale_epoch: int
    """Rows below the highest epoch of their key: what zombies wrote."""
    stale: pa.Table
    """Whose rows they were: key columns, epoch, count; those of the most rows in each shard."""
    border: int
    """Rows that only the border of the wrap could place on a lap."""
    entries: int
    """What the state remembers now: keys, or keys and epochs."""
    shards: int
    """Shards whose state changed."""
    outputs: tuple[str, ...]
    """Files written, relative to the sink."""
    seconds: dict[str, float]
    """By step."""

    def to_json(self) -> str:
        """Everything, the tables as lists of objects."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        tables = {name: value.to_pylist() for name, value in fields.items() if isinstance(value, pa.Table)}
        return json.dumps({**fields, **tables}, default=str)

    def __str__(self) -> str:
        lines = [f"finished first: version {version} of an interrupted run" for version in self.recovered]
        if self.version is None:
            return "\n".join([*lines, f"nothing new in {self.source}: nothing written, state unchanged"])
        lines.append(f"version {self.version} of {self.sink}, policy {self.policy}")
        rows = self._lines()
        width = max(len(number) for _, number, _ in rows)
        return "\n".join([*lines, *(f"  {name:<16}{number:>{width}}  {note}".rstrip() for name, number, note in rows)])

    def _lines(self) -> list[tuple[str, str, str]]:
        """(what, how many, what that means), for people."""
        total = sum(self.seconds.values())
        steps = ", ".join(f"{step} {seconds:.2f}" for step, seconds in self.seconds.items() if seconds >= 0.005)
        return [
            ("identity", "", ", ".join(self.identity)),
            ("read", f"{self.rows:,}", f"rows in {self.files:,} new files, {self.bytes / 1e6:,.1f} MB"),
            ("kept", f"{self.kept:,}", self._share(self.kept)),
            *self._verdicts(is_kept=True),
            ("not kept", f"{self.rows - self.kept:,}", self._share(self.rows - self.kept)),
            *self._verdicts(is_kept=False),
            ("missing", f"{self.missing_rows:,}", f"rows jumped over in this run, in {self.missing_ranges:,} ranges"),
            ("stale epoch", f"{self.stale_epoch:,}", "rows of producers that a later epoch had replaced"),
            ("state", f"{self.entries:,}", f"entries; {self.shards} shards changed"),
            ("seconds", f"{total:,.2f}", f"{self.rows / total / 1e6:,.1f} M rows/s, engine {self.engine}: {steps}"),
        ]

    def _verdicts(self, is_kept: bool) -> list[tuple[str, str, str]]:
        found = {name: count for name, count in self.counts.items() if Verdict[name].is_kept == is_kept}
        notes = {"UNTRACKED": "no producer: kept, not deduplicated"}
        return [(f"  {name}", f"{count:,}", notes.get(name, "")) for name, count in found.items()]

    def _share(self, rows: int) -> str:
        return f"{rows / self.rows:.2%}" if self.rows else ""
