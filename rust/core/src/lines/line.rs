//! Lines of several partitions.
//!
//! ```text
//! SpanLine, 6 entries      NextLine, 8 entries            WideLine, 4 entries
//!   pid    8                 pid    8                       pid    8
//!   head   8                 group  4                       head   8
//!   first  6 × 4             marks  4 (4 bits each)         last   4 × 8
//!   last   6 × 4             epoch  8 × 2                   reach  4 × 4
//!                            last   8 × 4
//! ```

use super::{LineKey, LoneNext, LoneSpan, LoneWide, OLDER};
use crate::judge::{PlainRules, PlainSpan, Run};

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// No entry.
    Empty,
    /// An entry without holes.
    Inline(PlainSpan),
    /// The number of an entry that is kept aside.
    Aside(u32),
}

/// What a slot alone could say of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plainly {
    /// Every row is accepted, the entry was there.
    WentOn,
    /// Every row is a duplicate.
    Repeated,
    /// Every row is accepted, the entry is new.
    Begun,
    /// Nothing.
    Unclear,
}

/// The entries of one producer for `SLOTS` neighbouring partitions, a divisor of a block.
pub(crate) trait Line: Copy {
    const SLOTS: usize;
    /// What a slot holds.
    type Slot: Copy;
    /// The layout that holds the same entries one by one, or several in a line.
    type Twin: Line<Slot = Self::Slot>;
    /// Whether a small table grows to twice its size: faster, and worth it where entries take few bytes.
    const DOUBLES: bool = true;

    fn empty(key: LineKey) -> Self;
    fn pid(&self) -> i64;
    /// As in the line's key, with its mark for epochs below the highest.
    fn group(&self) -> u32;
    /// The epoch of its key, in a line for epochs below the highest.
    fn own_epoch(&self) -> i16;
    fn is_empty_at(&self, slot: usize) -> bool;
    fn read(&self, slot: usize) -> Self::Slot;
    /// Stores what a slot is to hold; false, and nothing changed, where it does not fit.
    fn write(&mut self, slot: usize, held: &Self::Slot) -> bool;
    fn clear(&mut self, slot: usize);

    /// Whether it holds entries of an epoch below their keys' highest.
    fn is_older(&self) -> bool {
        self.group() & OLDER != 0
    }

    fn is_empty(&self) -> bool;

    /// Whether it is the line of a producer and a group of partitions, for their highest epochs.
    #[inline]
    fn is_newest(&self, pid: i64, group: u32) -> bool {
        self.pid() == pid && self.group() == group
    }

    #[inline]
    fn is(&self, key: LineKey) -> bool {
        self.pid() == key.pid && self.group() == key.group && (key.group & OLDER == 0 || self.own_epoch() == key.epoch)
    }
}

/// A line of entries that rows are judged by.
pub(crate) trait RowLine: Line<Slot = Slot, Twin = Self::RowTwin> {
    /// Its twin, which is such a line too.
    type RowTwin: RowLine;
    /// A timestamp for each slot.
    type Times: AsRef<[i64]> + AsMut<[i64]> + Copy;
    const NO_TIMES: Self::Times;
    /// Whether entries have timestamps.
    const IS_TIMED: bool = false;

    /// Stores an entry where it fits; false, and nothing changed, where it does not.
    fn write_inline(&mut self, slot: usize, span: PlainSpan) -> bool;
    fn write_aside(&mut self, slot: usize, number: u32);

    /// Judges the run where that is plain to see from the slot alone: it goes on where the entry
    /// stands, repeats what the entry covers, or begins an entry in an empty slot. Anything else is
    /// left to the judge, and nothing changed. Most rows end here, in the line just fetched.
    fn judge_plainly(&mut self, slot: usize, run: Run, rules: &PlainRules) -> Plainly;

    /// What [`Line::write`] is to such a line.
    fn write_row_slot(&mut self, slot: usize, held: &Slot) -> bool {
        match held {
            Slot::Empty => self.clear(slot),
            Slot::Inline(span) => return self.write_inline(slot, *span),
            Slot::Aside(number) => self.write_aside(slot, *number),
        }
        true
    }
}

/// Group, epochs and marks of up to six slots in one word.
///
/// Three bits a slot: empty, aside, or how far its epoch lies above the line's: partitions of a
/// producer share its epoch but for those that have been idle since it rose.
///
/// ```text
/// 0 | marks 6 × 3 | epoch 15 | older 1 | group 29
/// ```
#[derive(Clone, Copy)]
struct Head(u64);

impl Head {
    const GROUP: u64 = (1 << 29) - 1;
    const OLDER: u64 = 1 << 29;
    const EPOCH_AT: u32 = 30;
    const EPOCH: u64 = 0x7fff;
    const MARKS_AT: u32 = 45;
    const EMPTY: u64 = 0;
    const ASIDE: u64 = 7;
    /// How far an epoch may lie above the line's.
    const ABOVE_MAX: i16 = 5;

    fn new(key: LineKey) -> Head {
        let older = if key.group & OLDER != 0 { Self::OLDER } else { 0 };
        Head(u64::from(key.group & !OLDER) | older | (key.epoch as u64) << Self::EPOCH_AT)
    }

    #[inline]
    fn group(self) -> u32 {
        (self.0 & Self::GROUP) as u32 | (self.0 as u32) << 2 & OLDER
    }

    #[inline]
    fn is_newest(self, group: u32) -> bool {
        self.0 & (Self::GROUP | Self::OLDER) == u64::from(group)
    }

    #[inline]
    fn epoch(self) -> i16 {
        (self.0 >> Self::EPOCH_AT & Self::EPOCH) as i16
    }

    #[inline]
    fn mark(self, slot: usize) -> u64 {
        self.0 >> (Self::MARKS_AT + 3 * slot as u32) & 7
    }

    /// Whether no slot holds anything.
    #[inline]
    fn has_no_mark(self) -> bool {
        self.0 >> Self::MARKS_AT == 0
    }

    #[inline]
    fn set_mark(&mut self, slot: usize, mark: u64) {
        let at = Self::MARKS_AT + 3 * slot as u32;
        self.0 = self.0 & !(7 << at) | mark << at;
    }

    /// The epoch of an entry that is neither empty nor aside.
    #[inline]
    fn epoch_of(self, slot: usize) -> i16 {
        self.epoch() + (self.mark(slot) as i16 - 1)
    }

    #[inline]
    fn is_inline(self, slot: usize) -> bool {
        (self.mark(slot) + 7) & 7 < 6
    }

    /// Marks a slot as holding an entry of this epoch, if the line's epoch allows it as it is.
    #[inline]
    fn mark_near(&mut self, slot: usize, epoch: i16) -> bool {
        let above = epoch.wrapping_sub(self.epoch());
        let fits = (0..=Self::ABOVE_MAX).contains(&above);
        if fits {
            self.set_mark(slot, above as u64 + 1);
        }
        fits
    }

    /// The same, the line's epoch moved if that lets all of its entries stay.
    fn mark_inline(&mut self, slot: usize, epoch: i16, slots: usize) -> bool {
        if self.mark_near(slot, epoch) {
            return true;
        }
        let others = || (0..slots).filter(|&other| other != slot && self.is_inline(other));
        let epochs = || others().map(|other| self.epoch_of(other)).chain([epoch]);
        let (lowest, highest) = (epochs().min().unwrap_or(epoch), epochs().max().unwrap_or(epoch));
        if highest - lowest > Self::ABOVE_MAX {
            return false;
        }
        let mut moved = Head(self.0 & !(Self::EPOCH << Self::EPOCH_AT) | (lowest as u64) << Self::EPOCH_AT);
        for other in others() {
            moved.set_mark(other, (self.epoch_of(other) - lowest) as u64 + 1);
        }
        moved.set_mark(slot, (epoch - lowest) as u64 + 1);
        *self = moved;
        true
    }
}

/// First and last position in 32 bits each.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct SpanLine {
    pid: i64,
    head: Head,
    first: [u32; 6],
    last: [u32; 6],
}

impl Line for SpanLine {
    const SLOTS: usize = 6;
    type Slot = Slot;
    type Twin = LoneSpan;

    fn empty(key: LineKey) -> Self {
        SpanLine { pid: key.pid, head: Head::new(key), first: [0; 6], last: [0; 6] }
    }

    #[inline]
    fn pid(&self) -> i64 {
        self.pid
    }

    #[inline]
    fn group(&self) -> u32 {
        self.head.group()
    }

    #[inline]
    fn is_newest(&self, pid: i64, group: u32) -> bool {
        self.pid == pid && self.head.is_newest(group)
    }

    #[inline]
    fn own_epoch(&self) -> i16 {
        self.head.epoch()
    }

    #[inline]
    fn is_empty_at(&self, slot: usize) -> bool {
        self.head.mark(slot) == Head::EMPTY
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.head.has_no_mark()
    }

    fn read(&self, slot: usize) -> Slot {
        match self.head.mark(slot) {
            Head::EMPTY => Slot::Empty,
            Head::ASIDE => Slot::Aside(self.first[slot]),
            _ => {
                let (first, last) = (i64::from(self.first[slot]), i64::from(self.last[slot]));
                Slot::Inline(PlainSpan { epoch: self.head.epoch_of(slot), first, last, last_timestamp: 0 })
            }
        }
    }

    fn write(&mut self, slot: usize, held: &Slot) -> bool {
        self.write_row_slot(slot, held)
    }

    fn clear(&mut self, slot: usize) {
        self.head.set_mark(slot, Head::EMPTY);
    }
}

impl RowLine for SpanLine {
    type RowTwin = Self::Twin;
    type Times = [i64; 6];
    const NO_TIMES: [i64; 6] = [0; 6];

    #[inline]
    fn write_inline(&mut self, slot: usize, span: PlainSpan) -> bool {
        let (Ok(first), Ok(last)) = (u32::try_from(span.first), u32::try_from(span.last)) else {
            return false;
        };
        if !self.head.mark_inline(slot, span.epoch, Self::SLOTS) {
            return false;
        }
        (self.first[slot], self.last[slot]) = (first, last);
        true
    }

    fn write_aside(&mut self, slot: usize, number: u32) {
        self.head.set_mark(slot, Head::ASIDE);
        self.first[slot] = number;
    }

    #[inline]
    fn judge_plainly(&mut self, slot: usize, run: Run, rules: &PlainRules) -> Plainly {
        let last_seq = run.last_seq();
        if last_seq > i64::from(u32::MAX) {
            return Plainly::Unclear;
        }
        if self.head.is_inline(slot) {
            if self.head.epoch_of(slot) != run.epoch {
                return Plainly::Unclear;
            }
            let (first, last) = (i64::from(self.first[slot]), i64::from(self.last[slot]));
            if run.seq == last + 1 {
                (self.first[slot], self.last[slot]) = (rules.first_of(first, last_seq) as u32, last_seq as u32);
                Plainly::WentOn
            } else if run.seq >= first && last_seq <= last && last < rules.plain_below {
                Plainly::Repeated
            } else {
                Plainly::Unclear
            }
        } else if rules.begins_anywhere && self.head.mark(slot) == Head::EMPTY && self.head.mark_near(slot, run.epoch) {
            let first = rules.first_of(run.seq, last_seq);
            (self.first[slot], self.last[slot]) = (first as u32, last_seq as u32);
            Plainly::Begun
        } else {
            Plainly::Unclear
        }
    }
}

/// The last position in 32 bits, and how many rows the window remembers in four.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct NextLine {
    pid: i64,
    group: u32,
    marks: u32,
    epoch: [i16; 8],
    last: [u32; 8],
}

/// Rows that four bits can count, beside the marks for an empty slot and an entry kept aside.
pub(super) const WINDOW_MAX: u8 = 14;
pub(super) const WINDOW_ASIDE: u8 = 15;

/// An entry of a window: its last row, and how many it remembers.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) epoch: i16,
    pub(super) last: u32,
    pub(super) remembered: u8,
}

impl Window {
    #[inline]
    pub(super) fn of(span: PlainSpan) -> Option<Window> {
        let last = u32::try_from(span.last).ok()?;
        let remembered = u8::try_from(span.last - span.first + 1).ok()?;
        let fits = (1..=WINDOW_MAX).contains(&remembered);
        fits.then_some(Window { epoch: span.epoch, last, remembered })
    }

    #[inline]
    pub(super) fn read(self) -> Slot {
        match self.remembered {
            0 => Slot::Empty,
            WINDOW_ASIDE => Slot::Aside(self.last),
            rows => {
                let last = i64::from(self.last);
                let first = last - (i64::from(rows) - 1);
                Slot::Inline(PlainSpan { epoch: self.epoch, first, last, last_timestamp: 0 })
            }
        }
    }

    /// What a run makes of it, where that is plain to see.
    #[inline(always)]
    pub(super) fn judge_plainly(&mut self, run: Run, rules: &PlainRules) -> Plainly {
        let (last, last_seq, remembered) = (i64::from(self.last), run.last_seq(), i64::from(self.remembered));
        let is_inline = (1..=WINDOW_MAX).contains(&self.remembered);
        if is_inline && self.epoch == run.epoch {
            if run.seq == last + 1 && last_seq <= i64::from(u32::MAX) {
                self.last = last_seq as u32;
                self.remembered = (remembered + run.rows).min(rules.remembered_max) as u8;
                return Plainly::WentOn;
            }
            let is_repeat = last_seq <= last && last - run.seq < remembered;
            return if is_repeat { Plainly::Repeated } else { Plainly::Unclear };
        }
        if self.remembered == 0 && rules.begins_anywhere && last_seq <= i64::from(u32::MAX) {
            let remembered = run.rows.min(rules.remembered_max) as u8;
            *self = Window { epoch: run.epoch, last: last_seq as u32, remembered };
            return Plainly::Begun;
        }
        Plainly::Unclear
    }
}

impl NextLine {
    /// The largest window that this kind of line can hold.
    pub(crate) const WINDOW_MAX: u64 = WINDOW_MAX as u64;

    #[inline]
    fn window(&self, slot: usize) -> Window {
        let remembered = (self.marks >> (4 * slot) & 15) as u8;
        Window { epoch: self.epoch[slot], last: self.last[slot], remembered }
    }

    #[inline]
    fn set_window(&mut self, slot: usize, window: Window) {
        let at = 4 * slot;
        if self.marks >> at & 15 != u32::from(window.remembered) {
            self.marks = self.marks & !(15 << at) | u32::from(window.remembered) << at;
        }
        (self.epoch[slot], self.last[slot]) = (window.epoch, window.last);
    }
}

impl Line for NextLine {
    const SLOTS: usize = 8;
    type Slot = Slot;
    type Twin = LoneNext;

    fn empty(key: LineKey) -> Self {
        NextLine { pid: key.pid, group: key.group, marks: 0, epoch: [key.epoch; 8], last: [0; 8] }
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
        self.epoch[0]
    }

    #[inline]
    fn is_empty_at(&self, slot: usize) -> bool {
        self.window(slot).remembered == 0
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.marks == 0
    }

    fn read(&self, slot: usize) -> Slot {
        self.window(slot).read()
    }

    fn write(&mut self, slot: usize, held: &Slot) -> bool {
        self.write_row_slot(slot, held)
    }

    fn clear(&mut self, slot: usize) {
        self.set_window(slot, Window { remembered: 0, last: 0, epoch: self.epoch[slot] });
    }
}

impl RowLine for NextLine {
    type RowTwin = Self::Twin;
    type Times = [i64; 8];
    const NO_TIMES: [i64; 8] = [0; 8];

    #[inline]
    fn write_inline(&mut self, slot: usize, span: PlainSpan) -> bool {
        Window::of(span).inspect(|&window| self.set_window(slot, window)).is_some()
    }

    fn write_aside(&mut self, slot: usize, number: u32) {
        self.set_window(slot, Window { remembered: WINDOW_ASIDE, last: number, epoch: self.epoch[slot] });
    }

    #[inline(always)]
    fn judge_plainly(&mut self, slot: usize, run: Run, rules: &PlainRules) -> Plainly {
        let mut window = self.window(slot);
        let plainly = window.judge_plainly(run, rules);
        if matches!(plainly, Plainly::WentOn | Plainly::Begun) {
            self.set_window(slot, window);
        }
        plainly
    }
}

/// The last position in 64 bits, and how far back the first one lies in 32.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct WideLine {
    pid: i64,
    head: Head,
    last: [i64; 4],
    reach: [u32; 4],
}

/// An entry with a last position of any size.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    pub(super) last: i64,
    pub(super) reach: u32,
}

impl Reach {
    #[inline]
    pub(super) fn of(span: PlainSpan) -> Option<Reach> {
        let reach = u32::try_from(span.last.checked_sub(span.first)?).ok()?;
        Some(Reach { last: span.last, reach })
    }

    #[inline]
    pub(super) fn span(self, epoch: i16) -> PlainSpan {
        PlainSpan { epoch, first: self.last - i64::from(self.reach), last: self.last, last_timestamp: 0 }
    }

    /// What a run of its epoch makes of it, where that is plain to see.
    #[inline]
    pub(super) fn judge_plainly(&mut self, run: Run, rules: &PlainRules) -> Plainly {
        let Reach { last, reach } = *self;
        if last.checked_add(1) == Some(run.seq) {
            self.go_on_to(run.last_seq(), i64::from(reach) + run.rows, rules, Plainly::WentOn)
        } else if run.seq >= last - i64::from(reach) && run.last_seq() <= last && last < rules.plain_below {
            Plainly::Repeated
        } else {
            Plainly::Unclear
        }
    }

    #[inline]
    pub(super) fn begin(&mut self, run: Run, rules: &PlainRules) -> Plainly {
        self.go_on_to(run.last_seq(), run.rows - 1, rules, Plainly::Begun)
    }

    #[inline]
    fn go_on_to(&mut self, last: i64, reach: i64, rules: &PlainRules, plainly: Plainly) -> Plainly {
        match u32::try_from(reach.min(rules.remembered_max - 1)) {
            Ok(reach) => {
                *self = Reach { last, reach };
                plainly
            }
            Err(_) => Plainly::Unclear,
        }
    }
}

impl WideLine {
    #[inline]
    fn reach(&self, slot: usize) -> Reach {
        Reach { last: self.last[slot], reach: self.reach[slot] }
    }

    #[inline]
    fn set_reach(&mut self, slot: usize, reach: Reach) {
        (self.last[slot], self.reach[slot]) = (reach.last, reach.reach);
    }
}

impl Line for WideLine {
    const SLOTS: usize = 4;
    type Slot = Slot;
    type Twin = LoneWide;

    fn empty(key: LineKey) -> Self {
        WideLine { pid: key.pid, head: Head::new(key), last: [0; 4], reach: [0; 4] }
    }

    #[inline]
    fn pid(&self) -> i64 {
        self.pid
    }

    #[inline]
    fn group(&self) -> u32 {
        self.head.group()
    }

    #[inline]
    fn is_newest(&self, pid: i64, group: u32) -> bool {
        self.pid == pid && self.head.is_newest(group)
    }

    #[inline]
    fn own_epoch(&self) -> i16 {
        self.head.epoch()
    }

    #[inline]
    fn is_empty_at(&self, slot: usize) -> bool {
        self.head.mark(slot) == Head::EMPTY
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.head.has_no_mark()
    }

    fn read(&self, slot: usize) -> Slot {
        match self.head.mark(slot) {
            Head::EMPTY => Slot::Empty,
            Head::ASIDE => Slot::Aside(self.reach[slot]),
            _ => Slot::Inline(self.reach(slot).span(self.head.epoch_of(slot))),
        }
    }

    fn write(&mut self, slot: usize, held: &Slot) -> bool {
        self.write_row_slot(slot, held)
    }

    fn clear(&mut self, slot: usize) {
        self.head.set_mark(slot, Head::EMPTY);
    }
}

impl RowLine for WideLine {
    type RowTwin = Self::Twin;
    type Times = [i64; 4];
    const NO_TIMES: [i64; 4] = [0; 4];

    #[inline]
    fn write_inline(&mut self, slot: usize, span: PlainSpan) -> bool {
        let Some(reach) = Reach::of(span) else { return false };
        let fits = self.head.mark_inline(slot, span.epoch, Self::SLOTS);
        if fits {
            self.set_reach(slot, reach);
        }
        fits
    }

    fn write_aside(&mut self, slot: usize, number: u32) {
        self.head.set_mark(slot, Head::ASIDE);
        self.reach[slot] = number;
    }

    #[inline]
    fn judge_plainly(&mut self, slot: usize, run: Run, rules: &PlainRules) -> Plainly {
        let (mut head, mut reach) = (self.head, self.reach(slot));
        let plainly = if head.is_inline(slot) {
            if head.epoch_of(slot) == run.epoch { reach.judge_plainly(run, rules) } else { Plainly::Unclear }
        } else if rules.begins_anywhere && head.mark(slot) == Head::EMPTY && head.mark_near(slot, run.epoch) {
            reach.begin(run, rules)
        } else {
            Plainly::Unclear
        };
        if matches!(plainly, Plainly::WentOn | Plainly::Begun) {
            self.head = head;
            self.set_reach(slot, reach);
        }
        plainly
    }
}

const _: () = {
    assert!(size_of::<SpanLine>() == 64 && align_of::<SpanLine>() == 64);
    assert!(size_of::<NextLine>() == 64 && align_of::<NextLine>() == 64);
    assert!(size_of::<WideLine>() == 64 && align_of::<WideLine>() == 64);
};

#[cfg(test)]
mod tests {
    use super::super::EntryKey;
    use super::*;

    #[test]
    fn a_slot_gives_back_what_it_took_or_refuses_it() {
        fn check<L: RowLine>(first: i64, last: i64, fits: bool) {
            let span = PlainSpan { epoch: 3, first, last, last_timestamp: 0 };
            for key in [EntryKey::newest(1, 0).line::<L>(), EntryKey::older(1, 0, 3).line::<L>()] {
                for slot in 0..L::SLOTS {
                    let mut line = L::empty(key);
                    assert!(line.is(key) && line.is_empty());
                    assert_eq!(line.write_inline(slot, span), fits);
                    assert_eq!(line.read(slot), if fits { Slot::Inline(span) } else { Slot::Empty });
                    line.write_aside(slot, 77);
                    assert_eq!(line.read(slot), Slot::Aside(77));
                    line.clear(slot);
                    assert!(line.is(key) && line.is_empty());
                }
            }
        }
        fn check_both<L: RowLine, M: RowLine>(first: i64, last: i64, fits: bool) {
            check::<L>(first, last, fits);
            check::<M>(first, last, fits);
        }
        check_both::<SpanLine, LoneSpan>(0, u32::MAX.into(), true);
        check_both::<SpanLine, LoneSpan>(0, 0, true);
        check_both::<SpanLine, LoneSpan>(-1, 0, false);
        check_both::<SpanLine, LoneSpan>(0, 1 << 32, false);
        check_both::<NextLine, LoneNext>(-13, 0, true);
        check_both::<NextLine, LoneNext>(0, 14, false);
        check_both::<WideLine, LoneWide>(1 << 62, (1 << 62) + u32::MAX as i64 - 1, true);
        check_both::<WideLine, LoneWide>(0, 1 << 32, false);
        check_both::<WideLine, LoneWide>(-5, i64::MAX, false);
    }

    #[test]
    fn epochs_of_a_line_may_differ_a_little() {
        let span = |epoch| PlainSpan { epoch, first: 1, last: 2, last_timestamp: 0 };
        let mut line = SpanLine::empty(EntryKey::newest(1, i32::MAX).line::<SpanLine>());
        for (slot, epoch) in [(0, 100), (1, 103), (2, 105), (3, 100)] {
            assert!(line.write_inline(slot, span(epoch)));
        }
        assert!(!line.write_inline(4, span(106)), "six above the lowest");
        assert!(!line.write_inline(4, span(99)), "six below the highest");
        line.write_aside(0, 9);
        line.clear(3);
        assert!(line.write_inline(4, span(108)), "the lowest is 103 now");
        let epochs = [Slot::Aside(9), Slot::Inline(span(103)), Slot::Inline(span(105)), Slot::Empty];
        assert_eq!(std::array::from_fn(|slot| line.read(slot)), epochs);
        assert_eq!((line.read(4), line.read(5)), (Slot::Inline(span(108)), Slot::Empty));
        assert_eq!(line.group(), i32::MAX as u32 / 6);
        line.clear(1);
        line.clear(2);
        line.clear(4);
        assert!(line.write_inline(1, span(i16::MAX)) && line.read(1) == Slot::Inline(span(i16::MAX)));
    }
}
