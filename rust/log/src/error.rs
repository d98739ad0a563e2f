use fencepost_core as core;
use fencepost_kafka::{self as kafka, reason};
use std::fmt;
use std::io;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error, by what has to be done about it. The text describes the state of the log.
#[derive(Debug)]
pub enum Error {
    /// A file is damaged.
    Damaged(kafka::Error),
    /// The batches are invalid. The log is unchanged.
    Batch(core::Error),
    /// The system reported an error. `state` describes the log.
    Io {
        /// The error of the system.
        error: io::Error,
        /// The path of the file.
        path: String,
        /// The state of the log.
        state: String,
    },
    /// Memory and disk may differ: the log must be opened again.
    Poisoned(String),
    /// Another writer has locked this log.
    Locked(String),
    /// The log is closed.
    Closed,
    /// An argument is invalid. The log is unchanged.
    Value(String),
}

impl Error {
    pub(crate) fn io(error: io::Error, path: String, state: impl Into<String>) -> Error {
        Error::Io { error, path, state: state.into() }
    }
}

impl From<kafka::Error> for Error {
    fn from(error: kafka::Error) -> Error {
        Error::Damaged(error)
    }
}

impl From<core::Error> for Error {
    fn from(error: core::Error) -> Error {
        Error::Batch(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Damaged(error) => error.fmt(f),
            Error::Batch(error) => error.fmt(f),
            Error::Io { error, path, state } => write!(f, "{path}: {}; {state}", reason(error)),
            Error::Poisoned(text) | Error::Value(text) => f.write_str(text),
            Error::Locked(path) => write!(f, "{path}: another PartitionLog writes here; close that one first"),
            Error::Closed => f.write_str("the log was closed"),
        }
    }
}

impl std::error::Error for Error {}
