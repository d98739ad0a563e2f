//! The active segment, and the names of the files of a partition.

use crate::disk::{Disk, LogFile};
use crate::error::{Error, Result};
use fencepost_kafka::ReadAt;
use fencepost_kafka::index::{self, IndexEntry, TimeEntry};
use std::io;
use std::sync::Arc;

pub(crate) const LOG: &str = ".log";
pub(crate) const INDEX: &str = ".index";
pub(crate) const TIME_INDEX: &str = ".timeindex";
pub(crate) const TXN_INDEX: &str = ".txnindex";
/// A broker's own snapshot: the last batch of each producer.
pub(crate) const SNAPSHOT: &str = ".snapshot";
/// The whole table, for which brokers have no file.
pub(crate) const STATE: &str = ".state";

/// A broker's `index.interval.bytes`.
const INDEX_INTERVAL_BYTES: u64 = 4096;

/// The name of a file for the log from this offset on, or up to it.
pub(crate) fn name_of(offset: i64, ending: &str) -> String {
    format!("{offset:020}{ending}")
}

/// The offset in such a name.
pub(crate) fn offset_of(name: &str, ending: &str) -> Option<i64> {
    let digits = name.strip_suffix(ending)?;
    let is_number = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// The written sizes of the files of the last segment.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    log_bytes: u64,
    aborted_bytes: u64,
}

/// The offsets in names with an ending, in order.
pub(crate) fn offsets_of(names: &[String], ending: &str) -> Vec<i64> {
    let mut offsets: Vec<i64> = names.iter().filter_map(|name| offset_of(name, ending)).collect();
    offsets.sort_unstable();
    offsets
}

/// The last segment.
pub(crate) struct Active {
    pub(crate) base: i64,
    pub(crate) file: Arc<dyn LogFile>,
    pub(crate) bytes: u64,
    index: Vec<IndexEntry>,
    times: Vec<TimeEntry>,
    newest: Option<TimeEntry>,
    since_entry: u64,
    /// The index of aborted transactions, if it exists, and its length.
    txn_index: Option<(Arc<dyn LogFile>, u64)>,
}

impl Active {
    pub(crate) fn new(base: i64, file: Arc<dyn LogFile>) -> Active {
        Active {
            base,
            file,
            bytes: 0,
            index: Vec::new(),
            times: Vec::new(),
            newest: None,
            since_entry: 0,
            txn_index: None,
        }
    }

    /// Creates a segment without batches, whose name is on disk.
    pub(crate) fn create(disk: &dyn Disk, base: i64) -> io::Result<Active> {
        let file = disk.create(&name_of(base, LOG))?;
        disk.sync()?;
        Ok(Active::new(base, file))
    }

    /// The position of a batch before which there is no offset at or above this one.
    pub(crate) fn position_of(&self, offset: i64) -> u64 {
        position_of(&self.index, offset)
    }

    /// Records a batch at the end. Entries are added to the indexes by the rules of Kafka's `LogSegment.append`.
    pub(crate) fn note(&mut self, bytes: u64, last_offset: i64, max_timestamp: i64) {
        if self.newest.is_none_or(|newest| max_timestamp > newest.timestamp) {
            self.newest = Some(TimeEntry { timestamp: max_timestamp, offset: last_offset });
        }
        if self.since_entry > INDEX_INTERVAL_BYTES {
            self.index.push(IndexEntry { offset: last_offset, position: self.bytes as u32 });
            self.note_time();
            self.since_entry = 0;
        }
        self.since_entry += bytes;
        self.bytes += bytes;
    }

    fn note_time(&mut self) {
        let last = self.times.last().map_or(-1, |last| last.timestamp);
        self.times.extend(self.newest.filter(|newest| newest.timestamp > last));
    }

    /// Appends entries of aborted transactions.
    pub(crate) fn add_aborted(&mut self, disk: &dyn Disk, entries: &[u8]) -> io::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        if self.txn_index.is_none() {
            // If this fails, an empty index is equivalent to none.
            let file = disk.create(&name_of(self.base, TXN_INDEX))?;
            disk.sync()?;
            self.txn_index = Some((file, 0));
        }
        let Some((file, bytes)) = &mut self.txn_index else { return Ok(()) };
        file.write_all_at(*bytes, entries)?;
        *bytes += entries.len() as u64;
        Ok(())
    }

    /// The written sizes.
    pub(crate) fn extent(&self) -> Extent {
        Extent { log_bytes: self.bytes, aborted_bytes: self.txn_index.as_ref().map_or(0, |(_, bytes)| *bytes) }
    }

    /// Removes bytes after an extent that were not recorded, durably.
    pub(crate) fn cut(&mut self, extent: Extent) -> io::Result<()> {
        if let Some((file, bytes)) = &mut self.txn_index {
            file.cut(extent.aborted_bytes)?;
            *bytes = extent.aborted_bytes;
        }
        self.file.cut(extent.log_bytes)
    }

    /// Sets the complete index of aborted transactions.
    pub(crate) fn set_aborted(&mut self, file: Arc<dyn LogFile>, bytes: u64) {
        self.txn_index = Some((file, bytes));
    }

    /// The written files. The first is the one that lists batches to skip.
    pub(crate) fn files(&self) -> Vec<Arc<dyn LogFile>> {
        self.txn_index.iter().map(|(file, _)| file.clone()).chain([self.file.clone()]).collect()
    }

    /// Writes the indexes of offsets and times, which are needed only for finished segments.
    pub(crate) fn write_indexes(&mut self, disk: &dyn Disk) -> io::Result<()> {
        self.note_time();
        disk.put(&name_of(self.base, INDEX), &index::write(&self.index, self.base))?;
        disk.put(&name_of(self.base, TIME_INDEX), &index::write_times(&self.times, self.base))
    }
}

/// The position in a segment of a batch before which there is no offset at or above this one.
pub(crate) fn position_of(index: &[IndexEntry], offset: i64) -> u64 {
    let after = index.partition_point(|entry| entry.offset <= offset);
    after.checked_sub(1).map_or(0, |at| u64::from(index[at].position))
}

/// A file up to its size at the time when a reader opened it.
pub(crate) struct Prefix {
    pub(crate) file: Arc<dyn LogFile>,
    pub(crate) bytes: u64,
}

impl ReadAt for Prefix {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.bytes()?.min(self.bytes))
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = self.bytes.saturating_sub(position).min(buffer.len() as u64) as usize;
        self.file.read_at(position, &mut buffer[..rest])
    }

    fn is_quick(&self) -> bool {
        self.file.is_quick()
    }
}

/// An error of a file of the partition.
pub(crate) fn refused(disk: &dyn Disk, name: &str, error: io::Error, state: &str) -> Error {
    Error::io(error, disk.path(name), state)
}

/// Like `refused`, if nothing was opened.
pub(crate) fn unopened<T>(disk: &dyn Disk, name: &str, done: io::Result<T>) -> Result<T> {
    done.map_err(|error| refused(disk, name, error, "the log was not opened"))
}
