"""Jobs in an object store: the same files, job and rows on the local disk and on an S3 server of this machine.

Rows of 90 bytes with a gap before each, whole keys in a file. Files that lose no row are copied by the store; in the
second contest every file is rewritten. The peer is Spark's `dropDuplicates`, which reads and writes the same bucket
by s3a (`make .tools/s3a`; without the jars it is left out). An answer is (rows, sum of their sequences), read from the
output after every round. The server runs on the same two cores as the contestants. Seconds of the processor are those
of the contestant without the server's.

Requests, scratch and memory are those of a run that is not timed, over all files but one, behind a proxy that counts
and whose memory is included. A run over that one was there before, as the first run of all probes the stores. They are
measured again with one row group a file, as common writers leave it in files of this size.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from fencepost.lake import DedupJob, LocalEngine
from fencepost.state.stores import open_store

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))

from support.liar import Liar  # noqa: E402
from support.s3_server import BUCKET, KEY, SECRET, s3_options, serve_s3  # noqa: E402

from bench.lake import CLEAN, WARM_UP, WHOLE_KEYS, Landed, Shape, land  # noqa: E402
from bench.markdown import table  # noqa: E402
from bench.measure import Contestant, Measurement, Target, alternate, memory_watched, tell, write_part  # noqa: E402
from bench.spark import COLUMNS, DATA, STEP, THREADS, Answer, session, settle, take_answer  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS = ROOT / ".tools" / "s3a"
SHARE = 2
"""Of the benchmark's rows one in so many lands: a run on Spark takes minutes."""
COPIED = replace(CLEAN, name="no repeats, gaps between all sequences", step=STEP)
REWRITTEN = replace(WHOLE_KEYS, name="repeats in every file, gaps between all sequences", step=STEP)
SHAPES = (COPIED, REWRITTEN)
GROUP_ROWS = 1 << 20
"""Rows of a row group as pyarrow writes them by default."""
TIMES_MAX = {COPIED.name: 2, REWRITTEN.name: 3}
"""How many times the seconds of the local disk the store may take."""
SPARK_TIMES = 5
GETS_MAX, PUTS_MAX = 100, 60
"""Requests a GB of the source."""
LOCAL, STORE, SPARK = "DedupJob, local disk, not synced", "DedupJob, S3", "dropDuplicates, s3a"
"""A store has nothing to sync, so the local disk is compared without it."""
KINDS = ("GET", "PUT", "COPY", "HEAD", "LIST", "POST", "DELETE")


def contest(
    rows: int,
    rounds: int,
    data: Path = DATA,
    heap: str = "5g",
    shapes: Sequence[Shape] = SHAPES,
    with_spark: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """All shapes; what belongs into the results. `settings` of Spark: underscores in their names stand for dots."""
    scratch = data / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    measurements, costs = [], []
    with ExitStack() as stack:
        endpoint = stack.enter_context(serve_s3(folder=str(scratch)))
        spark = None
        if with_spark and JARS.is_dir():
            spark = stack.enter_context(session(heap, scratch / "spark", _of_s3a(endpoint, settings)))
            _warm_up(spark, Place(endpoint, f"s3://{BUCKET}/warm-up", scratch), land(REWRITTEN, rows // WARM_UP, data))
        for number, shape in enumerate(shapes):
            landed = land(shape, rows // SHARE, data)
            place = Place(endpoint, f"s3://{BUCKET}/{number}", scratch)
            _upload(landed, place)
            cpu: dict[str, list[float]] = {}
            contestants = _contestants(place, landed, spark, cpu)
            measurements += alternate(shape.name, contestants, landed.landed[0], rounds, settle, warm_up=False)
            costs += [{"contest": shape.name, "name": name, "cpu_seconds": it} for name, it in cpu.items()]
            costs.append({"contest": shape.name, "name": STORE, **_weigh(place, landed)})
            place.store("").clear("source")
            large = replace(shape, name=f"{shape.name}, a row group a file", group_rows=GROUP_ROWS)
            landed = land(large, rows // SHARE, data)
            _upload(landed, place)
            costs.append({"contest": large.name, "name": STORE, **_weigh(place, landed)})
            place.store("").clear("source")
    shutil.rmtree(scratch, ignore_errors=True)
    return {"measurements": [it.to_json() for it in measurements], "costs": costs}


# Places


@dataclass(frozen=True)
class Place:
    """A prefix of the bucket, and a folder of the same file system."""

    endpoint: str
    root: str
    folder: Path

    @property
    def options(self) -> dict[str, Any]:
        return s3_options(self.endpoint)

    def store(self, name: str) -> Any:
        return open_store(f"{self.root}/{name}".rstrip("/"), options=self.options)


def _of_s3a(endpoint: str, settings: dict[str, Any]) -> dict[str, Any]:
    own = {
        "spark.jars": ",".join(str(jar) for jar in sorted(JARS.glob("*.jar"))),
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }
    return own | settings


def _upload(landed: Landed, place: Place) -> None:
    store = place.store("source")
    for file in landed.folder.iterdir():
        store.upload(file, file.name)


# Contestants


def _contestants(
    place: Place, landed: Landed, spark: SparkSession | None, cpu: dict[str, list[float]]
) -> list[Contestant]:
    """`cpu`: gets the seconds of the processor of each round."""

    def contestant(
        name: str, act: Callable[[], object], answer: Callable[[Any], Answer], now: Callable[[], float]
    ) -> Contestant:
        def run() -> None:
            before = now()
            act()
            cpu.setdefault(name, []).append(now() - before)

        role: Any = "peer" if name == SPARK else "ours"
        return Contestant(name=name, threads=THREADS, run=run, expected=landed.kept, answer=answer, role=role)

    found = [
        contestant(STORE, partial(_run_in_store, place), lambda _: _take_stored(place), _cpu_of_this_process),
        contestant(
            LOCAL,
            partial(_run_on_disk, place, landed),
            lambda _: take_answer(place.folder / "out"),
            _cpu_of_this_process,
        ),
    ]
    if spark is not None:
        act, now = partial(_drop_duplicates, spark, place), partial(_cpu_of_spark, spark)
        found.append(contestant(SPARK, act, lambda _: _take_stored(place), now))
    return found


def _run_in_store(place: Place) -> None:
    options = dict.fromkeys(("source_options", "state_options", "sink_options"), place.options)
    places = [f"{place.root}/{name}" for name in ("source", "out/state", "out/sink")]
    DedupJob(*places, engine=LocalEngine(THREADS), **options).run()  # type: ignore[arg-type]


def _run_on_disk(place: Place, landed: Landed) -> None:
    out = place.folder / "out"
    DedupJob(landed.folder, out / "state", out / "sink", engine=LocalEngine(THREADS), sync=False).run()


def _drop_duplicates(spark: SparkSession, place: Place) -> None:
    root = place.root.replace("s3://", "s3a://")
    frame = spark.read.parquet(f"{root}/source").dropDuplicates(list(COLUMNS))
    frame.write.parquet(f"{root}/out/sink")


def _warm_up(spark: SparkSession, place: Place, landed: Landed) -> None:
    """Spark compiles what it runs; ours is compiled."""
    _upload(landed, place)
    _drop_duplicates(spark, place)
    answer = _take_stored(place)
    assert answer == landed.kept, answer


def _take_stored(place: Place) -> Answer:
    """The answer in the bucket, which is removed."""
    store, found = place.store("out/sink"), []
    for name, size, etag in store.listing():
        if name.endswith(".parquet") and not any(part[0] == "_" for part in name.split("/")):
            found.append(pq.read_table(store.object(name, size, etag).open(), columns=["seq"])["seq"])
    place.store("").clear("out")
    return sum(map(len, found)), sum(pc.sum(seq).as_py() or 0 for seq in found)


def _cpu_of_this_process() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _cpu_of_spark(spark: SparkSession) -> float:
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# What it costs beside time


def _weigh(place: Place, landed: Landed) -> dict[str, Any]:
    """Requests by kind, the most bytes of scratch and of memory that a run takes beside what the process has."""
    tell(f"{STORE}: requests, scratch, memory")
    store, files = place.store("source"), sorted(landed.folder.iterdir())
    store.delete([file.name for file in files[1:]])
    _run_in_store(place)  # which probes both stores, once and for ever
    for file in files[1:]:
        store.upload(file, file.name)
    size = sum(file.stat().st_size for file in files[1:])
    with Liar(place.endpoint, ()) as proxy:
        with _scratch_watched(place.folder / "tmp") as peak, memory_watched() as memory:
            _run_in_store(replace(place, endpoint=proxy.endpoint))
        requests = {kind: proxy.asked[kind] for kind in KINDS}
    answer = _take_stored(place)
    costs = {"requests": requests, "scratch_bytes": peak[0], "memory_bytes": memory[0]}
    return {"source_bytes": size, "is_right": answer == landed.kept, **costs}


@contextmanager
def _scratch_watched(folder: Path) -> Iterator[list[int]]:
    """The most bytes that temporary files have at a time."""
    folder.mkdir()
    peak, is_over, before = [0], threading.Event(), tempfile.tempdir

    def watch() -> None:
        while not is_over.wait(0.005):
            peak[0] = max(peak[0], _bytes_beneath(folder))

    watcher = threading.Thread(target=watch)
    tempfile.tempdir = str(folder)
    watcher.start()
    try:
        yield peak
    finally:
        is_over.set()
        watcher.join()
        tempfile.tempdir = before
        shutil.rmtree(folder)


def _bytes_beneath(folder: Path) -> int:
    found = 0
    for inside, _, names in os.walk(folder):  # passes over folders that are gone meanwhile
        for name in names:
            with suppress(FileNotFoundError):  # it was temporary
                found += os.stat(os.path.join(inside, name)).st_size
    return found


# The report

Contests = dict[str, dict[str, Measurement]]


def targets(contests: Contests, facts: dict[str, Any]) -> Iterator[Target]:
    """The figures to reach."""
    for contest in [it for it in TIMES_MAX if it in contests]:
        its, most = contests[contest], TIMES_MAX[contest]
        times = its[STORE].median / its[LOCAL].median
        yield Target(f"{contest}: S3 against the local disk", f"≤ {most} ×", f"{times:.2f} ×", times <= most)
        if SPARK in its:
            times = its[SPARK].median / its[STORE].median
            what = f"{contest}: {STORE} against {SPARK}"
            yield Target(what, f"≥ {SPARK_TIMES} ×", f"{times:.1f} ×", times >= SPARK_TIMES)
    for it in _weighed(facts):
        gets, puts = (it["requests"][kind] / it["source_bytes"] * 1e9 for kind in ("GET", "PUT"))
        is_met = gets <= GETS_MAX and puts <= PUTS_MAX
        found = f"{gets:.0f} GET, {puts:.0f} PUT" + ("" if it["is_right"] else " (wrong answer)")
        wanted = f"≤ {GETS_MAX} GET, {PUTS_MAX} PUT"
        yield Target(f"{it['contest']}: requests a GB", wanted, found, is_met and it["is_right"])


def sections(facts: dict[str, Any]) -> list[str]:
    """What a run takes beside time."""
    rows = [
        (it["contest"], f"{it['source_bytes'] / 1e6:,.0f}", *(str(it["requests"][kind]) for kind in KINDS),
         f"{it['scratch_bytes'] / 1e6:,.0f}", f"{it['memory_bytes'] / 1e6:,.0f}")
        for it in _weighed(facts)
    ]  # fmt: skip
    head = ("contest", "MB", *KINDS, "scratch, MB", "memory, MB")
    used = [
        (it["contest"], it["name"], f"{min(it['cpu_seconds']):.1f}–{max(it['cpu_seconds']):.1f}")
        for it in facts["costs"]
        if "cpu_seconds" in it
    ]
    about = (
        "PUT has the parts of large objects; scratch and memory are the most at a time, by two tasks beside each other."
    )
    return [
        "## Requests of a run in the object store, and what its process takes",
        about,
        table(head, rows, "l" + "r" * (len(head) - 1)),
        "## Seconds of the processor, without the server's",
        table(("contest", "contestant", "s"), used, "llr"),
    ]


def _weighed(facts: dict[str, Any]) -> list[dict[str, Any]]:
    return [it for it in facts["costs"] if "requests" in it]


def _use_a_real_server() -> None:
    """The one of `make bench`, if none is named: moto answers one request after the other."""
    if "FENCEPOST_S3_SERVER" not in os.environ:
        built = sorted((ROOT / ".tools").glob("versitygw-*/versitygw"))
        if not built:
            sys.exit("There is no S3 server: make bench builds one, or FENCEPOST_S3_SERVER names a versitygw")
        os.environ["FENCEPOST_S3_SERVER"] = str(built[-1])


if __name__ == "__main__":
    _use_a_real_server()
    write_part(contest)
