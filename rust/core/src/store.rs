//! Which layout a table's entries lie in follows from its policy.

use crate::lines::{NextLine, SpanLine, WideLine};
use crate::shelf::Shelf;
use crate::{Admit, Epochs, Policy};

/// Entries in one of the layouts.
pub(crate) enum Store {
    Next(Shelf<NextLine>),
    Span(Shelf<SpanLine>),
    Wide(Shelf<WideLine>),
}

/// Does one thing to the shelf, whatever its layout.
macro_rules! with_shelf {
    ($store:expr, $shelf:ident => $do:expr) => {
        match $store {
            $crate::store::Store::Next($shelf) => $do,
            $crate::store::Store::Span($shelf) => $do,
            $crate::store::Store::Wide($shelf) => $do,
        }
    };
}
pub(crate) use with_shelf;

impl Store {
    pub(crate) fn new(policy: &Policy) -> Store {
        let is_narrow = policy.wrap.is_some_and(|wrap| wrap <= 1 << 32);
        let is_next = policy.admit == Admit::Next && policy.window <= NextLine::WINDOW_MAX;
        match (is_narrow, is_next && policy.epochs != Epochs::Key) {
            (true, true) => Store::Next(Shelf::new()),
            (true, false) => Store::Span(Shelf::new()),
            (false, _) => Store::Wide(Shelf::new()),
        }
    }
}
