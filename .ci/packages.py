"""Checks built packages: names, sizes, and that wheels hold what they should. `packages.py FOLDER...`."""

from __future__ import annotations

import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

WHEEL_BYTES_MAX = 6 << 20
ROOT = Path(__file__).parent.parent


def problems(folder: Path) -> list[str]:
    """What is wrong with the packages in a folder; empty where nothing is."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    packages = sorted(it for it in folder.rglob("*") if it.name.endswith((".whl", ".tar.gz")))
    if not packages:
        return [f"{folder}: no wheel and no sdist"]
    return [f"{it.name}: {text}" for it in packages for text in _problems_of(it, version)]


def _problems_of(package: Path, version: str) -> list[str]:
    if not re.match(rf"fencepost(_spark)?-{re.escape(version)}[-.]", package.name):
        return [f"its version is not {version}, the one of Cargo.toml"]
    if package.suffix == ".whl":
        names, size = zipfile.ZipFile(package).namelist(), package.stat().st_size
        wanted = ["/METADATA", "/licenses/LICENSE" if "_spark" not in package.name else "/METADATA", "py.typed"]
        found = [] if size <= WHEEL_BYTES_MAX else [f"{size:,} bytes; at most {WHEEL_BYTES_MAX:,}"]
    else:
        with tarfile.open(package) as archive:
            names = archive.getnames()
        wanted, found = ["/PKG-INFO", "Cargo.toml"], []
        if "_spark" not in package.name:
            wanted.append("/Cargo.lock")  # so that it builds from the versions that were tested
    found += [f"holds no {name}" for name in wanted if not any(it.endswith(name) for it in names)]
    stray = [it for it in names if "__pycache__" in it or it.endswith((".pyc", ".so.unfinished"))]
    return found + [f"holds {name}" for name in stray]


if __name__ == "__main__":
    found = [it for folder in sys.argv[1:] for it in problems(Path(folder))]
    print(*found or ["packages: all is well"], sep="\n")
    sys.exit(bool(found))
