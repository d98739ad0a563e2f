//! Reads the headers of a segment. The bytes between them are skipped or, if batches are small, read in pieces that
//! stay in the cache: a system call takes as long as copying some 13 KB.
//!
//! Nearly all of the time is spent by the system, which copies the bytes. Therefore a second thread reads farther
//! ahead, from a position that looks like a batch. Its rows count only if the first thread arrives at exactly that
//! byte.

use crate::columns::{BatchColumns, Marker};
use crate::control::Control;
use crate::error::{Error, Kind, Result};
use crate::header::{BatchHeader, Compression, HEADER_BYTES, LENGTH_END, MAGIC_AT, check_magic};
use crate::read_at::ReadAt;
use crate::record::Record;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

/// Number of bytes to read at a time: half of the second-level cache, so that headers are read from there.
const CHUNK_BYTES: usize = 1 << 18;
/// Batches longer than this are skipped without reading.
const JUMP_BYTES: u64 = 1 << 14;
/// Number of bytes to read of a batch before a skip: header and record of a marker.
const PEEK_BYTES: usize = 128;
/// Maximum size of a control batch whose record is read. Markers have 78 bytes.
const CONTROL_BYTES_MAX: u64 = 1 << 15;

/// Minimum number of batches for which a second thread is faster.
const AHEAD_BATCHES_MIN: u64 = 4096;

/// Reads the headers of one segment, in order.
pub struct SegmentScan {
    window: Window,
    position: u64,
    /// Offsets must be above this one.
    last_offset: i64,
    /// Size of the previous batch.
    stride: u64,
    /// Number of batches so far.
    batches: u64,
    has_cores: bool,
}

impl SegmentScan {
    /// Creates a scan from the beginning. Offsets must not be below `base_offset`, if it is known.
    pub fn new(reader: Box<dyn ReadAt>, base_offset: Option<i64>) -> Result<SegmentScan> {
        let last_offset = base_offset.map_or(-1, |offset| offset.saturating_sub(1));
        let has_cores = reader.is_quick() && thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        let window = Window::new(reader.into())?;
        Ok(SegmentScan { window, position: 0, last_offset, stride: 0, batches: 0, has_cores })
    }

    /// Begins at a byte at which a batch begins, at most at the end of the segment.
    pub(crate) fn starting_at(self, position: u64) -> SegmentScan {
        SegmentScan { position: position.min(self.window.end), ..self }
    }

    /// The position of the next batch, or of the damage.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The last offset so far. At the beginning, the offset before the first one.
    pub fn last_offset(&self) -> i64 {
        self.last_offset
    }

    /// Size of the segment in bytes.
    pub fn bytes(&self) -> u64 {
        self.window.end
    }

    /// Appends a row per batch until there are `rows_max`. Returns false at the end of the segment. If there is an
    /// error, the rows of all batches before the damage are appended.
    pub fn read(&mut self, columns: &mut BatchColumns, rows_max: usize) -> Result<bool> {
        self.read_until(self.window.end, columns, rows_max)
    }

    /// Like `read`, with twice as many rows, and with two threads if that is faster. The second piece continues the
    /// first, and can be empty.
    pub fn read_two(&mut self, pieces: &mut [BatchColumns; 2], rows_max: usize) -> Result<bool> {
        let [first, second] = pieces;
        let Some(mut ahead) = self.ahead(rows_max / 4 * 3) else { return self.read(first, rows_max) };
        let start = ahead.position;
        let (mine, theirs) = thread::scope(|scope| {
            let theirs = thread::Builder::new().spawn_scoped(scope, || ahead.read(second, rows_max / 4 * 3));
            let mine = self.read_until(start, first, rows_max);
            (mine, theirs.map(|theirs| theirs.join().unwrap_or_else(|panic| resume_unwind(panic))))
        });
        let follows = second.base_offset.first().is_some_and(|&offset| offset > self.last_offset);
        match theirs {
            Ok(read) if mine.is_ok() && self.position == start && follows => {
                ahead.batches += self.batches;
                *self = ahead;
                read
            }
            // No batch begins there, or something is wrong before it.
            _ => {
                second.clear();
                mine
            }
        }
    }

    /// A scan that begins about `rows` batches ahead, at a position that looks like two consecutive batches. Whether
    /// they are is known when this scan arrives there.
    fn ahead(&self, rows: usize) -> Option<SegmentScan> {
        let stride = self.position.checked_div(self.batches)?;
        let position = self.position + stride * rows as u64;
        let has_worth = self.has_cores && self.batches >= AHEAD_BATCHES_MIN && stride <= JUMP_BYTES;
        if !has_worth || position + stride * AHEAD_BATCHES_MIN > self.window.end {
            return None;
        }
        let mut window = self.window.again();
        window.fill(position, HEADER_BYTES, CHUNK_BYTES).ok()?;
        let header_at = |position: u64, last_offset: i64| {
            let header = BatchHeader::decode(window.get(position)?.first_chunk()?);
            header.can_be(last_offset, window.end - position).then_some(header)
        };
        let is_start = |&position: &u64| {
            let next = header_at(position, self.last_offset);
            next.is_some_and(|header| header_at(position + header.bytes(), header.last_offset()).is_some())
        };
        let start = (position..position + CHUNK_BYTES as u64 / 2).find(is_start)?;
        Some(SegmentScan { window, position: start, last_offset: -1, stride, batches: 0, has_cores: true })
    }

    /// Reads up to the first batch that begins at or after `until`, or to `rows_max` rows. Returns false at the end of
    /// the segment.
    fn read_until(&mut self, until: u64, columns: &mut BatchColumns, rows_max: usize) -> Result<bool> {
        // Memory is reserved once, because columns that grow are copied into new memory: this would double the time.
        let rows = (self.window.end - self.position) / self.stride.max(HEADER_BYTES as u64);
        columns.reserve(rows_max.saturating_sub(columns.len()).min(rows as usize));
        while columns.len() < rows_max && self.position < until {
            let least = if self.stride > JUMP_BYTES { PEEK_BYTES } else { CHUNK_BYTES };
            self.window.fill(self.position, HEADER_BYTES, least)?;
            let before = columns.len();
            let read = self.read_window(until, columns, rows_max);
            self.batches += (columns.len() - before) as u64;
            read?;
        }
        Ok(self.position < self.window.end)
    }

    /// Reads the batches whose headers are in the window.
    fn read_window(&mut self, until: u64, columns: &mut BatchColumns, rows_max: usize) -> Result<()> {
        while columns.len() < rows_max && self.position < until {
            let rest = self.window.end - self.position;
            let Some(header) = self.window.get(self.position).and_then(|bytes| bytes.first_chunk()) else {
                // Outside of the window, or less than a header before the end.
                return if rest < HEADER_BYTES as u64 { Err(self.problem(None)) } else { Ok(()) };
            };
            let header = BatchHeader::decode(header);
            if !header.can_be(self.last_offset, rest) {
                return Err(self.problem(Some(header)));
            }
            if header.is_control() {
                let (control, coordinator_epoch) = self.control(&header)?;
                columns.markers.push(Marker { row: columns.len() as u32, control, coordinator_epoch });
            }
            columns.push(self.position, &header);
            self.advance(&header);
        }
        Ok(())
    }

    /// The header of the next batch, `None` at the end.
    pub(crate) fn peek(&mut self) -> Result<Option<BatchHeader>> {
        let rest = self.window.end - self.position;
        if rest == 0 {
            return Ok(None);
        }
        self.window.fill(self.position, HEADER_BYTES, CHUNK_BYTES)?;
        let header = self.window.get(self.position).and_then(|bytes| bytes.first_chunk()).map(BatchHeader::decode);
        match header {
            Some(header) if header.can_be(self.last_offset, rest) => Ok(Some(header)),
            header => Err(self.problem(header)),
        }
    }

    /// All bytes of the next batch.
    pub(crate) fn batch(&mut self, header: &BatchHeader) -> Result<&[u8]> {
        let length = header.bytes() as usize;
        self.window.fill(self.position, length, CHUNK_BYTES)?;
        Ok(&self.window.get(self.position).unwrap_or_default()[..length])
    }

    /// Moves after the next batch.
    #[inline]
    pub(crate) fn advance(&mut self, header: &BatchHeader) {
        self.last_offset = header.last_offset();
        self.stride = header.bytes();
        self.position += self.stride;
    }

    /// Reads a control batch: the key of its first record, and the value of a marker. Verifies its checksum.
    #[cold]
    pub(crate) fn control(&mut self, header: &BatchHeader) -> Result<(Control, Option<i32>)> {
        if header.bytes() == HEADER_BYTES as u64 {
            return Ok((Control::Empty, None));
        }
        let fail = |reason: String| Err(Error::new(Kind::Field, self.position, reason));
        if header.compression() != Some(Compression::None) || header.bytes() > CONTROL_BYTES_MAX {
            return fail(format!(
                "a control batch has {} bytes and the compression {}, but brokers write at most a few hundred bytes, \
                 uncompressed",
                header.bytes(),
                header.compression().map_or("unknown", Compression::name)
            ));
        }
        let length = header.bytes() as usize;
        self.window.fill(self.position, length, length)?;
        let batch = &self.window.get(self.position).unwrap_or_default()[..length];
        // Readers of other batches rely on it: one changed bit makes a commit an abort.
        header.check_crc(batch, self.position)?;
        let record = match Record::decode(&batch[HEADER_BYTES..]) {
            Ok((record, _)) => record,
            Err(complaint) => return fail(format!("the record of a control batch: {complaint}")),
        };
        match record.key.and_then(|key| Control::decode(key, record.value)) {
            Some(found) => Ok(found),
            None => fail("the record of a control batch has an unknown type, or an invalid value".into()),
        }
    }

    /// The error at this position. Zeros up to the end are a separate kind of damage: the file got its length before
    /// its content, or lost its content.
    #[cold]
    fn problem(&mut self, header: Option<BatchHeader>) -> Error {
        let (position, rest) = (self.position, self.window.end - self.position);
        let start = self.window.get(position).unwrap_or_default();
        // Fewer bytes than those before the length can be the beginning of any offset.
        let is_blank = start.iter().take(HEADER_BYTES).all(|&byte| byte == 0) && rest >= LENGTH_END as u64;
        if is_blank {
            match self.window.is_zero_from(position) {
                Ok(true) => {
                    let reason = format!(
                        "nothing but zeros from here to the end, {rest} bytes: preallocated, or lost in a crash"
                    );
                    return Error::new(Kind::Zeros, position, reason);
                }
                Ok(false) => {}
                Err(error) => return error,
            }
        }
        if let Some(header) = header {
            return header.problem(self.last_offset, rest, position);
        }
        if let Some(&magic) = self.window.get(position).and_then(|bytes| bytes.get(MAGIC_AT))
            && let Err(error) = check_magic(magic as i8, position)
        {
            return error;
        }
        Error::new(Kind::Torn, position, format!("{rest} bytes are left, less than a batch's header: torn"))
    }
}

/// Bytes of a file around a position.
pub(crate) struct Window {
    reader: Arc<dyn ReadAt>,
    /// The end of the file when it was opened.
    pub(crate) end: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    pub(crate) fn new(reader: Arc<dyn ReadAt>) -> Result<Window> {
        let end = reader.bytes().map_err(|error| Error::io(&error))?;
        Ok(Window { reader, end, start: 0, bytes: Vec::new() })
    }

    /// Another window of the same file.
    fn again(&self) -> Window {
        Window { reader: self.reader.clone(), end: self.end, start: 0, bytes: Vec::new() }
    }

    /// The available bytes from a position on.
    #[inline]
    pub(crate) fn get(&self, position: u64) -> Option<&[u8]> {
        let from = usize::try_from(position.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..)
    }

    /// Loads `needed` bytes from the position on, or all up to the end of the file. If they are not loaded yet, reads
    /// at least `least` bytes.
    pub(crate) fn fill(&mut self, position: u64, needed: usize, least: usize) -> Result<()> {
        let rest = self.end - position;
        let needed = (needed as u64).min(rest) as usize;
        if self.get(position).is_some_and(|bytes| bytes.len() >= needed) {
            return Ok(());
        }
        let count = (least.max(needed) as u64).min(rest) as usize;
        if self.bytes.len() < count {
            self.bytes.resize(count, 0);
        }
        self.bytes.truncate(count);
        self.start = position;
        let read = self.reader.read_exact_at(position, &mut self.bytes);
        if let Err(error) = read {
            self.bytes.clear();
            return Err(self.unread(position, &error));
        }
        Ok(())
    }

    fn unread(&self, position: u64, error: &std::io::Error) -> Error {
        if error.kind() != std::io::ErrorKind::UnexpectedEof {
            return Error { position: Some(position), ..Error::io(error) };
        }
        let reason = format!("the file had {} bytes at first, and has fewer now: cut while it was read", self.end);
        Error::new(Kind::Unreadable, position, reason)
    }

    /// Whether only zeros follow.
    fn is_zero_from(&mut self, mut position: u64) -> Result<bool> {
        while position < self.end {
            self.fill(position, 1, CHUNK_BYTES)?;
            let bytes = self.get(position).unwrap_or_default();
            if bytes.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            position += bytes.len() as u64;
        }
        Ok(true)
    }
}

// A header must fit into the smallest read.
const _: () = assert!(LENGTH_END < HEADER_BYTES && HEADER_BYTES <= PEEK_BYTES && PEEK_BYTES < CHUNK_BYTES);
const _: () = assert!(CONTROL_BYTES_MAX <= CHUNK_BYTES as u64);
