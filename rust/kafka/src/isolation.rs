//! The records that a consumer with `isolation.level=read_committed` returns: none of an aborted transaction, and none
//! from the first offset of an open transaction on.

use crate::aborted::AbortedTxn;
use crate::columns::BatchColumns;
use crate::control::Control;
use crate::error::{Error, Kind, Result};
use crate::header::BatchHeader;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A transaction that was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AbortedRange {
    /// Its producer.
    pub pid: i64,
    /// The first offset of its records.
    pub first_offset: i64,
    /// The offset of its marker.
    pub last_offset: i64,
}

/// The outcome of transactions, from headers in the order of the log.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// First offsets of open transactions, by producer.
    open: BTreeMap<i64, i64>,
    aborted: Vec<AbortedRange>,
    log_end: i64,
}

impl Outcomes {
    /// Adds the next headers.
    pub fn add(&mut self, batches: &BatchColumns) {
        let mut markers = batches.markers.iter().peekable();
        for row in 0..batches.len() {
            let (pid, first) = (batches.pid[row], batches.base_offset[row]);
            self.log_end = batches.last_offset[row] + 1;
            if let Some(marker) = markers.next_if(|marker| marker.row as usize == row) {
                self.close(pid, marker.control, first);
            } else if batches.is_transactional(row) && batches.count[row] > 0 {
                // If compaction removed all records of a header, its transaction was decided long ago.
                self.open.entry(pid).or_insert(first);
            }
        }
    }

    fn close(&mut self, pid: i64, control: Control, last_offset: i64) {
        if !matches!(control, Control::Commit | Control::Abort) {
            return;
        }
        let Some(first_offset) = self.open.remove(&pid) else { return };
        if control == Control::Abort {
            self.aborted.push(AbortedRange { pid, first_offset, last_offset });
        }
    }

    /// The offset from which on nothing is decided by these headers: the log end if no transaction is open.
    pub fn last_stable_offset(&self) -> i64 {
        self.open.values().copied().min().unwrap_or(self.log_end)
    }

    /// Producer and first offset of transactions without a marker, in the order of producers.
    pub fn open(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.open.iter().map(|(&pid, &first)| (pid, first))
    }

    /// Aborted transactions, in the order of their markers.
    pub fn aborted(&self) -> &[AbortedRange] {
        &self.aborted
    }

    /// The visible records of a log, after all its headers were added.
    pub fn view(&self) -> View {
        View::new(&self.aborted, self.last_stable_offset())
    }

    /// The visible records of a single segment, with the aborted transactions in the index beside it. A transaction
    /// without a marker is decided in another segment, or not at all. This is an error, unless the index lists it as
    /// aborted.
    pub fn view_of_segment(&self, index: &[AbortedTxn]) -> Result<View> {
        let range =
            |it: &AbortedTxn| AbortedRange { pid: it.pid, first_offset: it.first_offset, last_offset: it.last_offset };
        let is_listed = |pid, first| {
            index.iter().any(|it| it.pid == pid && it.first_offset <= first && it.last_offset >= self.log_end)
        };
        if let Some((pid, first)) = self.open().find(|&(pid, first)| !is_listed(pid, first)) {
            let reason = format!(
                "the transaction of producer {pid} at offset {first} ends in another segment or is open, so this \
                 segment does not show whether it was committed: read the folder of the partition"
            );
            return Err(Error::new(Kind::Undecided, None, reason));
        }
        let aborted: Vec<AbortedRange> = self.aborted.iter().copied().chain(index.iter().map(range)).collect();
        Ok(View::new(&aborted, self.log_end))
    }
}

/// Decides which batches are returned. Queries are in the order of offsets.
#[derive(Clone, Debug)]
pub struct View {
    aborted: HashMap<i64, VecDeque<(i64, i64)>>,
    start: i64,
    end: i64,
}

impl View {
    /// Returns all batches.
    pub fn uncommitted() -> View {
        View { aborted: HashMap::new(), start: 0, end: i64::MAX }
    }

    /// Returns nothing of these transactions, and nothing from `end` on.
    pub fn new(aborted: &[AbortedRange], end: i64) -> View {
        let mut by_pid: HashMap<i64, VecDeque<(i64, i64)>> = HashMap::new();
        let mut sorted = aborted.to_vec();
        sorted.sort_unstable_by_key(|range| range.last_offset);
        sorted.iter().for_each(|it| by_pid.entry(it.pid).or_default().push_back((it.first_offset, it.last_offset)));
        View { aborted: by_pid, start: 0, end }
    }

    /// Also returns nothing below this offset, which can be within a batch.
    pub fn starting_at(self, start: i64) -> View {
        View { start, ..self }
    }

    /// Whether the record at an offset is before the returned ones.
    #[inline]
    pub(crate) fn is_before(&self, offset: i64) -> bool {
        offset < self.start
    }

    /// Whether nothing is returned from this batch on.
    pub(crate) fn ends_at(&self, header: &BatchHeader) -> bool {
        header.base_offset >= self.end
    }

    pub(crate) fn is_aborted(&mut self, header: &BatchHeader) -> bool {
        if !header.is_transactional() {
            return false;
        }
        let Some(ranges) = self.aborted.get_mut(&header.pid) else { return false };
        while ranges.front().is_some_and(|&(_, last)| last < header.base_offset) {
            ranges.pop_front();
        }
        ranges.front().is_some_and(|&(first, _)| first <= header.base_offset)
    }
}
