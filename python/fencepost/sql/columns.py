"""Types of columns that mean the same in every database, for the tables of this package."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Integer, LargeBinary, Text
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT, VARBINARY
from sqlalchemy.types import TypeDecorator, TypeEngine

# What SQLite calls INTEGER has 64 bits, and only a column of that name counts up by itself.
Int64 = BigInteger().with_variant(Integer(), "sqlite")
# What MariaDB calls TEXT and BLOB ends at 64 KiB.
LongText = Text().with_variant(LONGTEXT(), "mysql", "mariadb")
LongBinary = LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")
INNODB: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}.items()
}
"""Options of a table of this package on MariaDB, where the server's own may be an engine without transactions."""


class _Utf8(TypeDecorator[str]):
    """Text as the bytes of its UTF-8, for keys: MariaDB's collations take "a", "A" and "a " for one."""

    impl = VARBINARY
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> bytes | None:
        return None if value is None else value.encode()

    def process_result_value(self, value: bytes | None, dialect: Any) -> str | None:
        return None if value is None else bytes(value).decode()


def key_text(text_type: TypeEngine[str], bytes_max: int) -> TypeEngine[str]:
    """The type of a text that is part of a key: compared byte by byte everywhere."""
    return text_type.with_variant(_Utf8(bytes_max), "mysql", "mariadb")
