//! Writes record batches of Kafka's log exactly by the format, for tests, fuzzing and benchmarks of the code that reads
//! them. It shares no code with that code, not even the checksum.

/// A batch to write. The default is one without a producer, at offset 0, without records.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Offset of the first record.
    pub base_offset: i64,
    /// Epoch of the leader.
    pub leader_epoch: i32,
    /// Attribute bits except the compression.
    pub attributes: i16,
    /// Last offset minus the first. Default: that of the last record.
    pub last_offset_delta: Option<i32>,
    /// The base of timestamps.
    pub base_timestamp: i64,
    /// The newest timestamp.
    pub max_timestamp: i64,
    /// Producer id.
    pub pid: i64,
    /// Producer epoch.
    pub epoch: i16,
    /// First sequence number.
    pub base_seq: i32,
    /// The records.
    pub records: Vec<Record>,
    /// The compression of the records.
    pub compression: Compression,
}

/// The number of a compression in the attributes, and the function that compresses.
pub type Compression = (i16, fn(&[u8]) -> Vec<u8>);

/// A record to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its offset minus the first one of the batch.
    pub offset_delta: i32,
    /// Its timestamp minus the batch's base.
    pub timestamp_delta: i64,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Option<Vec<u8>>,
    /// Its headers.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// Attribute bit of batches that belong to a transaction.
pub const TRANSACTIONAL: i16 = 0x10;
/// Attribute bit of the broker's own batches.
pub const CONTROL: i16 = 0x20;

impl Default for Batch {
    fn default() -> Batch {
        Batch {
            base_offset: 0,
            leader_epoch: 0,
            attributes: 0,
            last_offset_delta: None,
            base_timestamp: 0,
            max_timestamp: 0,
            pid: -1,
            epoch: -1,
            base_seq: -1,
            records: Vec::new(),
            compression: (0, <[u8]>::to_vec),
        }
    }
}

impl Batch {
    /// A batch of `count` records of a producer from an offset on. Each is a millisecond after the previous one.
    pub fn of_producer(pid: i64, base_seq: i32, base_offset: i64, count: i32, value: &[u8]) -> Batch {
        let record = |number: i32| Record {
            offset_delta: number,
            timestamp_delta: number.into(),
            value: Some(value.to_vec()),
            ..Record::default()
        };
        Batch {
            base_offset,
            base_timestamp: 1_000_000,
            max_timestamp: 1_000_000 + i64::from(count) - 1,
            pid,
            epoch: 0,
            base_seq,
            records: (0..count).map(record).collect(),
            ..Batch::default()
        }
    }

    /// The marker that ends a transaction.
    pub fn marker(pid: i64, base_offset: i64, is_commit: bool, coordinator_epoch: i32) -> Batch {
        let key = [[0, 0], i16::from(is_commit).to_be_bytes()].concat();
        let value = [&[0, 0], &coordinator_epoch.to_be_bytes()[..]].concat();
        let record = Record { key: Some(key), value: Some(value), ..Record::default() };
        let attributes = TRANSACTIONAL | CONTROL;
        Batch { base_offset, attributes, pid, epoch: 0, records: vec![record], ..Batch::default() }
    }

    /// The batch as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let last = self.records.last().map_or(0, |record| record.offset_delta);
        let records: Vec<u8> = self.records.iter().flat_map(Record::bytes).collect();
        let (number, compress) = self.compression;
        let checked = [
            &(self.attributes | number).to_be_bytes()[..],
            &self.last_offset_delta.unwrap_or(last).to_be_bytes(),
            &self.base_timestamp.to_be_bytes(),
            &self.max_timestamp.to_be_bytes(),
            &self.pid.to_be_bytes(),
            &self.epoch.to_be_bytes(),
            &self.base_seq.to_be_bytes(),
            &(self.records.len() as i32).to_be_bytes(),
            &compress(&records),
        ]
        .concat();
        let length = 4 + 1 + 4 + checked.len() as i32;
        let head = [&self.base_offset.to_be_bytes()[..], &length.to_be_bytes(), &self.leader_epoch.to_be_bytes(), &[2]];
        [&head.concat()[..], &crc32c(&checked).to_be_bytes(), &checked].concat()
    }
}

impl Record {
    fn bytes(&self) -> Vec<u8> {
        let mut body = vec![0];
        varint(&mut body, self.timestamp_delta);
        varint(&mut body, self.offset_delta.into());
        nullable(&mut body, self.key.as_deref());
        nullable(&mut body, self.value.as_deref());
        varint(&mut body, self.headers.len() as i64);
        for (key, value) in &self.headers {
            nullable(&mut body, Some(key.as_bytes()));
            nullable(&mut body, value.as_deref());
        }
        let mut bytes = Vec::new();
        varint(&mut bytes, body.len() as i64);
        bytes.extend(body);
        bytes
    }
}

fn nullable(bytes: &mut Vec<u8>, value: Option<&[u8]>) {
    varint(bytes, value.map_or(-1, |value| value.len() as i64));
    bytes.extend(value.unwrap_or_default());
}

/// Seven bits per byte, the lowest first, zigzag.
fn varint(bytes: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

/// CRC-32C, bit by bit.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum: u32, _| sum >> 1 ^ (0x82f6_3b78 & (sum & 1).wrapping_neg()))
    })
}

/// A batch with a valid header and checksum, whose records are arbitrary bytes.
pub fn segment_with_payload(compression: i16, count: i32, payload: &[u8]) -> Vec<u8> {
    let last_offset_delta = Some(count - 1);
    let mut batch = Batch { attributes: compression, last_offset_delta, ..Batch::default() }.bytes();
    batch.extend(payload);
    let length = (batch.len() - 12) as i32;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[57..61].copy_from_slice(&count.to_be_bytes());
    seal(&mut batch);
    batch
}

/// Corrects the checksum of a changed batch, if it has enough bytes.
pub fn seal(batch: &mut [u8]) {
    if batch.len() > 21 {
        let sum = crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_standards() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
