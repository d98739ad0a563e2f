"""Column types with the same meaning in every database, for the tables of this package."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Integer, LargeBinary, Text
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT, VARBINARY
from sqlalchemy.types import TypeDecorator, TypeEngine

# On SQLite, INTEGER has 64 bits, and only a primary key of this type gets values automatically.
Int64 = BigInteger().with_variant(Integer(), "sqlite")
# On MariaDB, TEXT and BLOB have at most 64 KiB.
LongText = Text().with_variant(LONGTEXT(), "mysql", "mariadb")
LongBinary = LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")
INNODB: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}.items()
}
"""Options of this package's tables on MariaDB, whose default engine may have no transactions."""


class _Utf8(TypeDecorator[str]):
    """Text as UTF-8 bytes, for keys: in MariaDB's collations "a", "A" and "a " are equal."""

    impl = VARBINARY
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> bytes | None:
        return None if value is None else value.encode()

    def process_result_value(self, value: bytes | None, dialect: Any) -> str | None:
        return None if value is None else bytes(value).decode()


def key_text(text_type: TypeEngine[str], bytes_max: int) -> TypeEngine[str]:
    """Return the type of a text in a key, which every database compares by bytes."""
    return text_type.with_variant(_Utf8(bytes_max), "mysql", "mariadb")
