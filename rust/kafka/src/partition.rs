//! Reads the segments of a partition, one after the other.

use crate::columns::BatchColumns;
use crate::error::{Error, Kind, Result};
use crate::read_at::ReadAt;
use crate::scan::SegmentScan;
use std::collections::VecDeque;
use std::io;

/// A segment that is opened only when it is read.
pub struct Segment {
    /// Its name in errors.
    pub path: String,
    /// The offset in its name, if there is one.
    pub base_offset: Option<i64>,
    /// Opens it.
    pub open: Box<dyn Fn() -> io::Result<Box<dyn ReadAt>> + Send + Sync>,
}

/// Reads the headers of a partition's segments, which must come in the order of their offsets.
pub struct PartitionScan {
    /// The remaining segments.
    segments: VecDeque<Segment>,
    path: String,
    open: Option<SegmentScan>,
    last_offset: Option<i64>,
    gap: Option<Error>,
    /// Whether a gap is an error.
    refuses_gaps: bool,
    /// The position at which reading of the first segment begins.
    start: u64,
}

impl PartitionScan {
    /// Creates a scan without opening a segment.
    pub fn new(segments: impl IntoIterator<Item = Segment>) -> PartitionScan {
        PartitionScan {
            segments: segments.into_iter().collect(),
            path: String::new(),
            open: None,
            last_offset: None,
            gap: None,
            refuses_gaps: false,
            start: 0,
        }
    }

    /// Begins the first segment at this byte, at which a batch must begin. An index has such positions.
    pub fn starting_at(self, start: u64) -> PartitionScan {
        PartitionScan { start, ..self }
    }

    /// Makes offsets that are in no segment an error, for a log that was never compacted.
    pub fn without_gaps(self) -> PartitionScan {
        PartitionScan { refuses_gaps: true, ..self }
    }

    /// The path of the last opened segment. All rows of a call are from it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the gap of offsets before the last opened segment, once. This is not an error, because compaction leaves
    /// gaps too.
    pub fn take_gap(&mut self) -> Option<Error> {
        self.gap.take()
    }

    /// Appends batches of one segment until there are `rows_max` rows or it ends. Returns false at the end of the last
    /// segment. If there is an error, the rows before the damage are appended, and the next call continues with the
    /// next segment.
    pub fn read(&mut self, columns: &mut BatchColumns, rows_max: usize) -> Result<bool> {
        self.read_with(|scan| scan.read(columns, rows_max))
    }

    /// Like `read`, with up to twice as many rows, see [`SegmentScan::read_two`].
    pub fn read_two(&mut self, pieces: &mut [BatchColumns; 2], rows_max: usize) -> Result<bool> {
        self.read_with(|scan| scan.read_two(pieces, rows_max))
    }

    fn read_with(&mut self, read: impl FnOnce(&mut SegmentScan) -> Result<bool>) -> Result<bool> {
        let Some(scan) = self.current()? else { return Ok(false) };
        match read(scan) {
            Ok(true) => {}
            Ok(false) => self.close(),
            Err(error) => return Err(self.fail(error)),
        }
        Ok(true)
    }

    /// The current segment, or the next one if that has ended. `None` after the last.
    pub(crate) fn current(&mut self) -> Result<Option<&mut SegmentScan>> {
        if self.open.is_none() && !self.open_next().map_err(|error| error.in_file(&self.path))? {
            return Ok(None);
        }
        Ok(self.open.as_mut())
    }

    /// Closes the current segment.
    pub(crate) fn close(&mut self) {
        self.last_offset = self.open.take().map(|scan| scan.last_offset()).or(self.last_offset);
    }

    /// Closes the current segment because of damage.
    pub(crate) fn fail(&mut self, error: Error) -> Error {
        self.close();
        error.in_file(&self.path)
    }

    /// Stops reading.
    pub(crate) fn clear(&mut self) {
        self.segments.clear();
    }

    fn open_next(&mut self) -> Result<bool> {
        let Some(Segment { path, base_offset, open }) = self.segments.pop_front() else { return Ok(false) };
        self.path = path;
        let reader = open().map_err(|error| Error::io(&error))?;
        let scan = SegmentScan::new(reader, base_offset)?.starting_at(std::mem::take(&mut self.start));
        if let (Some(last), Some(base)) = (self.last_offset, base_offset) {
            if base <= last {
                let reason = format!("the segment begins at offset {base}, the one before it ends at {last}");
                return Err(Error::new(Kind::Overlap, 0, reason));
            }
            if base > last + 1 {
                let (first, last) = (last + 1, base - 1);
                let reason = format!("offsets {first} to {last} are in no segment: removed by compaction, or lost");
                let gap = Error::new(Kind::Gap, 0, reason);
                if self.refuses_gaps {
                    return Err(gap);
                }
                self.gap = Some(gap.in_file(&self.path));
            }
        }
        self.open = Some(scan);
        Ok(true)
    }
}
