//! Errors, with one variant per way of recovery. The binding converts them to the classes of `fencepost.errors`.

use crate::identity::ColumnNames;
use arrow_schema::ArrowError;
use fencepost_core::{Column, Error};
use fencepost_kafka as kafka;
use fencepost_lake as lake;
use std::io;

/// An error that can be sent between threads without the interpreter.
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "fields are those of the classes in `fencepost.errors`, and `message` is the whole text"
)]
pub enum Failure {
    /// Rows or a key that cannot be judged.
    Batch { column: Option<String>, row: Option<usize>, message: String },
    /// Options that contradict each other or do not exist.
    Policy(String),
    /// The system has too little memory.
    Memory(String),
    /// The table would have more entries than allowed.
    Capacity { limit: u64, message: String },
    /// Bytes or entries that do not form a table.
    Snapshot { reason: String, message: String },
    /// A table whose last call failed midway.
    Poisoned,
    /// A log that must be opened again.
    PoisonedLog(String),
    /// A log that another process is writing.
    Locked(String),
    /// An error of the system, and the path.
    Io(io::Error, String),
    /// Like `Io`, with the state of the requested operation.
    Refused { error: io::Error, path: String, state: String },
    /// A file that cannot be read because of storage, network, rights or limits.
    Read { error: io::Error, path: String, message: String },
    /// A file whose content cannot be read.
    Source { path: String, position: Option<u64>, message: String },
    /// An invalid argument.
    Value(String),
    /// An error of Arrow about its input.
    Arrow(String),
}

impl Failure {
    /// An error about a column, and a row if known.
    pub fn batch(column: &str, row: Option<usize>, problem: impl std::fmt::Display) -> Failure {
        let message = match row {
            Some(row) => format!("column '{column}', row {row}: {problem}"),
            None => format!("column '{column}': {problem}"),
        };
        Failure::Batch { column: Some(column.into()), row, message }
    }

    /// Adds the row.
    pub fn in_row(self, row: usize) -> Failure {
        match self {
            Failure::Snapshot { reason, .. } => Failure::snapshot(format!("row {row}: {reason}")),
            other => other,
        }
    }

    /// Adds the number of the produce batch.
    pub fn in_batch(self, number: usize) -> Failure {
        match self {
            Failure::Batch { column, row, message } => {
                Failure::Batch { column, row, message: format!("batch {number}: {message}") }
            }
            other => other,
        }
    }

    /// An error about bytes that are not a valid snapshot.
    pub fn snapshot(reason: String) -> Failure {
        Failure::Snapshot { message: reason.clone(), reason }
    }

    /// Converts an error of the core, with the column names of the input.
    pub fn of_core(error: Error, names: &ColumnNames) -> Failure {
        match error {
            Error::Batch { column, row, problem } => Failure::batch(&names.of_role(column), row, problem),
            other => Failure::from(other),
        }
    }

    /// Adds the path of the file.
    pub fn in_file(self, path: &std::path::Path) -> Failure {
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

impl From<kafka::Error> for Failure {
    fn from(error: kafka::Error) -> Failure {
        let message = error.to_string();
        match error.kind {
            kafka::Kind::Storage(errno) => {
                let system = errno.map_or_else(|| io::Error::other(error.reason), io::Error::from_raw_os_error);
                Failure::Read { error: system, path: error.path, message }
            }
            _ => Failure::Source { path: error.path, position: error.position, message },
        }
    }
}

impl From<ArrowError> for Failure {
    fn from(error: ArrowError) -> Failure {
        Failure::Arrow(format!("the rows cannot be read as Arrow: {error}"))
    }
}

impl ColumnNames {
    /// The name in the input of the column with a role.
    pub fn of_role(&self, role: Column) -> String {
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
