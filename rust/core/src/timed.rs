//! Lines with timestamps: any layout, and beside each slot the last timestamp of its entry.
//!
//! A wrapper and not more layouts, so that a table without timestamps pays nothing for those that have
//! them: its lines, its memory and its code are what they were.

use crate::judge::{PlainRules, Run, Span};
use crate::lines::{Line, LineKey, Plainly, Slot};

/// A line and the highest timestamp of the accepted rows of each of its entries. Two cache lines side by
/// side, which processors fetch as a pair.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
pub(crate) struct Timed<L> {
    line: L,
    times: [i64; 8],
}

impl<L: Line> Line for Timed<L> {
    const SLOTS: usize = L::SLOTS;
    const IS_TIMED: bool = true;

    fn empty(key: LineKey) -> Self {
        const { assert!(L::SLOTS <= 8 && size_of::<Timed<L>>() == 128) };
        Timed { line: L::empty(key), times: [0; 8] }
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
    fn epoch(&self, slot: usize) -> i16 {
        self.line.epoch(slot)
    }

    fn read(&self, slot: usize) -> Slot {
        match self.line.read(slot) {
            Slot::Inline(span) => Slot::Inline(Span { last_timestamp: self.times[slot], ..span }),
            other => other,
        }
    }

    fn write_inline(&mut self, slot: usize, span: &Span) -> bool {
        let fits = self.line.write_inline(slot, span);
        if fits {
            self.times[slot] = span.last_timestamp;
        }
        fits
    }

    fn write_aside(&mut self, slot: usize, epoch: i16, number: u32) {
        self.line.write_aside(slot, epoch, number);
    }

    #[inline]
    fn is_empty_at(&self, slot: usize) -> bool {
        self.line.is_empty_at(slot)
    }

    #[inline]
    fn judge_plainly(&mut self, slot: usize, run: Run, rules: &PlainRules) -> Plainly {
        if run.is_old {
            return Plainly::Unclear;
        }
        let plainly = self.line.judge_plainly(slot, run, rules);
        match plainly {
            Plainly::WentOn => self.times[slot] = self.times[slot].max(run.newest),
            Plainly::Begun => self.times[slot] = run.newest,
            Plainly::Repeated | Plainly::Unclear => {}
        }
        plainly
    }
}
