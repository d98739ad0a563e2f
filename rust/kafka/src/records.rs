//! Reads the records of a partition as columns.

use crate::compression::Decompressor;
use crate::error::{Error, Kind, Result};
use crate::header::{BatchHeader, Compression, HEADER_BYTES, RECORD_BYTES_MIN};
use crate::isolation::View;
use crate::partition::PartitionScan;
use crate::record::Record;
use crate::scan::SegmentScan;

/// Maximum size of a batch in bytes. The default limit of brokers is one megabyte. Callers cannot allow more than this
/// value: offsets in columns have 32 bits, and an invalid UTF-8 byte in the name of a header becomes three bytes.
pub const BATCH_BYTES_MAX: usize = 512 << 20;
/// Number of bytes of keys, values and headers after which columns are returned.
const COLUMN_BYTES: usize = 16 << 20;

/// Contiguous byte strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// The beginning of each, and the end of the last.
    pub offsets: Vec<i32>,
    /// All bytes.
    pub bytes: Vec<u8>,
    /// The indexes of nulls.
    pub nulls: Vec<u32>,
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes { offsets: vec![0], bytes: Vec::new(), nulls: Vec::new() }
    }
}

impl Bytes {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn push(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => self.bytes.extend_from_slice(value),
            None => self.nulls.push(self.len() as u32),
        }
        self.offsets.push(self.bytes.len() as i32);
    }
}

/// Records as columns, one row per record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordColumns {
    /// Offset in the partition.
    pub offset: Vec<i64>,
    /// Milliseconds, by the producer's or the broker's clock.
    pub timestamp: Vec<i64>,
    /// Key.
    pub key: Bytes,
    /// Value. In compacted topics, null is a deletion.
    pub value: Bytes,
    /// The first header of each record, and the end of the last.
    pub header_offsets: Vec<i32>,
    /// Names of headers: UTF-8.
    pub header_key: Bytes,
    /// Values of headers.
    pub header_value: Bytes,
    /// Producer id, -1 for none.
    pub pid: Vec<i64>,
    /// Producer epoch, -1 for none.
    pub epoch: Vec<i16>,
    /// Sequence number, -1 for none.
    pub seq: Vec<i32>,
}

impl Default for RecordColumns {
    fn default() -> RecordColumns {
        RecordColumns {
            offset: Vec::new(),
            timestamp: Vec::new(),
            key: Bytes::default(),
            value: Bytes::default(),
            header_offsets: vec![0],
            header_key: Bytes::default(),
            header_value: Bytes::default(),
            pid: Vec::new(),
            epoch: Vec::new(),
            seq: Vec::new(),
        }
    }
}

impl RecordColumns {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.offset.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.offset.is_empty()
    }

    fn bytes(&self) -> usize {
        let headers = self.header_key.bytes.len() + self.header_value.bytes.len() + 8 * self.header_key.len();
        self.key.bytes.len() + self.value.bytes.len() + headers
    }

    fn push(&mut self, header: &BatchHeader, record: &Record<'_>) {
        self.offset.push(header.base_offset + i64::from(record.offset_delta));
        self.timestamp.push(match header.has_log_append_time() {
            true => header.max_timestamp,
            false => header.base_timestamp.wrapping_add(record.timestamp_delta),
        });
        self.key.push(record.key);
        self.value.push(record.value);
        for (key, value) in record.headers.iter() {
            // Consumers show invalid UTF-8 in names in the same way.
            self.header_key.push(Some(String::from_utf8_lossy(key).as_bytes()));
            self.header_value.push(value);
        }
        self.header_offsets.push(self.header_key.len() as i32);
        self.pid.push(header.pid);
        self.epoch.push(header.epoch);
        self.seq.push(header.seq_of(record.offset_delta));
    }
}

/// Reads the data records of a partition's segments, and verifies checksums.
pub struct RecordScan {
    partition: PartitionScan,
    view: View,
    decompressor: Decompressor,
    batch: Option<OpenBatch>,
}

/// A batch that is partly returned.
struct OpenBatch {
    header: BatchHeader,
    position: u64,
    /// The next byte of the batch, or of its decompressed bytes.
    at: usize,
    given: i32,
    last_delta: i32,
}

impl RecordScan {
    /// `bytes_max`: maximum size of a batch, at most [`BATCH_BYTES_MAX`].
    pub fn new(partition: PartitionScan, view: View, bytes_max: usize) -> RecordScan {
        let decompressor = Decompressor::new(bytes_max.min(BATCH_BYTES_MAX));
        RecordScan { partition, view, decompressor, batch: None }
    }

    /// Appends records until there are `rows_max`, or many bytes, or a segment ends. Returns false at the end of the
    /// last segment. If there is an error, the rows before the damage are appended, and the next call continues with
    /// the next segment.
    pub fn read(&mut self, columns: &mut RecordColumns, rows_max: usize) -> Result<bool> {
        let Some(scan) = self.partition.current()? else { return Ok(false) };
        let mut read = || {
            while columns.len() < rows_max && columns.bytes() < COLUMN_BYTES {
                let Some(batch) = &mut self.batch else {
                    let Some(header) = scan.peek()? else { return Ok(Some(true)) };
                    if self.view.ends_at(&header) {
                        return Ok(Some(false));
                    }
                    let position = scan.position();
                    if !self.view.is_before(header.last_offset()) {
                        // Also a batch that counts as aborted: one changed bit makes it another producer's.
                        let records = checked(scan, &header, self.decompressor.bytes_max())?;
                        if !self.view.is_aborted(&header) {
                            self.batch = open_batch(records, header, position, &mut self.decompressor)?;
                        }
                    }
                    if self.batch.is_none() {
                        scan.advance(&header);
                    }
                    continue;
                };
                let bytes = match batch.header.compression() {
                    Some(Compression::None) => &scan.batch(&batch.header)?[HEADER_BYTES..],
                    _ => self.decompressor.bytes(),
                };
                if batch.take_records(bytes, &self.view, columns, rows_max)? {
                    scan.advance(&batch.header);
                    self.batch = None;
                }
            }
            Ok(None)
        };
        let read = read();
        match read {
            Ok(None) => Ok(true),
            Ok(Some(has_more)) => {
                self.partition.close();
                if !has_more {
                    self.partition.clear();
                }
                Ok(has_more)
            }
            Err(error) => {
                self.batch = None;
                Err(self.partition.fail(error))
            }
        }
    }
}

/// The bytes of the next batch after its header, verified by its checksum.
fn checked<'a>(scan: &'a mut SegmentScan, header: &BatchHeader, bytes_max: usize) -> Result<&'a [u8]> {
    let position = scan.position();
    if header.bytes() > bytes_max as u64 {
        let bytes = header.bytes();
        let reason = format!("a batch has {bytes} bytes, more than the limit {bytes_max} (batch_bytes_max)");
        return Err(Error::new(Kind::TooLarge, position, reason));
    }
    let batch = scan.batch(header)?;
    header.check_crc(batch, position)?;
    Ok(&batch[HEADER_BYTES..])
}

/// Decompresses the records of a batch. `None` if it has no data.
fn open_batch(
    records: &[u8],
    header: BatchHeader,
    position: u64,
    decompressor: &mut Decompressor,
) -> Result<Option<OpenBatch>> {
    let fail = |kind, reason: String| Err(Error::new(kind, position, reason));
    if header.is_control() || header.count == 0 {
        return Ok(None);
    }
    match header.compression() {
        Some(Compression::None) => {}
        Some(compression) => {
            if let Err((kind, reason)) = decompressor.run(compression, records) {
                return fail(kind, format!("the batch: {reason}"));
            }
            let bytes = decompressor.bytes().len() as i64;
            if i64::from(header.count) * RECORD_BYTES_MIN > bytes {
                let count = header.count;
                return fail(
                    Kind::Field,
                    format!("a batch declares {count} records, but has {bytes} bytes once decompressed"),
                );
            }
        }
        None => return fail(Kind::Compression, "its compression is unknown".into()),
    }
    Ok(Some(OpenBatch { header, position, at: 0, given: 0, last_delta: -1 }))
}

impl OpenBatch {
    /// Appends records until there are enough. Returns true after the last one.
    fn take_records(
        &mut self,
        bytes: &[u8],
        view: &View,
        columns: &mut RecordColumns,
        rows_max: usize,
    ) -> Result<bool> {
        while self.given < self.header.count {
            if columns.len() >= rows_max || columns.bytes() >= COLUMN_BYTES {
                return Ok(false);
            }
            let (record, length) = Record::decode(&bytes[self.at..]).map_err(|complaint| self.fail(complaint))?;
            let delta = record.offset_delta;
            if delta <= self.last_delta || delta > self.header.last_offset_delta {
                return Err(self.fail("its offset does not increase or is outside the batch"));
            }
            if !view.is_before(self.header.base_offset + i64::from(delta)) {
                columns.push(&self.header, &record);
            }
            self.at += length;
            self.given += 1;
            self.last_delta = delta;
        }
        if self.at < bytes.len() {
            let rest = bytes.len() - self.at;
            let reason = format!("the batch has {rest} bytes after its last record");
            return Err(Error::new(Kind::Field, self.position, reason));
        }
        Ok(true)
    }

    #[cold]
    fn fail(&self, complaint: &str) -> Error {
        let reason = format!("record {} of {} in the batch: {complaint}", self.given + 1, self.header.count);
        Error::new(Kind::Field, self.position, reason)
    }
}
