use std::ops::Range;

/// A column of sequence numbers: 32 bits wide as in Kafka's records, or 64 bits wide as offsets.
#[derive(Clone, Copy, Debug)]
pub enum Seqs<'a> {
    /// 32-bit sequence numbers.
    I32(&'a [i32]),
    /// 64-bit sequence numbers.
    I64(&'a [i64]),
}

impl<'a> Seqs<'a> {
    /// Some of them.
    pub(crate) fn slice(self, range: Range<usize>) -> Seqs<'a> {
        match self {
            Seqs::I32(values) => Seqs::I32(&values[range]),
            Seqs::I64(values) => Seqs::I64(&values[range]),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Seqs::I32(values) => values.len(),
            Seqs::I64(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn get(&self, row: usize) -> i64 {
        match self {
            Seqs::I32(values) => values[row].into(),
            Seqs::I64(values) => values[row],
        }
    }
}

/// The identity columns of a batch of rows. All have the same length.
///
/// A row with pid -1 is untracked, and its other columns are not read. Keys that are not plain integers are passed as
/// the numbers that [`crate::Dictionary`] assigned to them.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// -1, or 0 and above.
    pub pid: &'a [i64],
    /// 0 … 2^31-1.
    pub partition: &'a [i32],
    /// 0 … 32767. `None` if and only if the policy ignores epochs.
    pub epoch: Option<&'a [i16]>,
    /// Within the policy's sequence space.
    pub seq: Seqs<'a>,
    /// Milliseconds. Required if the table keeps timestamps, otherwise not read.
    pub timestamp: Option<&'a [i64]>,
}

impl<'a> Batch<'a> {
    /// Some of the rows.
    ///
    /// # Panics
    /// If columns differ in length.
    pub(crate) fn slice(&self, range: Range<usize>) -> Batch<'a> {
        Batch {
            pid: &self.pid[range.clone()],
            partition: &self.partition[range.clone()],
            epoch: self.epoch.map(|epoch| &epoch[range.clone()]),
            seq: self.seq.slice(range.clone()),
            timestamp: self.timestamp.map(|timestamp| &timestamp[range]),
        }
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.pid.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pid.is_empty()
    }
}
