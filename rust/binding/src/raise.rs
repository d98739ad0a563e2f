//! Converts errors to exceptions of Python. `fencepost.errors` has one class per way of recovery.

use fencepost_columns::Failure;
use fencepost_kafka::reason;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Converts an error to an exception.
pub(crate) trait Raise {
    fn raise(self, py: Python<'_>) -> PyErr;
}

impl Raise for Failure {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Failure::Batch { column, row, message } => error_of(py, "BatchError", message, |fields| {
                fields.set_item("column", column)?;
                fields.set_item("row", row)
            }),
            Failure::Memory(message) => pyo3::exceptions::PyMemoryError::new_err(message),
            Failure::Policy(message) => error_of(py, "PolicyError", message, |_| Ok(())),
            Failure::Capacity { limit, message } => {
                error_of(py, "CapacityError", message, |fields| fields.set_item("limit", limit))
            }
            Failure::Snapshot { reason, message } => {
                error_of(py, "SnapshotError", message, |fields| fields.set_item("reason", reason))
            }
            Failure::Source { path, position, message } => error_of(py, "SourceError", message, |fields| {
                fields.set_item("path", path)?;
                fields.set_item("position", position)
            }),
            Failure::Read { error, path, .. } if error.kind() == std::io::ErrorKind::NotFound => {
                Failure::Io(error, path).raise(py)
            }
            Failure::Read { error, path, message } => {
                let message = format!("{message}. Check the storage and the rights, then run again");
                error_of(py, "StoreError", message, |fields| {
                    fields.set_item("path", path)?;
                    fields.set_item("errno", error.raw_os_error())
                })
            }
            Failure::Value(message) => pyo3::exceptions::PyValueError::new_err(message),
            Failure::Poisoned => {
                let message = "an earlier call on this table failed midway; restore the table from its last snapshot, \
                               then apply the rows that came after it";
                error_of(py, "PoisonedError", message.into(), |_| Ok(()))
            }
            Failure::PoisonedLog(message) => error_of(py, "PoisonedError", message, |_| Ok(())),
            Failure::Locked(message) => error_of(py, "LockedError", message, |_| Ok(())),
            Failure::Refused { error, path, state } => os_error(&error, format!("{}; {state}", reason(&error)), path),
            Failure::Io(error, path) => os_error(&error, reason(&error), path),
            Failure::Arrow(message) => error_of(py, "BatchError", message, |_| Ok(())),
        }
    }
}

/// Python derives the class of the exception from the code. Windows has its own codes, in the fourth argument.
fn os_error(error: &std::io::Error, reason: String, path: String) -> PyErr {
    let code = error.raw_os_error();
    if cfg!(windows) {
        pyo3::exceptions::PyOSError::new_err((0, reason, path, code))
    } else {
        pyo3::exceptions::PyOSError::new_err((code, reason, path))
    }
}

fn error_of(
    py: Python<'_>,
    class: &str,
    message: String,
    set: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    let make = || {
        let fields = PyDict::new(py);
        set(&fields)?;
        py.import("fencepost.errors")?.getattr(class)?.call((message,), Some(&fields))
    };
    make().map_or_else(|error| error, PyErr::from_value)
}
