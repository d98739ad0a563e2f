"""Codes of errors, and the pages that list them with every message."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fencepost as fp
import fencepost.errors
import pytest
from support.scripts import load_script

ROOT = Path(__file__).parents[2]

error_pages: Any = load_script(ROOT / ".ci" / "error_pages.py")

MESSAGES_MIN = 900
CLASSES_MIN = 25


@pytest.fixture(scope="module")
def collected() -> Any:
    """The classes with their messages: finding them takes seconds."""
    return error_pages.collect()


def test_the_pages_match_the_sources(collected: Any) -> None:
    """A new wording is reviewed as a change of these pages."""
    wanted = error_pages.pages(*collected)
    outdated = [path.name for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    outdated += [path.name for path in error_pages.FOLDER.glob("*.md") if path not in wanted]
    assert outdated == [], "make errors"


def test_each_class_has_a_code_of_its_own(collected: Any) -> None:
    kinds, _ = collected
    existing = {node.name for _, node in error_pages.exceptions(error_pages.sources())}
    assert existing == kinds.keys() | error_pages.SIGNALS.keys(), "give a class a code, or list it as a signal"
    codes = [it.code for it in kinds.values()]
    assert len(codes) >= CLASSES_MIN
    assert len(codes) == len(set(codes))
    assert not set(codes) & error_pages.RETIRED.keys(), "a retired code is not used again"
    assert all(re.fullmatch(r"FP\d{3}", it) for it in [*codes, *error_pages.RETIRED])
    assert all(it[2] in error_pages.GROUPS for it in codes)


def test_each_class_has_a_cause_and_a_remedy(collected: Any) -> None:
    for kind in collected[0].values():
        assert kind.cause.endswith("."), kind.name
        assert kind.remedy.endswith("."), kind.name


def test_every_message_is_found(collected: Any) -> None:
    kinds, plain = collected
    found = {name: set().union(*kind.messages.values()) for name, kind in kinds.items()}
    assert sum(map(len, found.values())) >= MESSAGES_MIN
    # Of a constant, an f-string, a variable, the argument of a helper, and Rust.
    assert any("NAME=VALUE" in it for it in plain["BadParameter"])
    assert any(it.startswith("columns={name}: ") for it in found["PolicyError"])
    assert any("{NOTHING}" not in it and "nothing of this call was applied" in it for it in found["BatchError"])
    assert any("is outside 4..=281474976710656" in it for it in found["PolicyError"])
    assert any("is bounded" in it or "limit" in it for it in found["CapacityError"])
    assert not any("Parquet" in it for it in found["CapacityError"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('raise StoreError(f"{path}: gone")', "{path}: gone"),
        ('text = f"{path}: gone"\n    raise StoreError(text, path=path)', "{path}: gone"),
        ('raise StoreError("a is gone" if path else "b is gone")', "b is gone"),
        (
            'raise _of(f"{path}: gone")\ndef _of(problem):\n    return StoreError(f"{problem}; again")',
            "{path}: gone; again",
        ),
    ],
)
def test_a_message_is_found_in_each_form(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text(f"def call(path):\n    {source}\n")
    monkeypatch.setattr(error_pages, "PACKAGES", (tmp_path,))
    texts = [text for _, _, text in error_pages.Reader(error_pages.sources(), {"StoreError"}).messages()]
    assert message in texts


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("{full_path}", "{full path}"),
        ("{type(rows).__name__}", "{type of rows}"),
        ("{', '.join(map(str, names))}", "{names}"),
        ("{json.dumps(rules)}", "{rules}"),
        ("{_source_of(partition)}", "{source}"),
        ("{settings.get('path')}", "{settings}"),
        ("{len(topics) + 1}", "{topics}"),
        ("{LIMIT}", "1048576"),
        ("{self}", "{sql sink}"),
        ("{a if b else c}", "{value}"),
    ],
)
def test_a_value_has_a_readable_name(value: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        f"""LIMIT = 1 << 20\nclass SqlSink:\n    def call(self):\n        raise StoreError(f"{value}: it is gone")\n"""
    )
    (tmp_path / "a.py").write_text(code)
    monkeypatch.setattr(error_pages, "PACKAGES", (tmp_path,))
    assert [it for _, _, it in error_pages.Reader(error_pages.sources(), {"StoreError"}).messages()] == [
        f"{shown}: it is gone"
    ]


def test_values_of_rust_have_names() -> None:
    def named(text: str, after: str) -> Any:
        return error_pages._with_names(text, after)

    assert named("a {} and {first_seq}", ', names.join(", "));') == "a {names} and {first seq}"
    assert named("{:08x} is not {}", ", self.header.crc(), wanted[0].len())?;") == "{header} is not {wanted}"
    assert named("above {}", ", u8::MAX);") == "above 255"
    assert named("above {KEY_PARTS_MAX}", ");") == f"above {error_pages.rust_numbers()['KEY_PARTS_MAX']}"


def test_pages_show_no_code() -> None:
    """Placeholders are words; a dot, an underscore or a capital would be code."""
    texts = "".join(path.read_text("utf-8") for path in error_pages.FOLDER.glob("*.md"))
    holes = set(re.findall(r"(?<!\{)\{([^{}\"'=:]+)\}", texts))
    assert len(holes) > 300
    assert [it for it in holes if re.search(r"[._A-Z]|^(it|self)$", it.strip())] == []


def test_a_subclass_without_a_code_has_the_code_of_its_class() -> None:
    class Mine(fp.SourceError):
        """An error of an application."""

    error = Mine("it is gone", path="a")
    assert str(error) == f"[{fp.SourceError.code}] it is gone"
    assert error.path == "a"


def test_a_message_has_its_code_once() -> None:
    inner = fp.BatchError("column 'a': missing", column="a")
    outer = fp.BatchError(f"x.parquet: {fencepost.errors.message_of(inner)}")
    assert str(outer) == "[FP101] x.parquet: column 'a': missing"
    assert fencepost.errors.message_of(ValueError("it is odd")) == "it is odd"
    assert str(fp.StoreError("")) == "[FP303] "
