//! Lines of one entry, for producers that write to one partition or a few far from each other.
//!
//! ```text
//! LoneSpan, 22 bytes       LoneNext, 19 bytes            LoneWide, 26 bytes
//!   pid    8                 pid         8                 pid    8
//!   group  4                 group       4                 last   8
//!   first  4                 last        4                 group  4
//!   last   4                 epoch       2                 reach  4
//!   epoch  2                 remembered  1                 epoch  2
//! ```
//!
//! They are packed: every third crosses the border of a cache line and costs a second prefetch, which
//! is less than what padding costs in memory.

use super::line::{Reach, WINDOW_ASIDE, Window};
use super::{Line, LineKey, NextLine, Plainly, RowLine, Slot, SpanLine, WideLine};
use crate::judge::{PlainRules, PlainSpan, Run};

/// First and last position in 32 bits each; the first above the last where there is no entry inline.
#[derive(Clone, Copy)]
#[repr(C, packed(2))]
pub(crate) struct LoneSpan {
    pid: i64,
    group: u32,
    first: u32,
    last: u32,
    epoch: i16,
}

impl LoneSpan {
    const EMPTY: u32 = u32::MAX;
}

impl Line for LoneSpan {
    const SLOTS: usize = 1;
    type Slot = Slot;
    type Twin = SpanLine;

    fn empty(key: LineKey) -> Self {
        LoneSpan { pid: key.pid, group: key.group, first: Self::EMPTY, last: 0, epoch: key.epoch }
    }

    #[inline]
    fn pid(&self) -> i64 {
        self.pid
    }

    #[inline]
    fn group(&self) -> u32 {
        self.group
    }

    #[inline]
    fn own_epoch(&self) -> i16 {
        self.epoch
    }

    #[inline]
    fn is_empty_at(&self, _slot: usize) -> bool {
        self.first == Self::EMPTY && self.last == 0
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.is_empty_at(0)
    }

    fn read(&self, _slot: usize) -> Slot {
        let LoneSpan { first, last, epoch, .. } = *self;
        if first <= last {
            Slot::Inline(PlainSpan { epoch, first: first.into(), last: last.into(), last_timestamp: 0 })
        } else if first == Self::EMPTY {
            Slot::Empty
        } else {
            Slot::Aside(first - 1)
        }
    }

    fn write(&mut self, slot: usize, held: &Slot) -> bool {
        self.write_row_slot(slot, held)
    }

    fn clear(&mut self, _slot: usize) {
        (self.first, self.last) = (Self::EMPTY, 0);
    }
}

impl RowLine for LoneSpan {
    type RowTwin = Self::Twin;
    type Times = [i64; 1];
    const NO_TIMES: [i64; 1] = [0];

    #[inline]
    fn write_inline(&mut self, _slot: usize, span: PlainSpan) -> bool {
        let (Ok(first), Ok(last)) = (u32::try_from(span.first), u32::try_from(span.last)) else {
            return false;
        };
        (self.first, self.last, self.epoch) = (first, last, span.epoch);
        true
    }

    fn write_aside(&mut self, _slot: usize, number: u32) {
        (self.first, self.last) = (number + 1, 0);
    }

    #[inline]
    fn judge_plainly(&mut self, _slot: usize, run: Run, rules: &PlainRules) -> Plainly {
        let last_seq = run.last_seq();
        if last_seq > i64::from(u32::MAX) {
            return Plainly::Unclear;
        }
        let (first, last) = (i64::from(self.first), i64::from(self.last));
        if first <= last && self.epoch == run.epoch {
            if run.seq == last + 1 {
                (self.first, self.last) = (rules.first_of(first, last_seq) as u32, last_seq as u32);
                Plainly::WentOn
            } else if run.seq >= first && last_seq <= last && last < rules.plain_below {
                Plainly::Repeated
            } else {
                Plainly::Unclear
            }
        } else if rules.begins_anywhere && self.first == Self::EMPTY && self.last == 0 {
            let first = rules.first_of(run.seq, last_seq);
            (self.first, self.last, self.epoch) = (first as u32, last_seq as u32, run.epoch);
            Plainly::Begun
        } else {
            Plainly::Unclear
        }
    }
}

/// The last position in 32 bits, and how many rows the window remembers.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct LoneNext {
    pid: i64,
    group: u32,
    last: u32,
    epoch: i16,
    remembered: u8,
}

impl LoneNext {
    #[inline]
    fn window(&self) -> Window {
        Window { epoch: self.epoch, last: self.last, remembered: self.remembered }
    }

    #[inline]
    fn set_window(&mut self, window: Window) {
        (self.epoch, self.last, self.remembered) = (window.epoch, window.last, window.remembered);
    }
}

impl Line for LoneNext {
    const SLOTS: usize = 1;
    type Slot = Slot;
    type Twin = NextLine;

    fn empty(key: LineKey) -> Self {
        LoneNext { pid: key.pid, group: key.group, last: 0, epoch: key.epoch, remembered: 0 }
    }

    #[inline]
    fn pid(&self) -> i64 {
        self.pid
    }

    #[inline]
    fn group(&self) -> u32 {
        self.group
    }

    #[inline]
    fn own_epoch(&self) -> i16 {
        self.epoch
    }

    #[inline]
    fn is_empty_at(&self, _slot: usize) -> bool {
        self.remembered == 0
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.is_empty_at(0)
    }

    fn read(&self, _slot: usize) -> Slot {
        self.window().read()
    }

    fn write(&mut self, slot: usize, held: &Slot) -> bool {
        self.write_row_slot(slot, held)
    }

    fn clear(&mut self, _slot: usize) {
        self.remembered = 0;
    }
}

impl RowLine for LoneNext {
    type RowTwin = Self::Twin;
    type Times = [i64; 1];
    const NO_TIMES: [i64; 1] = [0];

    #[inline]
    fn write_inline(&mut self, _slot: usize, span: PlainSpan) -> bool {
        Window::of(span).inspect(|&window| self.set_window(window)).is_some()
    }

    fn write_aside(&mut self, _slot: usize, number: u32) {
        (self.last, self.remembered) = (number, WINDOW_ASIDE);
    }

    #[inline]
    fn judge_plainly(&mut self, _slot: usize, run: Run, rules: &PlainRules) -> Plainly {
        let mut window = self.window();
        let plainly = window.judge_plainly(run, rules);
        if matches!(plainly, Plainly::WentOn | Plainly::Begun) {
            self.set_window(window);
        }
        plainly
    }
}

/// The last position in 64 bits, and how far back the first one lies in 32. No position is `NOWHERE`.
#[derive(Clone, Copy)]
#[repr(C, packed(2))]
pub(crate) struct LoneWide {
    pid: i64,
    last: i64,
    group: u32,
    reach: u32,
    epoch: i16,
}

impl LoneWide {
    const NOWHERE: i64 = i64::MIN;
    const EMPTY: u32 = u32::MAX;
}

impl Line for LoneWide {
    const SLOTS: usize = 1;
    type Slot = Slot;
    type Twin = WideLine;

    fn empty(key: LineKey) -> Self {
        let (last, reach) = (Self::NOWHERE, Self::EMPTY);
        LoneWide { pid: key.pid, last, group: key.group, reach, epoch: key.epoch }
    }

    #[inline]
    fn pid(&self) -> i64 {
        self.pid
    }

    #[inline]
    fn group(&self) -> u32 {
        self.group
    }

    #[inline]
    fn own_epoch(&self) -> i16 {
        self.epoch
    }

    #[inline]
    fn is_empty_at(&self, _slot: usize) -> bool {
        self.last == Self::NOWHERE && self.reach == Self::EMPTY
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.is_empty_at(0)
    }

    fn read(&self, _slot: usize) -> Slot {
        let LoneWide { last, reach, epoch, .. } = *self;
        match (last, reach) {
            (Self::NOWHERE, Self::EMPTY) => Slot::Empty,
            (Self::NOWHERE, number) => Slot::Aside(number),
            _ => Slot::Inline(Reach { last, reach }.span(epoch)),
        }
    }

    fn write(&mut self, slot: usize, held: &Slot) -> bool {
        self.write_row_slot(slot, held)
    }

    fn clear(&mut self, _slot: usize) {
        (self.last, self.reach) = (Self::NOWHERE, Self::EMPTY);
    }
}

impl RowLine for LoneWide {
    type RowTwin = Self::Twin;
    type Times = [i64; 1];
    const NO_TIMES: [i64; 1] = [0];

    #[inline]
    fn write_inline(&mut self, _slot: usize, span: PlainSpan) -> bool {
        let Some(Reach { last, reach }) = Reach::of(span) else { return false };
        (self.last, self.reach, self.epoch) = (last, reach, span.epoch);
        true
    }

    fn write_aside(&mut self, _slot: usize, number: u32) {
        (self.last, self.reach) = (Self::NOWHERE, number);
    }

    #[inline]
    fn judge_plainly(&mut self, _slot: usize, run: Run, rules: &PlainRules) -> Plainly {
        let mut entry = Reach { last: self.last, reach: self.reach };
        let plainly = if entry.last != Self::NOWHERE {
            if self.epoch == run.epoch { entry.judge_plainly(run, rules) } else { Plainly::Unclear }
        } else if rules.begins_anywhere && entry.reach == Self::EMPTY {
            entry.begin(run, rules)
        } else {
            Plainly::Unclear
        };
        if matches!(plainly, Plainly::WentOn | Plainly::Begun) {
            (self.last, self.reach, self.epoch) = (entry.last, entry.reach, run.epoch);
        }
        plainly
    }
}

const _: () = assert!(size_of::<LoneSpan>() == 22 && size_of::<LoneNext>() == 19 && size_of::<LoneWide>() == 26);
