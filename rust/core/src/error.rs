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
    /// Its last one.
    LastSeq,
    /// How many records it holds.
    Count,
    /// The offset of its first record.
    Offset,
    /// The offset of its last one.
    LastOffset,
    /// Whether it is part of a transaction.
    Transactional,
    /// Which marker it is.
    Control,
    /// The epoch of the coordinator that wrote a marker.
    CoordinatorEpoch,
    /// The protocol that a marker follows.
    TransactionVersion,
    /// Who appended it.
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

/// What a call of this crate gives.
pub type Result<T> = std::result::Result<T, Error>;

/// One variant per recovery: what the caller can do differs from variant to variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The batch is not a batch of rows: mend the input.
    Batch {
        /// The role of the column at fault.
        column: Column,
        /// The first row at fault, where one row is.
        row: Option<usize>,
        /// What was found and what is allowed, without the column's name and the row.
        problem: String,
    },
    /// No such policy, or one that cannot do what was asked.
    Policy(String),
    /// The table may not grow as far as this call could make it.
    Capacity {
        /// The bound that was set.
        limit: u64,
        /// What the call could need, an upper bound.
        needed: u64,
        /// What is bounded, in the plural.
        what: &'static str,
    },
    /// The system has no memory for what the table needs.
    Memory {
        /// How much was asked for.
        bytes: u64,
    },
    /// These bytes are not a snapshot that can be used.
    Snapshot(String),
}

impl Error {
    /// The same, of a batch that comes after `rows` others.
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
            Error::Capacity { limit, needed, what } => {
                write!(f, "this call could need {needed} {what}, but the limit of the table is {limit}")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Room for `more` items, or an error: a Vec by itself would end the process.
#[inline]
pub(crate) fn make_room<T>(items: &mut Vec<T>, more: usize) -> Result<()> {
    items.try_reserve(more).map_err(|_| Error::Memory { bytes: (more as u64).saturating_mul(size_of::<T>() as u64) })
}
