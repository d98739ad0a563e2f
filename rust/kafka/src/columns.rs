use crate::control::Control;
use crate::header::{BatchHeader, is_transactional};

/// The headers of batches as columns, one row per batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchColumns {
    /// Position of the batch in its segment.
    pub position: Vec<i64>,
    /// Size in bytes, including the header.
    pub bytes: Vec<i32>,
    /// First offset.
    pub base_offset: Vec<i64>,
    /// Last offset.
    pub last_offset: Vec<i64>,
    /// Number of records.
    pub count: Vec<i32>,
    /// Producer id, -1 for none.
    pub pid: Vec<i64>,
    /// Producer epoch, -1 for none.
    pub epoch: Vec<i16>,
    /// First sequence number, -1 for none.
    pub base_seq: Vec<i32>,
    /// Last sequence number, -1 for none.
    pub last_seq: Vec<i32>,
    /// Newest timestamp, in milliseconds.
    pub max_timestamp: Vec<i64>,
    /// Attribute bits, see [`BatchHeader`].
    pub attributes: Vec<u8>,
    /// Epoch of the leader that wrote it.
    pub leader_epoch: Vec<i32>,
    /// The control batches, by row.
    pub markers: Vec<Marker>,
}

/// A control batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The row.
    pub row: u32,
    /// The kind, from its first record.
    pub control: Control,
    /// Epoch of the transaction coordinator, for commit and abort.
    pub coordinator_epoch: Option<i32>,
}

impl BatchColumns {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.position.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.position.is_empty()
    }

    /// Whether the batch of a row is part of a transaction.
    pub fn is_transactional(&self, row: usize) -> bool {
        is_transactional(self.attributes[row])
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.each_column(|column| column.clear(), |column| column.clear());
        self.epoch.clear();
        self.attributes.clear();
        self.markers.clear();
    }

    /// Reserves memory for more rows.
    pub(crate) fn reserve(&mut self, rows: usize) {
        self.each_column(|column| column.reserve(rows), |column| column.reserve(rows));
        self.epoch.reserve(rows);
        self.attributes.reserve(rows);
    }

    fn each_column(&mut self, wide: impl Fn(&mut Vec<i64>), narrow: impl Fn(&mut Vec<i32>)) {
        let columns = [&mut self.position, &mut self.base_offset, &mut self.last_offset, &mut self.pid];
        columns.into_iter().chain([&mut self.max_timestamp]).for_each(wide);
        let columns = [&mut self.bytes, &mut self.count, &mut self.base_seq, &mut self.last_seq];
        columns.into_iter().chain([&mut self.leader_epoch]).for_each(narrow);
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, position: u64, header: &BatchHeader) {
        self.position.push(position as i64);
        self.bytes.push(header.bytes() as i32);
        self.base_offset.push(header.base_offset);
        self.last_offset.push(header.last_offset());
        self.count.push(header.count);
        self.pid.push(header.pid);
        self.epoch.push(header.epoch);
        self.base_seq.push(header.base_seq);
        self.last_seq.push(header.last_seq());
        self.max_timestamp.push(header.max_timestamp);
        self.attributes.push(header.attributes);
        self.leader_epoch.push(header.leader_epoch);
    }
}
