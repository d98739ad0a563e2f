//! Lines with timestamps: any layout, with the last timestamp of its entry beside each slot.
//!
//! This is a wrapper instead of more layouts, so that tables without timestamps keep their lines, memory and code.

use super::{Line, LineKey, RowLine};
use crate::fast_path::Slot;
use crate::judge::PlainEntry;

/// A line and the highest timestamp of the accepted rows of each entry. It has 128 bytes (two adjacent cache lines), or
/// 32 to 40 if a line has one entry.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Timed<L: RowLine> {
    line: L,
    times: L::Times,
}

impl<L: RowLine> Line for Timed<L> {
    const SLOTS: usize = L::SLOTS;
    type Slot = Slot;
    type OtherLayout = Timed<L::OtherLayout>;

    fn empty(key: LineKey) -> Self {
        Timed { line: L::empty(key), times: L::NO_TIMES }
    }

    #[inline]
    fn pid(&self) -> i64 {
        self.line.pid()
    }

    #[inline]
    fn group(&self) -> u32 {
        self.line.group()
    }

    #[inline]
    fn own_epoch(&self) -> i16 {
        self.line.own_epoch()
    }

    #[inline]
    fn is_empty_at(&self, slot: usize) -> bool {
        self.line.is_empty_at(slot)
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    #[inline(always)]
    fn read(&self, slot: usize) -> Slot {
        match self.line.read(slot) {
            Slot::Inline(entry) => Slot::Inline(PlainEntry { last_timestamp: self.times.as_ref()[slot], ..entry }),
            other => other,
        }
    }

    #[inline(always)]
    fn write(&mut self, slot: usize, held: &Slot) -> bool {
        let is_stored = self.line.write(slot, held);
        if let Slot::Inline(entry) = held
            && is_stored
        {
            self.times.as_mut()[slot] = entry.last_timestamp;
        }
        is_stored
    }

    fn clear(&mut self, slot: usize) {
        self.line.clear(slot);
    }
}

impl<L: RowLine> RowLine for Timed<L> {
    type OtherRowLayout = Self::OtherLayout;
    type Times = L::Times;
    const NO_TIMES: L::Times = L::NO_TIMES;
    const IS_TIMED: bool = true;
}
