"""Builds HTML of which every text is escaped: what is not `Html` already cannot bring tags or attributes."""

from __future__ import annotations

import re
from html import escape

Child = object
"""Html as it is, any other value as its text; None and empty texts add nothing; a list or tuple its items."""


class Html(str):
    """Text that is HTML already."""


def join(*children: Child) -> Html:
    """The children one after the other."""
    return Html("".join(_html(child) for child in children))


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """An element. Attributes: a trailing _ is dropped, other _ become -. True: a bare name; None, False: none."""
    given = "".join(_attribute(key, value) for key, value in attributes.items() if value not in (None, False))
    if name in _VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(*children)}</{name}>")


_VOID = {"meta", "input", "br", "col"}


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_text(value)}"'


def _html(child: Child) -> str:
    if isinstance(child, Html):
        return child
    if child is None:
        return ""
    if isinstance(child, list | tuple):
        return join(*child)
    return _text(child)


# What HTML cannot hold, and what turns the order of neighbouring text around.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def visible(text: str) -> str:
    """The text with escapes in place of characters that a reader cannot see."""
    return _UNSAFE.sub(lambda it: f"\\u{ord(it[0]):04x}", text)


def _text(value: object) -> str:
    return escape(visible(str(value)))
