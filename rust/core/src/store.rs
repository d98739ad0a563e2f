//! Chooses the layout of a table's entries by its policy and the data it keeps.

use crate::lines::{NextLine, Partitions, RangeLine, Timed, WideLine};
use crate::shelf::Shelf;
use crate::{Admit, Epochs, Policy};

/// Entries in one of the layouts.
pub(crate) enum Store {
    Next(Shelf<NextLine>),
    Range(Shelf<RangeLine>),
    Wide(Shelf<WideLine>),
    TimedNext(Shelf<Timed<NextLine>>),
    TimedRange(Shelf<Timed<RangeLine>>),
    TimedWide(Shelf<Timed<WideLine>>),
}

/// Runs an expression for the shelf, whatever its layout.
macro_rules! with_shelf {
    ($store:expr, $shelf:ident => $do:expr) => {
        match $store {
            $crate::store::Store::Next($shelf) => $do,
            $crate::store::Store::Range($shelf) => $do,
            $crate::store::Store::Wide($shelf) => $do,
            $crate::store::Store::TimedNext($shelf) => $do,
            $crate::store::Store::TimedRange($shelf) => $do,
            $crate::store::Store::TimedWide($shelf) => $do,
        }
    };
}
pub(crate) use with_shelf;

impl Store {
    pub(crate) fn new(policy: &Policy, keeps_timestamp: bool, partitions: Option<Partitions>) -> Store {
        let is_narrow = policy.wrap.is_some_and(|wrap| wrap <= 1 << 32);
        let is_next = policy.admit == Admit::Next && policy.window <= NextLine::WINDOW_MAX;
        match (is_narrow, is_next && policy.epochs != Epochs::Key, keeps_timestamp) {
            (true, true, false) => Store::Next(Shelf::new(partitions)),
            (true, false, false) => Store::Range(Shelf::new(partitions)),
            (false, _, false) => Store::Wide(Shelf::new(partitions)),
            (true, true, true) => Store::TimedNext(Shelf::new(partitions)),
            (true, false, true) => Store::TimedRange(Shelf::new(partitions)),
            (false, _, true) => Store::TimedWide(Shelf::new(partitions)),
        }
    }
}
