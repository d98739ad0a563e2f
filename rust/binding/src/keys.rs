//! One key, as Python passes it.

use fencepost_columns::Failure;
use fencepost_core::{KEY_BYTES_MAX, KeyKind, KeySpace, Keys, PartKind, encode_bytes, encode_int};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};

/// A pid or a partition as a table stores it: a plain integer, or encoded parts.
pub(crate) enum KeyValue {
    Plain(i64),
    Encoded(Vec<u8>),
}

impl KeyValue {
    /// Converts an int, a str, bytes, or a tuple of them. A partition of `None` means that there is no such column: the
    /// key 0.
    pub(crate) fn of(value: &Bound<'_, PyAny>, kind: &KeyKind, role: &str) -> Result<KeyValue, Failure> {
        let wrong = || {
            let found = value.repr().map(|it| it.to_string()).unwrap_or_default();
            Failure::batch(role, None, format!("{found} is not a key of this table, whose keys have the type {kind}"))
        };
        match kind {
            KeyKind::Plain if role == "partition" && value.is_none() => Ok(KeyValue::Plain(0)),
            KeyKind::Plain => value.extract().map(KeyValue::Plain).map_err(|_| wrong()),
            KeyKind::Parts(kinds) => {
                let values: Vec<Bound<'_, PyAny>> = match value.cast::<PyTuple>() {
                    Ok(tuple) => tuple.iter().collect(),
                    Err(_) => vec![value.clone()],
                };
                if values.len() != kinds.len() {
                    return Err(wrong());
                }
                let mut bytes = Vec::new();
                for (value, kind) in values.iter().zip(kinds) {
                    encode_part(value, kind, &mut bytes).map_err(|_| wrong())?;
                }
                Ok(KeyValue::Encoded(bytes))
            }
        }
    }

    /// The type of a key, for a table that has no rows yet.
    pub(crate) fn kind_of(value: &Bound<'_, PyAny>) -> Result<KeyKind, Failure> {
        let part = |value: &Bound<'_, PyAny>| {
            if value.cast::<PyInt>().is_ok() {
                Ok(PartKind::Int)
            } else if value.cast::<PyString>().is_ok() {
                Ok(PartKind::Utf8)
            } else if value.cast::<PyBytes>().is_ok() {
                Ok(PartKind::Binary)
            } else {
                let found = value.repr().map(|it| it.to_string()).unwrap_or_default();
                Err(Failure::batch("partition", None, format!("{found} is not an int, str, bytes or a tuple of them")))
            }
        };
        match value.cast::<PyTuple>() {
            Ok(parts) => Ok(KeyKind::Parts(parts.iter().map(|value| part(&value)).collect::<Result<_, _>>()?)),
            Err(_) if value.is_none() || value.cast::<PyInt>().is_ok() => Ok(KeyKind::Plain),
            Err(_) => Ok(KeyKind::Parts(vec![part(value)?])),
        }
    }

    /// The number of the key in the table. Adds the key if it is new.
    pub(crate) fn number_or_new(&self, space: &mut KeySpace) -> Result<i32, Failure> {
        match self {
            KeyValue::Plain(value) => i32::try_from(*value)
                .ok()
                .filter(|&value| value >= 0)
                .ok_or_else(|| Failure::batch("partition", None, format!("value {value} is outside 0..=2147483647"))),
            KeyValue::Encoded(bytes) if bytes.len() > KEY_BYTES_MAX => {
                let problem = format!("a key of {} bytes; at most {KEY_BYTES_MAX} are allowed", bytes.len());
                Err(Failure::batch("partition", None, problem))
            }
            KeyValue::Encoded(bytes) => Ok(space.dictionary.intern(bytes)? as i32),
        }
    }

    /// The key as `entries()` returns it: an integer key becomes an int, whatever numeric type was passed.
    pub(crate) fn to_python<'py>(&self, passed: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            KeyValue::Plain(value) => Ok(value.into_pyobject(passed.py())?.into_any()),
            KeyValue::Encoded(_) => Ok(passed.clone()),
        }
    }

    /// The number of the key in the table, if the table has it.
    pub(crate) fn number(&self, space: &KeySpace) -> Option<i64> {
        match self {
            KeyValue::Plain(value) => (*value >= 0).then_some(*value),
            KeyValue::Encoded(bytes) => space.dictionary.get(bytes).map(i64::from),
        }
    }

    /// Like `number`, of a partition.
    pub(crate) fn partition_number(&self, keys: &Keys) -> Option<i32> {
        i32::try_from(self.number(&keys.partition)?).ok()
    }
}

fn encode_part(value: &Bound<'_, PyAny>, kind: &PartKind, out: &mut Vec<u8>) -> PyResult<()> {
    match kind {
        PartKind::Int => encode_int(out, value.extract()?),
        PartKind::Utf8 => encode_bytes(out, value.extract::<String>()?.as_bytes()),
        PartKind::Binary | PartKind::FixedBinary(_) => encode_bytes(out, &value.extract::<Vec<u8>>()?),
    }
    Ok(())
}
