//! Writes files from rows of several files, in any order: small files are merged, rows are distributed among files, or
//! sorted.
//!
//! A large row group that stays unchanged is copied as bytes. All other rows are gathered column by column. The typed
//! reader of a column's physical type reads its values, and the typed writer writes them with their levels, as in
//! `chunk.rs`. Logical types and nesting therefore cannot change.

use crate::chunk::{BATCH_ROWS, Batch, Decoded, Form, Outcome, Rewriting, without_bounds};
use crate::error::{Error, Fault, Result, guard};
use crate::file::ParquetFile;
use crate::pages::Pages;
use crate::rewrite::{
    Chunk, Groups, Output, WriteError, copy_bloom_filter, copy_chunk, has_every_offset_index, write_bloom_filter,
    writing,
};
use parquet::basic::Type;
use parquet::column::reader::{get_column_reader, get_typed_column_reader};
use parquet::column::writer::{ColumnCloseResult, get_column_writer};
use parquet::data_type::{
    BoolType, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type, Int64Type, Int96Type,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, FileMetaData, KeyValue};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type as SchemaType};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum number of decoded bytes, and of rows, of a gathered row group: about the usual sizes.
const GROUP_BYTES: u64 = 128 << 20;
const GROUP_ROWS: u64 = 1 << 20;
/// A row group with this share of that is large: it is copied as bytes if all its rows stay in order.
const LARGE_SHARE: u64 = 8;
/// Maximum number of files that are open for writing.
const TARGETS_OPEN: usize = 32;
/// Number of row groups of the largest size whose rows are gathered together. More are decoded in several rounds.
const ROUND_GROUPS: u64 = 4;
/// Approximate maximum number of values of a column in a gathered row group, because lists of equal values have almost
/// no bytes.
const GROUP_VALUES: u64 = 1 << 20;
/// Maximum number of values of a column in memory, even if a few rows have most of them.
const VALUES_MAX: usize = 1 << 24;

/// Consecutive rows of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The index of the source.
    pub source: u32,
    /// The first row.
    pub first: u64,
    /// The number of rows.
    pub count: u64,
}

/// A file to be written.
pub struct Target {
    /// Its path, which must not exist.
    pub path: PathBuf,
    /// Its rows in order.
    pub rows: Vec<Rows>,
}

/// The options of [`arrange`].
#[derive(Default)]
pub struct Arranging {
    /// A top-level column to leave out.
    pub without: Option<String>,
    /// The key-value metadata of the new files. `None`: those of the first source.
    pub metadata: Option<Vec<(String, Option<String>)>>,
}

/// A file that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arranged {
    /// Number of rows of the new file.
    pub rows: u64,
    /// Size of the new file in bytes.
    pub bytes: u64,
    /// The CRC-32 of its footer.
    pub footer_crc: u32,
    /// Number of row groups that were copied as bytes.
    pub groups_copied: u64,
    /// Number of row groups that were gathered.
    pub groups_gathered: u64,
}

/// Writes files with rows of the sources, which must have equal schemas.
///
/// Codecs, versions of data pages, dictionaries and statistics of a gathered row group are those of the first row group
/// in its rows. Page indexes stay if every chunk of every source has its own. Bloom filters are built again if the
/// first source has one. In addition to what [`crate::rewrite`] drops, sorting columns are dropped.
///
/// Memory: the decoded values of one column for [`ROUND_GROUPS`] row groups of the largest size, and some bytes per
/// range of rows. `can_continue` is called between chunks; if it returns false, the result is [`Error::Stopped`]. After
/// any error no target exists. Targets are not synced.
pub fn arrange(
    sources: Vec<ParquetFile>,
    targets: &[Target],
    arranging: &Arranging,
    can_continue: &mut dyn FnMut() -> bool,
) -> Result<Vec<Arranged>> {
    let sources = sources.into_iter().map(ParquetFile::with_page_indexes).collect::<Result<Vec<_>>>()?;
    let shared = Shared::of(&sources, arranging)?;
    let mut done = Vec::with_capacity(targets.len());
    for (wave, some) in targets.chunks(TARGETS_OPEN).enumerate() {
        match shared.write(some, can_continue) {
            Ok(written) => done.extend(written),
            Err(error) => {
                // A failure to remove incomplete targets is not reported, because they do no harm.
                for target in &targets[..wave * TARGETS_OPEN] {
                    let _ = fs::remove_file(&target.path);
                }
                return Err(error);
            }
        }
    }
    Ok(done)
}

/// The common data of all files of a call.
struct Shared<'a> {
    sources: &'a [ParquetFile],
    /// For each source, the first row of each of its row groups, and the number of rows.
    starts: Vec<Vec<u64>>,
    schema: SchemaDescPtr,
    /// The indexes of the written columns.
    columns: Vec<usize>,
    metadata: Option<Vec<KeyValue>>,
    has_column_index: bool,
    has_offset_index: bool,
    rows_max: u64,
}

impl<'a> Shared<'a> {
    fn of(sources: &'a [ParquetFile], arranging: &Arranging) -> Result<Shared<'a>> {
        let Some(first) = sources.first() else { return Err(Error::Ranges("no sources".into())) };
        let (metadata, crc) = (first.metadata().file_metadata(), first.schema_crc());
        for other in &sources[1..] {
            let is_equal = other.metadata().file_metadata().schema() == metadata.schema();
            if !is_equal || other.schema_crc() != crc {
                let problem = format!("its schema differs from that of {}", first.path().display());
                return Err(Error::source(other.path(), None, problem));
            }
        }
        let schema = metadata.schema_descr_ptr();
        let root = arranging.without.as_ref().map(|name| {
            let fields = schema.root_schema().get_fields();
            fields.iter().position(|it| it.name() == name).ok_or_else(|| Error::Column {
                path: first.path().into(),
                name: name.clone(),
                problem: "missing".into(),
            })
        });
        let root = root.transpose()?;
        let columns = (0..schema.num_columns()).filter(|&it| Some(schema.get_column_root_idx(it)) != root);
        let columns: Vec<usize> = columns.collect();
        let metadata = match &arranging.metadata {
            Some(given) => Some(given.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect()),
            None => metadata.key_value_metadata().cloned(),
        };
        let starts = sources.iter().map(starts_of).collect();
        Ok(Shared {
            sources,
            starts,
            schema: without(&schema, root).map_err(|error| first.decoding(None, &error))?,
            columns,
            metadata,
            has_column_index: sources.iter().all(|it| it.metadata().column_index().is_some()),
            has_offset_index: sources.iter().all(has_every_offset_index),
            rows_max: rows_max(sources),
        })
    }

    fn write(&self, targets: &[Target], can_continue: &mut dyn FnMut() -> bool) -> Result<Vec<Arranged>> {
        let mut files = Vec::with_capacity(targets.len());
        let gathered = self.write_rounds(targets, &mut files, can_continue);
        let made = files.len();
        let finished = files.into_iter().map(|it| self.finish(it));
        let written = gathered.and_then(|()| finished.collect::<Result<Vec<_>>>());
        if written.is_err() {
            targets[..made].iter().for_each(|it| drop(fs::remove_file(&it.path)));
        }
        written
    }

    /// Writes the first row groups of all targets, then the second ones, and so on, so that a source row group used by
    /// several targets is decoded once.
    fn write_rounds<'t>(
        &self,
        targets: &'t [Target],
        files: &mut Vec<NewFile<'t>>,
        can_continue: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let mut plans = Vec::with_capacity(targets.len());
        for target in targets {
            plans.push(self.plan(&target.rows)?.into_iter());
            files.push(NewFile::create(target)?);
        }
        loop {
            let mut gathers = vec![];
            let mut is_over = true;
            for (at, plan) in plans.iter_mut().enumerate() {
                match plan.next() {
                    None => continue,
                    Some(Group::Copied { source, group }) => self.copy(&mut files[at], source, group, can_continue)?,
                    Some(Group::Gathered(slices)) => gathers.push((at, slices)),
                }
                is_over = false;
            }
            if is_over {
                return Ok(());
            }
            for some in shared_out(gathers, ROUND_GROUPS * self.rows_max) {
                self.gather(&Round::of(some), files, can_continue)?;
            }
        }
    }

    /// The row groups of a file with these rows.
    fn plan(&self, rows: &[Rows]) -> Result<Vec<Group>> {
        let (mut groups, mut gathered) = (vec![], vec![]);
        for slice in self.slices(rows)? {
            let group = self.sources[slice.source as usize].metadata().row_group(slice.group as usize);
            let is_whole = slice.rows == (0..group.num_rows() as u64);
            let bytes = group.total_byte_size().max(0) as u64;
            let is_large = group.num_rows() as u64 >= GROUP_ROWS / LARGE_SHARE || bytes >= GROUP_BYTES / LARGE_SHARE;
            if is_whole && is_large {
                cut(&mut groups, std::mem::take(&mut gathered), self.rows_max);
                groups.push(Group::Copied { source: slice.source as usize, group: slice.group as usize });
            } else {
                gathered.push(slice);
            }
        }
        cut(&mut groups, gathered, self.rows_max);
        Ok(groups)
    }

    /// The rows, cut at the row groups of the sources, and merged if they follow each other.
    fn slices(&self, rows: &[Rows]) -> Result<Vec<Slice>> {
        let mut slices: Vec<Slice> = Vec::with_capacity(rows.len());
        for &Rows { source, first, count } in rows {
            let starts = self.starts.get(source as usize);
            let end = first.checked_add(count).filter(|&end| starts.is_some_and(|it| end <= it[it.len() - 1]));
            let (Some(starts), Some(end)) = (starts, end) else {
                return Err(Error::Ranges(format!("{count} rows from row {first} of source {source}: no such rows")));
            };
            let mut at = first;
            while at < end {
                let group = starts.partition_point(|&it| it <= at) - 1;
                let part = at - starts[group]..end.min(starts[group + 1]) - starts[group];
                at = starts[group] + part.end;
                let group = group as u32;
                match slices.last_mut() {
                    Some(last) if (last.source, last.group, last.rows.end) == (source, group, part.start) => {
                        last.rows.end = part.end;
                    }
                    _ => slices.push(Slice { source, group, rows: part }),
                }
            }
        }
        Ok(slices)
    }

    fn copy(
        &self,
        file: &mut NewFile<'_>,
        source: usize,
        number: usize,
        can_continue: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let source = &self.sources[source];
        let group = source.metadata().row_group(number);
        let start = file.out.bytes_written();
        let mut chunks = Vec::with_capacity(self.columns.len());
        for &column in &self.columns {
            if !can_continue() {
                return Err(Error::Stopped);
            }
            let target = &file.target.path;
            let chunk = guard(source.path(), source.source(), || {
                copy_chunk(source, number, column, self.has_offset_index, &mut file.out, target)
            });
            chunks.push(chunk.map_err(|error| file.sink_error(error))?);
        }
        for (&column, chunk) in self.columns.iter().zip(&mut chunks) {
            copy_bloom_filter(source, group.column(column), chunk, &mut file.out, &file.target.path)?;
        }
        file.copied += 1;
        self.add_group(file, group.num_rows() as u64, start, chunks)
    }

    /// Writes one row group to each target of a round, column by column.
    fn gather(&self, round: &Round, files: &mut [NewFile<'_>], can_continue: &mut dyn FnMut() -> bool) -> Result<()> {
        let starts: Vec<usize> = round.gathers.iter().map(|it| files[it.target].out.bytes_written()).collect();
        let mut chunks: Vec<Vec<Chunk>> = round.gathers.iter().map(|_| vec![]).collect();
        let mut filters: Vec<Vec<_>> = round.gathers.iter().map(|_| vec![]).collect();
        for &column in &self.columns {
            if !can_continue() {
                return Err(Error::Stopped);
            }
            let closed = self.gather_column(round, column, files)?;
            for (at, closed) in closed.into_iter().enumerate() {
                filters[at].push(closed.bloom_filter);
                chunks[at].push(Chunk {
                    metadata: closed.metadata,
                    column_index: closed.column_index.filter(|_| self.has_column_index),
                    offset_index: closed.offset_index.filter(|_| self.has_offset_index),
                });
            }
        }
        for (((gather, start), mut chunks), filters) in round.gathers.iter().zip(starts).zip(chunks).zip(filters) {
            let file = &mut files[gather.target];
            for (chunk, filter) in chunks.iter_mut().zip(filters) {
                if let Some(filter) = filter {
                    write_bloom_filter(&filter, chunk, &mut file.out).map_err(|error| file.writing(&error))?;
                }
            }
            file.gathered += 1;
            self.add_group(file, gather.rows, start, chunks)?;
        }
        Ok(())
    }

    fn gather_column(&self, round: &Round, column: usize, files: &mut [NewFile<'_>]) -> Result<Vec<ColumnCloseResult>> {
        match self.schema_of_sources().column(column).physical_type() {
            Type::BOOLEAN => self.gather_typed::<BoolType>(round, column, files),
            Type::INT32 => self.gather_typed::<Int32Type>(round, column, files),
            Type::INT64 => self.gather_typed::<Int64Type>(round, column, files),
            Type::INT96 => self.gather_typed::<Int96Type>(round, column, files),
            Type::FLOAT => self.gather_typed::<FloatType>(round, column, files),
            Type::DOUBLE => self.gather_typed::<DoubleType>(round, column, files),
            Type::BYTE_ARRAY => self.gather_typed::<ByteArrayType>(round, column, files),
            Type::FIXED_LEN_BYTE_ARRAY => self.gather_typed::<FixedLenByteArrayType>(round, column, files),
        }
    }

    fn gather_typed<T: DataType>(
        &self,
        round: &Round,
        column: usize,
        files: &mut [NewFile<'_>],
    ) -> Result<Vec<ColumnCloseResult>> {
        let (mut loaded, mut room) = (Vec::with_capacity(round.pieces.len()), VALUES_MAX);
        for piece in &round.pieces {
            let some = self.load::<T>(piece, column, room)?;
            room -= some.decoded.len();
            loaded.push(some);
        }
        let mut done = Vec::with_capacity(round.gathers.len());
        for gather in &round.gathers {
            let file = &mut files[gather.target];
            let first = &loaded[gather.slices[0].piece];
            // A writer can panic on data that a decoder accepted.
            let source = &self.sources[round.pieces[gather.slices[0].piece].source as usize];
            let mut closed = guard(source.path(), source.source(), || {
                write_chunk(&loaded, gather, &mut file.out).map_err(|error| file.writing(&error))
            })?;
            if closed.rows_written != gather.rows {
                let (found, name) = (closed.rows_written, first.chunk.column_path());
                let problem = format!("column {name}: {found} rows were gathered, not {}", gather.rows);
                return Err(Error::Sink { path: file.target.path.clone(), error: io::Error::other(problem) });
            }
            if first.form.has_no_bounds && closed.metadata.statistics().is_some() {
                closed.metadata = without_bounds(closed.metadata).map_err(|error| file.writing(&error))?;
            }
            done.push(closed);
        }
        Ok(done)
    }

    /// Reads the rows of a row group that a round needs.
    fn load<'b, T: DataType>(&'b self, piece: &'b Piece, column: usize, room: usize) -> Result<Loaded<'b, T>> {
        let file = &self.sources[piece.source as usize];
        let has_indexes = (self.has_column_index, self.has_offset_index);
        let reading = Rewriting::of(file, (piece.group as usize, column), &piece.needed, has_indexes)?;
        let (start, _) = reading.column.byte_range();
        guard(file.path(), file.source(), || {
            Loaded::read(&reading, room).map_err(|fault| match fault {
                Fault::Source(error) | Fault::Sink(error) => file.decoding(Some(start), &error),
            })
        })
    }

    fn schema_of_sources(&self) -> &SchemaDescriptor {
        self.sources[0].metadata().file_metadata().schema_descr()
    }

    fn add_group(&self, file: &mut NewFile<'_>, rows: u64, start: usize, chunks: Vec<Chunk>) -> Result<()> {
        file.groups.add(self.schema.clone(), rows, start, None, chunks).map_err(|error| file.writing(&error))
    }

    fn finish(&self, mut file: NewFile<'_>) -> Result<Arranged> {
        file.out.flush().map_err(|error| file.writing(&error.into()))?;
        let metadata = self.sources[0].metadata().file_metadata();
        let created_by = metadata.created_by();
        // Readers work around errors of certain writers by this field. With several writers, none is named.
        let is_one = self.sources.iter().all(|it| it.metadata().file_metadata().created_by() == created_by);
        let orders = metadata.column_orders().map(|all| self.columns.iter().map(|&it| all[it]).collect());
        let metadata = FileMetaData::new(
            metadata.version(),
            file.groups.rows(),
            created_by.filter(|_| is_one).map(String::from),
            self.metadata.clone(),
            self.schema.clone(),
            orders,
        );
        let path = &file.target.path;
        let written = file.groups.write_footer(metadata, self.has_column_index, self.has_offset_index, file.out);
        if let Some(error) = file.failed.take() {
            return Err(Error::Sink { path: path.clone(), error });
        }
        written.map_err(|error| writing(path, &error))?;
        let made = ParquetFile::open(path)?;
        Ok(Arranged {
            rows: made.rows(),
            bytes: made.bytes(),
            footer_crc: made.footer_crc(),
            groups_copied: file.copied,
            groups_gathered: file.gathered,
        })
    }
}

/// The first row of each row group, then the number of rows.
fn starts_of(file: &ParquetFile) -> Vec<u64> {
    let mut end = 0;
    let mut starts = vec![0];
    for group in file.metadata().row_groups() {
        end += group.num_rows() as u64;
        starts.push(end);
    }
    starts
}

/// A schema without one of its top-level columns.
fn without(schema: &SchemaDescPtr, root: Option<usize>) -> std::result::Result<SchemaDescPtr, ParquetError> {
    let Some(root) = root else { return Ok(schema.clone()) };
    let mut fields = schema.root_schema().get_fields().to_vec();
    fields.remove(root);
    let built = SchemaType::group_type_builder(schema.root_schema().name()).with_fields(fields).build()?;
    Ok(Arc::new(SchemaDescriptor::new(Arc::new(built))))
}

/// Maximum number of rows of a gathered row group, by the size of a row of these files.
fn rows_max(sources: &[ParquetFile]) -> u64 {
    let groups = || sources.iter().flat_map(|it| it.metadata().row_groups());
    let bytes: u64 = groups().map(|it| it.total_byte_size().max(0) as u64).sum();
    let rows: u64 = groups().map(|it| it.num_rows() as u64).sum();
    let row_bytes = (bytes / rows.max(1)).max(1);
    let columns = sources.first().map_or(0, |it| it.metadata().file_metadata().schema_descr().num_columns());
    let values =
        (0..columns).map(|column| groups().map(|it| it.column(column).num_values().max(0) as u64).sum::<u64>());
    let row_values = (values.max().unwrap_or(0) / rows.max(1)).max(1);
    (GROUP_BYTES / row_bytes).min(GROUP_VALUES / row_values).clamp(1, GROUP_ROWS)
}

/// A row group of a new file.
enum Group {
    Copied { source: usize, group: usize },
    Gathered(Vec<Slice>),
}

/// Consecutive rows of a row group of a source, counted from its first row.
#[derive(Clone)]
struct Slice {
    source: u32,
    group: u32,
    rows: Range<u64>,
}

fn length(rows: &Range<u64>) -> u64 {
    rows.end - rows.start
}

/// Adds row groups of about equal size, with at most `rows_max` rows.
fn cut(groups: &mut Vec<Group>, slices: Vec<Slice>, rows_max: u64) {
    let mut left: u64 = slices.iter().map(|it| length(&it.rows)).sum();
    let mut parts = left.div_ceil(rows_max);
    let (mut some, mut room) = (vec![], left.div_ceil(parts.max(1)));
    for mut slice in slices {
        while length(&slice.rows) > 0 {
            let taken = length(&slice.rows).min(room);
            let middle = slice.rows.start + taken;
            some.push(Slice { rows: slice.rows.start..middle, ..slice });
            slice.rows.start = middle;
            room -= taken;
            left -= taken;
            if room == 0 {
                groups.push(Group::Gathered(std::mem::take(&mut some)));
                parts -= 1;
                room = left.div_ceil(parts.max(1));
            }
        }
    }
}

/// The row groups to gather, in portions of about this many rows.
fn shared_out(gathers: Vec<(usize, Vec<Slice>)>, rows_max: u64) -> Vec<Vec<(usize, Vec<Slice>)>> {
    let (mut portions, mut rows) = (vec![], rows_max);
    for gather in gathers {
        let more: u64 = gather.1.iter().map(|it| length(&it.rows)).sum();
        if rows + more > rows_max {
            portions.push(vec![]);
            rows = 0;
        }
        rows += more;
        if let Some(portion) = portions.last_mut() {
            portion.push(gather);
        }
    }
    portions
}

/// The row groups that are gathered together, and the source row groups of their rows.
struct Round {
    pieces: Vec<Piece>,
    gathers: Vec<Gather>,
}

/// The rows of a row group of a source that a round needs.
struct Piece {
    source: u32,
    group: u32,
    /// Sorted and disjoint.
    needed: Vec<Range<u64>>,
}

/// A row group that is gathered.
struct Gather {
    target: usize,
    rows: u64,
    slices: Vec<Loadable>,
}

/// Consecutive rows of a piece, counted from the first loaded one.
struct Loadable {
    piece: usize,
    rows: Range<u64>,
}

impl Round {
    fn of(gathers: Vec<(usize, Vec<Slice>)>) -> Round {
        let mut needed: BTreeMap<(u32, u32), Vec<Range<u64>>> = BTreeMap::new();
        for slice in gathers.iter().flat_map(|(_, slices)| slices) {
            needed.entry((slice.source, slice.group)).or_default().push(slice.rows.clone());
        }
        let mut places = BTreeMap::new();
        let mut pieces = Vec::with_capacity(needed.len());
        for ((source, group), ranges) in needed {
            let needed = united(ranges);
            let sums = needed.iter().scan(0, |sum, it| Some(std::mem::replace(sum, *sum + length(it))));
            let before: Vec<u64> = sums.collect();
            places.insert((source, group), (pieces.len(), before));
            pieces.push(Piece { source, group, needed });
        }
        let loadable = |slice: &Slice| {
            let (piece, before) = &places[&(slice.source, slice.group)];
            let needed = &pieces[*piece].needed;
            let at = needed.partition_point(|it| it.end <= slice.rows.start);
            let start = before[at] + slice.rows.start - needed[at].start;
            Loadable { piece: *piece, rows: start..start + length(&slice.rows) }
        };
        let gathers = gathers.into_iter().map(|(target, slices)| Gather {
            target,
            rows: slices.iter().map(|it| length(&it.rows)).sum(),
            slices: slices.iter().map(loadable).collect(),
        });
        Round { gathers: gathers.collect(), pieces }
    }
}

/// The union of ranges, as sorted ranges that are not adjacent.
fn united(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|it| it.start);
    let mut united: Vec<Range<u64>> = vec![];
    for range in ranges {
        match united.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => united.push(range),
        }
    }
    united
}

/// Rows of a chunk, decoded.
struct Loaded<'a, T: DataType> {
    chunk: &'a ColumnChunkMetaData,
    form: Form,
    properties: WriterProperties,
    decoded: Decoded<T>,
    /// The first level of each row, and the end of the last. Empty if each row has one level.
    level_at: Vec<usize>,
    /// The first value of each row, and the end of the last.
    value_at: Vec<usize>,
}

impl<'a, T: DataType> Loaded<'a, T> {
    fn read(reading: &Rewriting<'a>, room: usize) -> Outcome<Loaded<'a, T>> {
        reading.pages().and_then(Pages::survey).map_err(Fault::Source)?;
        let mut form = Form::of(reading).map_err(Fault::Source)?;
        // A dictionary that was small enough for one chunk may be too large for many.
        form.is_dictionary_whole = false;
        let properties = form.properties(reading);
        let pages = reading.pages().map_err(Fault::Source)?;
        let descriptor = reading.column.column_descr_ptr();
        let mut reader = get_typed_column_reader::<T>(get_column_reader(descriptor, Box::new(pages)));
        let mut decoded = Decoded::new();
        let mut at = 0;
        for range in reading.kept {
            reading.skip(&mut reader, at..range.start)?;
            at = range.start;
            while at < range.end {
                let needed = (length(&(at..range.end)) as usize).min(reading.step_rows());
                at += reading.read(&mut reader, needed, &mut decoded)? as u64;
                if decoded.len() > room {
                    let name = reading.column.column_path();
                    let problem = format!("column {name}: more than {VALUES_MAX} values in rows of one row group");
                    return Err(Fault::Source(ParquetError::General(problem)));
                }
            }
        }
        let descriptor = reading.column.column_descr();
        let level_at = if descriptor.max_rep_level() > 0 { level_starts(&decoded.repetitions) } else { vec![] };
        let level_max = descriptor.max_def_level();
        let value_at = if level_max > 0 { value_starts(&decoded.definitions, &level_at, level_max) } else { vec![] };
        Ok(Loaded { chunk: reading.column, form, properties, decoded, level_at, value_at })
    }

    /// The properties of a chunk with this many rows that begins with these.
    fn properties(&self, rows: u64) -> WriterProperties {
        let properties = self.properties.clone();
        if self.chunk.bloom_filter_offset().is_none() {
            return properties;
        }
        let path = self.chunk.column_path().clone();
        let properties = properties.into_builder().set_column_bloom_filter_enabled(path.clone(), true);
        properties.set_column_bloom_filter_max_ndv(path, rows).build()
    }

    fn push(&self, rows: &Range<u64>, batch: &mut Batch<'_, T>) -> std::result::Result<(), ParquetError> {
        let (mut at, end) = (rows.start as usize, rows.end as usize);
        while at < end {
            let step = if self.level_at.is_empty() { (end - at).min(BATCH_ROWS - batch.rows) } else { 1 };
            let levels = place(&self.level_at, at)..place(&self.level_at, at + step);
            let values = place(&self.value_at, at)..place(&self.value_at, at + step);
            batch.decoded.values.extend_from_slice(&self.decoded.values[values]);
            if batch.has_definitions {
                batch.decoded.definitions.extend_from_slice(&self.decoded.definitions[levels.clone()]);
            }
            if batch.has_repetitions {
                batch.decoded.repetitions.extend_from_slice(&self.decoded.repetitions[levels]);
            }
            batch.rows += step;
            at += step;
            if batch.rows == BATCH_ROWS || batch.is_full() {
                batch.write()?;
            }
        }
        Ok(())
    }
}

fn write_chunk<T: DataType>(
    loaded: &[Loaded<'_, T>],
    gather: &Gather,
    out: &mut TrackedWrite<Output>,
) -> std::result::Result<ColumnCloseResult, ParquetError> {
    let first = &loaded[gather.slices[0].piece];
    let properties = Arc::new(first.properties(gather.rows));
    let pages = Box::new(SerializedPageWriter::new(out));
    let writer = get_column_writer(first.chunk.column_descr_ptr(), properties, pages);
    let mut batch = Batch::<T>::new(writer, first.chunk.column_descr());
    for slice in &gather.slices {
        loaded[slice.piece].push(&slice.rows, &mut batch)?;
    }
    batch.write()?;
    batch.writer.close()
}

fn place(starts: &[usize], row: usize) -> usize {
    if starts.is_empty() { row } else { starts[row] }
}

fn level_starts(repetitions: &[i16]) -> Vec<usize> {
    let begin = repetitions.iter().enumerate().filter(|&(_, &level)| level == 0).map(|(at, _)| at);
    begin.chain([repetitions.len()]).collect()
}

fn value_starts(definitions: &[i16], level_at: &[usize], level_max: i16) -> Vec<usize> {
    let rows = if level_at.is_empty() { definitions.len() } else { level_at.len() - 1 };
    let mut starts = Vec::with_capacity(rows + 1);
    let mut values = 0;
    starts.push(0);
    for row in 0..rows {
        let levels = &definitions[place(level_at, row)..place(level_at, row + 1)];
        values += levels.iter().filter(|&&it| it == level_max).count();
        starts.push(values);
    }
    starts
}

/// A target that is being written.
struct NewFile<'t> {
    target: &'t Target,
    out: TrackedWrite<Output>,
    failed: WriteError,
    groups: Groups,
    copied: u64,
    gathered: u64,
}

impl<'t> NewFile<'t> {
    fn create(target: &'t Target) -> Result<NewFile<'t>> {
        let (mut out, failed) = Output::create(&target.path)?;
        out.write_all(b"PAR1").map_err(|error| Error::Sink { path: target.path.clone(), error })?;
        Ok(NewFile { target, out, failed, groups: Groups::default(), copied: 0, gathered: 0 })
    }

    /// The error of a writer: the original error of the system, if writers replaced it.
    fn writing(&self, error: &ParquetError) -> Error {
        let error = writing(&self.target.path, error);
        self.sink_error(error)
    }

    fn sink_error(&self, error: Error) -> Error {
        match (self.failed.take(), error) {
            (Some(original), Error::Sink { path, .. }) => Error::Sink { path, error: original },
            (_, error) => error,
        }
    }
}
