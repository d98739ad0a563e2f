"""Plans of stages: data that tasks of other processes read, and nothing that runs code there."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import fencepost as fp
import numpy as np
import pytest
from fencepost import Policy
from fencepost.kafka.source import Object
from fencepost.lake.aligned import AlignItem
from fencepost.lake.hot import DealItem, PartItem
from fencepost.lake.judge import JudgeItem
from fencepost.lake.kafka_log import ExportItem
from fencepost.lake.scan import ScanItem
from fencepost.lake.write import WriteItem
from fencepost.state.disk import Disk
from fencepost.state.scratch import FolderScratch
from fencepost.state.stores import open_store
from fencepost.state.task_plan import from_plan, read_item, write_plan
from support.lake import first_of_each, land_some, make_job, read_sink, read_source
from support.secret_runs import ProcessEngine


class Tampering(ProcessEngine):
    """Changes the plan of one stage before its tasks read it."""

    def __init__(self, stage: str, change: Callable[[bytes], bytes]) -> None:
        self.stage, self.change = stage, change
        self.changed = 0

    def run(self, stage: str, work: Callable[[Any], Any], items: Sequence[Any], progress: Any = None) -> list[Any]:
        if stage == self.stage:
            scratch, name = work.args[-2:]  # type: ignore[attr-defined]
            path = Path(scratch.place(name))
            path.write_bytes(self.change(path.read_bytes()))
            self.changed += 1
        return super().run(stage, work, items, progress)


class Bomb:
    """Pickled, it makes a folder where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_job_whose_tasks_are_processes(tmp_path: Path) -> None:
    land_some(tmp_path)
    make_job(tmp_path, engine=ProcessEngine(), plan="interval", driver_spans_max=0).run()
    assert read_sink(tmp_path)["origin"].to_list() == first_of_each(read_source(tmp_path))["origin"].to_list()


@pytest.mark.parametrize("stage", ["scan", "judge", "write", "align"])
@pytest.mark.parametrize("kind", ["pickle", "other numbers", "cut"])
def test_a_plan_of_another_writer_is_refused(tmp_path: Path, stage: str, kind: str) -> None:
    land_some(tmp_path, range(2))
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    changes: dict[str, Callable[[bytes], bytes]] = {
        "pickle": lambda data: bomb + data[len(bomb) :],
        "other numbers": lambda data: re.sub(rb":\d+", b":9", data),
        "cut": lambda data: data[: len(data) // 2],
    }
    engine = Tampering(stage, changes[kind])
    plan = "aligned" if stage == "align" else "interval"
    job = make_job(tmp_path, engine=engine, plan=plan, driver_spans_max=0)
    with pytest.raises(fp.StoreError, match=r"\.plan, bytes 0 to .*: not the plan"):
        job.run()
    assert engine.changed == 1
    assert not (tmp_path / "exploded").exists()
    assert not list((tmp_path / "sink").glob("run=*"))


KINDS = {
    "scan": ScanItem,
    "deal": DealItem,
    "part": PartItem,
    "judge": JudgeItem,
    "write": WriteItem,
    "align": AlignItem,
    "export": ExportItem,
}


def example(kind: Any) -> Any:
    """A value of a type, no part of it empty."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Policy:
        return Policy.any_order().replace(columns=fp.Columns(partition=("topic", "partition")))
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{it.name: example(hints[it.name]) for it in dataclasses.fields(kind)})  # type: ignore[operator]
    if origin in (Union, UnionType):
        return None if Object in arguments else example(next(it for it in arguments if it is not type(None)))
    if origin is Literal:
        return arguments[-1]
    if origin is np.ndarray:
        return np.array([1, 0, 2], get_args(arguments[1])[0])
    if origin is list:
        is_open = type(None) in get_args(arguments[0])
        return [example(arguments[0]), *([None] if is_open else [])]
    if origin is tuple:
        return tuple(example(it) for it in arguments if it is not ...)
    if origin is not None:
        return {"x": example(arguments[1])}
    return {int: 7, str: "ä/1", bool: True, bytes: b"\x00\xff"}[kind]


@pytest.mark.parametrize("stage", KINDS)
def test_an_item_comes_back_as_it_was(tmp_path: Path, stage: str) -> None:
    item = example(KINDS[stage])
    scratch = FolderScratch(str(tmp_path), Disk())
    name, (place,) = write_plan(scratch, stage, [item])
    assert repr(read_item(scratch, name, place, type(item))) == repr(item)


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a field more": lambda item: {**item, "__class__": "os.system"},
    "a field less": lambda item: {name: it for name, it in item.items() if name != "parts"},
    "no object": lambda item: [item],
    "text for a number": lambda item: {**item, "version": "3"},
    "true for a number": lambda item: {**item, "version": True},
    "another type of array": lambda item: {**item, "parts": {**item["parts"], "shard": item["parts"]["begin"]}},
    "objects for an array": lambda item: {
        **item,
        "parts": {**item["parts"], "shard": {"dtype": "|O", "base64": "AAAAAAAAAAA="}},
    },
    "a part of a number": lambda item: {
        **item,
        "parts": {**item["parts"], "shard": {"dtype": "<u4", "base64": "AAAA"}},
    },
    "no base64": lambda item: {**item, "parts": {**item["parts"], "shard": {"dtype": "<u4", "base64": "?"}}},
    "a piece of another shape": lambda item: {**item, "shards": [None, {"shard": 2}]},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_an_item_of_another_shape_is_refused_by_name(tmp_path: Path, what: str) -> None:
    scratch = FolderScratch(str(tmp_path), Disk())
    name, (place,) = write_plan(scratch, "judge", [example(JudgeItem)])
    item = HOSTILE[what](json.loads((tmp_path / name).read_bytes()))
    with pytest.raises(fp.StoreError, match=r"somewhere: cannot be read") as error:
        from_plan(json.dumps(item).encode(), JudgeItem, "somewhere")
    assert "JudgeItem" in str(error.value) or what == "no base64"
    assert read_item(scratch, name, place, JudgeItem).version == 7


def test_an_invalid_policy_is_refused(tmp_path: Path) -> None:
    name, _ = write_plan(FolderScratch(str(tmp_path), Disk()), "judge", [example(JudgeItem)])
    item = json.loads((tmp_path / name).read_bytes())
    item["reading"]["policy"]["admit"] = "everything"
    with pytest.raises(fp.PolicyError):
        from_plan(json.dumps(item).encode(), JudgeItem, "somewhere")


@pytest.mark.parametrize("what", [open_store("/tmp/x"), print, {1, 2}, object()])
def test_plans_contain_data_only(tmp_path: Path, what: Any) -> None:
    with pytest.raises(TypeError, match="contains data only"):
        write_plan(FolderScratch(str(tmp_path), Disk()), "judge", [{"store": what}])
