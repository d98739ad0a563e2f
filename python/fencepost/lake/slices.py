"""Selects the part of a folder's or prefix's new files that a run reads.

| argument | meaning |
|---|---|
| `only` | patterns: reads a file if one matches its path, or a folder above it |
| `files` | paths from a notification: the source is not listed |
| `files_max`, `bytes_max`, `rows_max` | how much to read at once, the first files by name |

Deferred files are read in any case, unless verdicts depend on the order. Otherwise they would be retried too late and
never settle.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile

from fencepost.findings import IGNORED_MAX
from fencepost.lake.asking import Ask, ask_facts, ask_rows
from fencepost.lake.files import Files
from fencepost.lake.storage import Storage
from fencepost.state.stores import absolute, is_local


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The part of a source's new files that a run reads."""

    files_max: int | None = None
    bytes_max: int | None = None
    rows_max: int | None = None
    of_source: tuple[str, ...] = ()
    """Patterns for what belongs to the source. () for all files in its folder."""
    only: tuple[str, ...] = ()
    """Patterns for what to read of it. () for all."""
    files: tuple[str, ...] | None = None
    """Relative to the source."""
    order: tuple[str, ...] = ()
    """All paths in the order in which to judge them. () for the order of their names."""

    @property
    def argument(self) -> str | None:
        """The name of an argument that was passed, if any."""
        known: dict[str, object] = {"files_max": self.files_max, "bytes_max": self.bytes_max, "rows_max": self.rows_max}
        known |= {"several paths": self.of_source or None, "only": self.only or None, "files": self.files}
        return next((name for name, value in known.items() if value is not None), None)

    @property
    def whole(self) -> Slice:
        """Return a copy without limits on how much to read at once."""
        return Slice(of_source=self.of_source, only=self.only, files=self.files)

    def listed(self, ask: Ask, storage: Storage, root: str, deferred: Collection[str]) -> tuple[Files, list[str]]:
        """Return (the files of the slice, named files that do not exist)."""
        gone: list[str] = []
        if self.files is None:
            found = self._list(ask, storage, root, deferred)
        else:
            found, gone = _observe(ask, storage, root, self.files, deferred)
        if not (self.of_source or self.only):
            return found, gone
        places = [place for place, path in enumerate(found.paths) if path in deferred or self.matches(path)]
        return dataclasses.replace(found.take(places), ignored=found.ignored), gone

    def matches(self, path: str) -> bool:
        """Return whether a path, relative to the source, belongs to the slice."""
        parts = path.split("/")
        wanted = [some for some in (self.of_source, self.only) if some]
        return all(any(_matches(pattern.split("/"), parts) for pattern in some) for some in wanted)

    def may_hold(self, folder: str) -> bool:
        """Return whether a folder of the source, or one above it, may contain files of the slice."""
        parts = folder.split("/")
        return not self.of_source or any(
            "**" in (some := pattern.split("/")) or all(map(_is_like, some, parts)) for pattern in self.of_source
        )

    def _list(self, ask: Ask, storage: Storage, root: str, deferred: Collection[str]) -> Files:
        """List the folders that may contain matching files, and the deferred files."""
        folders = sorted({_folder(pattern) for pattern in self.of_source or self.only or ("",)})
        tops = [it for it in folders if not any(it != top and f"{it}/".startswith(f"{top}/") for top in folders)]
        if "" in folders:
            return storage.list(root)
        listed = [storage.list(root, folder) for folder in tops]
        files = Files(root, ignored=tuple(path for it in listed for path in it.ignored)[:IGNORED_MAX])
        for some in listed:
            files.extend(some)
        files.extend(_observe(ask, storage, root, (), set(deferred).difference(files.paths))[0])
        in_order = files.take(sorted(range(len(files)), key=files.paths.__getitem__))
        return dataclasses.replace(in_order, ignored=files.ignored)

    def ordered(self, files: Files, places: Iterable[int]) -> list[int]:
        """Return the indexes of files in the order in which to judge them."""
        ranks = {path: rank for rank, path in enumerate(self.order)}
        return sorted(places, key=lambda place: (ranks.get(files.paths[place], 0), place))

    def first_of(
        self, ask: Ask, storage: Storage, files: Files, places: Sequence[int], at_once: Collection[str]
    ) -> Sequence[int]:
        """Select as many of the new files as a run may read: the first ones, at least one, and all in `at_once`."""
        if self.files_max is None and self.bytes_max is None and self.rows_max is None:
            return places
        fresh = [place for place in places if files.paths[place] not in at_once]
        rows_of = ask_rows(ask, storage, files, fresh) if self.rows_max is not None else iter([0] * len(fresh))
        taken, count, size, rows = set[int](), 0, 0, 0
        for place in fresh:
            count, size, rows = count + 1, size + files.bytes[place], rows + next(rows_of)
            known = ((self.files_max, count), (self.bytes_max, size), (self.rows_max, rows))
            if count > 1 and any(most is not None and found > most for most, found in known):
                break
            taken.add(place)
        return [place for place in places if place in taken or files.paths[place] in at_once]


def patterns_of(only: str | Iterable[str] | None) -> tuple[str, ...]:
    """Parse `DedupJob(only=)`. Raises ValueError."""
    found = (only,) if isinstance(only, str) else tuple(only or ())
    for pattern in found:
        if not pattern.strip("/") or pattern.startswith("/") or "://" in pattern or ".." in pattern.split("/"):
            raise ValueError(f"only={pattern!r}: expected a pattern within the source, such as 'day=2026-11-*'")
    return tuple(it.rstrip("/") for it in found)


def source_of(
    given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[str, tuple[str, ...]]:
    """Return (the common folder of a source, patterns for what belongs to it) for a path, a glob, or a list of these.

    A text that contains `*`, `?` or `[` is a glob, unless a folder has exactly that name. A `Path` is never a glob.
    Raises ValueError.
    """
    if isinstance(given, str | os.PathLike) and not is_glob(given):
        place = absolute(given)
        if not (is_local(place) and place.endswith(".parquet") and os.path.isfile(place)):
            return place, ()
    paths = [given] if isinstance(given, str | os.PathLike) else list(given)
    listed, are_globs = [absolute(it) for it in paths], [is_glob(it) for it in paths]
    if not listed:
        raise ValueError("source: no paths")
    if len({it.partition("://")[0] if "://" in it else "" for it in listed}) > 1:
        raise ValueError(f"source: {', '.join(listed)}: all of them must be in one store")
    parts = [it.split("/") for it in listed]
    literal = [_literal(*it) for it in zip(listed, parts, are_globs, strict=True)]
    shared = [some[0] for some in takewhile(lambda some: len(set(some)) == 1, zip(*literal, strict=False))]
    if len(shared) < (3 if "://" in listed[0] else 2):
        raise ValueError(f"source: {', '.join(listed)}: they have no folder in common that could be the source")
    patterns = []
    for some, is_pattern in zip(parts, are_globs, strict=True):
        rest = "/".join(some[len(shared) :])
        patterns.append(rest if is_pattern else glob.escape(rest))
    return "/".join(shared), () if "" in patterns else tuple(patterns)


def files_of(source: str, given: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return paths relative to the source. Raises ValueError for a path outside the source."""
    return tuple(dict.fromkeys(_relative(source, os.fspath(it)) for it in given))


def _relative(source: str, path: str) -> str:
    is_whole = "://" in path or os.path.isabs(path)
    found = absolute(path).removeprefix(f"{source}/") if is_whole else path
    parts = found.split("/")
    if (is_whole and found == absolute(path)) or ".." in parts:
        raise ValueError(f"files: {path} is not in the source {source}")
    if "" in parts or any(it.startswith(("_", ".")) for it in parts) or not path.endswith(".parquet"):
        raise ValueError(f"files: {path}: only *.parquet is read, and nothing beneath names that begin with _ or .")
    return found


def is_glob(given: str | os.PathLike[str]) -> bool:
    """Return whether a text is a pattern and not the name of an existing file. A `Path` is never a pattern."""
    if not isinstance(given, str) or re.search(r"[*?\[]", given) is None:
        return False
    path = absolute(given)
    return not (is_local(path) and os.path.exists(path))


def _folder(pattern: str) -> str:
    """Return the folder before the first part with a wildcard."""
    parts = pattern.split("/")
    of_several = (place for place, it in enumerate(parts) if re.search(r"[*?\[]|=.*\.\.", it))
    return "/".join(parts[: next(of_several, len(parts) - pattern.endswith(".parquet"))])


def _literal(path: str, parts: list[str], is_pattern: bool) -> list[str]:
    """Return the folders before the first one with a wildcard, or all; without the name of a single file."""
    if not is_pattern:
        return parts[:-1] if path.endswith(".parquet") else parts
    return parts[: next(place for place, it in enumerate(parts) if re.search(r"[*?\[]", it))]


def _matches(pattern: list[str], parts: list[str]) -> bool:
    """Return whether a pattern matches the first parts of a path. `**` matches any number of folders."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_matches(pattern[1:], parts[place:]) for place in range(len(parts) + 1))
    return bool(parts) and _is_like(pattern[0], parts[0]) and _matches(pattern[1:], parts[1:])


def _is_like(pattern: str, part: str) -> bool:
    """`day=2026-11-20..2026-11-24` matches all values between, in text order."""
    name, _, values = pattern.partition("=")
    low, dots, high = values.partition("..")
    if not dots:
        return fnmatchcase(part, pattern)
    found, _, value = part.partition("=")
    return found == name and low <= value <= (high or value)


def _observe(
    ask: Ask, storage: Storage, root: str, named: Collection[str], deferred: Collection[str]
) -> tuple[Files, list[str]]:
    paths = sorted({*named, *deferred})
    facts = ask_facts(ask, storage, [os.path.join(root, path) for path in paths])
    files, gone = Files(root), []
    for path, it in zip(paths, facts, strict=True):
        if it is None:
            gone += [path] if path in named else []
        else:
            files.append(path, it)
    return files, gone
