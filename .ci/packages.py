"""Checks built packages: names, sizes, and that wheels hold what they should. `packages.py FOLDER...`.

With `--published`, also that the description of a wheel has no relative link, and that it names the project's pages.
"""

from __future__ import annotations

import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

WHEEL_BYTES_MAX = 6_000_000
ROOT = Path(__file__).parent.parent


def problems(folder: Path, is_published: bool = False) -> list[str]:
    """What is wrong with the packages in a folder; empty where nothing is."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    packages = sorted(it for it in folder.rglob("*") if it.name.endswith((".whl", ".tar.gz")))
    if not packages:
        return [f"{folder}: no wheel and no sdist"]
    found = [f"{it.name}: {text}" for it in packages for text in _problems_of(it, version)]
    if is_published:
        found += [f"{it.name}: {text}" for it in packages if it.suffix == ".whl" for text in _links_of(it)]
    return found


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


def _links_of(wheel: Path) -> list[str]:
    """What is wrong with the links that a package index shows."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [it for it in archive.namelist() if it.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
    relative = re.findall(r"\]\((?!\w+:|#)([^)\s]+)\)", text)
    return [f"the link {it} leads nowhere in a package index" for it in relative] + (
        [] if "\nProject-URL: " in text else ["it names no page of the project"]
    )


if __name__ == "__main__":
    folders = [it for it in sys.argv[1:] if it != "--published"]
    found = [it for folder in folders for it in problems(Path(folder), "--published" in sys.argv)]
    print(*found or ["packages: all is well"], sep="\n")
    sys.exit(bool(found))
