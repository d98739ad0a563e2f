use std::fmt;

/// The role of a column in the identity of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Column {
    /// The producer.
    Pid,
    /// The producer's incarnation.
    Epoch,
    /// The partition that the producer numbers.
    Partition,
    /// The sequence number.
    Seq,
    /// When the event happened.
    Timestamp,
    /// The first sequence number of a produce batch.
    BaseSeq,
    /// Its last sequence number.
    LastSeq,
    /// Its number of records.
    Count,
    /// The offset of its first record.
    Offset,
    /// The offset of its last record.
    LastOffset,
    /// Whether it is part of a transaction.
    Transactional,
    /// The kind of marker.
    Control,
    /// The epoch of the coordinator that wrote a marker.
    CoordinatorEpoch,
    /// The protocol version of a marker.
    TransactionVersion,
    /// What appended it: a client, a replica or the coordinator.
    Origin,
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Column::Pid => "pid",
            Column::Epoch => "epoch",
            Column::Partition => "partition",
            Column::Seq => "seq",
            Column::Timestamp => "timestamp",
            Column::BaseSeq => "base_seq",
            Column::LastSeq => "last_seq",
            Column::Count => "count",
            Column::Offset => "offset",
            Column::LastOffset => "last_offset",
            Column::Transactional => "transactional",
            Column::Control => "control",
            Column::CoordinatorEpoch => "coordinator_epoch",
            Column::TransactionVersion => "transaction_version",
            Column::Origin => "origin",
        })
    }
}

/// The result of a call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error. Each variant stands for one way of recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The input is not valid: repair the input.
    Batch {
        /// The role of the invalid column.
        column: Column,
        /// The first invalid row, if the error is about one row.
        row: Option<usize>,
        /// The value found and the values allowed, without column name and row.
        problem: String,
    },
    /// The policy does not exist or does not support this call.
    Policy(String),
    /// This call could make the table larger than its limit.
    Capacity {
        /// The limit.
        limit: u64,
        /// An upper bound of what the call needs.
        needed: u64,
        /// What is limited, in the plural.
        what: &'static str,
    },
    /// The system has too little memory.
    Memory {
        /// The size of the failed request.
        bytes: u64,
    },
    /// The bytes are not a valid snapshot, or not one of this table.
    Snapshot(String),
}

impl Error {
    /// The same error with the row number increased by the number of rows before the batch.
    pub(crate) fn after(self, rows: usize) -> Error {
        match self {
            Error::Batch { column, row, problem } => Error::Batch { column, row: row.map(|row| row + rows), problem },
            other => other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Batch { column, row: Some(row), problem } => write!(f, "column '{column}', row {row}: {problem}"),
            Error::Batch { column, row: None, problem } => write!(f, "column '{column}': {problem}"),
            Error::Policy(problem) | Error::Snapshot(problem) => f.write_str(problem),
            Error::Memory { bytes } => {
                write!(f, "the table needs {bytes} bytes more, but the system has no memory left")
            }
            Error::Capacity { limit, needed, what } => match *what {
                "entries" => write!(f, "after the call the table could have {needed} entries, but entries_max={limit}"),
                "holes" => write!(f, "after the call the table could have {needed} holes, but intervals_max={limit}"),
                _ => write!(f, "after the call the table could have {needed} {what}, but the limit is {limit}"),
            },
        }
    }
}

impl std::error::Error for Error {}

/// Reserves memory for `more` items. Returns an error on failure, where a `Vec` would abort the process.
#[inline]
pub(crate) fn make_room<T>(items: &mut Vec<T>, more: usize) -> Result<()> {
    items.try_reserve(more).map_err(|_| Error::Memory { bytes: (more as u64).saturating_mul(size_of::<T>() as u64) })
}
