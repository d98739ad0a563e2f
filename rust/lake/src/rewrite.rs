//! Writes a file without some of its rows, or with only some of them.
//!
//! Row groups that stay whole are copied as bytes, and those of which no row stays are left out. The others are
//! rewritten, chunk by chunk (`chunk.rs`) and if possible page by page (`cut.rs`). This module assembles the footer
//! itself. The file writer of the crate `parquet` has one set of properties for all row groups, and panics if copied
//! row groups without an offset index are beside written ones.

use crate::chunk::{Rewriting, moved};
use crate::error::{Error, Fault, Result, guard};
use crate::file::ParquetFile;
use crate::ranges::RowRanges;
use parquet::bloom_filter::Sbbf;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaDataBuilder, ParquetMetaDataWriter, RowGroupMetaData, SortingColumn,
};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::OffsetIndexMetaData;
use parquet::file::writer::TrackedWrite;
use parquet::schema::types::SchemaDescPtr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The result of [`rewrite`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// Number of rows of the new file.
    pub rows: u64,
    /// Size of the new file in bytes.
    pub bytes: u64,
    /// The CRC-32 of its footer.
    pub footer_crc: u32,
    /// The CRC-32 of the source's footer.
    pub source_crc: u32,
    /// Number of row groups that were copied as bytes.
    pub groups_copied: u64,
    /// Number of row groups that were rewritten.
    pub groups_rewritten: u64,
}

/// Number of bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// Writes a file without these rows, or with `keeps` only these, to `target`, which must not exist.
///
/// Schema, key-value metadata, row group boundaries (except of empty ones), sorting columns, codecs, versions of data
/// pages, dictionaries, encodings, statistics and bloom filters do not change. Page indexes stay if every chunk of the
/// source has its own, and checksums of pages if some page of a chunk has one. Rewritten row groups lose the levels of
/// codecs and counts of distinct values. A chunk whose values are decoded (`chunk.rs`) loses its checksums. It gets
/// pages of the second version if it has a dictionary of fixed-length values.
///
/// `can_continue` is called between chunks; if it returns false, the result is [`Error::Stopped`]. After any error the
/// target does not exist. It is not synced.
pub fn rewrite(
    file: ParquetFile,
    target: &Path,
    rows: &RowRanges,
    keeps: bool,
    can_continue: &mut dyn FnMut() -> bool,
) -> Result<Rewritten> {
    if rows.end() > file.rows() {
        let problem = format!("a range ends at row {}, but the file has {} rows", rows.end(), file.rows());
        return Err(Error::Ranges(format!("{}: {problem}", file.path().display())));
    }
    let file = file.with_page_indexes()?;
    let (out, failed) = Output::create(target)?;
    let written = guard(file.path(), file.source(), || {
        let mut rewrite = Rewrite {
            file: &file,
            target,
            out,
            groups: Groups::default(),
            has_column_index: file.metadata().column_index().is_some(),
            has_offset_index: has_every_offset_index(&file),
            groups_copied: 0,
            groups_rewritten: 0,
        };
        rewrite.write_groups(rows, keeps, can_continue)?;
        rewrite.finish()
    });
    // The original error of the system, before writers replace it.
    let written = match failed.take() {
        Some(error) if !matches!(written, Err(Error::Source { .. } | Error::Read { .. } | Error::Stopped)) => {
            Err(Error::Sink { path: target.into(), error })
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
        // A failure to remove the incomplete target is not reported, because it does no harm.
        let _ = fs::remove_file(target);
    }
    written
}

/// An offset index for only some chunks cannot be written.
pub(crate) fn has_every_offset_index(file: &ParquetFile) -> bool {
    let has_one = |index: &OffsetIndexMetaData| !index.page_locations().is_empty();
    let groups = file.metadata().row_groups();
    file.metadata().offset_index().is_some_and(|index| {
        let is_empty = |group: usize| groups[group].num_rows() == 0;
        (0..index.len()).all(|group| is_empty(group) || index[group].iter().all(has_one))
    })
}

struct Rewrite<'a> {
    file: &'a ParquetFile,
    target: &'a Path,
    out: TrackedWrite<Output>,
    groups: Groups,
    has_column_index: bool,
    has_offset_index: bool,
    groups_copied: u64,
    groups_rewritten: u64,
}

/// A chunk that was written.
pub(crate) struct Chunk {
    pub(crate) metadata: ColumnChunkMetaData,
    pub(crate) column_index: Option<ColumnIndexMetaData>,
    pub(crate) offset_index: Option<OffsetIndexMetaData>,
}

impl Rewrite<'_> {
    fn write_groups(&mut self, rows: &RowRanges, keeps: bool, can_continue: &mut dyn FnMut() -> bool) -> Result<()> {
        self.out.write_all(b"PAR1").map_err(|error| Error::Sink { path: self.target.into(), error })?;
        let mut start = 0;
        for number in 0..self.file.row_groups() {
            let end = start + self.file.metadata().row_group(number).num_rows() as u64;
            let kept = rows.within(start..end, !keeps);
            if !kept.is_empty() {
                let is_whole = matches!(&kept[..], [all] if *all == (0..end - start));
                self.write_group(number, &kept, is_whole, can_continue)?;
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
        can_continue: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let source = self.file.metadata().row_group(number);
        let rows: u64 = kept.iter().map(|range| range.end - range.start).sum();
        let start = self.out.bytes_written();
        let mut chunks = Vec::with_capacity(source.columns().len());
        for column in 0..source.columns().len() {
            if !can_continue() {
                return Err(Error::Stopped);
            }
            let chunk = if is_whole {
                copy_chunk(self.file, number, column, self.has_offset_index, &mut self.out, self.target)
            } else {
                self.rewrite_chunk(number, column, kept, rows)
            };
            chunks.push(chunk?);
        }
        for (column, chunk) in chunks.iter_mut().enumerate() {
            copy_bloom_filter(self.file, source.column(column), chunk, &mut self.out, self.target)?;
        }
        *(if is_whole { &mut self.groups_copied } else { &mut self.groups_rewritten }) += 1;
        let added = self.groups.add(source.schema_descr_ptr(), rows, start, source.sorting_columns(), chunks);
        added.map_err(|error| self.file.decoding(None, &error))
    }

    /// Writes a chunk with these of its rows.
    fn rewrite_chunk(&mut self, group: usize, column: usize, kept: &[Range<u64>], rows: u64) -> Result<Chunk> {
        let has_indexes = (self.has_column_index, self.has_offset_index);
        let rewriting = Rewriting::of(self.file, (group, column), kept, has_indexes)?;
        let chunk = rewriting.column;
        let (start, _) = chunk.byte_range();
        let closed = rewriting.write(&mut self.out).map_err(|fault| match fault {
            Fault::Source(error) => self.file.decoding(Some(start), &error),
            Fault::Sink(error) => writing(self.target, &error),
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

    /// Writes page indexes and footer. Returns the numbers of copied and rewritten row groups.
    fn finish(self) -> Result<(u64, u64)> {
        let metadata = self.file.metadata().file_metadata();
        let metadata = FileMetaData::new(
            metadata.version(),
            self.groups.rows(),
            // Some readers work around errors of certain writers by this field, and most pages are still from that
            // writer.
            metadata.created_by().map(String::from),
            metadata.key_value_metadata().cloned(),
            metadata.schema_descr_ptr(),
            metadata.column_orders().cloned(),
        );
        let written = self.groups.write_footer(metadata, self.has_column_index, self.has_offset_index, self.out);
        written.map_err(|error| writing(self.target, &error))?;
        Ok((self.groups_copied, self.groups_rewritten))
    }
}

/// Copies a chunk to its new position.
pub(crate) fn copy_chunk<W: Write>(
    file: &ParquetFile,
    group: usize,
    column: usize,
    has_offset_index: bool,
    out: &mut TrackedWrite<W>,
    target: &Path,
) -> Result<Chunk> {
    let metadata = file.metadata();
    let chunk = metadata.row_group(group).column(column);
    let (start, bytes) = chunk.byte_range();
    let by = out.bytes_written() as i64 - start as i64;
    let mut buffer = vec![0; COPY_BYTES.min(bytes as usize)];
    let mut at = start;
    while at < start + bytes {
        let part = &mut buffer[..COPY_BYTES.min((start + bytes - at) as usize)];
        let read = file.source().read(at, part);
        read.map_err(|error| Error::read(file.path(), Some(at), error))?;
        out.write_all(part).map_err(|error| Error::Sink { path: target.into(), error })?;
        at += part.len() as u64;
    }
    let column_index = metadata.column_index().map(|index| index[group][column].clone());
    let offset_index = metadata.offset_index().filter(|_| has_offset_index);
    let offset_index = offset_index.map(|index| {
        let mut moved = index[group][column].clone();
        moved.page_locations.iter_mut().for_each(|page| page.offset += by);
        moved
    });
    let metadata = moved(chunk, by).map_err(|error| file.decoding(Some(start), &error))?;
    Ok(Chunk { metadata, column_index, offset_index })
}

/// A filter of all rows is valid for some of them; it only has slightly more false positives.
pub(crate) fn copy_bloom_filter<W: Write>(
    file: &ParquetFile,
    source: &ColumnChunkMetaData,
    chunk: &mut Chunk,
    out: &mut TrackedWrite<W>,
    target: &Path,
) -> Result<()> {
    let read = Sbbf::read_from_column_chunk(source, file.source());
    let Some(filter) = read.map_err(|error| file.decoding(None, &error))? else { return Ok(()) };
    write_bloom_filter(&filter, chunk, out).map_err(|error| writing(target, &error))
}

pub(crate) fn write_bloom_filter<W: Write>(
    filter: &Sbbf,
    chunk: &mut Chunk,
    out: &mut TrackedWrite<W>,
) -> std::result::Result<(), ParquetError> {
    let start = out.bytes_written();
    filter.write(&mut *out)?;
    let bytes = out.bytes_written() - start;
    let metadata = chunk.metadata.clone().into_builder();
    chunk.metadata = metadata
        .set_bloom_filter_offset(Some(start as i64))
        .set_bloom_filter_length(i32::try_from(bytes).ok())
        .build()?;
    Ok(())
}

/// The written row groups of a file.
#[derive(Default)]
pub(crate) struct Groups {
    groups: Vec<RowGroupMetaData>,
    column_indexes: Vec<Vec<ColumnIndexMetaData>>,
    offset_indexes: Vec<Vec<OffsetIndexMetaData>>,
}

impl Groups {
    /// Number of rows.
    pub(crate) fn rows(&self) -> i64 {
        self.groups.iter().map(RowGroupMetaData::num_rows).sum()
    }

    /// Adds the footer entry of a row group that begins at the byte `start`, and its page indexes.
    pub(crate) fn add(
        &mut self,
        schema: SchemaDescPtr,
        rows: u64,
        start: usize,
        sorting: Option<&Vec<SortingColumn>>,
        chunks: Vec<Chunk>,
    ) -> std::result::Result<(), ParquetError> {
        let bytes = chunks.iter().map(|it| it.metadata.uncompressed_size()).sum();
        let mut group = RowGroupMetaData::builder(schema)
            .set_num_rows(rows as i64)
            .set_total_byte_size(bytes)
            .set_sorting_columns(sorting.cloned())
            .set_file_offset(start as i64);
        if let Ok(ordinal) = i16::try_from(self.groups.len()) {
            group = group.set_ordinal(ordinal);
        }
        let (mut columns, mut column_index, mut offset_index) = (vec![], vec![], vec![]);
        for chunk in chunks {
            columns.push(chunk.metadata);
            column_index.push(chunk.column_index.unwrap_or(ColumnIndexMetaData::NONE));
            offset_index.extend(chunk.offset_index);
        }
        self.groups.push(group.set_column_metadata(columns).build()?);
        self.column_indexes.push(column_index);
        self.offset_indexes.push(offset_index);
        Ok(())
    }

    /// Writes page indexes and footer.
    pub(crate) fn write_footer<W: Write>(
        self,
        metadata: FileMetaData,
        has_column_index: bool,
        has_offset_index: bool,
        out: TrackedWrite<W>,
    ) -> std::result::Result<(), ParquetError> {
        let metadata = ParquetMetaDataBuilder::new(metadata)
            .set_row_groups(self.groups)
            .set_column_index(has_column_index.then_some(self.column_indexes))
            .set_offset_index(has_offset_index.then_some(self.offset_indexes))
            .build();
        ParquetMetaDataWriter::new_with_tracked(out, &metadata).finish()
    }
}

pub(crate) fn writing(target: &Path, error: &ParquetError) -> Error {
    Error::Sink { path: target.into(), error: io::Error::other(error.to_string()) }
}

/// A file that stores the error of a failed write.
pub(crate) struct Output {
    file: File,
    failed: WriteError,
}

/// The error of a failed write. It outlives the writer: one that is dropped does not report an error of its last bytes.
#[derive(Clone, Default)]
pub(crate) struct WriteError(Arc<Mutex<Option<io::Error>>>);

impl WriteError {
    pub(crate) fn take(&self) -> Option<io::Error> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<io::Error>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Output {
    /// Creates the file, which must not exist.
    pub(crate) fn create(path: &Path) -> Result<(TrackedWrite<Output>, WriteError)> {
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let file = file.map_err(|error| Error::Sink { path: path.into(), error })?;
        let failed = WriteError::default();
        Ok((TrackedWrite::new(Output { file, failed: failed.clone() }), failed))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| {
            let copy = io::Error::new(error.kind(), error.to_string());
            if error.kind() != io::ErrorKind::Interrupted {
                *self.failed.lock() = Some(error);
            }
            copy
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
