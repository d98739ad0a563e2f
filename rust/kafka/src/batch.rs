//! Builds record batches, magic 2.
//!
//! The checksum does not include the first offset. A batch is therefore assembled, compressed and checksummed before
//! its offset in the log is known.

use crate::compression::compress;
use crate::control::Control;
use crate::header::{
    BatchHeader, CHECKED_FROM, CONTROL, CRC_AT, Compression, HEADER_BYTES, LENGTH_END, MAGIC_AT, TRANSACTIONAL,
};
use crate::varint;
use std::io;

/// The producer fields of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Producer id, -1 for none.
    pub pid: i64,
    /// Producer epoch, -1 for none.
    pub epoch: i16,
    /// Sequence number of the first record, -1 for none.
    pub base_seq: i32,
    /// Whether it is part of a transaction.
    pub is_transactional: bool,
}

/// A batch of data that is being assembled.
pub struct BatchBuilder {
    /// Space for the header, then the records.
    bytes: Vec<u8>,
    count: i32,
    base_timestamp: i64,
    max_timestamp: i64,
}

impl Default for BatchBuilder {
    fn default() -> BatchBuilder {
        BatchBuilder::with_capacity(HEADER_BYTES)
    }
}

impl BatchBuilder {
    /// Creates a builder with this capacity in bytes.
    pub fn with_capacity(bytes: usize) -> BatchBuilder {
        let mut head = Vec::with_capacity(bytes.max(HEADER_BYTES));
        head.resize(HEADER_BYTES, 0);
        BatchBuilder { bytes: head, count: 0, base_timestamp: 0, max_timestamp: -1 }
    }

    /// Number of records so far.
    pub fn count(&self) -> i32 {
        self.count
    }

    /// Number of uncompressed bytes so far, including the header.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The newest timestamp so far; -1 before the first record.
    pub fn max_timestamp(&self) -> i64 {
        self.max_timestamp
    }

    /// Appends a record. `timestamp` is in milliseconds.
    pub fn push<'a>(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl ExactSizeIterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    ) {
        if self.count == 0 {
            (self.base_timestamp, self.max_timestamp) = (timestamp, timestamp);
        }
        self.max_timestamp = self.max_timestamp.max(timestamp);
        let delta = timestamp.wrapping_sub(self.base_timestamp);
        let headers_bytes: usize =
            headers.clone().map(|(name, value)| nullable_bytes(Some(name)) + nullable_bytes(value)).sum();
        let length = 1
            + varint::bytes_of(delta)
            + varint::bytes_of(self.count.into())
            + nullable_bytes(key)
            + nullable_bytes(value)
            + varint::bytes_of(headers.len() as i64)
            + headers_bytes;
        varint::put(&mut self.bytes, length as i64);
        self.bytes.push(0);
        varint::put(&mut self.bytes, delta);
        varint::put(&mut self.bytes, self.count.into());
        put_nullable(&mut self.bytes, key);
        put_nullable(&mut self.bytes, value);
        varint::put(&mut self.bytes, headers.len() as i64);
        for (name, value) in headers {
            put_nullable(&mut self.bytes, Some(name));
            put_nullable(&mut self.bytes, value);
        }
        self.count += 1;
    }

    /// Finishes the batch. Its offset is 0 until [`place`].
    pub fn finish(mut self, stamp: &Stamp, compression: Compression) -> io::Result<Vec<u8>> {
        if compression != Compression::None {
            self.bytes = compress(compression, &self.bytes[HEADER_BYTES..], vec![0; HEADER_BYTES])?;
        }
        Ok(self.seal(stamp, compression as u8))
    }

    /// Writes the header with the checksum before the records. `attributes`: the bits besides that of transactions.
    fn seal(self, stamp: &Stamp, attributes: u8) -> Vec<u8> {
        let mut batch = self.bytes;
        let header = BatchHeader {
            base_offset: 0,
            length: (batch.len() - LENGTH_END) as i32,
            leader_epoch: 0,
            magic: 2,
            crc: 0,
            attributes: attributes | if stamp.is_transactional { TRANSACTIONAL } else { 0 },
            last_offset_delta: self.count.max(1) - 1,
            base_timestamp: self.base_timestamp,
            max_timestamp: self.max_timestamp,
            pid: stamp.pid,
            epoch: stamp.epoch,
            base_seq: stamp.base_seq,
            count: self.count,
        };
        batch[..HEADER_BYTES].copy_from_slice(&header.encode());
        let crc = crc32c::crc32c(&batch[CHECKED_FROM..]);
        batch[CRC_AT..CHECKED_FROM].copy_from_slice(&crc.to_be_bytes());
        batch
    }
}

/// Builds the marker that ends a transaction. Its offset is 0 until [`place`].
pub fn marker(pid: i64, epoch: i16, is_commit: bool, coordinator_epoch: i32, timestamp: i64) -> Vec<u8> {
    let (key, value) = Control::encode(is_commit, coordinator_epoch);
    let mut builder = BatchBuilder::default();
    builder.push(timestamp, Some(&key), Some(&value), std::iter::empty());
    builder.seal(&Stamp { pid, epoch, base_seq: -1, is_transactional: true }, CONTROL)
}

/// Sets the offset of a batch and the epoch of its leader. The checksum does not include them.
pub fn place(batch: &mut [u8], base_offset: i64, leader_epoch: i32) {
    batch[..8].copy_from_slice(&base_offset.to_be_bytes());
    batch[LENGTH_END..MAGIC_AT].copy_from_slice(&leader_epoch.to_be_bytes());
}

fn nullable_bytes(value: Option<&[u8]>) -> usize {
    value.map_or(1, |value| varint::bytes_of(value.len() as i64) + value.len())
}

fn put_nullable(bytes: &mut Vec<u8>, value: Option<&[u8]>) {
    varint::put(bytes, value.map_or(-1, |value| value.len() as i64));
    bytes.extend_from_slice(value.unwrap_or_default());
}
