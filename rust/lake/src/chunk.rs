//! Writes a chunk of a column: copied as bytes, or rewritten without some of its rows.
//!
//! Values do not pass through Arrow: the typed reader of the physical type passes them with their levels to the typed
//! writer of the same type. Logical types and nesting therefore cannot change.

use crate::cut;
use crate::error::{Error, Fault};
use crate::facts::is_dictionary;
use crate::file::ParquetFile;
use crate::pages::{Pages, is_dense};
use crate::read_at::Source;
use parquet::basic::{Compression, Encoding, PageType, Type};
use parquet::column::page::{PageReader, PageWriter};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::column::writer::{
    ColumnCloseResult, ColumnWriter, ColumnWriterImpl, get_column_writer, get_typed_column_writer,
};
use parquet::data_type::{
    BoolType, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type, Int64Type, Int96Type,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::OffsetIndexMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescriptor;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of rows in memory.
pub(crate) const BATCH_ROWS: usize = 8192;
/// Approximate maximum number of their bytes.
const BATCH_BYTES: u64 = 8 << 20;
/// Number of values of lists after which a batch is written, however few rows they are.
const BATCH_VALUES: usize = 1 << 20;

pub(crate) type Outcome<T> = std::result::Result<T, Fault>;

/// A chunk of a column, the rows that stay, and its additional data.
pub(crate) struct Rewriting<'a> {
    pub(crate) source: &'a Source,
    pub(crate) column: &'a ColumnChunkMetaData,
    pub(crate) rows: u64,
    /// Counted from the first row of the chunk.
    pub(crate) kept: &'a [Range<u64>],
    /// The index of the source, if one is written.
    pub(crate) column_index: Option<&'a ColumnIndexMetaData>,
    pub(crate) offset_index: Option<&'a OffsetIndexMetaData>,
}

impl<'a> Rewriting<'a> {
    /// A chunk of a file. `has_indexes`: whether column indexes and offset indexes are written.
    pub(crate) fn of(
        file: &'a ParquetFile,
        (group, column): (usize, usize),
        kept: &'a [Range<u64>],
        has_indexes: (bool, bool),
    ) -> crate::error::Result<Rewriting<'a>> {
        let metadata = file.metadata();
        let rows = metadata.row_group(group).num_rows() as u64;
        let chunk = metadata.row_group(group).column(column);
        if chunk.compression() == Compression::LZO {
            let problem =
                format!("column {} has the codec {}, which is not supported", chunk.column_path(), chunk.compression());
            return Err(Error::source(file.path(), Some(chunk.byte_range().0), problem));
        }
        let column_index = metadata.column_index().filter(|_| has_indexes.0).map(|it| &it[group][column]);
        let column_index = column_index.filter(|it| !matches!(it, ColumnIndexMetaData::NONE));
        let offset_index = metadata.offset_index().filter(|_| has_indexes.1).map(|it| &it[group][column]);
        Ok(Rewriting { source: file.source(), column: chunk, rows, kept, column_index, offset_index })
    }

    /// Writes the rows that stay, as similar to the source as possible.
    pub(crate) fn write<W: Write + Send>(&self, out: &mut TrackedWrite<W>) -> Outcome<ColumnCloseResult> {
        let survey = self.pages().and_then(Pages::survey).map_err(Fault::Source)?;
        let form = Form::of(self).map_err(Fault::Source)?;
        match cut::open(self, &form, &survey) {
            Some(cut) => cut.write(self, &form, out),
            None => self.encode(&form, Box::new(SerializedPageWriter::new(out))),
        }
    }

    /// Decodes all values and encodes those that stay.
    fn encode(&self, form: &Form, pages: Box<dyn PageWriter + '_>) -> Outcome<ColumnCloseResult> {
        let properties = Arc::new(form.properties(self));
        let descriptor = self.column.column_descr_ptr();
        let pages_in = self.pages().map_err(Fault::Source)?;
        let reader = get_column_reader(descriptor.clone(), Box::new(pages_in));
        let writer = get_column_writer(descriptor, properties, pages);
        let mut closed = match reader {
            ColumnReader::BoolColumnReader(reader) => self.copy_rows::<BoolType>(reader, writer),
            ColumnReader::Int32ColumnReader(reader) => self.copy_rows::<Int32Type>(reader, writer),
            ColumnReader::Int64ColumnReader(reader) => self.copy_rows::<Int64Type>(reader, writer),
            ColumnReader::Int96ColumnReader(reader) => self.copy_rows::<Int96Type>(reader, writer),
            ColumnReader::FloatColumnReader(reader) => self.copy_rows::<FloatType>(reader, writer),
            ColumnReader::DoubleColumnReader(reader) => self.copy_rows::<DoubleType>(reader, writer),
            ColumnReader::ByteArrayColumnReader(reader) => self.copy_rows::<ByteArrayType>(reader, writer),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                self.copy_rows::<FixedLenByteArrayType>(reader, writer)
            }
        }?;
        if form.has_no_bounds && closed.metadata.statistics().is_some() {
            closed.metadata = without_bounds(closed.metadata).map_err(Fault::Sink)?;
        }
        Ok(closed)
    }

    pub(crate) fn pages(&self) -> Result<Pages, ParquetError> {
        Pages::open(self.source, self.column, self.rows)
    }

    fn copy_rows<T: DataType>(
        &self,
        mut reader: ColumnReaderImpl<T>,
        writer: ColumnWriter<'_>,
    ) -> Outcome<ColumnCloseResult> {
        let mut batch = Batch::<T>::new(writer, self.column.column_descr());
        let (rows_max, step_max) = (self.batch_rows(), self.step_rows());
        let mut at = 0;
        for range in self.kept {
            self.skip(&mut reader, at..range.start)?;
            at = at.max(range.start);
            while at < range.end {
                let count = ((range.end - at) as usize).min(rows_max - batch.rows).min(step_max);
                let rows = self.read(&mut reader, count, &mut batch.decoded)?;
                at += rows as u64;
                batch.rows += rows;
                if batch.rows == rows_max || batch.is_full() {
                    batch.write().map_err(Fault::Sink)?;
                }
            }
        }
        batch.write().map_err(Fault::Sink)?;
        batch.writer.close().map_err(Fault::Sink)
    }

    /// Skips the next rows.
    pub(crate) fn skip<T: DataType>(&self, reader: &mut ColumnReaderImpl<T>, rows: Range<u64>) -> Outcome<()> {
        let is_list = self.column.column_descr().max_rep_level() > 0;
        let mut skipped = Decoded::new();
        let mut at = rows.start;
        while at < rows.end {
            // Decoders of some encodings keep skipped values in memory.
            let gap = (rows.end - at).min(self.step_rows() as u64) as usize;
            let gone = if is_list {
                // If a page has fewer repetition levels than it declares, this is an error; `skip_records` would never
                // end.
                skipped.clear();
                self.read(reader, gap, &mut skipped)?
            } else {
                reader.skip_records(gap).map_err(Fault::Source)?
            };
            if gone == 0 {
                return Err(self.too_few());
            }
            at += gone as u64;
        }
        Ok(())
    }

    /// Decodes at least one row and at most this many, and appends them. Returns their number.
    pub(crate) fn read<T: DataType>(
        &self,
        reader: &mut ColumnReaderImpl<T>,
        rows_max: usize,
        into: &mut Decoded<T>,
    ) -> Outcome<usize> {
        let before = (into.definitions.len(), into.repetitions.len());
        let Decoded { values, definitions, repetitions } = into;
        let read = reader.read_records(rows_max, Some(definitions), Some(repetitions), values);
        let (rows, ..) = read.map_err(Fault::Source)?;
        if rows == 0 {
            return Err(self.too_few());
        }
        // Decoders accept any level of a run; writers panic.
        let descriptor = self.column.column_descr();
        self.check_levels(&definitions[before.0..], descriptor.max_def_level())?;
        self.check_levels(&repetitions[before.1..], descriptor.max_rep_level())?;
        Ok(rows)
    }

    fn check_levels(&self, levels: &[i16], level_max: i16) -> Outcome<()> {
        match levels.iter().find(|level| !(0..=level_max).contains(*level)) {
            None => Ok(()),
            Some(level) => {
                let problem = format!("column {} has a level {level} above {level_max}", self.column.column_path());
                Err(Fault::Source(ParquetError::General(problem)))
            }
        }
    }

    /// Number of rows with about the desired number of bytes.
    fn batch_rows(&self) -> usize {
        let row_bytes = self.column.uncompressed_size().max(0) as u64 / self.rows.max(1);
        let row_bytes = row_bytes.max(self.column.column_descr().type_length().max(1) as u64);
        ((BATCH_BYTES / row_bytes) as usize).clamp(1, BATCH_ROWS)
    }

    /// Number of rows that are read or skipped at a time.
    pub(crate) fn step_rows(&self) -> usize {
        if self.column.column_descr().max_rep_level() > 0 && is_dense(self.column) { 1 } else { BATCH_ROWS }
    }

    pub(crate) fn too_few(&self) -> Fault {
        let name = self.column.column_path();
        Fault::Source(ParquetError::EOF(format!("column {name} has fewer rows than the {} of its group", self.rows)))
    }
}

/// Rows of a column: values and levels.
pub(crate) struct Decoded<T: DataType> {
    pub(crate) values: Vec<T::T>,
    pub(crate) definitions: Vec<i16>,
    pub(crate) repetitions: Vec<i16>,
}

impl<T: DataType> Decoded<T> {
    pub(crate) fn new() -> Decoded<T> {
        Decoded { values: vec![], definitions: vec![], repetitions: vec![] }
    }

    /// The number of values, or of levels if there are more.
    pub(crate) fn len(&self) -> usize {
        self.values.len().max(self.definitions.len())
    }

    fn clear(&mut self) {
        self.values.clear();
        self.definitions.clear();
        self.repetitions.clear();
    }
}

/// Rows between reader and writer.
pub(crate) struct Batch<'a, T: DataType> {
    pub(crate) writer: ColumnWriterImpl<'a, T>,
    pub(crate) has_definitions: bool,
    pub(crate) has_repetitions: bool,
    pub(crate) rows: usize,
    pub(crate) decoded: Decoded<T>,
}

impl<'a, T: DataType> Batch<'a, T> {
    pub(crate) fn new(writer: ColumnWriter<'a>, descriptor: &ColumnDescriptor) -> Batch<'a, T> {
        Batch {
            writer: get_typed_column_writer::<T>(writer),
            has_definitions: descriptor.max_def_level() > 0,
            has_repetitions: descriptor.max_rep_level() > 0,
            rows: 0,
            decoded: Decoded::new(),
        }
    }

    /// Whether the batch must be written, however few rows it has.
    pub(crate) fn is_full(&self) -> bool {
        self.decoded.len() > BATCH_VALUES
    }

    pub(crate) fn write(&mut self) -> Result<(), ParquetError> {
        if self.rows > 0 {
            let definitions = self.has_definitions.then_some(&self.decoded.definitions[..]);
            let repetitions = self.has_repetitions.then_some(&self.decoded.repetitions[..]);
            self.writer.write_batch(&self.decoded.values, definitions, repetitions)?;
        }
        self.rows = 0;
        self.decoded.clear();
        Ok(())
    }
}

/// The encoding of a chunk.
pub(crate) struct Form {
    version: WriterVersion,
    has_dictionary: bool,
    /// The encoding of data pages without a dictionary.
    encoding: Option<Encoding>,
    /// Whether every data page is known to use the dictionary, which therefore did not grow too large.
    pub(crate) is_dictionary_whole: bool,
    pub(crate) statistics: EnabledStatistics,
    pub(crate) has_no_bounds: bool,
    /// Whether bounds are declared in full although they are longer than the limit of writers.
    pub(crate) has_long_bounds: bool,
}

impl Form {
    pub(crate) fn of(chunk: &Rewriting<'_>) -> Result<Form, ParquetError> {
        let column = chunk.column;
        let data_pages: Vec<_> = column
            .page_encoding_stats()
            .into_iter()
            .flatten()
            .filter(|it| matches!(it.page_type, PageType::DATA_PAGE | PageType::DATA_PAGE_V2) && it.count > 0)
            .collect();
        let (version, encodings) = if data_pages.is_empty() {
            let is_second = has_second_version(chunk)?;
            // All encodings are listed together: those of levels and those of values.
            let of_levels = |it: &Encoding| {
                let is_boolean = column.column_type() == Type::BOOLEAN && is_second;
                matches!(it, Encoding::RLE if !is_boolean) || is_levels_only(*it)
            };
            (is_second, column.encodings().filter(|it| !of_levels(it)).collect::<Vec<_>>())
        } else {
            let is_second = data_pages.iter().any(|it| it.page_type == PageType::DATA_PAGE_V2);
            (is_second, data_pages.iter().map(|it| it.encoding).collect())
        };
        let is_fixed = column.column_type() == Type::FIXED_LEN_BYTE_ARRAY;
        let has_dictionary = column.dictionary_page_offset().is_some() || encodings.iter().any(|&it| is_dictionary(it));
        let others: Vec<_> = encodings.into_iter().filter(|&it| !is_dictionary(it)).collect();
        let declared = column.statistics();
        let has_no_bounds = declared.is_none_or(|it| it.min_bytes_opt().is_none() && it.max_bytes_opt().is_none());
        let statistics = match declared {
            None => EnabledStatistics::None,
            Some(_) if chunk.column_index.is_some() => EnabledStatistics::Page,
            Some(_) => EnabledStatistics::Chunk,
        };
        let is_plain = others.iter().all(|&it| it == Encoding::PLAIN);
        Ok(Form {
            // The crate does not write dictionaries for these in pages of the first version, and they can be UUIDs or
            // decimals.
            version: if version || is_fixed && has_dictionary {
                WriterVersion::PARQUET_2_0
            } else {
                WriterVersion::PARQUET_1_0
            },
            has_dictionary,
            is_dictionary_whole: has_dictionary && !data_pages.is_empty() && others.is_empty(),
            encoding: others.iter().copied().find(|&it| it != Encoding::PLAIN || is_plain),
            statistics,
            has_no_bounds,
            has_long_bounds: is_long_and_exact(declared),
        })
    }

    pub(crate) fn has_statistics(&self) -> bool {
        self.statistics != EnabledStatistics::None
    }

    pub(crate) fn properties(&self, chunk: &Rewriting<'_>) -> WriterProperties {
        let column = chunk.column;
        let mut properties = WriterProperties::builder()
            .set_writer_version(self.version)
            .set_compression(column.compression())
            .set_dictionary_enabled(self.has_dictionary && column.column_type() != Type::BOOLEAN)
            .set_encoding(self.encoding.unwrap_or(Encoding::PLAIN))
            .set_statistics_enabled(self.statistics)
            .set_offset_index_disabled(chunk.offset_index.is_none())
            .set_write_batch_size(BATCH_ROWS / 2);
        if self.is_dictionary_whole {
            // A part of a dictionary that was not too large for the source is not too large here.
            properties = properties.set_dictionary_page_size_limit(usize::MAX);
        }
        if self.has_long_bounds {
            properties = properties.set_statistics_truncate_length(None);
        }
        properties.build()
    }
}

#[expect(deprecated, reason = "old files have it")]
fn is_levels_only(encoding: Encoding) -> bool {
    encoding == Encoding::BIT_PACKED
}

/// Whether the chunk's data pages are of the second version. If the footer does not tell, the first page does.
fn has_second_version(chunk: &Rewriting<'_>) -> Result<bool, ParquetError> {
    let mut pages = chunk.pages()?;
    while let Some(page) = pages.peek_next_page()? {
        if !page.is_dict {
            // Only the second version has the number of rows.
            return Ok(page.num_rows.is_some());
        }
        pages.skip_next_page()?;
    }
    Ok(false)
}

fn is_long_and_exact(statistics: Option<&Statistics>) -> bool {
    let is_long = |bytes: Option<&[u8]>| bytes.is_some_and(|it| it.len() > 64);
    statistics.is_some_and(|it| {
        (is_long(it.min_bytes_opt()) || is_long(it.max_bytes_opt())) && it.min_is_exact() && it.max_is_exact()
    })
}

/// If the source has no bounds there is a reason: no order, or values that are too long.
pub(crate) fn without_bounds(metadata: ColumnChunkMetaData) -> Result<ColumnChunkMetaData, ParquetError> {
    let count = metadata.statistics().and_then(Statistics::null_count_opt);
    let statistics = match metadata.column_type() {
        Type::BOOLEAN => Statistics::boolean(None, None, None, count, false),
        Type::INT32 => Statistics::int32(None, None, None, count, false),
        Type::INT64 => Statistics::int64(None, None, None, count, false),
        Type::INT96 => Statistics::int96(None, None, None, count, false),
        Type::FLOAT => Statistics::float(None, None, None, count, false),
        Type::DOUBLE => Statistics::double(None, None, None, count, false),
        Type::BYTE_ARRAY => Statistics::byte_array(None, None, None, count, false),
        Type::FIXED_LEN_BYTE_ARRAY => Statistics::fixed_len_byte_array(None, None, None, count, false),
    };
    metadata.into_builder().set_statistics(statistics).build()
}

/// The footer entry of a chunk whose bytes were moved.
pub(crate) fn moved(column: &ColumnChunkMetaData, by: i64) -> Result<ColumnChunkMetaData, ParquetError> {
    let mut moved = ColumnChunkMetaData::builder(column.column_descr_ptr())
        .set_compression_codec(column.compression_codec())
        .set_encodings_mask(*column.encodings_mask())
        .set_total_compressed_size(column.compressed_size())
        .set_total_uncompressed_size(column.uncompressed_size())
        .set_num_values(column.num_values())
        .set_data_page_offset(column.data_page_offset() + by)
        .set_dictionary_page_offset(column.dictionary_page_offset().map(|offset| offset + by))
        .set_unencoded_byte_array_data_bytes(column.unencoded_byte_array_data_bytes())
        .set_repetition_level_histogram(column.repetition_level_histogram().cloned())
        .set_definition_level_histogram(column.definition_level_histogram().cloned());
    if let Some(statistics) = column.statistics() {
        moved = moved.set_statistics(statistics.clone());
    }
    if let Some(statistics) = column.geo_statistics() {
        moved = moved.set_geo_statistics(Box::new(statistics.clone()));
    }
    if let Some(pages) = column.page_encoding_stats() {
        moved = moved.set_page_encoding_stats(pages.clone());
    }
    moved.build()
}
