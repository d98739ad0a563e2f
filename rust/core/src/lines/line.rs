//! The trait of lines, and the layouts for entries that rows are judged by.
//!
//! ```text
//! several entries                                           one entry, packed
//!   RangeLine, 6      NextLine, 8            WideLine, 4     of RangeLine  of NextLine     of WideLine
//!   pid  8            pid    8               pid  8          pid    8      pid         8   pid    8
//!   head 8            group  4               head 8          group  4      group       4   group  4
//!   first, last       marks  4 (4 bits each) last, reach     epoch  2      epoch       2   epoch  2
//!        6 × 8        epoch  8 × 2                4 × 12     first  4      last        4   last   8
//!                     last   8 × 4                           last   4      remembered  1   reach  4
//! ```
//!
//! Lines with one entry are for producers that write to one partition, or to a few that are far apart. Every third
//! crosses the border of a cache line and costs a second prefetch. Padding would cost more, in memory.

use super::cell::{Cell, Range32, Reach, Window};
use super::{LineKey, OLDER};
use crate::fast_path::Slot;
use crate::judge::PlainEntry;

/// The entries of one producer for `SLOTS` neighbouring partitions, a divisor of a block.
pub(crate) trait Line: Copy + Sync {
    const SLOTS: usize;
    /// The content of a slot.
    type Slot: Copy;
    /// The other layout of the same entries: one per line instead of several, or several instead of one.
    type OtherLayout: Line<Slot = Self::Slot>;
    /// Whether a small table doubles when it grows. This is faster, and acceptable if entries take few bytes.
    const DOUBLES: bool = true;

    fn empty(key: LineKey) -> Self;
    fn pid(&self) -> i64;
    /// The group in the line's key, with the mark for epochs below the highest.
    fn group(&self) -> u32;
    /// The epoch of the line's key, if the line is for epochs below the highest.
    fn own_epoch(&self) -> i16;
    fn is_empty_at(&self, slot: usize) -> bool;
    fn read(&self, slot: usize) -> Self::Slot;
    /// Stores the content of a slot. Returns false and changes nothing if it does not fit.
    fn write(&mut self, slot: usize, held: &Self::Slot) -> bool;
    fn clear(&mut self, slot: usize);

    /// Whether the line has entries of epochs below the highest of their keys.
    fn is_older(&self) -> bool {
        self.group() & OLDER != 0
    }

    fn is_empty(&self) -> bool {
        (0..Self::SLOTS).all(|slot| self.is_empty_at(slot))
    }

    /// Whether this is the line of a producer and a group of partitions, for their highest epochs.
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
pub(crate) trait RowLine: Line<Slot = Slot, OtherLayout = Self::OtherRowLayout> {
    /// The other layout, which also supports judging.
    type OtherRowLayout: RowLine;
    /// A timestamp for each slot.
    type Times: AsRef<[i64]> + AsMut<[i64]> + Copy + Sync;
    const NO_TIMES: Self::Times;
    /// Whether entries have timestamps.
    const IS_TIMED: bool = false;
}

/// Group and epochs of up to six slots in one word.
///
/// Three bits per slot store the difference between its epoch and the line's. Partitions of a producer have the same
/// epoch, except those that have been idle since it increased.
///
/// ```text
/// 0 | above 6 × 3 | epoch 15 | older 1 | group 29
/// ```
#[derive(Clone, Copy)]
struct Head(u64);

impl Head {
    const GROUP: u64 = (1 << 29) - 1;
    const OLDER: u64 = 1 << 29;
    const EPOCH_AT: u32 = 30;
    const EPOCH: u64 = 0x7fff;
    const ABOVE_AT: u32 = 45;
    const ABOVE_MAX: i16 = 7;

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
    fn epoch_of(self, slot: usize) -> i16 {
        self.epoch() + (self.0 >> (Self::ABOVE_AT + 3 * slot as u32) & 7) as i16
    }

    /// Sets the epoch of a slot, if the epoch of the line allows it.
    #[inline]
    fn set_epoch_of(&mut self, slot: usize, epoch: i16) -> bool {
        let above = epoch.wrapping_sub(self.epoch());
        let is_in_range = (0..=Self::ABOVE_MAX).contains(&above);
        if is_in_range && self.epoch_of(slot) != epoch {
            let at = Self::ABOVE_AT + 3 * slot as u32;
            self.0 = self.0 & !(7 << at) | (above as u64) << at;
        }
        is_in_range
    }

    /// The same head with another epoch. The epochs of slots must be set again.
    fn with_epoch(self, epoch: i16) -> Head {
        Head(self.0 & (Self::GROUP | Self::OLDER) | (epoch as u64) << Self::EPOCH_AT)
    }
}

/// A line of several entries with similar epochs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Headed<C, const SLOTS: usize> {
    pid: i64,
    head: Head,
    cells: [C; SLOTS],
}

/// First and last position in 32 bits each.
pub(crate) type RangeLine = Headed<Range32, 6>;
/// The last position in 64 bits, and the distance to the first one in 32.
pub(crate) type WideLine = Headed<Reach, 4>;

impl<C: Cell, const SLOTS: usize> Headed<C, SLOTS> {
    /// Changes the epoch of the line so that a slot can have this epoch and all entries stay. Returns false if
    /// impossible.
    #[cold]
    fn move_epoch(&mut self, slot: usize, epoch: i16) -> bool {
        let is_inline = |other: usize| matches!(self.cells[other].read(0), Slot::Inline(_));
        let others = || (0..SLOTS).filter(|&other| other != slot && is_inline(other));
        let lowest = others().map(|other| self.head.epoch_of(other)).chain([epoch]).min().unwrap_or(epoch);
        let mut moved = self.head.with_epoch(lowest);
        let all_fit = others().all(|other| moved.set_epoch_of(other, self.head.epoch_of(other)));
        let is_stored = all_fit && moved.set_epoch_of(slot, epoch);
        if is_stored {
            self.head = moved;
        }
        is_stored
    }
}

impl<C: Cell, const SLOTS: usize> Line for Headed<C, SLOTS> {
    const SLOTS: usize = SLOTS;
    type Slot = Slot;
    type OtherLayout = SingleLine<C>;

    fn empty(key: LineKey) -> Self {
        Headed { pid: key.pid, head: Head::new(key), cells: [C::EMPTY; SLOTS] }
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
        self.cells[slot].is_empty()
    }

    #[inline(always)]
    fn read(&self, slot: usize) -> Slot {
        self.cells[slot].read(self.head.epoch_of(slot))
    }

    #[inline(always)]
    fn write(&mut self, slot: usize, held: &Slot) -> bool {
        let Some(cell) = C::of(held) else { return false };
        if let Slot::Inline(PlainEntry { epoch, .. }) = *held
            && !self.head.set_epoch_of(slot, epoch)
            && !self.move_epoch(slot, epoch)
        {
            return false;
        }
        self.cells[slot] = cell;
        true
    }

    fn clear(&mut self, slot: usize) {
        self.cells[slot] = C::EMPTY;
    }
}

impl<C: Cell, const SLOTS: usize> RowLine for Headed<C, SLOTS> {
    type OtherRowLayout = SingleLine<C>;
    type Times = [i64; SLOTS];
    const NO_TIMES: [i64; SLOTS] = [0; SLOTS];
}

/// A line of windows. Each has its last position in 32 bits and its number of remembered rows in four.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct NextLine {
    pid: i64,
    group: u32,
    marks: u32,
    epoch: [i16; 8],
    last: [u32; 8],
}

impl NextLine {
    /// The largest window that fits into this kind of line.
    pub(crate) const WINDOW_MAX: u64 = Window::REMEMBERED_MAX as u64;

    #[inline(always)]
    fn window(&self, slot: usize) -> Window {
        Window { last: self.last[slot], remembered: (self.marks >> (4 * slot) & 15) as u8 }
    }

    #[inline(always)]
    fn set_window(&mut self, slot: usize, Window { last, remembered }: Window) {
        let at = 4 * slot;
        if self.marks >> at & 15 != u32::from(remembered) {
            self.marks = self.marks & !(15 << at) | u32::from(remembered) << at;
        }
        self.last[slot] = last;
    }
}

impl Line for NextLine {
    const SLOTS: usize = 8;
    type Slot = Slot;
    type OtherLayout = SingleLine<Window>;

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
        self.window(slot).is_empty()
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.marks == 0
    }

    #[inline(always)]
    fn read(&self, slot: usize) -> Slot {
        self.window(slot).read(self.epoch[slot])
    }

    #[inline(always)]
    fn write(&mut self, slot: usize, held: &Slot) -> bool {
        let Some(window) = Window::of(held) else { return false };
        self.set_window(slot, window);
        if let Slot::Inline(PlainEntry { epoch, .. }) = *held {
            self.epoch[slot] = epoch;
        }
        true
    }

    fn clear(&mut self, slot: usize) {
        self.set_window(slot, Window::EMPTY);
    }
}

impl RowLine for NextLine {
    type OtherRowLayout = SingleLine<Window>;
    type Times = [i64; 8];
    const NO_TIMES: [i64; 8] = [0; 8];
}

/// A line of one entry.
#[repr(C, packed)]
pub(crate) struct SingleLine<C> {
    pid: i64,
    group: u32,
    epoch: i16,
    cell: C,
}

impl<C: Copy> Clone for SingleLine<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: Copy> Copy for SingleLine<C> {}

impl<C: Cell> Line for SingleLine<C> {
    const SLOTS: usize = 1;
    type Slot = Slot;
    type OtherLayout = C::Dense;

    fn empty(key: LineKey) -> Self {
        SingleLine { pid: key.pid, group: key.group, epoch: key.epoch, cell: C::EMPTY }
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
        { self.cell }.is_empty()
    }

    #[inline(always)]
    fn read(&self, _slot: usize) -> Slot {
        { self.cell }.read(self.epoch)
    }

    #[inline(always)]
    fn write(&mut self, _slot: usize, held: &Slot) -> bool {
        let Some(cell) = C::of(held) else { return false };
        self.cell = cell;
        if let Slot::Inline(PlainEntry { epoch, .. }) = *held {
            self.epoch = epoch;
        }
        true
    }

    fn clear(&mut self, _slot: usize) {
        self.cell = C::EMPTY;
    }
}

impl<C: Cell> RowLine for SingleLine<C> {
    type OtherRowLayout = C::Dense;
    type Times = [i64; 1];
    const NO_TIMES: [i64; 1] = [0];
}

const _: () = {
    assert!(size_of::<RangeLine>() == 64 && align_of::<RangeLine>() == 64);
    assert!(size_of::<NextLine>() == 64 && align_of::<NextLine>() == 64);
    assert!(size_of::<WideLine>() == 64 && align_of::<WideLine>() == 64);
    assert!(
        size_of::<SingleLine<Range32>>() == 22
            && size_of::<SingleLine<Window>>() == 19
            && size_of::<SingleLine<Reach>>() == 26
    );
};

#[cfg(test)]
mod tests {
    use super::super::EntryKey;
    use super::*;

    #[test]
    fn a_slot_returns_the_stored_entry_or_refuses_it() {
        fn check<L: RowLine>(first: i64, last: i64, is_stored: bool) {
            let entry = PlainEntry { epoch: 3, first, last, last_timestamp: 0 };
            for key in [EntryKey::newest(1, 0).line::<L>(), EntryKey::older(1, 0, 3).line::<L>()] {
                for slot in 0..L::SLOTS {
                    let mut line = L::empty(key);
                    assert!(line.is(key) && line.is_empty());
                    assert_eq!(line.write(slot, &Slot::Inline(entry)), is_stored);
                    assert_eq!(line.read(slot), if is_stored { Slot::Inline(entry) } else { Slot::Empty });
                    assert!(line.write(slot, &Slot::Overflow(77)));
                    assert_eq!(line.read(slot), Slot::Overflow(77));
                    assert!(line.write(slot, &Slot::Empty) && line.is(key) && line.is_empty());
                    line.write(slot, &Slot::Overflow(u32::MAX - 2));
                    assert_eq!(line.read(slot), Slot::Overflow(u32::MAX - 2));
                    line.clear(slot);
                    assert!(line.is(key) && line.is_empty());
                }
            }
        }
        fn check_both<L: RowLine>(first: i64, last: i64, is_stored: bool) {
            check::<L>(first, last, is_stored);
            check::<L::OtherLayout>(first, last, is_stored);
        }
        check_both::<RangeLine>(0, u32::MAX.into(), true);
        check_both::<RangeLine>(0, 0, true);
        check_both::<RangeLine>(u32::MAX.into(), u32::MAX.into(), true);
        check_both::<RangeLine>(-1, 0, false);
        check_both::<RangeLine>(0, 1 << 32, false);
        check_both::<NextLine>(-13, 0, true);
        check_both::<NextLine>(0, 14, false);
        check_both::<WideLine>(1 << 62, (1 << 62) + u32::MAX as i64 - 1, true);
        check_both::<WideLine>(0, 1 << 32, false);
        check_both::<WideLine>(-5, i64::MAX, false);
    }

    #[test]
    fn epochs_of_a_line_may_differ_a_little() {
        let entry = |epoch| PlainEntry { epoch, first: 1, last: 2, last_timestamp: 0 };
        let inline = |epoch| Slot::Inline(entry(epoch));
        let mut line = RangeLine::empty(EntryKey::newest(1, i32::MAX).line::<RangeLine>());
        for (slot, epoch) in [(0, 100), (1, 103), (2, 107), (3, 100)] {
            assert!(line.write(slot, &inline(epoch)));
        }
        assert!(!line.write(4, &inline(108)), "eight above the lowest");
        assert!(!line.write(4, &inline(99)), "eight below the highest");
        line.write(0, &Slot::Overflow(9));
        line.clear(3);
        assert!(line.write(4, &inline(110)), "the lowest is 103 now");
        let slots = [Slot::Overflow(9), inline(103), inline(107), Slot::Empty];
        assert_eq!(std::array::from_fn(|slot| line.read(slot)), slots);
        assert_eq!((line.read(4), line.read(5)), (inline(110), Slot::Empty));
        assert_eq!(line.group(), i32::MAX as u32 / 6);
        line.clear(1);
        line.clear(2);
        line.clear(4);
        assert!(line.write(1, &inline(i16::MAX)) && line.read(1) == inline(i16::MAX));
    }
}
