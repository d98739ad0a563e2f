"""What would be left after a power loss, from the calls that a run made.

The calls are those that the kernel saw, where strace is there, else those of the module os. A content is durable once
its file was synced after its last write, a name once its folder was synced after the name was made. Nothing may be
named by what follows before it is durable: Prepare < Decide < Apply < Finish.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.driver import Drive, make_job
from faults.world import World, demand

CALLS = "openat,creat,mkdir,link,linkat,rename,renameat,renameat2,fsync,fdatasync,write,pwrite64,writev,ftruncate"
CALLS += ",copy_file_range,sendfile,ioctl,mkdirat"
Event = tuple[str, str, str]
"""(what, path, other path): make, write, folder, link, rename or sync."""


@dataclass
class Disk:
    """Paths, and what of them a power loss would leave."""

    node: dict[str, int] = field(default_factory=dict)
    """Content that a path stands for."""
    is_synced: dict[int, bool] = field(default_factory=dict)
    undurable: set[str] = field(default_factory=set)
    """Names whose folder was not synced since."""

    def happen(self, what: str, path: str, other: str) -> None:
        if (what == "make" and path not in self.node) or what == "folder":
            self._name(path, len(self.is_synced))
        elif what == "write" and path in self.node:
            self.is_synced[self.node[path]] = False
        elif what == "link":
            self._name(other, self.node.get(path, len(self.is_synced)))
        elif what == "rename":
            self._rename(path, other)
        elif what == "sync":
            if path not in self.node:
                self._name(path, len(self.is_synced))
                self.undurable.discard(path)  # it was there before
            self.is_synced[self.node[path]] = True
            self.undurable = {name for name in self.undurable if os.path.dirname(name) != path}

    def _name(self, path: str, node: int) -> None:
        self.is_synced.setdefault(node, False)
        self.node[path] = node
        self.undurable.add(path)

    def _rename(self, path: str, other: str) -> None:
        for name in [name for name in self.node if name == path or name.startswith(f"{path}/")]:
            moved = other + name[len(path) :]
            self.node[moved] = self.node.pop(name)
            if name in self.undurable:
                self.undurable.discard(name)
                self.undurable.add(moved)
        if other not in self.node:
            self._name(other, len(self.is_synced))
        self.undurable.add(other)

    def demand_durable(self, path: str, top: str, before: str, *, is_folder: bool = False) -> None:
        demand(is_folder or self.is_synced.get(self.node.get(path, -1), False), f"{path} is not synced before {before}")
        while path != top:
            demand(path not in self.undurable, f"the name {path} is not durable before {before}")
            path = os.path.dirname(path)


def check_order(world: World, version: int, events: Iterable[Event]) -> int:
    """Demands that what each step names is durable before the step; gives the number of events."""
    decision = world.opened().version(version)
    state, sink = str(world.state), str(world.sink)
    log, done, run = f"{state}/log/{version}.json", f"{state}/done/{version}", f"{sink}/run={version}"
    prepared = f"{sink}/{decision.prepared}"
    named = [f"{state}/{name}" for name in decision.files() if name.startswith(f"segments/{version}/")]
    named += [f"{prepared}/{name}" for name in (*decision.outputs.name, *decision.side_files.name)]
    if version == 1:
        named += [f"{state}/state.json", f"{sink}/_fencepost.json"]
    disk, seen, count = Disk(), [], 0
    for what, path, other in events:
        count += 1
        made = other if what in ("link", "rename") else path
        if what != "sync" and made in (log, run, done) and made not in seen:
            seen.append(made)
            if made == log:
                disk.demand_durable(path, path, "Decide")
                for name in named:
                    disk.demand_durable(name, sink if name.startswith(sink) else state, "Decide")
            elif made == run:
                disk.demand_durable(log, state, "Apply")
            else:
                disk.demand_durable(run, sink, "Finish", is_folder=True)
        disk.happen(what, path, other)
    demand(seen == [log, run, done], f"the steps came in another order: {[os.path.basename(it) for it in seen]}")
    disk.demand_durable(done, state, "the end")
    demand(len(named) > 3 and count > 50, f"hardly anything was looked at: {len(named)} names, {count} calls")
    return count


def traced(world: World, options: dict[str, Any], mutant: str = "") -> list[Event]:
    """A run, and what the kernel saw of it."""
    trace = world.root / "trace"
    program = [sys.executable, "-m", "faults.order", str(world.root), repr(options), mutant]
    command = ["strace", "-f", "-y", "-qq", "-s", "0", "--seccomp-bpf", "-e", f"trace={CALLS}", "-o", str(trace)]
    done = subprocess.run([*command, *program], check=False, capture_output=True, text=True)
    demand(done.returncode == 0, f"a traced run failed: {done.stderr[-1000:]}")
    return [event for event in _events(trace.read_text()) if event[1].startswith(str(world.root))]


def recorded(act: Callable[[], object], root: Path) -> list[Event]:
    """What `act` does by way of the module os."""
    events: list[Event] = []
    real = {name: getattr(os, name) for name in ("link", "rename", "mkdir", "fsync")}
    words = {"link": "link", "rename": "rename", "mkdir": "folder", "fsync": "sync"}

    def recording(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name == "fsync":
                paths = [os.readlink(f"/proc/self/fd/{arguments[0]}"), ""]
            else:
                paths = [str(it) for it in arguments[: 1 if name == "mkdir" else 2]] + [""]
            found = real[name](*arguments, **options)
            events.append((words[name], paths[0], paths[1]))
            return found

        return call

    try:
        for name in real:
            setattr(os, name, recording(name))
        act()
    finally:
        for name, function in real.items():
            setattr(os, name, function)
    return [event for event in events if event[1].startswith(str(root))]


def can_trace() -> bool:
    if not shutil.which("strace"):
        return False
    return subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], check=False, capture_output=True).returncode == 0


def _events(text: str) -> Iterator[Event]:
    pending: dict[str, str] = {}
    for line in text.splitlines():
        pid, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            pending[pid] = call.removesuffix("<unfinished ...>")
            continue
        if match := re.match(r"<\.\.\. \w+ resumed>", call):
            call = pending.pop(pid, "") + call[match.end() :]
        name, _, rest = call.partition("(")
        if re.search(r"\) += -1 ", rest):
            continue
        quoted, handles = re.findall(r'"([^"]*)"', rest), re.findall(r"\d+<([^>]*)>", rest)
        if name in ("openat", "creat") and ("O_CREAT" in rest or name == "creat"):
            yield ("make", handles[-1], "")
        elif name == "openat":
            continue
        elif name in ("mkdir", "mkdirat"):
            yield ("folder", quoted[0], "")
        elif name in ("link", "linkat"):
            yield ("link", quoted[0], quoted[1])
        elif name.startswith("rename"):
            yield ("rename", quoted[0], quoted[1])
        elif name in ("fsync", "fdatasync"):
            yield ("sync", handles[0], "")
        elif name in ("copy_file_range", "sendfile"):
            yield ("write", handles[1 if name == "copy_file_range" else 0], "")
        elif handles:
            yield ("write", handles[0], "")


def main() -> None:
    root, options, mutant = sys.argv[1:]
    world = World(Path(root))
    make_job(world, Drive(options=eval(options), mutant=mutant)).run()


if __name__ == "__main__":
    main()
