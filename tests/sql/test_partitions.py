"""The number of partitions of a destination: the first writer sets it permanently, for each kind of destination."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa
import pytest
import sqlalchemy as sa
from fencepost.kafka import PartitionLog
from fencepost.transports import LandingTransport, PartitionLogTransport, SqlTransport
from support.faulty_transport import MemoryTransport
from support.threads import in_threads

KINDS = ["sqlite", "postgresql", "landing", "log"]


class Logs:
    """Opens a folder of logs, once what was open there is closed: they have one writer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.opened = folder, contextlib.ExitStack()

    def __call__(self, **options: Any) -> PartitionLogTransport:
        self.opened.close()
        return self.opened.enter_context(PartitionLogTransport(self.folder, **options))


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Callable[..., Any], Callable[[], Any]]]:
    """A function that opens a new destination, and one that removes its stored number."""
    if request.param == "landing":
        yield (
            lambda **options: LandingTransport(tmp_path, sync=False, **options),
            (tmp_path / "_partitions.json").unlink,
        )
        return
    if request.param == "log":
        logs = Logs(tmp_path)
        yield logs, (tmp_path / "events.partitions.json").unlink
        logs.opened.close()
        return
    url = f"sqlite:///{tmp_path}/test.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").new_database()
    engine = sa.create_engine(url)

    def forget_count() -> None:
        with engine.begin() as connection:
            assert connection.execute(sa.text("DELETE FROM events_layout")).rowcount == 1

    schema = pa.schema({"value": pa.int64()})
    yield lambda **options: SqlTransport(engine, "events", schema=schema, **options), forget_count
    engine.dispose()


def test_a_place_has_as_many_partitions_as_it_had_first(place: Any) -> None:
    new, _ = place
    assert new(partitions=3).partitions == 3
    assert new(partitions=3).partitions == 3
    assert new().partitions == 3
    for other in (1, 2, 4):
        with pytest.raises(
            fp.PolicyError, match=rf"partitions={other}: .* has 3 partitions, which cannot change.*Leave out parti"
        ):
            new(partitions=other)
    for wrong in (0, True, "3", 2**31):
        with pytest.raises(fp.PolicyError, match="1 to 2147483647"):
            new(partitions=wrong)
    assert new().partitions == 3


def test_a_place_without_a_stored_number_takes_the_first_that_fits(place: Any) -> None:
    new, forget_count = place
    with fp.SequencedProducer(new(partitions=3), partition_by="partition") as producer:
        producer.send({"partition": [0, 1, 2], "value": [1, 2, 3]})
    forget_count()
    for given in ({}, {"partitions": 2}):
        with pytest.raises(fp.PolicyError, match=r"stores no partition count, .* partition 2. .* partitions=3"):
            new(**given)
    assert new(partitions=4).partitions == 4
    assert new().partitions == 4


def test_one_partition_by_default(place: Any) -> None:
    new, _ = place
    assert new().partitions == 1
    with pytest.raises(fp.PolicyError, match="has 1 partitions"):
        new(partitions=2)


@pytest.mark.parametrize(
    ("place", "position"), [*((kind, None) for kind in KINDS), ("landing", "value")], indirect=["place"]
)
def test_a_producer_takes_the_number_of_its_transport(place: Any, position: str | None) -> None:
    new, _ = place
    transport, of = new(partitions=2), {"name": "reader", "position": position} if position else {}
    with pytest.raises(fp.PolicyError, match="partitions=3: the transport has 2"):
        fp.SequencedProducer(transport, partitions=3, key="user", registry=MemoryTransport(), **of)
    with fp.SequencedProducer(transport, partitions=2, key="user", registry=MemoryTransport(), **of) as producer:
        producer.flush(30)


@pytest.mark.parametrize("place", [it for it in KINDS if it != "log"], indirect=True)
def test_the_first_of_concurrent_writers_stores_the_number(place: Any) -> None:
    new, forget_count = place
    new()  # makes the tables
    forget_count()
    found: list[int] = []

    def ask(count: int) -> None:
        with contextlib.suppress(fp.PolicyError):
            found.append(new(partitions=count).partitions)

    in_threads([partial(ask, count) for count in range(1, 5)])
    assert len(found) == 1
    assert new().partitions == found[0]


def test_open_logs_have_the_number_of_their_folder(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(PartitionLog(tmp_path / f"events-{number}", first="zero")) for number in range(3)]
        PartitionLogTransport(logs).close()
        with pytest.raises(fp.PolicyError, match=r"partitions=2: topic 'events' in .* has 3 partitions"):
            PartitionLogTransport(logs[:2])
    with pytest.raises(fp.PolicyError, match=r"partitions=2: topic 'events' in .* has 3 partitions"):
        PartitionLogTransport(tmp_path, partitions=2)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "3",
        "[]",
        '{"version": 2, "partitions": 3}',
        '{"version": 1, "partitions": 0}',
        '{"version": 1, "partitions": true}',
    ],
)
def test_a_malformed_stored_number_is_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / "_partitions.json").write_text(content)
    with pytest.raises(fp.SourceError, match=r"_partitions\.json: ") as caught:
        LandingTransport(tmp_path, sync=False)
    assert caught.value.path == str(tmp_path / "_partitions.json")
