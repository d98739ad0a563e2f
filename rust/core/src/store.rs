//! Chooses the layout of a table's entries by its policy and the data it keeps.

use crate::lines::{NextLine, RangeLine, Timed, WideLine};
use crate::shelf::Shelf;
use crate::{Admit, Epochs, Policy};

/// Entries in one of the layouts.
pub(crate) enum Store {
    Next(Shelf<NextLine>),
    FullEntry(Shelf<RangeLine>),
    Wide(Shelf<WideLine>),
    TimedNext(Shelf<Timed<NextLine>>),
    TimedSpan(Shelf<Timed<RangeLine>>),
    TimedWide(Shelf<Timed<WideLine>>),
}

/// Runs an expression for the shelf, whatever its layout.
macro_rules! with_shelf {
    ($store:expr, $shelf:ident => $do:expr) => {
        match $store {
            $crate::store::Store::Next($shelf) => $do,
            $crate::store::Store::FullEntry($shelf) => $do,
            $crate::store::Store::Wide($shelf) => $do,
            $crate::store::Store::TimedNext($shelf) => $do,
            $crate::store::Store::TimedSpan($shelf) => $do,
            $crate::store::Store::TimedWide($shelf) => $do,
        }
    };
}
pub(crate) use with_shelf;

impl Store {
    pub(crate) fn new(policy: &Policy, keeps_timestamp: bool) -> Store {
        let is_narrow = policy.wrap.is_some_and(|wrap| wrap <= 1 << 32);
        let is_next = policy.admit == Admit::Next && policy.window <= NextLine::WINDOW_MAX;
        match (is_narrow, is_next && policy.epochs != Epochs::Key, keeps_timestamp) {
            (true, true, false) => Store::Next(Shelf::new()),
            (true, false, false) => Store::FullEntry(Shelf::new()),
            (false, _, false) => Store::Wide(Shelf::new()),
            (true, true, true) => Store::TimedNext(Shelf::new()),
            (true, false, true) => Store::TimedSpan(Shelf::new()),
            (false, _, true) => Store::TimedWide(Shelf::new()),
        }
    }
}
