//! A broker's `.snapshot`: its producer state of a partition at the offset in the file's name. Big-endian:
//!
//! ```text
//! version i16 = 1 | CRC-32C u32 of everything after it | entries i32
//! | pid i64, epoch i16, last sequence i32, last offset i64, offset delta i32, timestamp i64, coordinator epoch i32,
//! | first offset of the open transaction i64                                                        for each entry
//! ```

use crate::error::{Error, Kind, Result};
use std::collections::HashSet;

/// The supported version.
pub const VERSION: i16 = 1;
const HEAD_BYTES: usize = 10;
const CHECKED_FROM: usize = 6;
const ENTRY_BYTES: usize = 46;

/// The state of a producer that a broker keeps over a restart: its last batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProducerEntry {
    /// Producer id.
    pub pid: i64,
    /// Producer epoch.
    pub epoch: i16,
    /// Last sequence number, -1 if there is none.
    pub last_seq: i32,
    /// Last offset, -1 if there is none.
    pub last_offset: i64,
    /// Last offset minus the first of that batch.
    pub offset_delta: i32,
    /// Milliseconds, -1 if there is none.
    pub timestamp: i64,
    /// Epoch of the coordinator of its last transaction, -1 if there was none.
    pub coordinator_epoch: i32,
    /// First offset of its open transaction, -1 if none is open.
    pub txn_first_offset: i64,
}

/// Reads the entries in the order of the file.
pub fn read(bytes: &[u8]) -> Result<Vec<ProducerEntry>> {
    let fail = |kind, position: usize, reason: String| Err(Error::new(kind, position as u64, reason));
    let Some((head, body)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return fail(Kind::Torn, 0, format!("{} bytes, a snapshot has {HEAD_BYTES} or more: cut short", bytes.len()));
    };
    let version = i16::from_be_bytes([head[0], head[1]]);
    if version != VERSION {
        let age = if version > VERSION { ", of a newer broker" } else { "" };
        let reason = format!("the snapshot has version {version}{age}, but only version {VERSION} is supported");
        return fail(Kind::Version, 0, reason);
    }
    let declared = u32::from_be_bytes([head[2], head[3], head[4], head[5]]);
    let count = i32::from_be_bytes([head[6], head[7], head[8], head[9]]);
    let found = crc32c::crc32c(&bytes[CHECKED_FROM..]);
    let needed = usize::try_from(count).ok().and_then(|count| count.checked_mul(ENTRY_BYTES));
    if needed != Some(body.len()) {
        let reason = format!(
            "the snapshot declares {count} entries of {ENTRY_BYTES} bytes, but {} bytes follow: cut short or damaged",
            body.len()
        );
        return fail(Kind::Torn, CHECKED_FROM, reason);
    }
    if found != declared {
        return fail(Kind::Checksum, 2, format!("the CRC-32C is {found:08x}, but {declared:08x} is declared: damaged"));
    }
    let mut pids = HashSet::with_capacity(count as usize);
    let mut entries = Vec::with_capacity(count as usize);
    for (number, entry) in body.as_chunks::<ENTRY_BYTES>().0.iter().enumerate() {
        let entry = decode(entry);
        if !pids.insert(entry.pid) {
            let position = HEAD_BYTES + number * ENTRY_BYTES;
            return fail(Kind::Field, position, format!("producer {} has two entries", entry.pid));
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// Encodes these entries in this order. Brokers write the order of their hash map, and accept any.
pub fn write(entries: &[ProducerEntry]) -> Vec<u8> {
    let mut body = Vec::with_capacity(HEAD_BYTES - CHECKED_FROM + entries.len() * ENTRY_BYTES);
    body.extend((entries.len() as i32).to_be_bytes());
    for entry in entries {
        body.extend(entry.pid.to_be_bytes());
        body.extend(entry.epoch.to_be_bytes());
        body.extend(entry.last_seq.to_be_bytes());
        body.extend(entry.last_offset.to_be_bytes());
        body.extend(entry.offset_delta.to_be_bytes());
        body.extend(entry.timestamp.to_be_bytes());
        body.extend(entry.coordinator_epoch.to_be_bytes());
        body.extend(entry.txn_first_offset.to_be_bytes());
    }
    [&VERSION.to_be_bytes()[..], &crc32c::crc32c(&body).to_be_bytes(), &body].concat()
}

fn decode(bytes: &[u8; ENTRY_BYTES]) -> ProducerEntry {
    macro_rules! field {
        ($kind:ty, $at:expr) => {
            <$kind>::from_be_bytes(std::array::from_fn(|byte| bytes[$at + byte]))
        };
    }
    ProducerEntry {
        pid: field!(i64, 0),
        epoch: field!(i16, 8),
        last_seq: field!(i32, 10),
        last_offset: field!(i64, 14),
        offset_delta: field!(i32, 22),
        timestamp: field!(i64, 26),
        coordinator_epoch: field!(i32, 34),
        txn_first_offset: field!(i64, 38),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<ProducerEntry> {
        let entry = |pid: i64| ProducerEntry {
            pid,
            epoch: pid as i16,
            last_seq: i32::MAX - pid as i32,
            last_offset: pid << 40,
            offset_delta: 3,
            timestamp: -1,
            coordinator_epoch: -1,
            txn_first_offset: 5,
        };
        [9, 2, 7].map(entry).to_vec()
    }

    #[test]
    fn entries_are_returned_in_order() {
        for count in 0..=3 {
            let bytes = write(&entries()[..count]);
            assert_eq!(bytes.len(), HEAD_BYTES + count * ENTRY_BYTES);
            assert_eq!(read(&bytes).as_deref(), Ok(&entries()[..count]));
        }
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_refused() {
        let whole = write(&entries());
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length} bytes");
        }
        for bit in 0..8 * whole.len() {
            let mut bent = whole.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bent).is_err(), "bit {bit}");
        }
        assert!(read(&[&whole[..], &[0]].concat()).is_err());
    }

    #[test]
    fn a_producer_is_listed_once_and_a_version_has_a_name() {
        let twice = [entries(), entries()].concat();
        let error = read(&write(&twice)).expect_err("two entries of each");
        assert_eq!((error.position, error.reason.as_str()), (Some(148), "producer 9 has two entries"));
        let mut newer = write(&entries());
        newer[1] = 2;
        let error = read(&newer).expect_err("a future version");
        assert_eq!(error.kind, Kind::Version);
        assert_eq!(error.reason, "the snapshot has version 2, of a newer broker, but only version 1 is supported");
    }
}
