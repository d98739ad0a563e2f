"""Runs a notebook as a notebook server does, cell by cell: `python notebook.py FILE`, in an empty folder.

A value at the end of a cell is shown as a browser would get it.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import nbformat


def run(path: Path) -> int:
    """Run the cells of a valid notebook without outputs; returns how many values were shown."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = 0
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        assert not cell.outputs, f"{path.name}, cell {number}: outputs are not committed"
        tree = ast.parse(cell.source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{path.name}[{number}]", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"{path.name}[{number}]", "eval"), names)
            if value is not None:
                assert value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
                shown += 1
    return shown


if __name__ == "__main__":
    print(run(Path(sys.argv[1]).resolve()))
