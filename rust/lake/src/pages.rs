//! Reads the pages of a chunk of a column. Every number of a page header that a decoder would use as a size is first
//! checked against the chunk, or against the bytes of the page.
//!
//! The reader of the crate `parquet` allocates what headers declare.

use crate::decompress::Decompressor;
use crate::delta;
use crate::levels::{self, Levels};
use crate::read_at::Source;
use crate::thrift::{self, Broken, Header, Kind};
use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;
use std::ops::RangeInclusive;

/// Number of bytes to read first of a page header. Most have some dozen bytes, those with long statistics more.
const HEADER_BYTES: u64 = 512;
/// A chunk is dense if its values would take more than this after decoding, and its bytes do not account for it: a run
/// of a billion values takes six bytes.
const DENSE_BYTES: u64 = 128 << 20;
const DENSE_RATIO: u64 = 64;
/// Bytes that a decoder needs for a value and its levels.
const VALUE_BYTES: u64 = 40;
/// Maximum decoded size of a page whose values repeat the beginnings of previous values.
const PREFIXED_BYTES: u64 = 256 << 20;
/// Maximum number of values of a delta-encoded page, because decoders hold all their lengths at once.
const DELTAS_MAX: u64 = 16 << 20;

/// Reads the pages of a chunk, except those without values. Writers leave such pages if a record exactly fills one, and
/// the readers of the crate treat them as the end of the chunk.
pub(crate) struct Pages {
    source: Source,
    decompressor: Decompressor,
    column: ColumnChunkMetaData,
    at: u64,
    end: u64,
    /// The header of the next page, which begins at `at`.
    header: Option<Header>,
    values_left: u64,
    /// Number of values of the row in which the last page ended.
    row_values: u64,
    /// Number of data pages so far, including those without values.
    number: usize,
}

/// A page as it is in the file.
pub(crate) struct Packed {
    /// The position of its header.
    pub(crate) start: u64,
    /// Its index among the chunk's data pages.
    pub(crate) number: usize,
    pub(crate) header: Header,
    /// The page with its header.
    pub(crate) whole: Bytes,
}

/// A summary of the headers of a chunk's data pages.
#[derive(Default)]
pub(crate) struct Survey {
    pub(crate) encodings: Vec<Encoding>,
    /// Whether there are pages of the first version, and of the second.
    pub(crate) versions: (bool, bool),
    /// Whether all levels are runs.
    pub(crate) has_runs_only: bool,
    pub(crate) pages: usize,
    /// Whether some page has a checksum.
    pub(crate) has_crc: bool,
}

impl Pages {
    /// `rows`: the rows of the row group.
    pub(crate) fn open(source: &Source, column: &ColumnChunkMetaData, rows: u64) -> Result<Pages> {
        let (start, bytes) = column.byte_range();
        let is_flat = column.column_descr().max_rep_level() == 0;
        Ok(Pages {
            source: source.clone(),
            decompressor: Decompressor::of(column.compression())?,
            column: column.clone(),
            at: start,
            end: start + bytes,
            header: None,
            values_left: if is_flat { rows } else { column.num_values().max(0) as u64 },
            row_values: 0,
            number: 0,
        })
    }

    /// Reads the header of the next page, and moves `at` after it.
    fn next_header(&mut self) -> Result<Option<Header>> {
        while self.header.is_none() && self.at < self.end {
            let header = self.read_header()?;
            self.at += header.bytes as u64;
            if header.compressed as u64 > self.end - self.at {
                let problem = format!("a page of {} bytes is longer than its chunk", header.compressed);
                return Err(ParquetError::EOF(problem));
            }
            if let Kind::Second { values, rows, .. } = header.kind
                && values != rows
                && self.column.column_descr().max_rep_level() == 0
            {
                // Readers skip rows by this number, so columns would no longer match.
                let problem = format!("a page has {values} values in {rows} rows, but its column has no lists");
                return Err(ParquetError::General(problem));
            }
            match header.kind {
                Kind::First { values: 0, .. } | Kind::Second { values: 0, .. } => {
                    self.at += header.compressed as u64;
                    self.number += 1;
                }
                Kind::Index => self.at += header.compressed as u64,
                _ => self.header = Some(header),
            }
        }
        if self.header.is_none() && self.values_left > 0 {
            let problem =
                format!("the pages of a chunk have {} values fewer than its footer declares", self.values_left);
            return Err(ParquetError::EOF(problem));
        }
        Ok(self.header)
    }

    /// Checks by headers alone that the chunk's pages have as many values as its footer declares. Readers do not decode
    /// pages whose rows are all skipped, and locate later rows by the counts in their headers.
    pub(crate) fn survey(mut self) -> Result<Survey> {
        let mut found = Survey { has_runs_only: true, ..Survey::default() };
        let levels = self.column.column_descr();
        let (has_repetitions, has_definitions) = (levels.max_rep_level() > 0, levels.max_def_level() > 0);
        while let Some(header) = self.next_header()? {
            match header.kind {
                Kind::First { encoding, definitions, repetitions, .. } => {
                    found.versions.0 = true;
                    found.has_runs_only &= (!has_definitions || definitions == Encoding::RLE)
                        && (!has_repetitions || repetitions == Encoding::RLE);
                    found.encodings.push(encoding);
                }
                Kind::Second { encoding, .. } => {
                    found.versions.1 = true;
                    found.encodings.push(encoding);
                }
                Kind::Dictionary { .. } | Kind::Index => {}
            }
            found.encodings.sort_unstable_by_key(|&it| it as i32);
            found.encodings.dedup();
            found.has_crc |= header.crc.is_some();
            self.skip_next_page()?;
        }
        found.pages = self.number;
        Ok(found)
    }

    /// Reads the next page as it is in the file.
    pub(crate) fn next_packed(&mut self) -> Result<Option<Packed>> {
        let Some(header) = self.next_header()? else { return Ok(None) };
        self.header = None;
        self.read_packed(header).map(Some)
    }

    fn read_packed(&mut self, header: Header) -> Result<Packed> {
        let (start, number) = (self.at - header.bytes as u64, self.number);
        let whole = self.source.get_bytes(start, header.bytes + header.compressed)?;
        self.at += header.compressed as u64;
        if header.crc.is_some_and(|crc| crc != crc32fast::hash(&whole[header.bytes..])) {
            return Err(ParquetError::General("the CRC checksum of a page is wrong".into()));
        }
        if let Kind::First { values, .. } | Kind::Second { values, .. } = header.kind {
            self.count(values)?;
            self.number += 1;
        }
        Ok(Packed { start, number, header, whole })
    }

    /// Decompresses a page.
    pub(crate) fn unpack(&mut self, packed: &Packed) -> Result<Bytes> {
        let header = &packed.header;
        let bytes = packed.whole.slice(header.bytes..);
        let (levels_bytes, is_compressed) = match header.kind {
            Kind::Second { definitions, repetitions, is_compressed, .. } => {
                (definitions as usize + repetitions as usize, is_compressed)
            }
            _ => (0, true),
        };
        let buf = match is_compressed && !self.decompressor.is_none() {
            true => self.decompress(&bytes, levels_bytes, header.uncompressed)?,
            false => bytes,
        };
        if levels_bytes > buf.len() {
            return Err(ParquetError::EOF("a page ends before its levels do".into()));
        }
        self.check_claims(header, &buf)?;
        Ok(buf)
    }

    fn count(&mut self, values: u32) -> Result<()> {
        self.values_left = self.values_left.checked_sub(values.into()).ok_or_else(|| {
            ParquetError::General(format!("a page has {values} values, but its chunk only {} more", self.values_left))
        })?;
        Ok(())
    }

    fn read_header(&self) -> Result<Header> {
        let bytes_max = self.end - self.at;
        let mut length = HEADER_BYTES.min(bytes_max);
        loop {
            let bytes = self.source.get_bytes(self.at, length as usize)?;
            match thrift::header(&bytes) {
                Ok(header) => return Ok(header),
                Err(Broken::Short) if length < bytes_max => length = (2 * length).min(bytes_max),
                Err(Broken::Short) => {
                    return Err(ParquetError::EOF("the header of a page is longer than its chunk".into()));
                }
                Err(Broken::Wrong(problem)) => return Err(ParquetError::General(problem)),
            }
        }
    }

    /// Levels of pages of the second version are not compressed.
    fn decompress(&mut self, packed: &Bytes, levels_bytes: usize, uncompressed: usize) -> Result<Bytes> {
        let (Some((levels, packed)), Some(count)) =
            (packed.split_at_checked(levels_bytes), uncompressed.checked_sub(levels_bytes))
        else {
            return Err(ParquetError::EOF("a page ends before its levels do".into()));
        };
        let mut out = levels.to_vec();
        // A page of nulls can have no values to decompress.
        if count > 0 {
            self.decompressor.append(packed, count, &mut out)?;
        }
        Ok(out.into())
    }

    /// Checks what a page declares about its values.
    fn check_claims(&mut self, header: &Header, buf: &Bytes) -> Result<()> {
        let (values, encoding) = match header.kind {
            Kind::Dictionary { values, .. } => return self.check_dictionary(values.into(), buf),
            Kind::First { values, encoding, .. } | Kind::Second { values, encoding, .. } => (values, encoding),
            Kind::Index => return Ok(()),
        };
        let Parts { repetitions, definitions, of_values } = self.parts(header.kind, buf)?;
        if self.column.column_descr().max_rep_level() > 0 && is_dense(&self.column) {
            self.check_rows(values.into(), repetitions)?;
        }
        if !matches!(
            encoding,
            Encoding::DELTA_BINARY_PACKED | Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY
        ) {
            return Ok(());
        }
        let counts = self.present(values, definitions)?;
        let ratio = DENSE_RATIO * header.compressed as u64;
        match encoding {
            Encoding::DELTA_BINARY_PACKED => delta::check_count(of_values, counts, u64::MAX),
            Encoding::DELTA_LENGTH_BYTE_ARRAY => delta::check_count(of_values, counts, DELTAS_MAX.max(ratio)),
            _ => delta::check_prefixed(of_values, counts, DELTAS_MAX.max(ratio), PREFIXED_BYTES.max(ratio)),
        }
    }

    /// Number of values of a data page that are not null. It is a range if its levels are not runs.
    fn present(&self, values: u32, definitions: Option<&[u8]>) -> Result<RangeInclusive<u64>> {
        let max = self.column.column_descr().max_def_level();
        let all = u64::from(values);
        if max == 0 {
            return Ok(all..=all);
        }
        let Some(definitions) = definitions.filter(|_| max <= levels::MAX) else { return Ok(0..=all) };
        let mut levels = Levels::new(definitions, max, values as usize);
        let mut present = 0;
        while let Some((level, count)) = levels.next_run().map_err(ParquetError::General)? {
            present += if i16::from(level) == max { count as u64 } else { 0 };
        }
        Ok(present..=present)
    }

    /// Values of dictionaries are plain.
    fn check_dictionary(&self, values: u64, buf: &Bytes) -> Result<()> {
        let descriptor = self.column.column_descr();
        let bits = match descriptor.physical_type() {
            Type::BOOLEAN => 1,
            Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 32,
            Type::INT64 | Type::DOUBLE => 64,
            Type::INT96 => 96,
            Type::FIXED_LEN_BYTE_ARRAY => 8 * descriptor.type_length().max(1) as u64,
        };
        if values > 8 * buf.len() as u64 / bits {
            let problem = format!("a dictionary has {values} values, but {} bytes cannot hold them", buf.len());
            return Err(ParquetError::General(problem));
        }
        Ok(())
    }

    pub(crate) fn parts<'a>(&self, kind: Kind, buf: &'a Bytes) -> Result<Parts<'a>> {
        let descriptor = self.column.column_descr();
        let (max_repetition, max_definition) = (descriptor.max_rep_level(), descriptor.max_def_level());
        match kind {
            Kind::First { values, definitions, repetitions, .. } => {
                let (repetitions, rest) = first_levels(buf, max_repetition, repetitions, values)?;
                let (definitions, of_values) = first_levels(rest, max_definition, definitions, values)?;
                Ok(Parts { repetitions, definitions, of_values })
            }
            Kind::Second { definitions, repetitions, .. } => {
                let (repetitions, rest) = buf.split_at(repetitions as usize);
                let (definitions, of_values) = rest.split_at(definitions as usize);
                Ok(Parts { repetitions: Some(repetitions), definitions: Some(definitions), of_values })
            }
            Kind::Dictionary { .. } | Kind::Index => Ok(Parts { repetitions: None, definitions: None, of_values: buf }),
        }
    }

    /// Checks that no row of a dense chunk has too many values for memory.
    fn check_rows(&mut self, values: u64, repetitions: Option<&[u8]>) -> Result<()> {
        let values_max = DENSE_BYTES / value_bytes(&self.column);
        let max = self.column.column_descr().max_rep_level();
        let mut longest = self.row_values;
        match repetitions.filter(|_| max <= levels::MAX) {
            None => longest = longest.max(values),
            Some(repetitions) => {
                let mut levels = Levels::new(repetitions, max, values as usize);
                while let Some((level, count)) = levels.next_run().map_err(ParquetError::General)? {
                    self.row_values = if level == 0 { 1 } else { self.row_values.saturating_add(count as u64) };
                    longest = longest.max(self.row_values);
                }
            }
        }
        if longest > values_max {
            let bytes = self.column.compressed_size();
            let problem = format!("a row has {longest} values, more than the limit {values_max} for {bytes} bytes");
            return Err(ParquetError::General(problem));
        }
        Ok(())
    }
}

/// A data page: its levels, if they are runs, and its values.
pub(crate) struct Parts<'a> {
    pub(crate) repetitions: Option<&'a [u8]>,
    pub(crate) definitions: Option<&'a [u8]>,
    pub(crate) of_values: &'a [u8],
}

/// Whether the chunk declares far more values than its bytes account for. Its rows are then read one by one.
pub(crate) fn is_dense(column: &ColumnChunkMetaData) -> bool {
    let values = column.num_values().max(0) as u64;
    values.saturating_mul(value_bytes(column)) > DENSE_BYTES
        && values > DENSE_RATIO.saturating_mul(column.compressed_size().max(0) as u64)
}

fn value_bytes(column: &ColumnChunkMetaData) -> u64 {
    VALUE_BYTES.max(column.column_descr().type_length().max(0) as u64)
}

/// The levels at the beginning of a page of the first version, if they are runs, and the rest of the page.
fn first_levels(buf: &[u8], max: i16, encoding: Encoding, values: u32) -> Result<(Option<&[u8]>, &[u8])> {
    let too_short = || ParquetError::EOF("a page ends before its levels do".into());
    if max == 0 {
        return Ok((None, buf));
    }
    if encoding == Encoding::RLE {
        let (length, rest) = buf.split_first_chunk::<4>().ok_or_else(too_short)?;
        let parts = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(too_short)?;
        return Ok((Some(parts.0), parts.1));
    }
    // Bits without runs: the only other encoding, in old files.
    let bits = u64::from(values) * u64::from(i16::BITS - max.leading_zeros());
    let parts = buf.split_at_checked(bits.div_ceil(8) as usize).ok_or_else(too_short)?;
    Ok((None, parts.1))
}

fn page(kind: Kind, buf: Bytes) -> Page {
    match kind {
        Kind::Dictionary { values, encoding, is_sorted } => {
            Page::DictionaryPage { buf, num_values: values, encoding, is_sorted }
        }
        Kind::First { values, encoding, definitions, repetitions } => Page::DataPage {
            buf,
            num_values: values,
            encoding,
            def_level_encoding: definitions,
            rep_level_encoding: repetitions,
            statistics: None,
        },
        Kind::Second { values, nulls, rows, encoding, definitions, repetitions, is_compressed } => Page::DataPageV2 {
            buf,
            num_values: values,
            encoding,
            num_nulls: nulls,
            num_rows: rows,
            def_levels_byte_len: definitions,
            rep_levels_byte_len: repetitions,
            is_compressed,
            statistics: None,
        },
        Kind::Index => unreachable!("pages of an index are passed over"),
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(packed) = self.next_packed()? else { return Ok(None) };
        let buf = self.unpack(&packed)?;
        Ok(Some(page(packed.header.kind, buf)))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        Ok(self.next_header()?.map(|header| match header.kind {
            Kind::First { values, .. } => {
                PageMetadata { num_rows: None, num_levels: Some(values as usize), is_dict: false }
            }
            Kind::Second { values, rows, .. } => {
                PageMetadata { num_rows: Some(rows as usize), num_levels: Some(values as usize), is_dict: false }
            }
            Kind::Dictionary { .. } | Kind::Index => PageMetadata { num_rows: None, num_levels: None, is_dict: true },
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if let Some(header) = self.next_header()? {
            self.header = None;
            self.at += header.compressed as u64;
            if let Kind::First { values, .. } | Kind::Second { values, .. } = header.kind {
                self.count(values)?;
                self.number += 1;
            }
            self.row_values = 0;
        }
        Ok(())
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use parquet::basic::Compression;
    use parquet::column::writer::ColumnWriter;
    use parquet::data_type::ByteArray;
    use parquet::file::properties::{WriterProperties, WriterVersion};
    use parquet::file::reader::{FileReader, SerializedFileReader, SerializedPageReader};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use std::sync::Arc;

    const SCHEMA: &str = "
        message things { required int64 seq; optional binary text (STRING); repeated int32 many; required boolean flag; }
    ";
    const ROWS: usize = 3000;

    fn write(properties: WriterProperties) -> Vec<u8> {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let mut bytes = vec![];
        let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
        let mut group = writer.next_row_group().unwrap();
        while let Some(mut column) = group.next_column().unwrap() {
            let levels: Vec<i16> = (0..ROWS).map(|row| i16::from(row % 3 != 0)).collect();
            match column.untyped() {
                ColumnWriter::Int64ColumnWriter(it) => {
                    it.write_batch(&(0..ROWS as i64).collect::<Vec<_>>(), None, None).unwrap();
                }
                ColumnWriter::ByteArrayColumnWriter(it) => {
                    let present = (0..ROWS).filter(|row| row % 3 != 0);
                    let values: Vec<_> = present.map(|row| ByteArray::from(format!("text {row}").as_str())).collect();
                    it.write_batch(&values, Some(&levels), None).unwrap();
                }
                ColumnWriter::Int32ColumnWriter(it) => {
                    let repetitions: Vec<i16> = (0..ROWS).map(|item| i16::from(item % 4 > 0)).collect();
                    let values: Vec<i32> = (0..ROWS as i32).map(|item| item % 7).collect();
                    it.write_batch(&values, Some(&vec![1; ROWS]), Some(&repetitions)).unwrap();
                    let rest = ROWS - ROWS / 4;
                    it.write_batch(&[], Some(&vec![0; rest]), Some(&vec![0; rest])).unwrap();
                }
                ColumnWriter::BoolColumnWriter(it) => {
                    it.write_batch(&(0..ROWS).map(|row| row % 5 == 0).collect::<Vec<_>>(), None, None).unwrap();
                }
                _ => unreachable!("no other type"),
            }
            column.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
        bytes
    }

    fn forms() -> Vec<WriterProperties> {
        let mut forms = vec![];
        for codec in [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::GZIP(Default::default()),
            Compression::BROTLI(Default::default()),
            Compression::LZ4,
            Compression::LZ4_RAW,
            Compression::ZSTD(Default::default()),
        ] {
            for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                for encoding in [
                    None,
                    Some(Encoding::PLAIN),
                    Some(Encoding::DELTA_BYTE_ARRAY),
                    Some(Encoding::DELTA_LENGTH_BYTE_ARRAY),
                ] {
                    let mut form = WriterProperties::builder()
                        .set_compression(codec)
                        .set_writer_version(version)
                        .set_data_page_row_count_limit(700)
                        .set_write_batch_size(100);
                    if let Some(encoding) = encoding {
                        let text = parquet::schema::types::ColumnPath::from("text");
                        form = form.set_dictionary_enabled(false).set_column_encoding(text, encoding);
                    }
                    forms.push(form.build());
                }
            }
        }
        forms
    }

    /// The fields of a page besides its bytes.
    fn fields(page: &Page) -> (i32, u32, Encoding, Vec<u8>, String) {
        let more = match page {
            Page::DataPage { def_level_encoding, rep_level_encoding, .. } => {
                format!("{def_level_encoding} {rep_level_encoding}")
            }
            Page::DataPageV2 {
                num_nulls, num_rows, def_levels_byte_len, rep_levels_byte_len, is_compressed, ..
            } => {
                format!("{num_nulls} {num_rows} {def_levels_byte_len} {rep_levels_byte_len} {is_compressed}")
            }
            Page::DictionaryPage { is_sorted, .. } => format!("{is_sorted}"),
        };
        (page.page_type() as i32, page.num_values(), page.encoding(), page.buffer().to_vec(), more)
    }

    #[test]
    fn pages_are_those_that_the_crate_reads() {
        let mut count = 0;
        for form in forms() {
            let bytes = write(form);
            let theirs = SerializedFileReader::new(Bytes::from(bytes.clone())).unwrap();
            let source = Source::new(Arc::new(bytes)).unwrap();
            let group = theirs.metadata().row_group(0);
            for column in group.columns() {
                let mut pages = Pages::open(&source, column, ROWS as u64).unwrap();
                let file = Arc::new(source.clone());
                let mut others = SerializedPageReader::new(file, column, ROWS, None).unwrap();
                loop {
                    let peeked = |it: Option<PageMetadata>| it.map(|it| (it.num_rows, it.num_levels, it.is_dict));
                    let peeks = (pages.peek_next_page().unwrap(), others.peek_next_page().unwrap());
                    assert_eq!(peeked(peeks.0), peeked(peeks.1));
                    let (page, other) = (pages.get_next_page().unwrap(), others.get_next_page().unwrap());
                    assert!(page.as_ref().map(fields) == other.as_ref().map(fields), "{}", column.column_path());
                    if page.is_none() {
                        break;
                    }
                    count += 1;
                }
                assert_eq!(pages.values_left, 0, "{}", column.column_path());
            }
        }
        assert!(count > 500, "{count}");
    }
}
