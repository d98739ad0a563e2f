//! A broker's `.index`: the positions of some offsets in the segment. Big-endian, entries of 8 bytes: offset minus the
//! segment's first offset (u32), position (u32). While a segment is written, its index has its maximum size, with zeros
//! at the end.

use crate::columns::BatchColumns;
use crate::error::{Error, Kind, Result};

const ENTRY_BYTES: usize = 8;

/// An offset, and the position of a batch that begins at or before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Offset in the partition.
    pub offset: i64,
    /// Byte of the segment.
    pub position: u32,
}

/// Reads the index of the segment that begins at `base_offset`. Entries must increase.
pub fn read(bytes: &[u8], base_offset: i64) -> Result<Vec<IndexEntry>> {
    let used = bytes.len() - bytes.iter().rev().take_while(|&&byte| byte == 0).count();
    let used = used.next_multiple_of(ENTRY_BYTES);
    let Some(used) = bytes.get(..used) else {
        let start = bytes.len() - bytes.len() % ENTRY_BYTES;
        return Err(Error::new(Kind::Torn, start as u64, format!("less than an entry of {ENTRY_BYTES} bytes is left")));
    };
    let mut entries: Vec<IndexEntry> = Vec::with_capacity(used.len() / ENTRY_BYTES);
    for (number, entry) in used.as_chunks::<ENTRY_BYTES>().0.iter().enumerate() {
        let fail = |reason: String| Err(Error::new(Kind::Offsets, (number * ENTRY_BYTES) as u64, reason));
        let [relative, position] = [0, 4].map(|at| u32::from_be_bytes(std::array::from_fn(|byte| entry[at + byte])));
        let Some(offset) = base_offset.checked_add(relative.into()) else {
            return fail(format!("an entry has the offset {base_offset} + {relative}, which is too high"));
        };
        if let Some(last) = entries.last()
            && (offset <= last.offset || position <= last.position)
        {
            let pair = format!("offset {offset} at byte {position} follows {} at {}", last.offset, last.position);
            return fail(format!("{pair}: offset and position must increase"));
        }
        entries.push(IndexEntry { offset, position });
    }
    Ok(entries)
}

/// Encodes the index of the segment that begins at `base_offset`.
pub fn write(entries: &[IndexEntry], base_offset: i64) -> Vec<u8> {
    let pair = |it: &IndexEntry| [((it.offset - base_offset) as u32).to_be_bytes(), it.position.to_be_bytes()].concat();
    entries.iter().flat_map(pair).collect()
}

/// The newest timestamp so far, in milliseconds, and the last offset of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeEntry {
    /// Milliseconds.
    pub timestamp: i64,
    /// Offset in the partition.
    pub offset: i64,
}

/// Encodes the `.timeindex` of the segment that begins at `base_offset`: timestamp i64, offset minus the segment's
/// first offset u32.
pub fn write_times(entries: &[TimeEntry], base_offset: i64) -> Vec<u8> {
    let offset = |it: &TimeEntry| ((it.offset - base_offset) as u32).to_be_bytes();
    entries.iter().flat_map(|it| [&it.timestamp.to_be_bytes()[..], &offset(it)].concat()).collect()
}

/// Compares an index with the headers of its segment, which are added in pieces.
#[derive(Debug)]
pub struct IndexCheck {
    entries: std::vec::IntoIter<IndexEntry>,
    number: u64,
}

impl IndexCheck {
    /// Creates a check of these entries.
    pub fn new(entries: Vec<IndexEntry>) -> IndexCheck {
        IndexCheck { entries: entries.into_iter(), number: 0 }
    }

    /// Adds the next batches. Each entry must point to the beginning of a batch that is not after its offset.
    pub fn add(&mut self, batches: &BatchColumns) -> Result<()> {
        let mut row = 0;
        while let Some(entry) = self.entries.as_slice().first().copied() {
            row += batches.position[row..].partition_point(|&position| position < i64::from(entry.position));
            let Some(&position) = batches.position.get(row) else { return Ok(()) };
            if position != i64::from(entry.position) {
                return Err(self.fail(&entry, "inside a batch"));
            }
            if batches.base_offset[row] > entry.offset {
                return Err(self.fail(&entry, &format!("which holds offsets from {} on", batches.base_offset[row])));
            }
            self.entries.next();
            self.number += 1;
        }
        Ok(())
    }

    /// Call this after the last batch.
    pub fn finish(&mut self) -> Result<()> {
        match self.entries.as_slice().first() {
            Some(entry) => Err(self.fail(entry, "after the segment's last batch")),
            None => Ok(()),
        }
    }

    fn fail(&self, entry: &IndexEntry, where_it_points: &str) -> Error {
        let IndexEntry { offset, position } = entry;
        let reason = format!("the index places offset {offset} at byte {position} of the segment, {where_it_points}");
        Error::new(Kind::Index, self.number * ENTRY_BYTES as u64, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(entries: &[(u32, u32)]) -> Vec<u8> {
        let pair = |&(offset, position): &(u32, u32)| [offset.to_be_bytes(), position.to_be_bytes()].concat();
        entries.iter().flat_map(pair).collect()
    }

    fn batches() -> BatchColumns {
        BatchColumns {
            position: vec![0, 100, 250],
            base_offset: vec![40, 45, 46],
            last_offset: vec![44, 45, 60],
            ..BatchColumns::default()
        }
    }

    #[test]
    fn zeros_at_the_end_are_room_for_more() {
        let entries = bytes(&[(5, 100), (20, 250)]);
        let expected = [IndexEntry { offset: 45, position: 100 }, IndexEntry { offset: 60, position: 250 }];
        assert_eq!(read(&entries, 40).as_deref(), Ok(&expected[..]));
        assert_eq!(read(&[&entries[..], &[0; 800]].concat(), 40).as_deref(), Ok(&expected[..]));
        assert_eq!(read(&[0; 80], 40), Ok(vec![]));
    }

    #[test]
    fn written_headers_are_read() {
        let entries = [IndexEntry { offset: 45, position: 100 }, IndexEntry { offset: 60, position: 250 }];
        assert_eq!(write(&entries, 40), bytes(&[(5, 100), (20, 250)]));
        let times = [TimeEntry { timestamp: 1 << 40, offset: 45 }];
        assert_eq!(write_times(&times, 40), [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
    }

    #[test]
    fn damage_is_reported_with_its_position() {
        let cases = [
            (bytes(&[(5, 100), (5, 250)]), Kind::Offsets, 8),
            (bytes(&[(5, 100), (6, 100)]), Kind::Offsets, 8),
            (bytes(&[(5, 100), (20, 250)])[..13].to_vec(), Kind::Torn, 8),
        ];
        for (bytes, kind, position) in cases {
            let error = read(&bytes, 40).expect_err("damaged");
            assert_eq!((error.kind, error.position), (kind, Some(position)), "{error}");
        }
    }

    #[test]
    fn an_index_is_held_against_its_log() {
        let check = |entries: &[(u32, u32)]| {
            let mut check = IndexCheck::new(read(&bytes(entries), 40).expect("an index"));
            check.add(&batches()).and_then(|()| check.finish())
        };
        assert_eq!(check(&[(5, 100), (20, 250)]), Ok(()));
        assert_eq!(check(&[]), Ok(()));
        for (entries, at, what) in [
            (&[(5, 100), (20, 251)][..], 8, "after the segment's last"),
            (&[(5, 99)], 0, "inside a batch"),
            (&[(4, 100)], 0, "from 45 on"),
        ] {
            let error = check(entries).expect_err("another log's");
            assert_eq!((error.kind, error.position), (Kind::Index, Some(at)));
            assert!(error.reason.contains(what), "{error}");
        }
    }
}
