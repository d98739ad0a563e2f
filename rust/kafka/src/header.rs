//! The header of a record batch, magic 2. Big-endian:
//!
//! ```text
//!  0 base offset i64         21 attributes i16          43 producer id i64
//!  8 length i32, from 12 on  23 last offset delta i32   51 producer epoch i16
//! 12 leader epoch i32        27 base timestamp i64      53 base sequence i32
//! 16 magic i8                35 max timestamp i64       57 count i32
//! 17 CRC-32C u32, from 21 on                            61 records
//! ```

use crate::error::{Error, Kind};

/// Bytes of a batch's header.
pub const HEADER_BYTES: usize = 61;
/// Number of bytes that the length does not count.
pub(crate) const LENGTH_END: usize = 12;
/// Position of the magic, in every version of the format.
pub(crate) const MAGIC_AT: usize = 16;
/// Position of the checksum.
pub(crate) const CRC_AT: usize = 17;
/// Position of the first checksummed byte.
pub(crate) const CHECKED_FROM: usize = 21;
/// Minimum size of an uncompressed record: seven numbers of one byte.
pub(crate) const RECORD_BYTES_MIN: i64 = 7;

/// Bits of the attributes.
const COMPRESSION: u8 = 0b0000_0111;
/// Attribute bit of batches whose records have the broker's time.
pub const LOG_APPEND_TIME: u8 = 0b0000_1000;
pub(crate) const TRANSACTIONAL: u8 = 0b0001_0000;
pub(crate) const CONTROL: u8 = 0b0010_0000;

/// The compression of the records of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Compression {
    /// No compression.
    None,
    /// RFC 1952.
    Gzip,
    /// Raw, or in the blocks of snappy-java.
    Snappy,
    /// The frame format.
    Lz4,
    /// RFC 8878.
    Zstd,
}

impl Compression {
    /// By the number in the attributes.
    pub const ALL: [Compression; 5] =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    /// The compression of a batch with these attributes, if it exists.
    pub fn of(attributes: u8) -> Option<Compression> {
        Compression::ALL.get(usize::from(attributes & COMPRESSION)).copied()
    }

    /// The name in Kafka's settings.
    pub fn name(self) -> &'static str {
        ["none", "gzip", "snappy", "lz4", "zstd"][self as usize]
    }
}

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record, even if compaction has removed it.
    pub base_offset: i64,
    /// Number of bytes after the twelfth.
    pub length: i32,
    /// Epoch of the leader that wrote the batch, -1 where unknown.
    pub leader_epoch: i32,
    /// Version of the format: 2, or the batch is refused.
    pub magic: i8,
    /// CRC-32C of everything from byte 21 on.
    pub crc: u32,
    /// The lower eight bits; the upper ones are not used.
    pub attributes: u8,
    /// Last offset minus the first.
    pub last_offset_delta: i32,
    /// The base of the timestamps of records.
    pub base_timestamp: i64,
    /// The newest timestamp, in milliseconds.
    pub max_timestamp: i64,
    /// Producer id, -1 for producers that are not idempotent.
    pub pid: i64,
    /// Producer epoch, -1 for producers that are not idempotent.
    pub epoch: i16,
    /// Sequence number of the first record, -1 for none.
    pub base_seq: i32,
    /// Number of records. After compaction, there are fewer records than offsets.
    pub count: i32,
}

impl BatchHeader {
    /// Decodes the fields without validating them.
    #[inline(always)]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> BatchHeader {
        macro_rules! field {
            ($kind:ty, $at:expr) => {
                <$kind>::from_be_bytes(std::array::from_fn(|byte| bytes[$at + byte]))
            };
        }
        BatchHeader {
            base_offset: field!(i64, 0),
            length: field!(i32, 8),
            leader_epoch: field!(i32, LENGTH_END),
            magic: field!(i8, MAGIC_AT),
            crc: field!(u32, CRC_AT),
            attributes: field!(u8, 22),
            last_offset_delta: field!(i32, 23),
            base_timestamp: field!(i64, 27),
            max_timestamp: field!(i64, 35),
            pid: field!(i64, 43),
            epoch: field!(i16, 51),
            base_seq: field!(i32, 53),
            count: field!(i32, 57),
        }
    }

    /// Encodes the fields.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        macro_rules! put {
            ($($field:expr => $at:expr),*) => {
                $(bytes[$at..$at + size_of_val(&$field)].copy_from_slice(&$field.to_be_bytes());)*
            };
        }
        put!(
            self.base_offset => 0, self.length => 8, self.leader_epoch => LENGTH_END, self.magic => MAGIC_AT,
            self.crc => CRC_AT, self.attributes => 22, self.last_offset_delta => 23, self.base_timestamp => 27,
            self.max_timestamp => 35, self.pid => 43, self.epoch => 51, self.base_seq => 53, self.count => 57
        );
        bytes
    }

    /// Size of the whole batch. Valid only for checked headers.
    #[inline]
    pub fn bytes(&self) -> u64 {
        (LENGTH_END as i64 + i64::from(self.length)) as u64
    }

    /// Offset of the last record. Valid only for checked headers.
    #[inline]
    pub fn last_offset(&self) -> i64 {
        self.base_offset + i64::from(self.last_offset_delta)
    }

    /// Sequence number of the last record; 0 follows 2^31 - 1. -1 for none.
    #[inline]
    pub fn last_seq(&self) -> i32 {
        self.seq_of(self.last_offset_delta)
    }

    /// Sequence number of the record with this offset delta.
    #[inline]
    pub(crate) fn seq_of(&self, offset_delta: i32) -> i32 {
        if self.base_seq < 0 { self.base_seq } else { self.base_seq.wrapping_add(offset_delta) & i32::MAX }
    }

    /// The compression of the records, if it exists.
    pub fn compression(&self) -> Option<Compression> {
        Compression::of(self.attributes)
    }

    /// Whether the records have the broker's time instead of their producer's.
    pub fn has_log_append_time(&self) -> bool {
        self.attributes & LOG_APPEND_TIME != 0
    }

    /// Whether the batch is part of a transaction.
    #[inline]
    pub fn is_transactional(&self) -> bool {
        is_transactional(self.attributes)
    }

    /// Whether the records are the broker's own: markers of transactions, changes of leaders.
    #[inline]
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// Verifies the checksum of the whole batch, which begins at this position of its file.
    pub(crate) fn check_crc(&self, batch: &[u8], position: u64) -> Result<(), Error> {
        let (found, declared) = (crc32c::crc32c(&batch[CHECKED_FROM..]), self.crc);
        if found != declared {
            let reason = format!("the batch has the CRC-32C {found:08x}, but declares {declared:08x}: damaged");
            return Err(Error::new(Kind::Checksum, position, reason));
        }
        Ok(())
    }

    /// Whether the header can follow `last_offset` in a file with `rest` remaining bytes.
    #[inline]
    pub(crate) fn can_be(&self, last_offset: i64, rest: u64) -> bool {
        let delta = i64::from(self.last_offset_delta);
        let payload = i64::from(self.length) - (HEADER_BYTES - LENGTH_END) as i64;
        // One branch for conditions that nearly always hold. If a number is negative, later terms can have any value.
        (self.magic == 2)
            & (payload >= 0)
            & (self.bytes() <= rest.min(i32::MAX as u64))
            & (self.attributes & COMPRESSION <= Compression::Zstd as u8)
            & (delta >= 0)
            & (self.base_offset > last_offset)
            & (self.base_offset < i64::MAX.wrapping_sub(delta))
            & (self.count >= 0)
            & (i64::from(self.count) <= delta + 1)
            & ((self.count == 0) == (payload == 0) || self.is_control() && payload == 0)
            & (self.attributes & COMPRESSION != 0
                || i64::from(self.count) * RECORD_BYTES_MIN <= payload
                || payload == 0)
    }

    /// The error of a header for which [`BatchHeader::can_be`] is false.
    #[cold]
    pub(crate) fn problem(&self, last_offset: i64, rest: u64, position: u64) -> Error {
        let fail = |kind, reason: String| Error::new(kind, position, reason);
        let payload = i64::from(self.length) - (HEADER_BYTES - LENGTH_END) as i64;
        if let Err(error) = check_magic(self.magic, position) {
            return error;
        }
        if payload < 0 {
            let length = self.length;
            return fail(Kind::Field, format!("a batch declares the length {length}, which is less than its header"));
        }
        if self.bytes() > i32::MAX as u64 {
            let bytes = self.bytes();
            return fail(Kind::Field, format!("a batch declares {bytes} bytes, but at most {} are possible", i32::MAX));
        }
        if self.bytes() > rest {
            let bytes = self.bytes();
            return fail(
                Kind::Torn,
                format!("a batch declares {bytes} bytes, but the file has {rest} left: torn or damaged"),
            );
        }
        if self.compression().is_none() {
            let number = self.attributes & COMPRESSION;
            return fail(Kind::Compression, format!("compression {number} is unknown; there are 0 to 4"));
        }
        let (first, delta) = (self.base_offset, self.last_offset_delta);
        // The last offset must be followed by another one, the log end.
        if first < 0 || delta < 0 || first.checked_add(delta.into()).is_none_or(|last| last == i64::MAX) {
            return fail(
                Kind::Field,
                format!("a batch declares base offset {first} and last offset delta {delta}: negative, or too high"),
            );
        }
        if first <= last_offset {
            return fail(Kind::Offsets, format!("offset {first} follows {last_offset}: offsets go back"));
        }
        let count = self.count;
        if count < 0 || i64::from(count) > i64::from(delta) + 1 {
            return fail(
                Kind::Field,
                format!("a batch declares {count} records, but {} offsets", i64::from(delta) + 1),
            );
        }
        fail(Kind::Field, format!("a batch declares {count} records, but has {payload} bytes after its header"))
    }
}

#[inline]
pub(crate) fn is_transactional(attributes: u8) -> bool {
    attributes & TRANSACTIONAL != 0
}

/// Returns an error for versions other than 2.
pub(crate) fn check_magic(magic: i8, position: u64) -> Result<(), Error> {
    let reason = match magic {
        2 => return Ok(()),
        0 | 1 => format!(
            "a message of format version {magic} (magic {magic}), which brokers wrote before 0.11: it has no producer \
             id, epoch or sequence. Only version 2 is read"
        ),
        _ => format!("format version {magic} (magic {magic}) is unknown; only version 2 is read"),
    };
    Err(Error::new(Kind::Version, position, reason))
}
