use std::fmt;
use std::io;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A file that is not what it claims to be, or that storage does not give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The file, empty where bytes were decoded that nobody gave a name.
    pub path: String,
    /// Where in it, in bytes, where known.
    pub position: Option<u64>,
    /// What sort of damage it is.
    pub kind: Kind,
    /// What is wrong.
    pub reason: String,
}

/// What sort of damage a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is not there, or became shorter while it was read.
    Unreadable,
    /// Storage does not give it: this says nothing about the content. The number of the system's error, if it has one.
    Storage(Option<i32>),
    /// It ends inside a batch or an entry.
    Torn,
    /// Nothing but zeros to its end.
    Zeros,
    /// A version that is too old, too new or none.
    Version,
    /// A field that cannot be: a length, a count, a delta.
    Field,
    /// Offsets that do not rise.
    Offsets,
    /// A compression that does not exist, or bytes that it cannot have made.
    Compression,
    /// A checksum that is not that of the bytes.
    Checksum,
    /// More bytes than the caller allows.
    TooLarge,
    /// A segment that begins before the one before it ends.
    Overlap,
    /// Offsets that are in no segment: compaction, or a loss.
    Gap,
    /// An index that says something else than its log.
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

    /// What the system says of a file, without the number of its message.
    pub(crate) fn io(error: &io::Error) -> Error {
        let text = error.to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        let kind = match error.kind() {
            io::ErrorKind::NotFound => Kind::Unreadable,
            _ => Kind::Storage(error.raw_os_error()),
        };
        Error::new(kind, None, format!("cannot be read: {text}"))
    }

    /// Whether bytes are missing that may be right: no repair may act on it.
    pub fn is_unread(&self) -> bool {
        matches!(self.kind, Kind::Unreadable | Kind::Storage(_))
    }

    /// The same, of a file.
    pub fn in_file(mut self, path: &str) -> Error {
        if self.path.is_empty() {
            self.path = path.into();
        }
        self
    }
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
