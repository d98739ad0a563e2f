"""Stores: the same calls everywhere, and one winner despite any network fault."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import fencepost as fp
import pytest
from fencepost.lake import DedupJob
from fencepost.state import stores
from fencepost.state.stores import LocalStore, MemoryStore, RemoteStore, Store, check_exclusion, open_store
from support.liar import LIES, Liar
from support.quick_retries import be_quick  # noqa: F401
from support.s3_server import BUCKET, s3_options
from support.threads import in_threads
from support.waiting import wait_until


def s3(endpoint: str, uri: str | None = None, **options: Any) -> Store:
    return open_store(uri or f"s3://{BUCKET}/{uuid.uuid4().hex}", options=s3_options(endpoint) | options)


@pytest.fixture(params=["local", "file", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, endpoint: str) -> Store:
    if request.param == "s3":
        return s3(endpoint)
    uris = {"local": str(tmp_path / "a b"), "file": f"file://{tmp_path}/x", "memory": f"memory://{uuid.uuid4().hex}"}
    return open_store(uris[request.param])


def test_put_if_absent(store: Store) -> None:
    assert store.put("log/1.json", b"mine")
    assert store.put("log/1.json", b"mine"), "a try that succeeded unnoticed"
    assert not store.put("log/1.json", b"yours")
    assert store.read("log/1.json") == b"mine"


def test_ranges(store: Store) -> None:
    store.put("a", b"0123456789")
    assert store.read("a", 3, 4) == b"3456"
    assert store.read("a", 3) == b"3456789"
    assert store.read("a", None, 2) == b"01"
    assert store.read("a", 4, 0) == b""
    assert store.read("a", 8, 100) == b"89"


def test_reading_ahead_requests_each_piece_once(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequential read of pieces requests each once."""
    store, data = s3(endpoint), os.urandom(1_000)
    assert isinstance(store, RemoteStore)
    store.put("a", data)
    asked: list[tuple[int, int]] = []
    real = stores.Ranges.read

    def counted(self: stores.Ranges, offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return real(self, offset, length)

    monkeypatch.setattr(stores.Ranges, "read", counted)
    assert list(store.object("a", 1_000).pieces(300)) == [data[at : at + 300] for at in range(0, 1_000, 300)]
    assert sorted(asked) == [(0, 300), (300, 300), (600, 300), (900, 100)]


def test_names(store: Store) -> None:
    assert store.list("log") == []
    for name in ("log/1", "log/10", "log/deep/er/2", "logbook/3", "top"):
        store.put(name, name.encode())
    assert sorted(store.list("log")) == ["log/1", "log/10", "log/deep/er/2"]
    assert store.list("log/deep") == ["log/deep/er/2"]
    assert store.exists("log/1")
    assert not store.exists("log/2")
    store.delete(["log/1", "log/deep/er/2", "log/never/was"])
    assert store.list("log") == ["log/10"]
    store.clear("log")
    store.clear("log")
    assert store.list("log") == []
    assert store.read("logbook/3") == b"logbook/3"
    store.delete([])


def test_reading_a_missing_object_is_an_error(store: Store) -> None:
    for arguments in ((), (0, 4)):
        with pytest.raises(FileNotFoundError, match="nothing"):
            store.read("nothing", *arguments)


def test_a_large_file_is_there_once_it_is_closed(store: Store) -> None:
    writer = store.writer("segments/1/a/x.state")
    part = os.urandom(1 << 20)
    for _ in range(12):
        writer.write(part)
    writer.close()
    assert store.read("segments/1/a/x.state", 11 << 20) == part
    assert store.list("segments") == ["segments/1/a/x.state"]


def test_stores_travel(store: Store) -> None:
    store.put("a", b"a")
    again = pickle.loads(pickle.dumps(store))
    assert (type(again), again.uri, again.read("a")) == (type(store), store.uri, b"a")


def test_exclusion_is_probed_and_nothing_is_left(store: Store) -> None:
    check_exclusion(store)
    assert store.list("probe") == []


@pytest.mark.parametrize("writers", [8])
def test_one_writer_wins(store: Store, writers: int) -> None:
    for round_ in range(5):
        assert_one_wins([store] * writers, f"log/{round_}")


def assert_one_wins(writers: list[Store], name: str) -> None:
    """All put their own data at once: one gets success, its data are stored, and none ends with an error."""
    data = [f"{number}".encode() for number in range(len(writers))]
    puts = [partial(store.put, name, own) for store, own in zip(writers, data, strict=True)]
    assert [own for own, has_won in zip(data, in_threads(puts), strict=True) if has_won] == [writers[0].read(name)]


# -- Under lies


@pytest.mark.parametrize("lie", LIES)
def test_one_writer_wins_under_a_lie(endpoint: str, lie: str) -> None:
    with Liar(endpoint, (lie,)) as liar:
        uri = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        for name in ("log/1.json", "log/2.json"):
            assert_one_wins([s3(liar.endpoint, uri) for _ in range(4)], name)
        assert liar.answers[lie] > 0
        assert liar.answers["truth"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_one_writer_wins_under_all_wrong_answers(endpoint: str, seed: int) -> None:
    with Liar(endpoint, LIES, seed) as liar:
        uri = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        for version in range(4):
            assert_one_wins([s3(liar.endpoint, uri) for _ in range(4)], f"log/{version}.json")
        assert len(liar.answers) > 5


def test_a_reply_that_never_comes(endpoint: str) -> None:
    """The put takes effect after its writer has stopped waiting; the time-out is long enough for a busy machine."""
    with Liar(endpoint, ("late",), share=1, lies_max=3, late_seconds=None) as liar:
        uri = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        writers = [s3(liar.endpoint, uri, timeout="3s") for _ in range(3)]
        assert_one_wins(writers, "log/1.json")
        found = writers[0].read("log/1.json")
        assert (liar.answers["late"], liar.arrived["late"]) == (3, 0)
        liar.may_arrive.set()
        wait_until(lambda: liar.arrived["late"] == 3, "a put that was late has not arrived")
        assert writers[0].read("log/1.json") == found


@pytest.mark.parametrize("lie", ["ignored", "checked before"])
def test_a_store_with_several_winners_is_refused(endpoint: str, lie: str) -> None:
    """One that looks and then puts refuses the second of two puts in turn: only puts at once show what it is."""
    with Liar(endpoint, (lie,), share=1) as liar:
        store = s3(liar.endpoint)
        is_exclusive = lie == "checked before"
        assert [store.put("log/1", data) for data in (b"first", b"second")] == [True, not is_exclusive]
        with pytest.raises(fp.StoreError, match=rf"{store.uri}: .*exactly one must succeed"):
            check_exclusion(store)
        assert liar.answers[lie] > 2
        assert store.list("probe") == []


def test_a_store_that_never_confirms(endpoint: str) -> None:
    with Liar(endpoint, ("409", "503 before"), share=1) as liar:
        store = s3(liar.endpoint)
        with pytest.raises(fp.StoreError, match=rf"{store.uri}/log/1: cannot write it, tried {stores.TRIES_MAX} times"):
            store.put("log/1", b"x")
        assert not store.exists("log/1")


# -- What cannot be opened or reached


def test_no_bucket_and_no_server(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "TRIES_MAX", 2)
    with pytest.raises(fp.StoreError, match=r"s3://nowhere/x/a: cannot write it.*"):
        s3(endpoint, "s3://nowhere/x").put("a", b"a")
    with pytest.raises(fp.StoreError, match=r"s3://bucket/x/log: cannot list it, tried 2 times: [^\n]*$"):
        s3("http://127.0.0.1:9", "s3://bucket/x").list("log")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("ftp://host/x", "ftp://host/x: unknown store ftp://; known are paths, file, s3"),
        ("file://host/x", "file://host/x: a file:// URI has three slashes"),
        ("s3://key:word@bucket/x", "s3://...@bucket/x: the URI contains"),
        ("S3://bucket/x", "S3://bucket/x: unknown store S3://"),
        ("dbfs:/x", "dbfs:/x: neither a path"),
        (Path("s3://key:word@bucket/x"), "s3:/...@bucket/x: neither a path"),
    ],
)
def test_invalid_uris_are_refused(uri: str | Path, message: str) -> None:
    with pytest.raises(fp.StoreError) as caught:
        open_store(uri)
    assert caught.value.message.startswith(message)


def test_a_uri_with_one_slash_is_not_a_folder_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state would be lost with the container that it is in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").mkdir()
    for uri in ("file:/data", Path("s3://bucket/x"), "file://data", "file://localhost/data"):
        for places in ((uri, "state", "sink"), ("source", uri, "sink"), ("source", "state", uri)):
            with pytest.raises(fp.StoreError, match=r"neither a path|three slashes"):
                DedupJob(*places).run()
    assert [it.name for it in tmp_path.iterdir()] == ["source"]
    assert stores.absolute("./file:/data") == f"{tmp_path}/file:/data"
    assert stores.absolute("C:/data") == f"{tmp_path}/C:/data"


@pytest.mark.parametrize("name", ["a b", "at=10%3A00", "100%", "x?y=1", "a#1", "ü→", "x=1&y;z"])
def test_a_prefix_has_the_name_that_its_uri_shows(endpoint: str, name: str) -> None:
    bucket, folder = s3(endpoint, f"s3://{BUCKET}"), uuid.uuid4().hex
    store = s3(endpoint, f"s3://{BUCKET}/{folder}/{name}")
    assert isinstance(store, RemoteStore)
    assert store.put("one", b"1")
    assert store.copy(store, "one", 1, "two")
    assert sorted(bucket.list(folder)) == [f"{folder}/{name}/one", f"{folder}/{name}/two"]
    assert bucket.read(f"{folder}/{name}/two") == store.read("two") == b"1"


def test_unknown_options_of_a_store_are_refused(endpoint: str) -> None:
    with pytest.raises(fp.StoreError, match=r"s3://bucket/x: .*colour"):
        s3(endpoint, "s3://bucket/x", colour="red")


def test_which_store_a_uri_means(tmp_path: Path, endpoint: str) -> None:
    assert isinstance(open_store(tmp_path), LocalStore)
    assert open_store(f"file://{tmp_path}/").uri == str(tmp_path)
    assert isinstance(open_store("memory://x"), MemoryStore)
    assert isinstance(s3(endpoint), RemoteStore)
    assert [stores.is_local(uri) for uri in ("a/b", tmp_path, "file:///x", "s3://b/x", "memory://x")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_the_client_is_imported_for_remote_stores_only(tmp_path: Path) -> None:
    program = (
        "import sys; from fencepost.state import open_store; open_store(sys.argv[1]); open_store('memory://x');"
        "sys.exit('obstore' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 0


def test_a_fork_of_a_process_that_sent_requests_sends_none(endpoint: str) -> None:
    """Without the refusal it would wait without end: the threads of the client are not in the fork."""
    program = f"""
import os, fencepost as fp
from fencepost.state.stores import open_store
options = dict(endpoint={endpoint!r}, region="us-east-1", access_key_id="a", secret_access_key="b", allow_http=True)
store = open_store("s3://{BUCKET}/forked", options=options)
before = os.fork()
if not before:
    print("first", store.list("x"), flush=True)
    os._exit(0)
os.waitpid(before, 0)
print("parent", store.list("x"), flush=True)
after = os.fork()
if not after:
    for call in (lambda: store.list("x"), lambda: store.writer("y"), lambda: store.put("z", b"")):
        try:
            call()
        except fp.PolicyError as error:
            print("before it forked this one" in error.message, flush=True)
    os._exit(0)
os.waitpid(after, 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["first []", "parent []", "True", "True", "True"]
