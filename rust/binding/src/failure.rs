//! Errors on their way to Python: one class per recovery, defined in `fencepost.errors`.

use crate::identity::ColumnNames;
use arrow_schema::ArrowError;
use fencepost_core::{Column, Error};
use fencepost_lake as lake;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An error that can cross threads without the interpreter.
#[derive(Debug)]
pub(crate) enum Failure {
    Batch {
        column: Option<String>,
        row: Option<usize>,
        message: String,
    },
    Policy(String),
    Memory(String),
    Capacity {
        limit: u64,
        message: String,
    },
    Snapshot {
        reason: String,
        message: String,
    },
    Poisoned,
    /// A log that has to be opened again.
    PoisonedLog(String),
    /// A log that another one writes.
    Locked(String),
    Io(std::io::Error, String),
    /// The same, with what has become of what was asked for.
    Refused {
        error: std::io::Error,
        path: String,
        state: String,
    },
    /// A file that the system does not give: storage, network, rights or limits.
    Read {
        error: std::io::Error,
        path: String,
        message: String,
    },
    /// A file whose content cannot be read.
    Source {
        path: String,
        position: Option<u64>,
        message: String,
    },
    /// An argument that makes no sense.
    Value(String),
    /// Arrow's own complaint about its input.
    Arrow(String),
}

impl Failure {
    pub(crate) fn batch(column: &str, row: Option<usize>, problem: impl std::fmt::Display) -> Failure {
        let message = match row {
            Some(row) => format!("column '{column}', row {row}: {problem}"),
            None => format!("column '{column}': {problem}"),
        };
        Failure::Batch { column: Some(column.into()), row, message }
    }

    /// The same, of a row of something.
    pub(crate) fn in_row(self, row: usize) -> Failure {
        match self {
            Failure::Snapshot { reason, .. } => Failure::snapshot(format!("row {row}: {reason}")),
            other => other,
        }
    }

    /// The same, of one of several produce batches.
    pub(crate) fn in_batch(self, number: usize) -> Failure {
        match self {
            Failure::Batch { column, row, message } => {
                Failure::Batch { column, row, message: format!("batch {number}: {message}") }
            }
            other => other,
        }
    }

    pub(crate) fn snapshot(reason: String) -> Failure {
        Failure::Snapshot { message: reason.clone(), reason }
    }

    /// A core error, its columns named as the input names them.
    pub(crate) fn of_core(error: Error, names: &ColumnNames) -> Failure {
        match error {
            Error::Batch { column, row, problem } => Failure::batch(&names.of_role(column), row, problem),
            other => Failure::from(other),
        }
    }

    /// The same, of what stands in a file.
    pub(crate) fn in_file(self, path: &std::path::Path) -> Failure {
        match self {
            Failure::Batch { column, row, message } => {
                Failure::Batch { column, row, message: format!("{}: {message}", path.display()) }
            }
            Failure::Snapshot { reason, .. } => {
                Failure::Snapshot { message: format!("{}: {reason}", path.display()), reason }
            }
            other => other,
        }
    }

    pub(crate) fn raise(self, py: Python<'_>) -> PyErr {
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
                let message = "an earlier call on this table failed midway; restore the table from its last snapshot";
                error_of(py, "PoisonedError", message.into(), |_| Ok(()))
            }
            Failure::PoisonedLog(message) => error_of(py, "PoisonedError", message, |_| Ok(())),
            Failure::Locked(message) => error_of(py, "LockedError", message, |_| Ok(())),
            Failure::Refused { error, path, state } => {
                let (code, text) = (error.raw_os_error(), error.to_string());
                let reason = text.split(" (os error").next().unwrap_or_default();
                pyo3::exceptions::PyOSError::new_err((code, format!("{reason}; {state}"), path))
            }
            Failure::Io(error, path) => {
                let (code, text) = (error.raw_os_error(), error.to_string());
                let reason = text.split(" (os error").next().unwrap_or_default().to_string();
                pyo3::exceptions::PyOSError::new_err((code, reason, path))
            }
            Failure::Arrow(message) => error_of(py, "BatchError", message, |_| Ok(())),
        }
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

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let message = error.to_string();
        match error {
            Error::Batch { column, row, .. } => Failure::Batch { column: Some(column.to_string()), row, message },
            Error::Policy(_) => Failure::Policy(message),
            Error::Capacity { limit, .. } => Failure::Capacity { limit, message },
            Error::Memory { .. } => Failure::Memory(message),
            Error::Snapshot(reason) => Failure::snapshot(reason),
        }
    }
}

impl From<lake::Error> for Failure {
    fn from(error: lake::Error) -> Failure {
        let message = error.to_string();
        match error {
            lake::Error::Source { path, position, .. } => {
                Failure::Source { path: path.display().to_string(), position, message }
            }
            lake::Error::Read { path, error } => Failure::Read { error, path: path.display().to_string(), message },
            lake::Error::Column { name, .. } => Failure::Batch { column: Some(name), row: None, message },
            lake::Error::Sink { path, error } => Failure::Io(error, path.display().to_string()),
            lake::Error::Ranges(_) | lake::Error::Stopped => Failure::Value(message),
        }
    }
}

impl From<ArrowError> for Failure {
    fn from(error: ArrowError) -> Failure {
        Failure::Arrow(format!("the rows cannot be read as Arrow: {error}"))
    }
}

impl ColumnNames {
    /// The name, in the input, of the column that plays a role.
    pub(crate) fn of_role(&self, role: Column) -> String {
        match role {
            Column::Pid => self.pid.join(", "),
            Column::Partition => self.partition.join(", "),
            Column::Epoch => self.epoch.clone().unwrap_or_else(|| "epoch".into()),
            Column::Seq => self.seq.clone(),
            Column::Timestamp => self.timestamp.clone().unwrap_or_else(|| "timestamp".into()),
            of_batches => of_batches.to_string(),
        }
    }
}
