//! A file without some of its rows, or with some of them only.
//!
//! Row groups of which every row stays are copied as bytes; those of which none stays are left out; the others are
//! written anew, chunk by chunk (`chunk.rs`) and where possible page by page (`cut.rs`). The footer is put together
//! here, not by the writer of whole files of the crate `parquet`: that one has one set of properties for all row groups,
//! and breaks off where copied row groups without an offset index stand beside written ones.

use crate::chunk::{Rewriting, is_writable, moved};
use crate::error::{Error, Fault, Result, guard};
use crate::file::ParquetFile;
use crate::ranges::RowRanges;
use parquet::bloom_filter::Sbbf;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaDataBuilder, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::OffsetIndexMetaData;
use parquet::file::writer::TrackedWrite;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// Rows of the new file.
    pub rows: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The CRC-32 of its footer.
    pub footer_crc: u32,
    /// The CRC-32 of the footer of the file that the rows are from.
    pub source_crc: u32,
    /// Row groups that were copied as bytes.
    pub groups_copied: u64,
    /// Row groups that were written anew.
    pub groups_rewritten: u64,
}

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// Writes a file without these rows, or with `keeps` only these, to `target`, which must not exist.
///
/// Schema, key-value metadata, the cut into row groups (but for those that come out empty), sorting columns, codecs,
/// versions of data pages, dictionaries, encodings, statistics and bloom filters stay as they are. Page indexes stay
/// where every chunk of the source has its own, and checksums of pages where some page of a chunk has one. What goes in
/// the row groups that are written anew: levels of codecs and counts of distinct values. A chunk whose values are
/// decoded (`chunk.rs`) loses its checksums, and gets pages of the second version where it has a dictionary of values of
/// a fixed length.
///
/// `goes_on` is asked between chunks; where it says no, [`Error::Stopped`] is what comes of it. Whatever fails, there
/// is no target then. It is not synced.
pub fn rewrite(
    file: ParquetFile,
    target: &Path,
    rows: &RowRanges,
    keeps: bool,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Rewritten> {
    if rows.end() > file.rows() {
        let problem = format!("a range ends at row {}, the file has {}", rows.end(), file.rows());
        return Err(Error::Ranges(format!("{}: {problem}", file.path().display())));
    }
    let file = file.with_page_indexes()?;
    let sink = |error| Error::Sink { path: target.into(), error };
    let out = OpenOptions::new().write(true).create_new(true).open(target).map_err(sink)?;
    let mut out = Output { file: out, failed: None };
    let written = guard(file.path(), file.source(), || {
        let mut rewrite = Rewrite {
            file: &file,
            target,
            out: TrackedWrite::new(&mut out),
            groups: vec![],
            column_indexes: vec![],
            offset_indexes: vec![],
            has_column_index: file.metadata().column_index().is_some(),
            has_offset_index: has_every_offset_index(&file),
            groups_copied: 0,
            groups_rewritten: 0,
        };
        rewrite.write_groups(rows, keeps, goes_on)?;
        rewrite.finish()
    });
    // What the system said, before writers put it in words of theirs; those that are dropped keep an error of their
    // last bytes to themselves.
    let written = match out.failed.take() {
        Some(error) if !matches!(written, Err(Error::Source { .. } | Error::Read { .. } | Error::Stopped)) => {
            Err(sink(error))
        }
        _ => written,
    };
    let written = written.and_then(|(groups_copied, groups_rewritten)| {
        let made = ParquetFile::open(target)?;
        Ok(Rewritten {
            rows: made.rows(),
            bytes: made.bytes(),
            footer_crc: made.footer_crc(),
            source_crc: file.footer_crc(),
            groups_copied,
            groups_rewritten,
        })
    });
    if written.is_err() {
        drop(out);
        // What is left of an attempt that failed is in nobody's way, so a failure to remove it is not told.
        let _ = fs::remove_file(target);
    }
    written
}

/// An offset index for some chunks only cannot be written.
fn has_every_offset_index(file: &ParquetFile) -> bool {
    let has_one = |index: &OffsetIndexMetaData| !index.page_locations().is_empty();
    let groups = file.metadata().row_groups();
    file.metadata().offset_index().is_some_and(|index| {
        let is_empty = |group: usize| groups[group].num_rows() == 0;
        (0..index.len()).all(|group| is_empty(group) || index[group].iter().all(has_one))
    })
}

struct Rewrite<'a, 'b> {
    file: &'a ParquetFile,
    target: &'a Path,
    out: TrackedWrite<&'b mut Output>,
    groups: Vec<RowGroupMetaData>,
    column_indexes: Vec<Vec<ColumnIndexMetaData>>,
    offset_indexes: Vec<Vec<OffsetIndexMetaData>>,
    has_column_index: bool,
    has_offset_index: bool,
    groups_copied: u64,
    groups_rewritten: u64,
}

/// A chunk that was written.
struct Chunk {
    metadata: ColumnChunkMetaData,
    column_index: Option<ColumnIndexMetaData>,
    offset_index: Option<OffsetIndexMetaData>,
}

impl Rewrite<'_, '_> {
    fn write_groups(&mut self, rows: &RowRanges, keeps: bool, goes_on: &mut dyn FnMut() -> bool) -> Result<()> {
        self.out.write_all(b"PAR1").map_err(|error| self.sink(error))?;
        let mut start = 0;
        for number in 0..self.file.row_groups() {
            let end = start + self.file.metadata().row_group(number).num_rows() as u64;
            let kept = rows.within(start..end, !keeps);
            if !kept.is_empty() {
                let is_whole = matches!(&kept[..], [all] if *all == (0..end - start));
                self.write_group(number, &kept, is_whole, goes_on)?;
            }
            start = end;
        }
        Ok(())
    }

    fn write_group(
        &mut self,
        number: usize,
        kept: &[Range<u64>],
        is_whole: bool,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let source = self.file.metadata().row_group(number);
        let rows: u64 = kept.iter().map(|range| range.end - range.start).sum();
        let start = self.out.bytes_written();
        let mut chunks = Vec::with_capacity(source.columns().len());
        for column in 0..source.columns().len() {
            if !goes_on() {
                return Err(Error::Stopped);
            }
            let chunk = if is_whole { self.copy(number, column) } else { self.write_anew(number, column, kept, rows) };
            chunks.push(chunk?);
        }
        for (column, chunk) in chunks.iter_mut().enumerate() {
            self.copy_bloom_filter(source.column(column), chunk)?;
        }
        *(if is_whole { &mut self.groups_copied } else { &mut self.groups_rewritten }) += 1;
        let bytes = chunks.iter().map(|it| it.metadata.uncompressed_size()).sum();
        let mut group = RowGroupMetaData::builder(source.schema_descr_ptr())
            .set_num_rows(rows as i64)
            .set_total_byte_size(bytes)
            .set_sorting_columns(source.sorting_columns().cloned())
            .set_file_offset(start as i64);
        if let Ok(ordinal) = i16::try_from(self.groups.len()) {
            group = group.set_ordinal(ordinal);
        }
        let mut columns = Vec::with_capacity(chunks.len());
        let (mut column_index, mut offset_index) = (vec![], vec![]);
        for chunk in chunks {
            columns.push(chunk.metadata);
            column_index.push(chunk.column_index.unwrap_or(ColumnIndexMetaData::NONE));
            offset_index.extend(chunk.offset_index);
        }
        let group = group.set_column_metadata(columns).build();
        self.groups.push(group.map_err(|error| self.file.decoding(None, &error))?);
        self.column_indexes.push(column_index);
        self.offset_indexes.push(offset_index);
        Ok(())
    }

    /// A chunk as it is, under its new place.
    fn copy(&mut self, group: usize, column: usize) -> Result<Chunk> {
        let metadata = self.file.metadata();
        let chunk = metadata.row_group(group).column(column);
        let (start, bytes) = chunk.byte_range();
        let by = self.out.bytes_written() as i64 - start as i64;
        let mut buffer = vec![0; COPY_BYTES.min(bytes as usize)];
        let mut at = start;
        while at < start + bytes {
            let part = &mut buffer[..COPY_BYTES.min((start + bytes - at) as usize)];
            let read = self.file.source().read(at, part);
            read.map_err(|error| Error::read(self.file.path(), Some(at), error))?;
            self.out.write_all(part).map_err(|error| self.sink(error))?;
            at += part.len() as u64;
        }
        let column_index = metadata.column_index().map(|index| index[group][column].clone());
        let offset_index = metadata.offset_index().filter(|_| self.has_offset_index);
        let offset_index = offset_index.map(|index| {
            let mut moved = index[group][column].clone();
            moved.page_locations.iter_mut().for_each(|page| page.offset += by);
            moved
        });
        let metadata = moved(chunk, by).map_err(|error| self.file.decoding(Some(start), &error))?;
        Ok(Chunk { metadata, column_index, offset_index })
    }

    /// A chunk with these of its rows.
    fn write_anew(&mut self, group: usize, column: usize, kept: &[Range<u64>], rows: u64) -> Result<Chunk> {
        let source = self.file.metadata().row_group(group);
        let chunk = source.column(column);
        let (start, _) = chunk.byte_range();
        if !is_writable(chunk.compression()) {
            let problem =
                format!("column {} has the codec {}, which is not supported", chunk.column_path(), chunk.compression());
            return Err(Error::source(self.file.path(), Some(start), problem));
        }
        let metadata = self.file.metadata();
        let column_index = metadata.column_index().map(|it| &it[group][column]);
        let offset_index = metadata.offset_index().map(|it| &it[group][column]);
        let rewriting = Rewriting {
            source: self.file.source(),
            column: chunk,
            rows: source.num_rows() as u64,
            kept,
            column_index: column_index.filter(|it| !matches!(it, ColumnIndexMetaData::NONE)),
            offset_index: offset_index.filter(|_| self.has_offset_index),
        };
        let closed = rewriting.write(&mut self.out);
        let closed = closed.map_err(|fault| match fault {
            Fault::Source(error) => self.file.decoding(Some(start), &error),
            Fault::Sink(error) => self.writing(&error),
        })?;
        if closed.rows_written != rows {
            let problem = format!("column {} has {} rows, its group {rows}", chunk.column_path(), closed.rows_written);
            return Err(Error::source(self.file.path(), Some(start), problem));
        }
        let has_index = rewriting.column_index.is_some();
        Ok(Chunk {
            metadata: closed.metadata,
            column_index: closed.column_index.filter(|_| has_index),
            offset_index: closed.offset_index,
        })
    }

    /// A filter of all rows serves for some of them: it only says a little more often that a value may be there.
    fn copy_bloom_filter(&mut self, source: &ColumnChunkMetaData, chunk: &mut Chunk) -> Result<()> {
        let read = Sbbf::read_from_column_chunk(source, self.file.source());
        let Some(filter) = read.map_err(|error| self.file.decoding(None, &error))? else { return Ok(()) };
        let start = self.out.bytes_written();
        filter.write(&mut self.out).map_err(|error| self.writing(&error))?;
        let bytes = self.out.bytes_written() - start;
        let metadata = chunk.metadata.clone().into_builder();
        let metadata = metadata
            .set_bloom_filter_offset(Some(start as i64))
            .set_bloom_filter_length(i32::try_from(bytes).ok())
            .build();
        chunk.metadata = metadata.map_err(|error| self.file.decoding(None, &error))?;
        Ok(())
    }

    /// Writes page indexes and footer; gives how many row groups were copied, and how many written anew.
    fn finish(self) -> Result<(u64, u64)> {
        let target = self.target;
        let told = self.file.metadata().file_metadata();
        let rows = self.groups.iter().map(RowGroupMetaData::num_rows).sum();
        let metadata = FileMetaData::new(
            told.version(),
            rows,
            // Some readers know of faults of certain writers by this, and most pages are theirs still.
            told.created_by().map(String::from),
            told.key_value_metadata().cloned(),
            told.schema_descr_ptr(),
            told.column_orders().cloned(),
        );
        let metadata = ParquetMetaDataBuilder::new(metadata)
            .set_row_groups(self.groups)
            .set_column_index(self.has_column_index.then_some(self.column_indexes))
            .set_offset_index(self.has_offset_index.then_some(self.offset_indexes))
            .build();
        let finished = ParquetMetaDataWriter::new_with_tracked(self.out, &metadata).finish();
        finished.map_err(|error| writing(target, &error))?;
        Ok((self.groups_copied, self.groups_rewritten))
    }

    fn sink(&self, error: io::Error) -> Error {
        Error::Sink { path: self.target.into(), error }
    }

    fn writing(&self, error: &ParquetError) -> Error {
        writing(self.target, error)
    }
}

fn writing(target: &Path, error: &ParquetError) -> Error {
    Error::Sink { path: target.into(), error: io::Error::other(error.to_string()) }
}

/// A file that remembers that it could not be written.
struct Output {
    file: File,
    failed: Option<io::Error>,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| {
            let told = io::Error::new(error.kind(), error.to_string());
            if error.kind() != io::ErrorKind::Interrupted {
                self.failed = Some(error);
            }
            told
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
