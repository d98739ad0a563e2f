"""The command line, called in this process."""

from __future__ import annotations

import pytest
from fencepost import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main([str(it) for it in arguments])
    return code, *capsys.readouterr()
