//! Converts entries to the columns of a frame and back.

use super::columns::{read, write};
use super::frames::{Payload, as_damage, damaged};
use crate::Result;
use crate::judge::{FullEntry, PlainEntry};
use crate::key_block::{BLOCK_PARTITIONS, block_hash};
use crate::ordered::Appended;
use std::cmp::Ordering;

/// Maximum number of entries of a frame.
pub(super) const ENTRIES_MAX: usize = 4096;
/// Number of holes after which a frame ends, because an entry can have any number.
const HOLES_MAX: usize = 1 << 16;

/// Minimum number of bytes of an entry and of a hole, so that the number of bytes limits their number.
pub(super) const ENTRY_BYTES_MIN: usize = 4;
const HOLE_BYTES_MIN: usize = 1;

/// The keys of a frame: groups of the same block, and the steps between partitions within them.
#[derive(Default)]
pub(super) struct KeyRows {
    pid: Vec<i64>,
    block: Vec<i64>,
    count: Vec<i64>,
    step: Vec<i64>,
    /// The previous partition.
    before: i64,
}

impl KeyRows {
    #[inline]
    fn is_in_last_block(&self, pid: i64, partition: i32) -> bool {
        self.pid.last() == Some(&pid) && self.block.last() == Some(&i64::from(partition as u32 / BLOCK_PARTITIONS))
    }

    #[inline]
    pub(super) fn push(&mut self, pid: i64, partition: i32) {
        if !self.is_in_last_block(pid, partition) {
            let block = i64::from(partition as u32 / BLOCK_PARTITIONS);
            self.pid.push(pid);
            self.block.push(block);
            self.count.push(0);
            self.before = block * i64::from(BLOCK_PARTITIONS) - 1;
        }
        *self.count.last_mut().expect("pushed above") += 1;
        self.step.push(i64::from(partition) - self.before);
        self.before = partition.into();
    }

    pub(super) fn write(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.step.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.pid.len() as u64).to_le_bytes());
        for column in [&mut self.pid, &mut self.block, &mut self.count, &mut self.step] {
            write(out, column, 0);
            column.clear();
        }
    }

    /// Reads the columns of at most `left` keys. Returns their number.
    pub(super) fn read(&mut self, payload: &mut Payload<'_>, left: u64) -> Result<usize> {
        let (rows, groups) = (payload.number()?, payload.number()?);
        if rows == 0 || rows > left.min(ENTRIES_MAX as u64) || groups > rows {
            return damaged(format!(
                "a frame declares {rows} keys in {groups} blocks: expected 1 to {ENTRIES_MAX} keys, no more than the \
                 {left} that are left, and no more blocks than keys"
            ));
        }
        read(payload, groups as usize, 0, &mut self.pid)?;
        read(payload, groups as usize, 0, &mut self.block)?;
        read(payload, groups as usize, 0, &mut self.count)?;
        read(payload, rows as usize, 0, &mut self.step)?;
        Ok(rows as usize)
    }

    /// Visits every key that was read, with its order relative to the previous key.
    #[inline]
    pub(super) fn try_for_each(
        &self,
        before: &mut KeyRow,
        mut visit: impl FnMut(KeyRow, Ordering) -> Result<()>,
    ) -> Result<()> {
        let mut steps = &self.step[..];
        for ((&pid, &block), &count) in self.pid.iter().zip(&self.block).zip(&self.count) {
            if pid < 0 || !(0..=i64::from(i32::MAX as u32 / BLOCK_PARTITIONS)).contains(&block) || count <= 0 {
                return damaged("a block of keys is out of range");
            }
            let (of_block, rest) = steps.split_at_checked(count as usize).ok_or_else(miscounted)?;
            steps = rest;
            let from = block * i64::from(BLOCK_PARTITIONS);
            let hash = block_hash(pid, from as i32);
            let end = (from + i64::from(BLOCK_PARTITIONS)).min(i64::from(i32::MAX) + 1);
            let mut partition = from - 1;
            for (at, &step) in of_block.iter().enumerate() {
                partition = partition.saturating_add(step);
                if step < 0 || partition < from || partition >= end {
                    return damaged("keys are out of order or outside their block");
                }
                let key = KeyRow { hash, pid, partition: partition as i32 };
                let is_first = at == 0;
                let order = if is_first { (*before).cmp(&key) } else { 0.cmp(&step) };
                visit(key, order)?;
            }
            *before = KeyRow { hash, pid, partition: partition as i32 };
        }
        if steps.is_empty() { Ok(()) } else { Err(miscounted()) }
    }
}

#[cold]
fn miscounted() -> crate::Error {
    as_damage("the blocks of a frame have more or fewer keys than the frame declares")
}

/// A key and the hash of its block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyRow {
    hash: u64,
    pub(super) pid: i64,
    pub(super) partition: i32,
}

impl KeyRow {
    /// The value before the first key.
    pub(super) const NONE: KeyRow = KeyRow { hash: 0, pid: -1, partition: 0 };
}

/// The last entry that was read.
pub(super) struct Before {
    key: KeyRow,
    epoch: i16,
}

impl Default for Before {
    fn default() -> Before {
        Before { key: KeyRow::NONE, epoch: 0 }
    }
}

/// The entries of a frame.
#[derive(Default)]
pub(super) struct Rows {
    keys: KeyRows,
    /// The entries of a frame that is being written, without holes.
    entries: Vec<PlainEntry>,
    epoch: Vec<i64>,
    last: Vec<i64>,
    /// Last minus first.
    reach: Vec<i64>,
    timestamp: Vec<i64>,
    /// 1 if there is a final range. While a frame is written, it ends at the last entry that has a final range or
    /// holes.
    finals: Vec<i64>,
    /// The distance from the first position to the final range, and the length of the range minus one.
    final_gap: Vec<i64>,
    final_reach: Vec<i64>,
    /// Number of holes, with the same length as `finals`.
    holes: Vec<i64>,
    /// The distance of a hole from the first position or the previous hole, and its length minus one.
    hole_gap: Vec<i64>,
    hole_reach: Vec<i64>,
    hole_timestamp: Vec<i64>,
}

impl Rows {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the frame ends before an entry of this key. It ends after a block if another one might not fit.
    #[inline]
    pub(super) fn ends_before(&self, pid: i64, partition: i32) -> bool {
        const BLOCK_ENDS: usize = ENTRIES_MAX - BLOCK_PARTITIONS as usize;
        let entries = self.entries.len();
        (entries > BLOCK_ENDS && (entries >= ENTRIES_MAX || !self.keys.is_in_last_block(pid, partition)))
            || self.hole_gap.len() >= HOLES_MAX
    }

    #[inline]
    pub(super) fn push(&mut self, pid: i64, partition: i32, entry: PlainEntry, whole: Option<&FullEntry>) {
        self.keys.push(pid, partition);
        if let Some(whole) = whole {
            self.push_holes(whole);
        }
        self.entries.push(entry);
    }

    #[cold]
    fn push_holes(&mut self, entry: &FullEntry) {
        self.finals.resize(self.entries.len(), 0);
        self.finals.push(entry.final_range.is_some().into());
        if let Some((first, last)) = entry.final_range {
            self.final_gap.push(first.wrapping_sub(entry.first));
            self.final_reach.push(last.wrapping_sub(first));
        }
        let holes_before = self.hole_gap.len();
        let mut from = entry.first;
        entry.holes.for_each(|first, last, timestamp| {
            self.hole_gap.push(first.wrapping_sub(from));
            self.hole_reach.push(last.wrapping_sub(first));
            self.hole_timestamp.push(timestamp);
            from = last;
        });
        self.holes.resize(self.entries.len(), 0);
        self.holes.push((self.hole_gap.len() - holes_before) as i64);
    }

    /// Writes the columns and clears them.
    pub(super) fn write(&mut self, out: &mut Vec<u8>) {
        self.keys.write(out);
        self.last.extend(self.entries.iter().map(|entry| entry.last));
        self.epoch.extend(self.entries.iter().map(|entry| i64::from(entry.epoch)));
        self.reach.extend(self.entries.iter().map(|entry| entry.last.wrapping_sub(entry.first)));
        self.timestamp.extend(self.entries.iter().map(|entry| entry.last_timestamp));
        self.finals.resize(self.entries.len(), 0);
        self.holes.resize(self.entries.len(), 0);
        self.entries.clear();
        let columns = [
            (&mut self.last, ENTRY_BYTES_MIN),
            (&mut self.epoch, 0),
            (&mut self.reach, 0),
            (&mut self.timestamp, 0),
            (&mut self.finals, 0),
            (&mut self.final_gap, 0),
            (&mut self.final_reach, 0),
            (&mut self.holes, 0),
            (&mut self.hole_gap, HOLE_BYTES_MIN),
            (&mut self.hole_reach, 0),
            (&mut self.hole_timestamp, 0),
        ];
        for (column, width_min) in columns {
            write(out, column, width_min);
            column.clear();
        }
    }

    /// Encodes the columns and clears them.
    pub(super) fn encoded(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes
    }

    /// Reads a frame of at most `left` entries. Returns their number.
    pub(super) fn read(&mut self, mut payload: Payload<'_>, left: u64) -> Result<u64> {
        let rows = self.keys.read(&mut payload, left)?;
        read(&mut payload, rows, ENTRY_BYTES_MIN, &mut self.last)?;
        for column in [&mut self.epoch, &mut self.reach, &mut self.timestamp, &mut self.finals] {
            read(&mut payload, rows, 0, column)?;
        }
        let finals = count(&self.finals, 1)?;
        read(&mut payload, finals, 0, &mut self.final_gap)?;
        read(&mut payload, finals, 0, &mut self.final_reach)?;
        read(&mut payload, rows, 0, &mut self.holes)?;
        let holes = count(&self.holes, i64::MAX)?;
        read(&mut payload, holes, HOLE_BYTES_MIN, &mut self.hole_gap)?;
        read(&mut payload, holes, 0, &mut self.hole_reach)?;
        read(&mut payload, holes, 0, &mut self.hole_timestamp)?;
        payload.end()?;
        Ok(rows as u64)
    }

    /// Visits the entries of the frame that was read. They must follow the one `before` in order.
    #[inline]
    pub(super) fn try_for_each(
        &self,
        before: &mut Before,
        mut visit: impl FnMut(Appended) -> Result<()>,
    ) -> Result<()> {
        let (mut row, mut extras) = (0, Extras { final_at: 0, hole_at: 0 });
        self.keys.try_for_each(&mut before.key, |key, order| {
            let Ok(epoch) = i16::try_from(self.epoch[row]) else {
                return damaged(format!("an entry's epoch {} is out of range", self.epoch[row]));
            };
            let is_older = order == Ordering::Equal && epoch < before.epoch;
            if order != Ordering::Less && !is_older {
                return damaged("entries are out of order");
            }
            before.epoch = epoch;
            let (last, last_timestamp) = (self.last[row], self.timestamp[row]);
            let plain = PlainEntry { epoch, first: last.wrapping_sub(self.reach[row]), last, last_timestamp };
            let is_plain = self.finals[row] | self.holes[row] == 0;
            let whole = if is_plain { None } else { Some(self.whole(row, plain, &mut extras)?) };
            row += 1;
            let KeyRow { hash, pid, partition } = key;
            visit(Appended { hash, pid, partition, plain, whole, is_older })
        })
    }

    /// An entry with holes or a final range.
    #[cold]
    fn whole(&self, row: usize, plain: PlainEntry, extras: &mut Extras) -> Result<Box<FullEntry>> {
        let mut state = Box::new(FullEntry::from(plain));
        if self.finals[row] == 1 {
            let first = state.first.wrapping_add(self.final_gap[extras.final_at]);
            state.final_range = Some((first, first.wrapping_add(self.final_reach[extras.final_at])));
            extras.final_at += 1;
        }
        let mut free_from = state.first;
        let mut from = state.first;
        for _ in 0..self.holes[row] {
            let first = from.wrapping_add(self.hole_gap[extras.hole_at]);
            let last = first.wrapping_add(self.hole_reach[extras.hole_at]);
            if first < free_from || last < first || last >= state.last {
                return damaged("an entry's holes overlap, touch each other, or are outside the entry");
            }
            state.holes.open(first, last, self.hole_timestamp[extras.hole_at]);
            (from, free_from) = (last, last.saturating_add(2));
            extras.hole_at += 1;
        }
        Ok(state)
    }
}

/// The read positions in the columns of final ranges and holes.
struct Extras {
    final_at: usize,
    hole_at: usize,
}

/// The sum of a column of counts, each from 0 to `max`.
fn count(counts: &[i64], max: i64) -> Result<usize> {
    let add = |sum: i64, &count: &i64| sum.checked_add(count).filter(|_| (0..=max).contains(&count));
    match counts.iter().try_fold(0, add) {
        Some(sum) => Ok(sum as usize),
        None => damaged(format!("a count is outside 0..={max}")),
    }
}
