"""What package indexes show: working links, sizes, the check of packages, and licences."""

from __future__ import annotations

import shutil
import tomllib
import zipfile
import zlib
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from support.scripts import load_script

ROOT = Path(__file__).parents[2]
URL = "https://example.org/a/fencepost"

published: Any = load_script(ROOT / ".ci" / "published.py")
smaller: Any = load_script(ROOT / ".ci" / "smaller.py")
packages: Any = load_script(ROOT / ".ci" / "packages.py")
licences: Any = load_script(ROOT / ".ci" / "licences.py")


def test_links_become_absolute() -> None:
    text = "[a](docs/a.md#b) ![c](d.svg) [e](https://example.org/f) [g](#h) `[i](j`"
    wanted = f"[a]({URL}/blob/v1/docs/a.md#b) ![c]({URL}/raw/v1/d.svg) [e](https://example.org/f) [g](#h) `[i](j`"
    assert published.with_absolute_links(text, URL, "v1") == wanted


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("README.md", "Cargo.toml", *published.PROJECTS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def wheel_of(folder: Path) -> Path:
    """A wheel with the description and the project's pages of a copy of the repository."""
    version = tomllib.loads((folder / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    urls = tomllib.loads((folder / "pyproject.toml").read_text())["project"].get("urls", {})
    lines = [f"Project-URL: {name}, {url}" for name, url in urls.items()]
    name = f"fencepost-{version}"
    dist = folder / "dist"
    dist.mkdir(exist_ok=True)
    with zipfile.ZipFile(dist / f"{name}-py3-none-any.whl", "w") as archive:
        description = (folder / "README.md").read_text("utf-8")
        text = "\n".join([f"Name: fencepost\nVersion: {version}", *lines, "", description])
        archive.writestr(f"{name}.dist-info/METADATA", text)
        archive.writestr(f"{name}.dist-info/licenses/LICENSE", "")
        archive.writestr("fencepost/py.typed", "")
    return dist


def test_a_published_package_has_no_relative_link(copy: Path) -> None:
    found = packages.problems(wheel_of(copy), is_published=True)
    assert len(found) > 5
    assert any("it names no page of the project" in it for it in found)
    assert packages.problems(wheel_of(copy)) == []
    published.publish(copy, f"{URL}/")
    assert packages.problems(wheel_of(copy), is_published=True) == []
    for project in published.PROJECTS:
        urls = tomllib.loads((copy / project).read_text("utf-8"))["project"]["urls"]
        assert urls["Source"] == URL
    with pytest.raises(ValueError, match="urls"):
        published.publish(copy, URL)


def test_a_wheel_that_is_too_large(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert packages.WHEEL_BYTES_MAX == 6_000_000
    dist = wheel_of(copy)
    [wheel] = dist.iterdir()
    size = wheel.stat().st_size
    monkeypatch.setattr(packages, "WHEEL_BYTES_MAX", size)
    assert packages.problems(dist) == []
    monkeypatch.setattr(packages, "WHEEL_BYTES_MAX", size - 1)
    assert packages.problems(dist) == [f"{wheel.name}: {size:,} bytes; at most {size - 1:,}"]


def test_a_wheel_that_is_compressed_again_has_the_same_files(copy: Path) -> None:
    [wheel] = wheel_of(copy).iterdir()
    before = zipfile.ZipFile(wheel)
    files = {it.filename: (before.read(it), it.date_time, it.external_attr) for it in before.infolist()}
    size = wheel.stat().st_size

    def compress(data: bytes) -> bytes:
        return zlib.compress(data, 9)[2:-4]

    smaller.make_smaller(wheel, compress)
    after = zipfile.ZipFile(wheel)
    assert after.testzip() is None
    assert {it.filename: (after.read(it), it.date_time, it.external_attr) for it in after.infolist()} == files
    assert wheel.stat().st_size < size
    assert packages.problems(wheel.parent) == []
    assert [it.name for it in wheel.parent.iterdir()] == [wheel.name]


def test_the_licences_of_all_packages_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert licences.problems() == []
    monkeypatch.setattr(licences, "EXCEPTIONS", {})
    assert "psycopg-binary: LGPL-3.0-only is not accepted" in licences.problems(), "a dependency of psycopg[binary]"
    monkeypatch.setattr(licences, "_extras", lambda _: ["no-such-package>=1"])
    assert [it.partition(":")[0] for it in licences.problems()] == ["no-such-package"]


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"License-Expression": "MIT OR (Apache-2.0 WITH LLVM-exception AND 0BSD)"}, []),
        ({"License-Expression": "MIT OR (GPL-3.0-only AND MIT)", "License": "MIT"}, ["GPL-3.0-only"]),
        ({"Classifier": "License :: OSI Approved :: BSD License", "License": "Dual License"}, []),
        ({"Classifier": "License :: Other/Proprietary License", "License": "MIT"}, ["Other/Proprietary License"]),
        ({"License": "MIT License", "Classifier": "Topic :: Database"}, []),
        ({"License": "MPL-2.0"}, ["MPL-2.0"]),
        ({}, ["no licence"]),
    ],
)
def test_a_licence_that_is_not_accepted(fields: dict[str, str], refused: list[str]) -> None:
    metadata = Message()
    for name, value in fields.items():
        metadata[name] = value
    assert licences.problems_of("a", metadata) == [f"a: {it} is not accepted" for it in refused]
