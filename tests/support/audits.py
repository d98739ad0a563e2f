"""Reports compared field by field."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pyarrow.compute
from fencepost import AuditReport


def differences(found: AuditReport, expected: AuditReport, *ignored: str) -> list[str]:
    """The fields in which two reports differ."""
    names = []
    for field in dataclasses.fields(AuditReport):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        is_same = one.equals(other) if isinstance(one, pa.Table) and isinstance(other, pa.Table) else one == other
        if not is_same and field.name not in ignored:
            names.append(field.name)
    return names
