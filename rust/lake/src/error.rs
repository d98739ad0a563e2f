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
    /// The file cannot be read as what it claims to be.
    Source {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes, where known.
        position: Option<u64>,
        /// What is wrong.
        reason: String,
    },
    /// A column is not there as it is asked for.
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
        /// What the system says.
        error: io::Error,
    },
    /// The row ranges are not what they must be.
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

    /// Of a decoder, whose messages begin in several ways that say nothing.
    pub(crate) fn decoding(path: &Path, position: Option<u64>, error: &dyn fmt::Display) -> Error {
        let text = error.to_string();
        let text = ["Parquet error: ", "Arrow: ", "External: ", "EOF: ", "Parquet argument error: "]
            .iter()
            .fold(text.as_str(), |text, start| text.strip_prefix(start).unwrap_or(text));
        Error::source(path, position, format!("cannot be read as Parquet: {text}"))
    }
}

/// What went wrong in a chunk of a column: with the source, or with what is written.
#[derive(Debug)]
pub(crate) enum Fault {
    Source(ParquetError),
    Sink(ParquetError),
}

/// Does something that decodes bytes of a file, of which decoders may despair with a panic.
pub(crate) fn guard<T>(path: &Path, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        Err(Error::decoding(path, None, &format!("the decoder gave up: {said}")))
    })
}
