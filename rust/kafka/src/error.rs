use std::fmt;
use std::io;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A file with invalid content, or that the storage cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The file. Empty if bytes without a name were decoded.
    pub path: String,
    /// The position in bytes, if known.
    pub position: Option<u64>,
    /// The kind of damage.
    pub kind: Kind,
    /// What is wrong.
    pub reason: String,
}

/// The kind of damage of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It does not exist, or was truncated while it was read.
    Unreadable,
    /// The storage cannot read it; the content may be valid. The error number of the system, if there is one.
    Storage(Option<i32>),
    /// It ends inside a batch or an entry.
    Torn,
    /// It has only zeros up to its end.
    Zeros,
    /// An unsupported version.
    Version,
    /// A field with an impossible value: a length, a count, a delta.
    Field,
    /// Offsets that do not increase.
    Offsets,
    /// An unknown compression, or bytes that it cannot have produced.
    Compression,
    /// A checksum that does not match the bytes.
    Checksum,
    /// More bytes than the caller allows.
    TooLarge,
    /// A segment that begins before the end of the previous one.
    Overlap,
    /// Offsets that are not in any segment: compaction, or a loss.
    Gap,
    /// An index that contradicts its log.
    Index,
    /// A transaction that cannot be decided from this file alone.
    Undecided,
}

impl Kind {
    /// As text, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Unreadable | Kind::Storage(_) => "unreadable",
            Kind::Torn => "torn",
            Kind::Zeros => "zeros",
            Kind::Version => "version",
            Kind::Field => "field",
            Kind::Offsets => "offsets",
            Kind::Compression => "compression",
            Kind::Checksum => "checksum",
            Kind::TooLarge => "too_large",
            Kind::Overlap => "overlap",
            Kind::Gap => "gap",
            Kind::Index => "index",
            Kind::Undecided => "undecided",
        }
    }
}

impl Error {
    pub(crate) fn new(kind: Kind, position: impl Into<Option<u64>>, reason: impl Into<String>) -> Error {
        Error { path: String::new(), position: position.into(), kind, reason: reason.into() }
    }

    /// Converts an error of the system, without its number in the text.
    pub(crate) fn io(error: &io::Error) -> Error {
        let text = reason(error);
        let kind = match error.kind() {
            io::ErrorKind::NotFound => Kind::Unreadable,
            _ => Kind::Storage(error.raw_os_error()),
        };
        Error::new(kind, None, format!("cannot be read: {text}"))
    }

    /// Whether the missing bytes may be valid. Repairs must not act on such an error.
    pub fn is_unread(&self) -> bool {
        matches!(self.kind, Kind::Unreadable | Kind::Storage(_))
    }

    /// Adds the path of the file.
    pub fn in_file(mut self, path: &str) -> Error {
        if self.path.is_empty() {
            self.path = path.into();
        }
        self
    }
}

/// The text of an error of the system, without its number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().into()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.path.as_str(), self.position) {
            ("", None) => f.write_str(&self.reason),
            ("", Some(position)) => write!(f, "byte {position}: {}", self.reason),
            (path, None) => write!(f, "{path}: {}", self.reason),
            (path, Some(position)) => write!(f, "{path}, byte {position}: {}", self.reason),
        }
    }
}

impl std::error::Error for Error {}
