"""The benchmark of producer identities on few calls, so that it keeps working: every answer is right."""

from __future__ import annotations

import pytest

from bench import registry, report


@pytest.mark.matrix
def test_every_contestant_is_right() -> None:
    part = registry.contest(rows=20 * registry.CLIENTS * registry.SHARE, rounds=2)
    results = report.collect("quick", registry=part)
    assert {name: len(contest) for name, contest in results.contests.items()} == {registry.IDS: 2, registry.PIDS: 3}
    assert results.wrong == []
    [target] = results.targets()
    assert target.wanted == "≥ 500/s"


def test_an_identity_that_comes_twice_is_wrong() -> None:
    rounds = iter([[(1, 0), (1, 1)], [(1, 2), (1, 1)]])

    class Pipe:
        def send(self, asked: object) -> None:
            pass

        def recv(self) -> list[tuple[int, int]]:
            return next(rounds)

    [measured] = registry.compete([Pipe()], "a contest", {"liar": "ours"}, 2, 1, expected=2)
    assert (measured.is_right, measured.answer) == (False, (2, 1))
