//! A broker's `.txnindex`: the transactions that a marker in the segment aborted. Big-endian, entries of 34 bytes:
//!
//! ```text
//! version i16 = 0 | pid i64 | first offset i64 | last offset i64 | last stable offset i64
//! ```

use crate::error::{Error, Kind, Result};

const VERSION: i16 = 0;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 34;

/// An aborted transaction with records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTxn {
    /// Its producer.
    pub pid: i64,
    /// Offset of its first record.
    pub first_offset: i64,
    /// Offset of its marker.
    pub last_offset: i64,
    /// First offset that was not decided at that time.
    pub last_stable_offset: i64,
}

/// Reads the entries. Their last offsets must increase.
pub fn read(bytes: &[u8]) -> Result<Vec<AbortedTxn>> {
    let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    let mut last_offset = -1;
    let mut all = Vec::with_capacity(entries.len());
    for (number, entry) in entries.iter().enumerate() {
        let fail = |kind, reason: String| Err(Error::new(kind, (number * ENTRY_BYTES) as u64, reason));
        let version = i16::from_be_bytes([entry[0], entry[1]]);
        if version != VERSION {
            let reason = format!("an entry has version {version}, but only version {VERSION} is supported");
            return fail(Kind::Version, reason);
        }
        let field = |at: usize| i64::from_be_bytes(std::array::from_fn(|byte| entry[at + byte]));
        let [pid, first, last, last_stable_offset] = [2, 10, 18, 26].map(field);
        // The marker follows a record. Zeros, which a crash can leave at the end, are not an entry.
        if pid < 0 || first < 0 || last <= first {
            return fail(Kind::Field, format!("an entry has producer {pid} and offsets {first} to {last}: damaged"));
        }
        if last <= last_offset {
            return fail(Kind::Offsets, format!("last offset {last} follows {last_offset}: they must increase"));
        }
        last_offset = last;
        all.push(AbortedTxn { pid, first_offset: first, last_offset: last, last_stable_offset });
    }
    if !rest.is_empty() {
        let reason = format!("{} bytes are left, an entry has {ENTRY_BYTES}: torn", rest.len());
        return Err(Error::new(Kind::Torn, (bytes.len() - rest.len()) as u64, reason));
    }
    Ok(all)
}

/// Encodes an entry.
pub fn write(entry: &AbortedTxn) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    let fields = [entry.pid, entry.first_offset, entry.last_offset, entry.last_stable_offset];
    for (field, at) in fields.into_iter().zip([2, 10, 18, 26]) {
        bytes[at..at + 8].copy_from_slice(&field.to_be_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(fields: [i64; 4]) -> Vec<u8> {
        [vec![0, 0], fields.iter().flat_map(|field| field.to_be_bytes()).collect()].concat()
    }

    #[test]
    fn the_entries_of_the_brokers_own_test_are_read() {
        let bytes = [entry([1, 0, 29, 8]), entry([2, 8, 74, 36])].concat();
        let expected = [
            AbortedTxn { pid: 1, first_offset: 0, last_offset: 29, last_stable_offset: 8 },
            AbortedTxn { pid: 2, first_offset: 8, last_offset: 74, last_stable_offset: 36 },
        ];
        assert_eq!(read(&bytes).as_deref(), Ok(&expected[..]));
        assert_eq!(read(&[]), Ok(vec![]));
        assert_eq!(expected.map(|it| write(&it)).concat(), bytes);
    }

    #[test]
    fn damage_is_reported_with_its_place() {
        let good = entry([1, 0, 29, 8]);
        let cases: [(Vec<u8>, Kind, u64); 7] = [
            ([&good[..], &good[..33]].concat(), Kind::Torn, 34),
            ([&good[..], &[0, 1], &good[2..]].concat(), Kind::Version, 34),
            ([good.clone(), entry([2, 3, 29, 8])].concat(), Kind::Offsets, 34),
            ([good.clone(), entry([2, 31, 30, 8])].concat(), Kind::Field, 34),
            (entry([-1, 0, 29, 8]), Kind::Field, 0),
            (entry([1, 29, 29, 8]), Kind::Field, 0),
            ([&good[..], &[0; ENTRY_BYTES]].concat(), Kind::Field, 34),
        ];
        for (bytes, kind, position) in cases {
            let error = read(&bytes).expect_err("damaged");
            assert_eq!((error.kind, error.position), (kind, Some(position)), "{error}");
        }
    }
}
