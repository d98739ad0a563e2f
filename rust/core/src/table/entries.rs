//! Entries in the order of their keys.

use super::{Entry, StateTable};
use crate::keys::Key;
use crate::order::Renumbering;
use crate::prefetch::CHUNK;

use std::vec;

/// Number of keys after which their memory is freed: a megabyte.
const FREED_KEYS: usize = 1 << 16;

/// The entries of a table, see [`StateTable::entries`].
///
/// It holds the keys of the remaining entries, 16 bytes each, and at most a chunk of entries. If a caller converts
/// entries to as many bytes each, the whole conversion needs no more memory than that.
pub struct Entries<'a> {
    table: &'a StateTable,
    numbers: Renumbering,
    /// The remaining keys in the order of `numbers`, the next one last.
    keys: Vec<Key>,
    chunk: vec::IntoIter<Entry>,
}

impl<'a> Entries<'a> {
    /// The entries of these keys. All of them must exist.
    pub(crate) fn new(table: &'a StateTable, mut keys: Vec<Key>) -> Entries<'a> {
        let numbers = Renumbering::new(table.keys(), |visit| keys.iter().for_each(|key| visit(key.0, key.1)));
        for key in &mut keys {
            (key.0, key.1) = numbers.key(key.0, key.1);
        }
        keys.sort_unstable_by(|one, other| other.cmp(one));
        Entries { table, numbers, keys, chunk: Vec::new().into_iter() }
    }

    fn next_chunk(&mut self) -> Vec<Entry> {
        let mut keys = self.keys.split_off(self.keys.len().saturating_sub(CHUNK));
        if self.keys.capacity() - self.keys.len() >= FREED_KEYS {
            self.keys.shrink_to_fit();
        }
        for key in &mut keys {
            (key.0, key.1) = self.numbers.key_before(key.0, key.1);
        }
        keys.reverse();
        self.table.get_known(&keys)
    }
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        if self.chunk.len() == 0 {
            self.chunk = self.next_chunk().into_iter();
        }
        self.chunk.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.keys.len() + self.chunk.len();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Entries<'_> {}
