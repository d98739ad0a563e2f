"""Builds HTML with escaping: values that are not `Html` cannot add tags or attributes."""

from __future__ import annotations

import re
from html import escape

Child = object
"""Html is inserted as is, other values as escaped text. None and empty texts add nothing; a list or tuple adds its
items."""


class Html(str):
    """Text that is already HTML."""


def join(*children: Child) -> Html:
    """Concatenate the children."""
    return Html("".join(_html(child) for child in children))


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """Build an element. In attribute names, a trailing _ is dropped and other _ become -. Values: True gives a bare
    name, None and False omit the attribute."""
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


# Characters that HTML cannot hold, and those that change the direction of neighboring text.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def visible(text: str) -> str:
    """Replace invisible characters with escape sequences."""
    return _UNSAFE.sub(lambda it: f"\\u{ord(it[0]):04x}", text)


def _text(value: object) -> str:
    return escape(visible(str(value)))
