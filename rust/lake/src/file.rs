use crate::error::{Error, Result, guard};
use crate::read_at::{ReadAt, Reopened, Source};
use crate::schema;
use crate::thrift::{self, Broken};
use arrow_schema::Schema;
use parquet::basic::Type;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
    ParquetStatisticsPolicy,
};
use parquet::file::reader::ChunkReader;
use parquet::schema::printer::print_schema;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Length and magic at the end of a file.
const TAIL_BYTES: u64 = 8;
/// Length of the magic at the beginning of a file.
const HEAD_BYTES: u64 = 4;
/// Fixed-length values may have this many bytes whatever the size of the file, because all of them can be null.
const FIXED_BYTES_MAX: u64 = 64 << 10;
/// Maximum size of a small file.
const SMALL_BYTES: u64 = 64 << 10;
const MAGIC: [u8; 4] = *b"PAR1";
const MAGIC_ENCRYPTED: [u8; 4] = *b"PARE";

/// A Parquet file whose footer was read.
pub struct ParquetFile {
    path: PathBuf,
    source: Source,
    footer_crc: u32,
    metadata: Arc<ParquetMetaData>,
}

impl ParquetFile {
    /// Opens a local file and reads its footer with statistics.
    pub fn open(path: &Path) -> Result<ParquetFile> {
        Self::open_with(path, ParquetStatisticsPolicy::KeepAll)
    }

    /// Like `open`, for an object that is not a local file. `path` is its name in errors.
    pub fn of_reader(path: &Path, reader: Arc<dyn ReadAt>) -> Result<ParquetFile> {
        Self::read(path, reader, ParquetStatisticsPolicy::KeepAll)
    }

    /// Like `open`, for one of many files, without keeping a file descriptor. A small file is read at once; others are
    /// opened again for each read.
    pub fn open_among_many(path: &Path) -> Result<ParquetFile> {
        let fail = |error| Error::Read { path: path.into(), error };
        let found = fs::metadata(path).map_err(fail)?;
        if !found.is_file() {
            return Self::open(path); // which refuses it
        }
        if found.len() <= SMALL_BYTES {
            return Self::of_reader(path, Arc::new(fs::read(path).map_err(fail)?));
        }
        Self::of_reader(path, Arc::new(Reopened { path: path.into(), bytes: found.len() }))
    }

    pub(crate) fn open_with(path: &Path, statistics: ParquetStatisticsPolicy) -> Result<ParquetFile> {
        let fail = |error| Error::Read { path: path.into(), error };
        // Something else, such as a pipe, might block.
        if !fs::metadata(path).map_err(fail)?.is_file() {
            return Err(Error::source(path, None, "cannot be read: it is not a regular file"));
        }
        Self::read(path, Arc::new(File::open(path).map_err(fail)?), statistics)
    }

    pub(crate) fn read(
        path: &Path,
        reader: Arc<dyn ReadAt>,
        statistics: ParquetStatisticsPolicy,
    ) -> Result<ParquetFile> {
        let source = Source::new(reader).map_err(|error| Error::read(path, None, error))?;
        let (start, footer) = guard(path, &source, || read_footer(path, &source))?;
        thrift::check_footer(&footer).map_err(|broken| Error::decoding(path, Some(start), &describe(broken)))?;
        let options = ParquetMetaDataOptions::new()
            // A written file needs the exact statistics of its pages.
            .with_encoding_stats_as_mask(false)
            .with_column_stats_policy(statistics);
        let metadata = guard(path, &source, || {
            ParquetMetaDataReader::decode_metadata_with_options(&footer, Some(&options))
                .map_err(|error| Error::decoding(path, Some(start), &error))
        })?;
        let file = ParquetFile {
            path: path.into(),
            source,
            footer_crc: crc32fast::hash(&footer),
            metadata: Arc::new(metadata),
        };
        file.check(start)?;
        Ok(file)
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.source.bytes()
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.metadata.row_groups().iter().map(|group| group.num_rows() as u64).sum()
    }

    /// Number of row groups.
    pub fn row_groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    /// The row groups of part `number` of `parts`: those whose middle is in that share of the bytes of all columns.
    ///
    /// Every row group is in one part, and those of a part are adjacent, wherever their columns are in the file. A part
    /// can be empty.
    pub fn groups_of_part(&self, number: u32, parts: u32) -> Range<usize> {
        let mut all = 0u128;
        let middles: Vec<u128> = self
            .metadata
            .row_groups()
            .iter()
            .map(|group| {
                let bytes: u128 = group.columns().iter().map(|it| it.compressed_size().max(0) as u128).sum();
                all += 2 * bytes;
                all - bytes // twice the middle, as `all` is twice the bytes
            })
            .collect();
        let border = |number: u32| match number {
            0 => 0,
            _ if number >= parts => middles.len(),
            _ => middles.partition_point(|&middle| middle * u128::from(parts) < all * u128::from(number)),
        };
        border(number)..border(number.saturating_add(1))
    }

    /// The first row of a row group. After the last row group, the number of rows.
    pub fn first_row(&self, group: usize) -> u64 {
        self.metadata.row_groups().iter().take(group).map(|group| group.num_rows() as u64).sum()
    }

    /// The CRC-32 of the footer, which has the position and length of all other parts of the file.
    pub fn footer_crc(&self) -> u32 {
        self.footer_crc
    }

    /// The columns as Arrow types, derived from the Parquet types and not from the metadata of a writer.
    ///
    /// Every field is nullable and has no metadata, so two files with the same columns have equal schemas.
    pub fn schema(&self) -> Result<Schema> {
        let descriptor = self.metadata.file_metadata().schema_descr();
        guard(&self.path, &self.source, || {
            schema::of(descriptor).map_err(|error| Error::decoding(&self.path, None, &error))
        })
    }

    /// The CRC-32 of the columns as the footer declares them: names, types, nesting, annotations, numbers of fields,
    /// units of times and durations, and the calendar in which Spark reads the dates of the file.
    pub fn schema_crc(&self) -> u32 {
        let metadata = self.metadata.file_metadata();
        let mut text = vec![];
        print_schema(&mut text, metadata.schema());
        let units = guard(&self.path, &self.source, || {
            schema::units(metadata.schema_descr(), metadata.key_value_metadata())
                .map_err(|error| Error::decoding(&self.path, None, &error))
        });
        text.extend_from_slice(units.unwrap_or_default().as_bytes());
        metadata.key_value_metadata().into_iter().flatten().for_each(|pair| schema::put_calendar(pair, &mut text));
        crc32fast::hash(&text)
    }

    /// The metadata in the footer.
    pub fn metadata(&self) -> &Arc<ParquetMetaData> {
        &self.metadata
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Reads the page indexes, if the file has them.
    pub(crate) fn with_page_indexes(mut self) -> Result<ParquetFile> {
        let metadata = guard(&self.path, &self.source, || {
            self.check_page_indexes()?;
            let metadata = ParquetMetaData::clone(&self.metadata);
            let mut reader =
                ParquetMetaDataReader::new_with_metadata(metadata).with_page_index_policy(PageIndexPolicy::Optional);
            reader
                .read_page_indexes(&self.source)
                .and_then(|()| reader.finish())
                .map_err(|error| self.decoding(None, &error))
        })?;
        self.metadata = Arc::new(metadata);
        Ok(self)
    }

    /// Checks the counts in page indexes, and that no two of them share bytes.
    fn check_page_indexes(&self) -> Result<()> {
        let mut bytes_left = self.bytes();
        for column in self.metadata.row_groups().iter().flat_map(|group| group.columns()) {
            for (start, length) in page_indexes(column) {
                let fail = |problem: &str| Err(Error::decoding(&self.path, u64::try_from(start).ok(), &problem));
                let (Ok(at), Ok(length)) = (u64::try_from(start), usize::try_from(length)) else {
                    return fail("a page index is outside the file");
                };
                let Some(left) = bytes_left.checked_sub(length as u64) else {
                    return fail("page indexes have more bytes than the file");
                };
                bytes_left = left;
                let index = self.source.get_bytes(at, length).map_err(|error| self.decoding(Some(at), &error))?;
                thrift::check(&index).or_else(|broken| fail(&describe(broken)))?;
            }
        }
        Ok(())
    }

    pub(crate) fn decoding(&self, position: Option<u64>, error: &ParquetError) -> Error {
        Error::decoding(&self.path, position, error)
    }

    /// Checks the data on which everything else relies: numbers of rows, and positions of columns.
    fn check(&self, footer_start: u64) -> Result<()> {
        let fail = |problem: String| Err(Error::source(&self.path, Some(footer_start), problem));
        let groups = self.metadata.row_groups();
        let rows: Option<i64> = groups
            .iter()
            .try_fold(0i64, |sum, group| if group.num_rows() < 0 { None } else { sum.checked_add(group.num_rows()) });
        let Some(rows) = rows else { return fail("a row group has an invalid number of rows".into()) };
        let declared = self.metadata.file_metadata().num_rows();
        if declared != rows {
            return fail(format!("the footer declares {declared} rows, but its row groups have {rows}"));
        }
        let schema = self.metadata.file_metadata().schema_descr();
        for column in schema.columns().iter().filter(|it| it.physical_type() == Type::FIXED_LEN_BYTE_ARRAY) {
            let length = u64::try_from(column.type_length()).unwrap_or(u64::MAX);
            if length > FIXED_BYTES_MAX.max(self.bytes()) {
                let (path, length) = (column.path(), column.type_length());
                return fail(format!("column {path} has values of {length} bytes, but the file has {}", self.bytes()));
            }
        }
        let columns = schema.num_columns();
        for (number, group) in groups.iter().enumerate() {
            if group.columns().len() != columns {
                let found = group.columns().len();
                return fail(format!("row group {number} has {found} columns, but the schema has {columns}"));
            }
            for column in group.columns() {
                let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
                let end = start.checked_add(column.compressed_size());
                let is_within = start >= 0
                    && column.compressed_size() >= 0
                    && column.num_values() >= 0
                    && end.is_some_and(|end| end as u64 <= footer_start);
                if !is_within {
                    let path = column.column_path();
                    return fail(format!("column {path} of row group {number} is outside the file"));
                }
            }
        }
        Ok(())
    }
}

/// The positions and lengths of a chunk's page indexes.
fn page_indexes(column: &ColumnChunkMetaData) -> impl Iterator<Item = (i64, i32)> {
    let of_columns = column.column_index_offset().zip(column.column_index_length());
    let of_offsets = column.offset_index_offset().zip(column.offset_index_length());
    of_columns.into_iter().chain(of_offsets)
}

fn describe(broken: Broken) -> String {
    match broken {
        Broken::Short => String::from("it ends too early, or a count in it is too high"),
        Broken::Wrong(problem) => problem,
    }
}

/// Reads the footer. Returns its position and its bytes.
fn read_footer(path: &Path, source: &Source) -> Result<(u64, Vec<u8>)> {
    let end = source.bytes();
    let at = end.saturating_sub(TAIL_BYTES);
    let fail = |reason: &str| Err(Error::source(path, Some(at), reason));
    const NO_FOOTER: &str = "no Parquet footer at its end: cut short, still being written, or not a Parquet file";
    if end < HEAD_BYTES + TAIL_BYTES {
        return fail(NO_FOOTER);
    }
    let mut tail = [0; TAIL_BYTES as usize];
    source.read(at, &mut tail).map_err(|error| Error::read(path, Some(at), error))?;
    let (length, magic) = tail.split_at(4);
    if magic == MAGIC_ENCRYPTED {
        return fail("its footer is encrypted, which is not supported");
    }
    if magic != MAGIC {
        return fail(NO_FOOTER);
    }
    let length = u64::from(u32::from_le_bytes([length[0], length[1], length[2], length[3]]));
    let Some(start) = at.checked_sub(length).filter(|&start| start >= HEAD_BYTES) else {
        return fail(&format!("the footer declares {length} bytes, but the file has {end}: cut short or damaged"));
    };
    let mut footer = vec![0; length as usize];
    source.read(start, &mut footer).map_err(|error| Error::read(path, Some(start), error))?;
    Ok((start, footer))
}
