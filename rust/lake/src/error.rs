use crate::read_at::Source;
use parquet::errors::ParquetError;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with a file.
#[derive(Debug)]
pub enum Error {
    /// The content of the file is invalid.
    Source {
        /// The file.
        path: PathBuf,
        /// The position in bytes, if known.
        position: Option<u64>,
        /// What is wrong.
        reason: String,
    },
    /// The system cannot read the content: storage, network, rights or limits. The content may be valid.
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// A requested column does not exist or does not fit.
    Column {
        /// The file.
        path: PathBuf,
        /// The column.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The target cannot be written.
    Sink {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The row ranges are invalid.
    Ranges(String),
    /// The caller asked to stop.
    Stopped,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Source { path, position: None, reason } => write!(f, "{}: {reason}", path.display()),
            Error::Source { path, position: Some(position), reason } => {
                write!(f, "{}, byte {position}: {reason}", path.display())
            }
            Error::Column { path, name, problem } => write!(f, "{}: column '{name}': {problem}", path.display()),
            Error::Read { path, error } => write!(f, "{}: cannot be read: {}", path.display(), describe(error)),
            Error::Sink { path, error } => write!(f, "{}: {error}", path.display()),
            Error::Ranges(problem) => f.write_str(problem),
            Error::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    pub(crate) fn source(path: &Path, position: Option<u64>, reason: impl fmt::Display) -> Error {
        Error::Source { path: path.into(), position, reason: reason.to_string() }
    }

    /// Converts the error of a read outside of a decoder. A file that ends early was truncated.
    pub(crate) fn read(path: &Path, position: Option<u64>, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Error::source(path, position, "was cut short while it was read"),
            _ => Error::Read { path: path.into(), error },
        }
    }

    /// Converts the error of a decoder, without the meaningless beginnings of its messages.
    pub(crate) fn decoding(path: &Path, position: Option<u64>, error: &dyn fmt::Display) -> Error {
        let text = error.to_string();
        let text = ["Parquet error: ", "Arrow: ", "External: ", "EOF: ", "Parquet argument error: "]
            .iter()
            .fold(text.as_str(), |text, start| text.strip_prefix(start).unwrap_or(text));
        Error::source(path, position, format!("cannot be read as Parquet: {text}"))
    }
}

/// An error in a chunk of a column: in the source, or in the output.
#[derive(Debug)]
pub(crate) enum Fault {
    Source(ParquetError),
    Sink(ParquetError),
}

/// The text without the error number, which callers report separately.
fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().into()
}

/// Returns the result of `work`, or the message of its panic.
pub fn caught<T>(work: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given").to_owned()
    })
}

/// Runs a decoder, which can panic on bytes of a file.
///
/// Decoders replace or ignore errors of the system. If a read failed, that error is the result.
pub(crate) fn guard<T>(path: &Path, source: &Source, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    let failed = |message: String| Err(Error::decoding(path, None, &format!("the decoder failed: {message}")));
    let decoded = caught(decode).unwrap_or_else(failed);
    source.failure().map_or(decoded, |error| Err(Error::Read { path: path.into(), error }))
}
