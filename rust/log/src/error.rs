use fencepost_core as core;
use fencepost_kafka as kafka;
use std::fmt;
use std::io;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong, by what has to be done about it. What the log is like then stands in the text.
#[derive(Debug)]
pub enum Error {
    /// A file is not what it should be.
    Damaged(kafka::Error),
    /// The batches make no sense. The log is as it was.
    Batch(core::Error),
    /// The system refuses. The log is as the text says.
    Io {
        /// What the system says.
        error: io::Error,
        /// Of which file.
        path: String,
        /// What the log is like now.
        state: String,
    },
    /// What is in memory and what is on disk may differ: the log must be opened again.
    Poisoned(String),
    /// Another one writes this log.
    Locked(String),
    /// It was closed.
    Closed,
    /// An argument that makes no sense. The log is as it was.
    Value(String),
}

impl Error {
    pub(crate) fn io(error: io::Error, path: String, state: impl Into<String>) -> Error {
        Error::Io { error, path, state: state.into() }
    }
}

/// What the system says, without the number of its message.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().into()
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
