"""Checks the licences of the Python packages that the extras install, in the environment that runs it: `licences.py`.

Walks the dependencies of all extras. Every licence of an expression must be accepted, alternatives included. The list
in `deny.toml` holds for crates, which cargo-deny checks, and for Python packages.
"""

from __future__ import annotations

import re
import sys
import tomllib
from email.message import Message
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECTS = ("pyproject.toml", "spark_udf/pyproject.toml")
ACCEPTED = {*tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"], "0BSD", "ISC", "PSF-2.0"}
# These licences bind only changed copies. Users install the packages from an index, and ours contain nothing of them.
EXCEPTIONS = {"certifi": "MPL-2.0", "psycopg": "LGPL-3.0-only", "psycopg-binary": "LGPL-3.0-only"}
# Classifiers, of packages without an expression.
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


def problems() -> list[str]:
    """What is wrong with the licences of all packages; empty where nothing is."""
    found: list[str] = []
    to_read = [Requirement(text) for project in PROJECTS for text in _extras(project)]
    seen: set[tuple[str, str]] = set()
    while to_read:
        requirement = to_read.pop()
        name = canonicalize_name(requirement.name)
        new = {(name, extra) for extra in ("", *requirement.extras)} - seen
        seen |= new
        try:
            package = distribution(name)
        except PackageNotFoundError:
            found.append(f"{name}: it is not installed, so its licence is not known")
            continue
        for _, extra in new:
            needed = map(Requirement, package.requires or ())
            to_read += [it for it in needed if it.marker is None or it.marker.evaluate({"extra": extra})]
        if (name, "") in new:
            found += problems_of(name, package.metadata)
    return sorted(set(found))


def problems_of(name: str, metadata: Message) -> list[str]:
    """The licences of a package that are not accepted."""
    licences = _licences_of(metadata) or ["no licence"]
    return [f"{name}: {it} is not accepted" for it in licences if it not in {*ACCEPTED, EXCEPTIONS.get(name)}]


def _licences_of(metadata: Message) -> list[str]:
    if expression := metadata.get("License-Expression"):
        return [it for it in re.split(r"\s+AND\s+|\s+OR\s+|[()\s]*[()][()\s]*", expression) if it]
    classifiers = [it.rpartition(" :: ")[2] for it in metadata.get_all("Classifier", ()) if it.startswith("License ::")]
    texts = classifiers or metadata.get_all("License", ())
    return [CLASSIFIERS.get(it, it) for it in texts]


def _extras(project: str) -> list[str]:
    extras = tomllib.loads((ROOT / project).read_text())["project"]["optional-dependencies"]
    return [text for texts in extras.values() for text in texts]


if __name__ == "__main__":
    found = problems()
    print(*found or ["licences: all are accepted"], sep="\n")
    sys.exit(bool(found))
