"""How often each kind of fault took place, in this process and over all families."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

INJECTED: Counter[str] = Counter()
"""Faults that took place, by kind; see `injected`."""
TRIED: Counter[tuple[str, bool]] = Counter()
"""How often a fault that may come too late took place, and how often it did not; see `tried`."""
SHARE_MIN = 0.5
"""The share of such faults that must take place."""


def injected(what: str, count: int = 1) -> None:
    """Counts faults that took place."""
    INJECTED[what] += count


def tried(what: str, happened: bool) -> None:
    """Counts a fault that did not take place. `missed` limits the share of these."""
    TRIED[what, happened] += 1


def missed() -> list[str]:
    """Faults that came too late too often, with their numbers."""
    found = []
    for what in sorted({what for what, _ in TRIED}):
        happened, both = TRIED[what, True], TRIED[what, True] + TRIED[what, False]
        if happened < SHARE_MIN * both:
            found.append(f"{what}: {happened} of {both} took place")
    return found


@dataclass
class Tally:
    """The results of the rounds of one family."""

    family: str
    rounds: int = 0
    failed: list[str] = field(default_factory=list)
    injected: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def write(self, path: Path | None) -> None:
        """The results so far, written at once: a reader sees the tally before or after."""
        self.seconds, self.injected = time.monotonic() - self.began, dict(INJECTED)
        if path is None:
            return
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(asdict(self)))
        part.rename(path)

    @classmethod
    def read(cls, path: Path) -> Tally:
        return cls(**json.loads(path.read_text()))


def table(tallies: list[Tally]) -> str:
    """Family, rounds, faults by kind: as text."""
    lines = [f"{'family':<28}{'rounds':>7}{'failed':>7}{'faults':>9}{'seconds':>8}"]
    for it in tallies:
        faults = sum(it.injected.values())
        lines.append(f"{it.family:<28}{it.rounds:>7}{len(it.failed):>7}{faults:>9,}{it.seconds:>8.0f}")
        lines += [f"{count:>51,}  {kind}" for kind, count in sorted(it.injected.items(), key=lambda one: -one[1])]
    return "\n".join(lines)
