//! The content of a slot: the positions of an entry, a number in the overflow, or nothing. The epoch is stored
//! separately.

use super::line::{NextLine, RangeLine, RowLine, SingleLine, WideLine};
use crate::fast_path::Slot;
use crate::judge::PlainEntry;

/// A slot in memory.
pub(crate) trait Cell: Copy + Sync {
    /// The layout with several entries per line.
    type Dense: RowLine<OtherRowLayout = SingleLine<Self>>;
    /// No entry.
    const EMPTY: Self;

    /// Encodes the content of a slot, if it fits.
    fn of(held: &Slot) -> Option<Self>;
    fn read(self, epoch: i16) -> Slot;
    fn is_empty(self) -> bool;
}

/// First and last position. The first is above the last if there is no entry inline.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Range32 {
    first: u32,
    last: u32,
}

impl Cell for Range32 {
    type Dense = RangeLine;
    const EMPTY: Range32 = Range32 { first: u32::MAX, last: 0 };

    #[inline(always)]
    fn of(held: &Slot) -> Option<Range32> {
        Some(match *held {
            Slot::Empty => Self::EMPTY,
            Slot::Inline(entry) => Range32 { first: entry.first.try_into().ok()?, last: entry.last.try_into().ok()? },
            Slot::Overflow(number) => Range32 { first: number + 1, last: 0 },
        })
    }

    #[inline(always)]
    fn read(self, epoch: i16) -> Slot {
        let Range32 { first, last } = self;
        if first <= last {
            Slot::Inline(PlainEntry { epoch, first: first.into(), last: last.into(), last_timestamp: 0 })
        } else if first == u32::MAX {
            Slot::Empty
        } else {
            Slot::Overflow(first - 1)
        }
    }

    #[inline(always)]
    fn is_empty(self) -> bool {
        self == Self::EMPTY
    }
}

/// The last position, and how many rows a window remembers. `remembered` is 0 if there is no entry, and `OVERFLOW` if
/// the entry is in the overflow.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct Window {
    pub(super) last: u32,
    pub(super) remembered: u8,
}

impl Window {
    /// Maximum number of rows in four bits, besides the marks for an empty slot and an entry in the overflow.
    pub(super) const REMEMBERED_MAX: u8 = 14;
    const OVERFLOW: u8 = 15;
}

impl Cell for Window {
    type Dense = NextLine;
    const EMPTY: Window = Window { last: 0, remembered: 0 };

    #[inline(always)]
    fn of(held: &Slot) -> Option<Window> {
        match *held {
            Slot::Empty => Some(Self::EMPTY),
            Slot::Inline(entry) => {
                let remembered = u8::try_from(entry.last - entry.first + 1).ok()?;
                let is_in_range = (1..=Self::REMEMBERED_MAX).contains(&remembered);
                Some(Window { last: entry.last.try_into().ok()?, remembered }).filter(|_| is_in_range)
            }
            Slot::Overflow(number) => Some(Window { last: number, remembered: Self::OVERFLOW }),
        }
    }

    #[inline(always)]
    fn read(self, epoch: i16) -> Slot {
        match self.remembered {
            0 => Slot::Empty,
            Self::OVERFLOW => Slot::Overflow(self.last),
            rows => {
                let last = i64::from(self.last);
                Slot::Inline(PlainEntry { epoch, first: last - (i64::from(rows) - 1), last, last_timestamp: 0 })
            }
        }
    }

    #[inline(always)]
    fn is_empty(self) -> bool {
        self.remembered == 0
    }
}

/// The last position in 64 bits, and how far before it the first position is. No position is `NOWHERE`.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub(crate) struct Reach {
    last: i64,
    reach: u32,
}

impl Reach {
    const NOWHERE: i64 = i64::MIN;
}

impl Cell for Reach {
    type Dense = WideLine;
    const EMPTY: Reach = Reach { last: Self::NOWHERE, reach: u32::MAX };

    #[inline(always)]
    fn of(held: &Slot) -> Option<Reach> {
        Some(match *held {
            Slot::Empty => Self::EMPTY,
            Slot::Inline(PlainEntry { first, last, .. }) => {
                Reach { last, reach: last.checked_sub(first)?.try_into().ok()? }
            }
            Slot::Overflow(number) => Reach { last: Self::NOWHERE, reach: number },
        })
    }

    #[inline(always)]
    fn read(self, epoch: i16) -> Slot {
        match (self.last, self.reach) {
            (Self::NOWHERE, u32::MAX) => Slot::Empty,
            (Self::NOWHERE, number) => Slot::Overflow(number),
            (last, reach) => {
                Slot::Inline(PlainEntry { epoch, first: last - i64::from(reach), last, last_timestamp: 0 })
            }
        }
    }

    #[inline(always)]
    fn is_empty(self) -> bool {
        self.last == Self::NOWHERE && self.reach == u32::MAX
    }
}
