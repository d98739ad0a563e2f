//! Lines with timestamps: any layout, and beside each slot the last timestamp of its entry.
//!
//! A wrapper and not more layouts, so that a table without timestamps pays nothing for those that have
//! them: its lines, its memory and its code are what they were.

use crate::judge::{PlainRules, PlainSpan, Run};
use crate::lines::{Line, LineKey, Plainly, RowLine, Slot};

/// A line and the highest timestamp of the accepted rows of each of its entries: 128 bytes, two cache lines
/// side by side, or 32 to 40 where a line holds one entry.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Timed<L: RowLine> {
    line: L,
    times: L::Times,
}

impl<L: RowLine> Line for Timed<L> {
    const SLOTS: usize = L::SLOTS;
    type Slot = Slot;
    type Twin = Timed<L::Twin>;

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

    fn read(&self, slot: usize) -> Slot {
        match self.line.read(slot) {
            Slot::Inline(span) => Slot::Inline(PlainSpan { last_timestamp: self.times.as_ref()[slot], ..span }),
            other => other,
        }
    }

    fn write(&mut self, slot: usize, held: &Slot) -> bool {
        self.write_row_slot(slot, held)
    }

    fn clear(&mut self, slot: usize) {
        self.line.clear(slot);
    }
}

impl<L: RowLine> RowLine for Timed<L> {
    type RowTwin = Self::Twin;
    type Times = L::Times;
    const NO_TIMES: L::Times = L::NO_TIMES;
    const IS_TIMED: bool = true;

    #[inline]
    fn write_inline(&mut self, slot: usize, span: PlainSpan) -> bool {
        let fits = self.line.write_inline(slot, span);
        if fits {
            self.times.as_mut()[slot] = span.last_timestamp;
        }
        fits
    }

    fn write_aside(&mut self, slot: usize, number: u32) {
        self.line.write_aside(slot, number);
    }

    #[inline]
    fn judge_plainly(&mut self, slot: usize, run: Run, rules: &PlainRules) -> Plainly {
        if run.is_old {
            return Plainly::Unclear;
        }
        let plainly = self.line.judge_plainly(slot, run, rules);
        let time = &mut self.times.as_mut()[slot];
        match plainly {
            Plainly::WentOn => *time = run.newest.max(*time),
            Plainly::Begun => *time = run.newest,
            Plainly::Repeated | Plainly::Unclear => {}
        }
        plainly
    }
}
