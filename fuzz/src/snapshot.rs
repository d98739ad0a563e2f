use crate::memory::peak_of;
use fencepost_core::StateTable;

/// What decoding may hold beside what the bytes justify: an empty table and buffers of one frame.
const BYTES_FREE: usize = 1 << 18;
/// A table of lines that hold one entry each, while it grows, for each byte of such an entry.
const BYTES_PER_BYTE: usize = 256;

const HEAD_BYTES: usize = 12;

/// Any bytes: refused or decoded, without a panic and without much memory. What was decoded is encoded to
/// bytes that are stable. The same bytes with checksums that are right come behind the checksum.
pub fn snapshot(bytes: &[u8]) {
    decode(bytes);
    decode(&seal(bytes));
}

fn decode(bytes: &[u8]) {
    let (table, peak) = peak_of(|| StateTable::restore(bytes));
    let allowed = BYTES_FREE + BYTES_PER_BYTE * bytes.len();
    assert!(peak <= allowed, "{} bytes made decoding hold {peak}, at most {allowed} are allowed", bytes.len());
    let Ok(table) = table else { return };
    let encoded = table.snapshot();
    let again = StateTable::restore(&encoded).expect("its own snapshot");
    assert!(again.entries().eq(table.entries()), "an entry was lost or changed");
    assert!(again.snapshot() == encoded, "equal tables, other bytes");
}

/// The bytes with right checksums. After a head of twelve bytes come frames: a length in eight, as much
/// payload, and a CRC-32 of everything so far but the checksums themselves.
pub fn seal(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&bytes[..bytes.len().min(HEAD_BYTES)]);
    let mut at = HEAD_BYTES;
    while let Some(length) = bytes.get(at..at + 8) {
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
        let Some(end) = usize::try_from(length).ok().and_then(|length| (at + 8).checked_add(length)) else { break };
        let (Some(frame), true) = (bytes.get(at..end), end + 4 <= bytes.len()) else { break };
        checksum.update(frame);
        sealed[end..end + 4].copy_from_slice(&checksum.clone().finalize().to_le_bytes());
        at = end + 4;
    }
    sealed
}
