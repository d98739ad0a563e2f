//! Reads a segment after a crash. Every checksum is verified, and the bytes after damage are searched for whole
//! batches. This distinguishes a torn end from damage in the middle of a log.

use crate::columns::{BatchColumns, Marker};
use crate::error::{Error, Kind, Result};
use crate::header::{BatchHeader, CHECKED_FROM, HEADER_BYTES, MAGIC_AT};
use crate::read_at::ReadAt;
use crate::scan::{SegmentScan, Window};
use std::sync::Arc;

/// Number of bytes that are searched at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Maximum number of bytes that the search checksums per byte of the file. With random bytes the number is far below
/// one. The limit stops the search in files that are crafted to look like batches everywhere.
const SUMMED_MAX: u64 = 16;

/// Reads the headers of a segment that was never compacted, and verifies checksums.
pub struct RecoveryScan {
    scan: SegmentScan,
    reader: Arc<dyn ReadAt>,
}

impl RecoveryScan {
    /// Creates a scan from the beginning, at which `base_offset` must be.
    pub fn new(reader: Arc<dyn ReadAt>, base_offset: i64) -> Result<RecoveryScan> {
        let scan = SegmentScan::new(Box::new(reader.clone()), Some(base_offset))?;
        Ok(RecoveryScan { scan, reader })
    }

    /// The position after the last batch, or of the damage.
    pub fn position(&self) -> u64 {
        self.scan.position()
    }

    /// The last offset so far. At the beginning, the offset before the first one.
    pub fn last_offset(&self) -> i64 {
        self.scan.last_offset()
    }

    /// Size of the segment in bytes.
    pub fn bytes(&self) -> u64 {
        self.scan.bytes()
    }

    /// Appends a row per whole batch until there are `rows_max`. Returns false at the end of the segment. If there is
    /// an error, the rows of all batches before the damage are appended.
    pub fn read(&mut self, columns: &mut BatchColumns, rows_max: usize) -> Result<bool> {
        while columns.len() < rows_max {
            let Some(header) = self.scan.peek()? else { return Ok(false) };
            let position = self.scan.position();
            let last = self.scan.last_offset();
            if header.base_offset != last + 1 {
                // The checksum does not include the first offset, and a single writer skips no offset.
                let reason = format!("offset {} follows {last}: compacted, or damaged", header.base_offset);
                return Err(Error::new(Kind::Offsets, position, reason));
            }
            header.check_crc(self.scan.batch(&header)?, position)?;
            if header.is_control() {
                let (control, coordinator_epoch) = self.scan.control(&header)?;
                columns.markers.push(Marker { row: columns.len() as u32, control, coordinator_epoch });
            }
            columns.push(position, &header);
            self.scan.advance(&header);
        }
        Ok(true)
    }

    /// After damage: the position of the next whole batch that can belong to this log, and its first offset. A batch is
    /// whole if its checksum is right and its offsets are above all before the damage.
    pub fn next_whole_batch(&self) -> Result<Option<(u64, i64)>> {
        let mut window = Window::new(self.reader.clone())?;
        let (mut position, last_offset) = (self.position() + 1, self.last_offset());
        let mut to_sum = SUMMED_MAX.saturating_mul(window.end.saturating_sub(position));
        let mut summed = Window::new(self.reader.clone())?;
        while position + HEADER_BYTES as u64 <= window.end {
            window.fill(position, HEADER_BYTES, CHUNK_BYTES)?;
            let bytes = window.get(position).unwrap_or_default();
            let candidates = bytes.windows(HEADER_BYTES).enumerate().filter(|(_, it)| it[MAGIC_AT] == 2);
            for (at, header) in candidates {
                let at = position + at as u64;
                let Some(header) = header.first_chunk().map(BatchHeader::decode) else { continue };
                if !header.can_be(last_offset, window.end - at) {
                    continue;
                }
                let length = header.bytes();
                let Some(left) = to_sum.checked_sub(length) else {
                    let reason = "damaged before here, and too many positions look like a batch, so it is unknown \
                                  whether whole batches follow";
                    return Err(Error::new(Kind::Field, at, reason));
                };
                to_sum = left;
                summed.fill(at, length as usize, length as usize)?;
                let batch = &summed.get(at).unwrap_or_default()[..length as usize];
                if crc32c::crc32c(&batch[CHECKED_FROM..]) == header.crc {
                    return Ok(Some((at, header.base_offset)));
                }
            }
            position += (bytes.len() - HEADER_BYTES + 1) as u64;
        }
        Ok(None)
    }
}
