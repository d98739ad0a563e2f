//! The segments of a partition, one after the other.

use crate::columns::BatchColumns;
use crate::error::{Error, Kind, Result};
use crate::read_at::ReadAt;
use crate::scan::SegmentScan;
use std::collections::VecDeque;
use std::io;

/// A segment that is opened when it is its turn.
pub struct Segment {
    /// What errors call it.
    pub path: String,
    /// The offset in its name, where there is one.
    pub base_offset: Option<i64>,
    /// Opens it.
    pub open: Box<dyn Fn() -> io::Result<Box<dyn ReadAt>> + Send + Sync>,
}

/// Reads the headers of a partition's segments, which must come in the order of their offsets.
pub struct PartitionScan {
    /// Those to come.
    segments: VecDeque<Segment>,
    path: String,
    open: Option<SegmentScan>,
    last_offset: Option<i64>,
    gap: Option<Error>,
    /// Where the first segment is entered.
    start: u64,
}

impl PartitionScan {
    /// Nothing is opened yet.
    pub fn new(segments: impl IntoIterator<Item = Segment>) -> PartitionScan {
        PartitionScan {
            segments: segments.into_iter().collect(),
            path: String::new(),
            open: None,
            last_offset: None,
            gap: None,
            start: 0,
        }
    }

    /// The same, the first segment from this byte on, at which a batch must begin: an index knows some.
    pub fn starting_at(self, start: u64) -> PartitionScan {
        PartitionScan { start, ..self }
    }

    /// The path of the segment that was opened last: all rows of a call are from it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Offsets that are in no segment, before the one that was opened last: no error, for compaction leaves such gaps
    /// too. It is told once.
    pub fn take_gap(&mut self) -> Option<Error> {
        self.gap.take()
    }

    /// Appends batches of one segment until there are `rows_max` rows or it ends; false at the end of the last one.
    /// With an error the rows before the damage are there, and the next call goes on with the next segment.
    pub fn read(&mut self, columns: &mut BatchColumns, rows_max: usize) -> Result<bool> {
        self.read_with(|scan| scan.read(columns, rows_max))
    }

    /// The same of up to twice the rows, see [`SegmentScan::read_two`].
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

    /// The segment that is read, the next one where that one ended; `None` behind the last.
    pub(crate) fn current(&mut self) -> Result<Option<&mut SegmentScan>> {
        if self.open.is_none() && !self.open_next().map_err(|error| error.in_file(&self.path))? {
            return Ok(None);
        }
        Ok(self.open.as_mut())
    }

    /// Ends the segment that is read.
    pub(crate) fn close(&mut self) {
        self.last_offset = self.open.take().map(|scan| scan.last_offset()).or(self.last_offset);
    }

    /// The same where it is damaged.
    pub(crate) fn fail(&mut self, error: Error) -> Error {
        self.close();
        error.in_file(&self.path)
    }

    /// Reads nothing more.
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
                self.gap = Some(Error::new(Kind::Gap, 0, reason).in_file(&self.path));
            }
        }
        self.open = Some(scan);
        Ok(true)
    }
}
