//! Follows transactions in the logs of partitions: which rows are committed, aborted or still open.
//!
//! A transaction is what a producer writes to a partition up to its next marker there. A marker of another epoch closes
//! it as well (this is how a coordinator fences), and an epoch that increases without a marker continues it. A follower
//! replays its log by the same rules (Kafka's `ProducerStateManager`, `ProducerAppendInfo`, `TransactionIndex`), and
//! readers of a log must do the same.
//!
//! The state is a number per partition and an entry per open transaction. The list of aborted transactions is output
//! that was not yet fetched: [`TransactionIndex::forget_aborted`] frees it.

mod cut;
#[cfg(test)]
mod tests;

use crate::error::make_room;
use crate::{Control, Keys, Result};
use cut::{NO_SPAN, Span};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// The outcome of the transaction of a row. The codes never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Outcome {
    /// Not part of a transaction: plain rows, markers, other control rows.
    None = 0,
    /// Decided: readers return it.
    Committed = 1,
    /// Decided: readers of committed rows skip it.
    Aborted = 2,
    /// Not decided by the rows so far.
    Open = 3,
}

impl Outcome {
    /// Every outcome, in the order of its code.
    pub const ALL: [Outcome; 4] = [Outcome::None, Outcome::Committed, Outcome::Aborted, Outcome::Open];

    /// The name in all APIs.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::None => "none",
            Outcome::Committed => "committed",
            Outcome::Aborted => "aborted",
            Outcome::Open => "open",
        }
    }
}

/// Rows of logs (batch headers or records), all columns of equal length. Rows of a partition are in the order of its
/// log; rows of several partitions can alternate. Partitions that are not plain integers are numbers from [`Keys`].
#[derive(Clone, Copy, Debug)]
pub struct LogRows<'a> {
    /// -1 if the row has no producer.
    pub pid: &'a [i64],
    /// 0 … 32767. Not read if there is no producer.
    pub epoch: &'a [i16],
    /// 0 and above; -1 for the one partition without a number.
    pub partition: &'a [i32],
    /// The first offset, above all of the rows before it in its partition.
    pub offset: &'a [i64],
    /// The last offset. `None` if rows are records.
    pub last_offset: Option<&'a [i64]>,
    /// 1: data that is part of a transaction. `None`: all data with a producer is. Not read in control rows.
    pub transactional: Option<&'a [u8]>,
    /// The code of a [`Control`].
    pub control: &'a [u8],
    /// Milliseconds; -1 if there is none.
    pub timestamp: Option<&'a [i64]>,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcomes {
    /// A code of [`Outcome`] per row, at the end of the call.
    pub outcomes: Vec<u8>,
    /// Transactions that were open before this call and that it decided, in the order of their markers.
    pub resolved: Vec<Resolved>,
}

/// A transaction that was reported as open and is now decided. Its rows are those of its producer within its offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The partition.
    pub partition: i32,
    /// The producer.
    pub pid: i64,
    /// The offset of its first row.
    pub first_offset: i64,
    /// The offset of its marker.
    pub last_offset: i64,
    /// Committed or aborted.
    pub outcome: Outcome,
}

/// A transaction without a marker yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenTransaction {
    /// The partition.
    pub partition: i32,
    /// The producer.
    pub pid: i64,
    /// The epoch of its last row.
    pub epoch: i16,
    /// The offset of its first row.
    pub first_offset: i64,
    /// The last offset of its rows so far.
    pub last_offset: i64,
    /// The timestamp of its last row, in milliseconds.
    pub last_timestamp: Option<i64>,
}

/// An aborted transaction as a broker's `.txnindex` lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// The producer.
    pub pid: i64,
    /// The offset of its first row.
    pub first_offset: i64,
    /// The offset of its marker.
    pub last_offset: i64,
    /// The first offset of the oldest other transaction that was open then, or the offset after the marker.
    pub last_stable_offset: i64,
}

/// Follows the transactions of any number of partitions, call by call.
///
/// The division of rows into calls affects only [`Outcome::Open`], which is the state at the end of a call.
#[derive(Clone, Debug, Default)]
pub struct TransactionIndex {
    keys: Keys,
    /// The index of each partition in `partitions`, which has the order of arrival.
    slots: FxHashMap<i32, u32>,
    partitions: Vec<Partition>,
    /// By slot of the partition and pid.
    open: FxHashMap<(u32, i64), Ongoing>,
    calls: u64,
}

#[derive(Clone, Debug)]
struct Partition {
    number: i32,
    /// The offset after the last row.
    log_end: i64,
    /// First offset and pid of transactions, ordered because offsets increase. The first is open; others may be
    /// decided.
    begun: VecDeque<(i64, i64)>,
    open: usize,
    aborted: Vec<AbortedTransaction>,
}

/// An open transaction.
#[derive(Clone, Copy, Debug)]
struct Ongoing {
    epoch: i16,
    first_offset: i64,
    last_offset: i64,
    last_timestamp: i64,
    /// The call that began it.
    begun_in: u64,
    /// The last call that added to it, and the last span there.
    seen_in: u64,
    last_span: u32,
}

impl TransactionIndex {
    /// The types and numbers of its partitions.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The types and numbers of its partitions, mutable.
    pub fn keys_mut(&mut self) -> &mut Keys {
        &mut self.keys
    }

    /// The first offset of the oldest open transaction of a partition.
    pub fn first_unstable_offset(&self, partition: i32) -> Option<i64> {
        self.partition(partition)?.first_unstable_offset()
    }

    /// The offset below which all rows of a partition are decided: the first unstable offset, or the end of its log.
    /// `None` if it has no rows. A broker's value is also at most its high watermark, which logs do not contain.
    pub fn last_stable_offset(&self, partition: i32) -> Option<i64> {
        let partition = self.partition(partition)?;
        Some(partition.first_unstable_offset().unwrap_or(partition.log_end))
    }

    /// The offset after the last row of a partition. `None` if it has no rows.
    pub fn log_end(&self, partition: i32) -> Option<i64> {
        Some(self.partition(partition)?.log_end)
    }

    /// The open transactions, in the order of partition (by value, see [`Keys`]) and first offset.
    pub fn open(&self) -> impl Iterator<Item = OpenTransaction> + '_ {
        let mut slots: Vec<_> = (0..self.partitions.len()).filter(|&slot| self.partitions[slot].open > 0).collect();
        let number = |slot: usize| i64::from(self.partitions[slot].number);
        slots.sort_unstable_by(|&one, &other| self.keys.partition.order(number(one), number(other)));
        slots.into_iter().flat_map(move |slot| {
            let Partition { number, begun, .. } = &self.partitions[slot];
            let ongoing = move |&(first, pid): &(i64, i64)| {
                let ongoing = self.open.get(&(slot as u32, pid)).filter(|it| it.first_offset == first)?;
                Some(ongoing.as_open(*number, pid))
            };
            begun.iter().filter_map(ongoing)
        })
    }

    /// The aborted transactions of a partition in the order of their markers, without forgotten ones.
    pub fn aborted(&self, partition: i32) -> &[AbortedTransaction] {
        self.partition(partition).map_or(&[], |partition| &partition.aborted)
    }

    /// Number of open transactions.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Whether there were no rows yet.
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        let of_partition = |partition: &Partition| {
            partition.begun.capacity() * size_of::<(i64, i64)>()
                + partition.aborted.capacity() * size_of::<AbortedTransaction>()
        };
        self.keys.partition.dictionary.memory_bytes()
            + self.slots.capacity() * size_of::<(i32, u32)>()
            + self.open.capacity() * size_of::<((u32, i64), Ongoing)>()
            + self.partitions.capacity() * size_of::<Partition>()
            + self.partitions.iter().map(of_partition).sum::<usize>()
            + size_of::<TransactionIndex>()
    }

    /// Follows rows in order. The batches are one input, divided in any way. Rows are counted from the first row of the
    /// first batch. After an error the index is unchanged.
    pub fn apply(&mut self, batches: &[LogRows<'_>]) -> Result<Outcomes> {
        let rows = cut::check_lengths(batches)?;
        let mut outcomes = Vec::new();
        make_room(&mut outcomes, rows)?;
        outcomes.resize(rows, Outcome::None as u8);
        let cut = self.cut(batches)?;
        self.calls += 1;
        let mut call = Call { spans: cut.spans, rows, result: Outcomes { outcomes, resolved: Vec::new() } };
        let (mut from, mut span) = (0, 0);
        for (batch, spans_end) in batches.iter().zip(cut.ends) {
            while span < spans_end {
                self.follow(batch, from, span, &mut call);
                span += 1;
            }
            from += batch.pid.len();
        }
        Ok(call.result)
    }

    /// Drops the aborted transactions of a partition whose markers are below an offset, and returns their number.
    /// Readers from that offset on do not need them.
    pub fn forget_aborted(&mut self, partition: i32, below: i64) -> usize {
        let Some(&slot) = self.slots.get(&partition) else { return 0 };
        let aborted = &mut self.partitions[slot as usize].aborted;
        let count = aborted.partition_point(|it| it.last_offset < below);
        aborted.drain(..count);
        aborted.shrink_to(2 * aborted.len());
        count
    }

    fn partition(&self, number: i32) -> Option<&Partition> {
        self.slots.get(&number).map(|&slot| &self.partitions[slot as usize])
    }

    /// Follows a span of the batch whose first row is the call's row `from`.
    #[inline]
    fn follow(&mut self, batch: &LogRows<'_>, from: usize, span: usize, call: &mut Call) {
        let row = call.spans[span].start as usize - from;
        if batch.control[row] == Control::Commit as u8 {
            self.decide(batch, row, span, Outcome::Committed, call);
        } else if batch.control[row] == Control::Abort as u8 {
            self.decide(batch, row, span, Outcome::Aborted, call);
        } else if batch.control[row] == Control::Data as u8 && batch.is_transactional(row) {
            let last_row = call.end(span) - from - 1;
            self.write(batch, row, last_row, span, call);
        }
    }

    /// Adds rows to their producer's transaction, which begins with them if none is open.
    #[inline]
    fn write(&mut self, batch: &LogRows<'_>, row: usize, last_row: usize, span: usize, call: &mut Call) {
        let (slot, pid) = (call.spans[span].slot, batch.pid[row]);
        let calls = self.calls;
        let ongoing = self.open.entry((slot, pid)).or_insert_with(|| {
            let partition = &mut self.partitions[slot as usize];
            partition.begun.push_back((batch.offset[row], pid));
            partition.open += 1;
            Ongoing {
                epoch: 0,
                first_offset: batch.offset[row],
                last_offset: 0,
                last_timestamp: -1,
                begun_in: calls,
                seen_in: 0,
                last_span: NO_SPAN,
            }
        });
        ongoing.epoch = batch.epoch[last_row];
        ongoing.last_offset = batch.last_offset(last_row);
        ongoing.last_timestamp = batch.timestamp.map_or(-1, |times| times[last_row]);
        call.spans[span].before = if ongoing.seen_in == calls { ongoing.last_span } else { NO_SPAN };
        (ongoing.seen_in, ongoing.last_span) = (calls, span as u32);
        call.fill(span, Outcome::Open);
    }

    /// Applies a marker: decides its producer's transaction, if one is open. Further markers in the span have no
    /// effect.
    fn decide(&mut self, batch: &LogRows<'_>, row: usize, span: usize, outcome: Outcome, call: &mut Call) {
        let (slot, pid, marker) = (call.spans[span].slot, batch.pid[row], batch.offset[row]);
        let Some(ongoing) = self.open.remove(&(slot, pid)) else { return };
        self.forget_decided(slot);
        let partition = &mut self.partitions[slot as usize];
        if outcome == Outcome::Aborted {
            partition.aborted.push(AbortedTransaction {
                pid,
                first_offset: ongoing.first_offset,
                last_offset: marker,
                last_stable_offset: partition.first_unstable_offset().unwrap_or(marker + 1),
            });
        }
        if ongoing.begun_in != self.calls {
            let Ongoing { first_offset, .. } = ongoing;
            let partition = partition.number;
            call.result.resolved.push(Resolved { partition, pid, first_offset, last_offset: marker, outcome });
        }
        let mut span = if ongoing.seen_in == self.calls { ongoing.last_span } else { NO_SPAN };
        while span != NO_SPAN {
            call.fill(span as usize, outcome);
            span = call.spans[span as usize].before;
        }
    }

    /// Removes decided transactions from the list of a partition after one was decided: from the front, and from the
    /// middle if they are the majority. This takes a few steps per transaction, however many are open.
    fn forget_decided(&mut self, slot: u32) {
        let Partition { begun, open: count, .. } = &mut self.partitions[slot as usize];
        let open = &mut self.open;
        let is_open = |&(first, pid): &(i64, i64)| open.get(&(slot, pid)).is_some_and(|it| it.first_offset == first);
        *count -= 1;
        while begun.front().is_some_and(|first| !is_open(first)) {
            begun.pop_front();
        }
        if begun.len() > 2 * *count + SPARE {
            begun.retain(is_open);
        }
        if begun.capacity() > 8 * begun.len() + SPARE {
            begun.shrink_to(2 * begun.len());
        }
        if open.capacity() > 8 * open.len() + SPARE {
            open.shrink_to(2 * open.len());
        }
    }
}

/// Capacity that is too small to be freed.
const SPARE: usize = 64;

/// The results of a call so far.
struct Call {
    spans: Vec<Span>,
    rows: usize,
    result: Outcomes,
}

impl Call {
    /// The row after the last row of a span.
    #[inline]
    fn end(&self, span: usize) -> usize {
        self.spans.get(span + 1).map_or(self.rows, |next| next.start as usize)
    }

    #[inline]
    fn fill(&mut self, span: usize, outcome: Outcome) {
        let (start, end) = (self.spans[span].start as usize, self.end(span));
        if end == start + 1 {
            self.result.outcomes[start] = outcome as u8;
        } else {
            self.result.outcomes[start..end].fill(outcome as u8);
        }
    }
}

impl Partition {
    fn new(number: i32) -> Partition {
        Partition { number, log_end: 0, begun: VecDeque::new(), open: 0, aborted: Vec::new() }
    }

    fn first_unstable_offset(&self) -> Option<i64> {
        self.begun.front().map(|&(first_offset, _)| first_offset)
    }
}

impl Ongoing {
    fn as_open(&self, partition: i32, pid: i64) -> OpenTransaction {
        let Ongoing { epoch, first_offset, last_offset, last_timestamp, .. } = *self;
        let last_timestamp = Some(last_timestamp).filter(|&time| time != -1);
        OpenTransaction { partition, pid, epoch, first_offset, last_offset, last_timestamp }
    }
}
