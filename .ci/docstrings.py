"""An extension of griffe, see `mkdocs.yml`: doctests in docstrings become code blocks of the Python reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^( *)(>>> .*\n(?:\1[^\s].*\n?)*)", re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    """Puts a fence around each doctest."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    return DOCTEST.sub(lambda match: f"{match[1]}```python\n{match[0].rstrip()}\n{match[1]}```\n", text)
