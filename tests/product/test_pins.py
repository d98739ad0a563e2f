"""Tests pin facts, not sentences: in what they compare with a message, no more than a few words follow each other.

The whole text of each message is in `docs/errors/`, where a change of wording is reviewed once. A test that repeats it
fails with each better wording, and says nothing of the facts: type, code, column, row, value, range, path, setting.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from support.pins import Pin, longest_prose, pins

TESTS = Path(__file__).parents[1]

WORDS_MAX = 4
"""Enough to tell two messages of one class apart."""

PINS_MIN = 1000
"""Fewer: the tests are no longer written in a way that this check reads."""


@functools.cache
def all_pins() -> dict[Path, list[Pin]]:
    return {path: pins(path.read_text("utf-8")) for path in sorted(TESTS.rglob("*.py"))}


def sentences(found: list[Pin]) -> list[str]:
    """The line and the prose of each pin that holds more than a few words in a row."""
    prose = [(pin.line, longest_prose(pin.text)) for pin in found]
    return [f"{line}: {words}" for line, words in prose if len(words.split()) > WORDS_MAX]


def test_no_test_pins_a_sentence() -> None:
    found = [f"{path.relative_to(TESTS)}:{it}" for path, its in all_pins().items() for it in sentences(its)]
    assert found == [], "keep the facts, and the two or three words that tell the message from others of its class"


def test_most_pins_are_found() -> None:
    assert sum(map(len, all_pins().values())) >= PINS_MIN


PROSE = {
    "the table has another policy": 5,
    "Nothing was written. Run it again": 6,
    "the rows' order is not known": 6,
    "must be sorted, and disjoint": 5,
    r"nothing was written\. Call again": 5,
    r"column 'seq'.*the value was not expected": 5,
    "nothing of it|nothing at all": 3,
    # Values, names, numbers, and what a pattern leaves open divide prose.
    "column 'seq', row 3: value -1 is outside 0..=7": 2,
    "the folder \0 has no name": 3,
    "the word 'not' and 'a word in quotes' are": 4,
    "set buffer_rows to more than 8 of these": 3,
    "call recover() or reap() of the registry": 3,
    r"offsets \d+ to \d+ were removed": 2,
    "a BatchError, not a KeyError": 2,
    "it is NULL in the table": 3,
    "give --set wrap=none to it": 2,
    "in data/b.parquet of the source": 3,
    # The members of a list but the first are names, too.
    "it has pid, epoch, partition, seq": 3,
    "must be one of none, gzip, zstd": 5,
    "kept: 5  refused: 2  missing: 1": 1,
    # And so are columns of a table that a program prints.
    "read            rows  in files": 2,
}


@pytest.mark.parametrize(("text", "words"), PROSE.items())
def test_prose_is_counted(text: str, words: int) -> None:
    assert len(longest_prose(text).split()) == words, longest_prose(text)


LONG = "the words of a long sentence"

# How tests compare, each with `{}` for a literal.
PINNED = {
    "match": "pytest.raises(ValueError, match={})",
    "match of a warning": "pytest.warns(UserWarning, match={})",
    "match of a name": "text = {}\npytest.raises(ValueError, match=text)",
    "match of an f-string": "pytest.raises(ValueError, match=f'{{path}}: ' + {})",
    "a name in an f-string": "text = {}\npytest.raises(ValueError, match=f'{{path}}: {{text}}')",
    "escaped": "pytest.raises(ValueError, match=re.escape({}))",
    "one of two": "pytest.raises(ValueError, match={} if is_new else 'old')",
    "of a loop": "for path, text in [('a', {})]:\n    pytest.raises(ValueError, match=text)",
    "of a mapping": "TEXTS = {{'a': {}}}\npytest.raises(ValueError, match=TEXTS[kind])",
    "of the items of a mapping": "for key, text in {{'a': {}}}.items():\n    pytest.raises(ValueError, match=text)",
    "of a parametrization": (
        "CASES = [('a', 'b'), *[pytest.param('a', {})]]\n"
        "@pytest.mark.parametrize(('path', 'text'), CASES)\n"
        "def test_it(path, text):\n    pytest.raises(ValueError, match=text)"
    ),
    "of a helper": "def refused(text):\n    pytest.raises(ValueError, match=text)\nrefused({})",
    "of a helper, by name": "def refused(a, *, text):\n    pytest.raises(ValueError, match=text)\nrefused(1, text={})",
    "in an error": "assert {} in str(error)",
    "not in an error": "assert {} not in str(raised.value)",
    "a whole error": "assert raised.value.message == {}",
    "an error by another name": "text = str(error)\nassert {} in text",
    "each in an error": "for it in ({}, 'b'):\n    assert it in str(error)",
    "all in an error": "assert all(it in str(error) for it in ('a', {}))",
    "what a program prints": "assert {} in capsys.readouterr().err",
    "lines of a program": "assert done.stdout.splitlines() == ['a', {}]",
    "one of several results": "assert (code, out, err) == (1, '', {})",
    "unpacked output": "text, problems = capsys.readouterr()\nassert {} in problems",
    "a search": "assert re.search({}, str(error))",
    "the beginning": "assert str(error).startswith({})",
}


@pytest.mark.parametrize("template", PINNED.values(), ids=PINNED.keys())
def test_sentences_are_found_however_they_are_compared(template: str) -> None:
    assert len(sentences(pins(template.format(repr(LONG))))) == 1
    assert sentences(pins(template.format(repr("words of 2 sentences")))) == []


@pytest.mark.parametrize(
    "source",
    [
        f"assert rows == [], {LONG!r}",
        f"raise ValueError({LONG!r})",
        f"assert page.title_of({LONG!r}) == 'a'",
        f"NAMES = [{LONG!r}]\nassert name in NAMES",
        f"def test_it():\n    text = {LONG!r}\ndef test_other(text):\n    pytest.raises(ValueError, match=text)",
    ],
)
def test_other_texts_are_free(source: str) -> None:
    assert sentences(pins(source)) == []
