"""The reader of the client's rule book: turns the pages of `spec/client` into cases, and runs them.

`spec/client/README.md` explains the format. A misspelt line fails instead of passing unread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fencepost import TransportError, Verdict
from fencepost.producer.answers import Answer, ErrorCode
from fencepost.producer.sequencer import Batch, Delivered, Identity, Limits, Partition, Request, Sequencer

from support.rule_pages import cases_of

PAGES = Path(__file__).parents[2] / "spec" / "client"
MAX = 2**31 - 1
LIMITS = {"retries": "retries", "in_flight": "in_flight", "delivery": "delivery_ms", "request": "request_ms"}
LIMITS |= {"backoff": "backoff_ms"}
OPTIONS = {"row", "pid", "epoch", "transactional", "asks", *LIMITS}
FACTS = {"sent", "epoch", "pid", "wanted", "state"}
PARTITION_FACTS = {"next", "epoch", "flight", "acked", "offset", "unresolved"}
BATCH_FACTS = {"open", "delivered", "refused", "lost", "failed"}


@dataclass
class Case:
    """What is done to one producer, and what must hold."""

    page: str
    options: dict[str, str]
    steps: list[tuple[int, list[str], list[str]]] = field(default_factory=list)
    """(line, what is done, what must hold)"""

    def __str__(self) -> str:
        return f"{self.page}:{self.options['row']}"


def cases(pages: Path = PAGES) -> list[Case]:
    """Every case of every page, in order."""
    found = cases_of(pages, read_page)
    rows = [case.options["row"] for case in found]
    assert len(rows) == len(set(rows)), "each row has a name of its own"
    return found


def read_page(page: str, text: str) -> list[Case]:
    found: list[Case] = []
    table = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("client:"):
            options = dict(word.split("=", 1) for word in line.removeprefix("client:").split())
            assert "row" in options, f"{page}:{number}: a case has a name"
            assert options.keys() <= OPTIONS, f"{page}:{number}: {options.keys() - OPTIONS}"
            found.append(Case(page, options))
            table = False
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert found, f"{page}:{number}: a table without a line that begins with client:"
            if not table:
                assert cells in (["do", "then"], ["do", "then", "why"]), f"{page}:{number}: {cells}"
                table = True
            elif not set(cells[0]) <= {"-"}:
                do, then = ([it.strip() for it in cell.split(";") if it.strip()] for cell in cells[:2])
                assert do, f"{page}:{number}: nothing is done"
                found[-1].steps.append((number, do, then))
    for case in found:
        assert any(then for _, _, then in case.steps), f"{case}: nothing must hold"
    return found


def run(case: Case, kind: type[Sequencer] = Sequencer) -> int:
    """All operations, and the number of facts that were checked."""
    player = Player(case, kind)
    for line, do, then in case.steps:
        for command in do:
            player.do(command)
        sent, player.sent = player.sent, []
        for fact in then:
            found, wanted = player.found_and_wanted(fact, sent)
            assert found == wanted, f"{case}, line {line}: {fact}: found {found}"
    return sum(len(then) for _, _, then in case.steps)


class Player:
    """A producer, a clock and the requests on the wire."""

    def __init__(self, case: Case, kind: type[Sequencer]) -> None:
        options = case.options
        given = {"backoff": "0", **options}
        limits = Limits(**{LIMITS[name]: int(value) for name, value in given.items() if name in LIMITS})
        self.sequencer = kind(
            Identity(int(options.get("pid", 7)), int(options.get("epoch", 0))), limits,
            transactional=options.get("transactional") == "yes", asks=options.get("asks") == "yes",
        )  # fmt: skip
        self.now_ms = 0
        self.sent: list[str] = []
        self.wire: list[Request] = []
        self.named: dict[str, Batch] = {}
        self.last: tuple[int, Answer] | None = None

    # What is done

    def do(self, command: str) -> None:
        words, is_nonsense = command.removesuffix("!").split(), command.endswith("!")
        if is_nonsense:
            with pytest.raises(TransportError, match=r"The producer has stopped: \d+ batches were sent"):
                self._do(words)
        else:
            self._do(words)

    def _do(self, words: list[str]) -> None:
        match words:
            case ["add" | "send", partition, *more]:
                self._add(_partition(partition), more)
                if words[0] == "send":
                    self._poll()
            case ["poll"]:
                self._poll()
            case ["wait", milliseconds]:
                self.now_ms += int(milliseconds)
            case ["renamed", pid, epoch]:
                self.sequencer.set_successor(Identity(int(pid), _epoch(epoch)), self.sequencer.rewritten())
            case ["end", pid, epoch]:
                self.sequencer.transaction_ended(Identity(int(pid), _epoch(epoch)))
            case ["again"]:
                assert self.last is not None
                self.sequencer.answered(*self.last, self.now_ms)
            case ["request", id, error]:
                self.sequencer.answered(int(id), Answer(_error(error)), self.now_ms)
            case [target, error, *more] if re.fullmatch(r"p\d+:\d+", target):
                self._answer(target, error, more)
            case _:
                raise ValueError(f"what is {words}?")

    def _add(self, partition: int, words: list[str]) -> None:
        count, name = 1, None
        match words:
            case []:
                pass
            case [size]:
                count = _count(size)
            case ["as", name]:
                pass
            case [size, "as", name]:
                count = _count(size)
            case _:
                raise ValueError(f"what is {words}?")
        batch = Batch(partition, count, None, self.now_ms)
        if name is not None:
            assert name not in self.named, f"there is a {name} already"
            self.named[name] = batch
        self.sequencer.add(batch)

    def _poll(self) -> None:
        for request in self.sequencer.poll(self.now_ms):
            self.wire.append(request)
            first, count = request.numbers.first_seq, request.batch.count
            last = (first + count - 1) % (MAX + 1)
            numbers = f"{first}" if count == 1 else f"{first}..{last}"
            self.sent.append(f"p{request.batch.partition} {numbers} e{request.numbers.identity.epoch}")

    def _answer(self, target: str, error: str, words: list[str]) -> None:
        partition, seq = (int(it) for it in target.removeprefix("p").split(":"))
        on_wire = [it for it in self.wire if (it.batch.partition, it.numbers.first_seq) == (partition, seq)]
        assert on_wire, f"{target} is not on the wire"
        self.wire.remove(on_wire[0])
        offset = log_start = None
        for word in words:
            if word.startswith("@"):
                offset = int(word[1:])
            else:
                name, value = word.split("=")
                assert name == "log_start", word
                log_start = int(value)
        self.last = (on_wire[0].id, Answer(_error(error), offset, log_start))
        self.sequencer.answered(*self.last, self.now_ms)

    # What must hold

    def found_and_wanted(self, fact: str, sent: list[str]) -> tuple[Any, Any]:
        """What is found, and what must be."""
        subject, *words = fact.split()
        if subject == "sent":
            wanted = fact.removeprefix("sent ")
            return ", ".join(sent) or "none", wanted
        if subject in FACTS:
            return self._of_producer(subject), " ".join(words)
        if re.fullmatch(r"p\d+", subject):
            assert words[0] in PARTITION_FACTS, fact
            return self._of_partition(_partition(subject), words[0]), " ".join(words[1:])
        assert words[0] in BATCH_FACTS, fact
        return self._of_batch(self.named[subject]), " ".join(words)

    def _of_producer(self, what: str) -> str:
        it = self.sequencer
        if what == "state":
            return type(it.fatal).__name__ if it.fatal else "abortable" if it.abortable else "open"
        if what == "wanted":
            return "no" if it.wanted is None else "yes"
        return str(getattr(it.identity, what))

    def _of_partition(self, number: int, what: str) -> str:
        it = self.sequencer.partitions.get(number, Partition())
        found: Any
        match what:
            case "flight":
                return " ".join(str(batch.first_seq) for batch in it.numbered)
            case "epoch":
                found = None if it.identity is None else it.identity.epoch
            case "offset":
                found = it.last_acked_offset
            case "next":
                found = it.next_seq
            case "acked":
                found = it.last_acked_seq
            case _:
                found = it.unresolved
        return "none" if found is None else str(found)

    def _of_batch(self, batch: Batch) -> str:
        outcome = batch.outcome
        if outcome is None:
            return "open"
        if isinstance(outcome, Delivered):
            return f"delivered {'none' if outcome.offset is None else outcome.offset}"
        if type(outcome).__name__ == "DeliveryError":
            return "refused" if outcome.is_refused else "lost"  # type: ignore[attr-defined]
        return f"failed {type(outcome).__name__}"


def _partition(word: str) -> int:
    assert re.fullmatch(r"p\d+", word), word
    return int(word[1:])


def _epoch(word: str) -> int:
    assert re.fullmatch(r"e\d+", word), word
    return int(word[1:])


def _count(word: str) -> int:
    assert word.startswith("x"), word
    return MAX if word == "xMAX" else int(word[1:])


def _error(word: str) -> int | Verdict:
    if word.isdigit():
        return int(word)
    return ErrorCode[word] if word in ErrorCode.__members__ else Verdict[word]
