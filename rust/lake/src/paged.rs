//! Writes a chunk page by page: pages copied from the source, and pages assembled from pieces.

use crate::chunk::{Form, Outcome, Rewriting};
use crate::compressor::Compressor;
use crate::error::Fault;
use crate::extremes::{self, BOUND_BYTES, Bounds, Direction, Order};
use crate::facts::{Dictionary, FactOptions, Facts, Page, Piece, Values, histogram, is_dictionary};
use crate::indexes;
use crate::levels;
use crate::pages::Packed;
use crate::thrift::{self, Kind};
use parquet::basic::{Encoding, PageType};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::AsBytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{
    ColumnChunkMetaData, ColumnIndexBuilder, LevelHistogram, OffsetIndexBuilder, PageEncodingStats,
};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::writer::TrackedWrite;
use std::io::Write;
use std::ops::Range;

/// Maximum number of bytes, and of rows, of a page: the limits of the crate `parquet`.
pub(crate) const PAGE_BYTES: usize = 1 << 20;
const PAGE_ROWS: usize = 20_000;
/// Number of items that are added before the size of the page is checked.
const STEP_ITEMS: usize = 1024;

/// The page that is being filled, and the facts of earlier pages.
pub(crate) struct Paged<'a, W: Write + Send> {
    chunk: &'a Rewriting<'a>,
    out: &'a mut TrackedWrite<W>,
    compressor: Compressor,
    options: &'a FactOptions,
    is_second: bool,
    encoding: Encoding,
    repetitions: Vec<u8>,
    definitions: Vec<u8>,
    plain: Vec<u8>,
    indexes: Vec<u32>,
    rows: usize,
    has_crc: bool,
    facts: Facts,
    /// Facts of the assembled pages, and of the rows left out of them.
    pub(crate) kept: Facts,
    pub(crate) lost: Facts,
    /// Number of copied pages. Only the source's declarations about them are known.
    pub(crate) copied: usize,
    items: u64,
    rows_written: u64,
    start: u64,
    uncompressed: u64,
    dictionary_at: Option<u64>,
    first_page: Option<u64>,
    counts: Vec<PageEncodingStats>,
    column_index: ColumnIndexBuilder,
    offset_index: OffsetIndexBuilder,
    direction: Direction,
    body: Vec<u8>,
    packed: Vec<u8>,
}

impl<'a, W: Write + Send> Paged<'a, W> {
    pub(crate) fn new(
        chunk: &'a Rewriting<'a>,
        options: &'a FactOptions,
        compressor: Compressor,
        (is_second, has_crc): (bool, bool),
        out: &'a mut TrackedWrite<W>,
    ) -> Paged<'a, W> {
        Paged {
            chunk,
            start: out.bytes_written() as u64,
            out,
            compressor,
            options,
            is_second,
            encoding: Encoding::PLAIN,
            repetitions: vec![],
            definitions: vec![],
            plain: vec![],
            indexes: vec![],
            rows: 0,
            has_crc,
            facts: Facts::new(options),
            kept: Facts::new(options),
            lost: Facts::new(options),
            copied: 0,
            items: 0,
            rows_written: 0,
            uncompressed: 0,
            dictionary_at: None,
            first_page: None,
            counts: vec![],
            column_index: ColumnIndexBuilder::new(chunk.column.column_type()),
            offset_index: OffsetIndexBuilder::new(),
            direction: Direction::default(),
            body: vec![],
            packed: vec![],
        }
    }

    /// Copies the dictionary.
    pub(crate) fn copy_dictionary(&mut self, page: &Packed) -> Outcome<()> {
        let Kind::Dictionary { encoding, .. } = page.header.kind else { unreachable!("asked for by its caller") };
        self.dictionary_at = Some(self.out.bytes_written() as u64);
        self.count_page(PageType::DICTIONARY_PAGE, encoding);
        self.copy_bytes(page)
    }

    /// Copies a page if all its rows stay, and if it begins and ends with a row.
    pub(crate) fn copy(&mut self, page: &Packed, items: usize, rows: usize) -> Outcome<()> {
        self.end_page().map_err(Fault::Sink)?;
        let (Kind::First { encoding, .. } | Kind::Second { encoding, .. }) = page.header.kind else {
            unreachable!("asked for by its caller")
        };
        self.index_rows(page.whole.len() as u64, rows).map_err(Fault::Sink)?;
        self.count_page(self.page_type(), encoding);
        self.copy_bytes(page)?;
        if let Some(index) = self.chunk.column_index {
            let entry = Entry::of(index, page.number);
            self.index_page(entry);
        }
        let declared = self.declared_value_bytes().and_then(|it| it.get(page.number).copied());
        self.offset_index.append_unencoded_byte_array_data_bytes(declared);
        self.copied += 1;
        self.items += items as u64;
        Ok(())
    }

    fn copy_bytes(&mut self, page: &Packed) -> Outcome<()> {
        self.uncompressed += (page.header.bytes + page.header.uncompressed) as u64;
        self.out.write_all(&page.whole).map_err(|error| Fault::Sink(error.into()))
    }

    /// The sizes of values of each page in the offset index of the source.
    fn declared_value_bytes(&self) -> Option<&'a Vec<i64>> {
        self.chunk.offset_index.and_then(|it| it.unencoded_byte_array_data_bytes())
    }

    fn page_type(&self) -> PageType {
        if self.is_second { PageType::DATA_PAGE_V2 } else { PageType::DATA_PAGE }
    }

    fn count_page(&mut self, page_type: PageType, encoding: Encoding) {
        match self.counts.iter_mut().find(|it| it.page_type == page_type && it.encoding == encoding) {
            Some(it) => it.count += 1,
            None => self.counts.push(PageEncodingStats { page_type, encoding, count: 1 }),
        }
    }

    /// Records the position and the number of rows of a data page that is about to be written.
    fn index_rows(&mut self, bytes: u64, rows: usize) -> Result<()> {
        let at = self.out.bytes_written() as u64;
        self.first_page.get_or_insert(at);
        let bytes = i32::try_from(bytes).map_err(|_| too_large(bytes))?;
        self.offset_index.append_offset_and_size(at as i64, bytes);
        self.offset_index.append_row_count(rows as i64);
        self.rows_written += rows as u64;
        Ok(())
    }

    /// Skips items of a page.
    pub(crate) fn leave_out(&mut self, page: &Page<'_>, piece: &Piece, dictionary: Option<&Dictionary>) {
        self.lost.count(self.options, page, piece, dictionary);
    }

    /// Adds items of a page. `is_end`: whether a row ends with them.
    pub(crate) fn take(
        &mut self,
        page: &Page<'_>,
        piece: &Piece,
        dictionary: Option<&Dictionary>,
        is_end: bool,
    ) -> Result<()> {
        if page.encoding != self.encoding {
            // Only at the end of a page, so that only rows of many pages are split.
            self.end_page()?;
            self.encoding = page.encoding;
        }
        let step = self.step(page, piece);
        let level_max = self.chunk.column.column_descr().max_def_level();
        let (mut at, mut value) = (piece.items.start, piece.values.start);
        while at < piece.items.end {
            let end = (at + step).min(piece.items.end);
            let values = match page.definitions {
                [] => end - at,
                levels => levels[at..end].iter().filter(|&&it| i16::from(it) == level_max).count(),
            };
            let part = Piece { items: at..end, values: value..value + values };
            self.append(page, &part);
            self.facts.count(self.options, page, &part, dictionary);
            (at, value) = (end, part.values.end);
            let is_end = if at < piece.items.end { page.repetitions.get(at).is_none_or(|&it| it == 0) } else { is_end };
            if is_end && self.is_full() {
                self.end_page()?;
            }
        }
        Ok(())
    }

    /// Number of items with about the bytes of a page, at most.
    fn step(&self, page: &Page<'_>, piece: &Piece) -> usize {
        let bytes = page.values.bytes(piece.values.clone()).len() / piece.items.len().max(1);
        (PAGE_BYTES / bytes.max(1)).clamp(1, STEP_ITEMS)
    }

    fn append(&mut self, page: &Page<'_>, part: &Piece) {
        let Range { start, end } = part.items;
        self.rows += match page.repetitions {
            [] => end - start,
            levels => levels[start..end].iter().filter(|&&it| it == 0).count(),
        };
        for (own, levels) in [(&mut self.repetitions, page.repetitions), (&mut self.definitions, page.definitions)] {
            own.extend_from_slice(levels.get(start..end).unwrap_or_default());
        }
        match &page.values {
            Values::Indexes(indexes) => self.indexes.extend_from_slice(&indexes[part.values.clone()]),
            values => self.plain.extend_from_slice(values.bytes(part.values.clone())),
        }
    }

    fn is_full(&self) -> bool {
        let bytes = self.plain.len().max(4 * self.indexes.len()).max(self.definitions.len());
        self.rows >= PAGE_ROWS || bytes >= PAGE_BYTES
    }

    /// Writes the current page, if it is not empty.
    pub(crate) fn end_page(&mut self) -> Result<()> {
        if self.facts.items == 0 {
            return Ok(());
        }
        let kind = self.compress()?;
        let crc = self.has_crc.then(|| crc32fast::hash(&self.packed));
        let sizes = [self.body.len(), self.packed.len()].map(i32::try_from);
        let [Ok(uncompressed), Ok(compressed)] = sizes else { return Err(too_large(self.body.len() as u64)) };
        let mut header = vec![];
        thrift::put_header(kind, uncompressed, compressed, crc, &mut header);
        let bytes = header.len() + self.packed.len();
        let rows = std::mem::take(&mut self.rows);
        self.index_rows(bytes as u64, rows)?;
        self.count_page(self.page_type(), self.encoding);
        self.out.write_all(&header)?;
        self.out.write_all(&self.packed)?;
        self.uncompressed += (header.len() + self.body.len()) as u64;
        let value_bytes = self.declared_value_bytes().map(|_| self.facts.value_bytes as i64);
        self.offset_index.append_unencoded_byte_array_data_bytes(value_bytes);
        if self.chunk.column_index.is_some() {
            self.index_page(Entry::counted(&self.facts, self.options.order));
        }
        self.kept.add(self.options, &self.facts);
        self.items += self.facts.items;
        self.facts.clear();
        self.repetitions.clear();
        self.definitions.clear();
        self.plain.clear();
        self.indexes.clear();
        Ok(())
    }

    /// Assembles the page before and after compression, and returns its header.
    fn compress(&mut self) -> Result<Kind> {
        let descriptor = self.chunk.column.column_descr();
        let (body, packed) = (&mut self.body, &mut self.packed);
        body.clear();
        packed.clear();
        let mut lengths = [0, 0];
        let levels = [(&self.repetitions, descriptor.max_rep_level()), (&self.definitions, descriptor.max_def_level())];
        for (length, (levels, max)) in lengths.iter_mut().zip(levels).filter(|(_, (_, max))| *max > 0) {
            let start = body.len() + if self.is_second { 0 } else { 4 };
            body.resize(start, 0);
            levels::encode(levels, max, body);
            *length = (body.len() - start) as u32;
            if !self.is_second {
                body[start - 4..start].copy_from_slice(&length.to_le_bytes());
            }
        }
        // Levels of the second version are not compressed.
        let start = if self.is_second { body.len() } else { 0 };
        match is_dictionary(self.encoding) {
            true => indexes::encode(&self.indexes, body),
            false => body.extend_from_slice(&self.plain),
        }
        packed.extend_from_slice(&body[..start]);
        self.compressor.append(&body[start..], packed)?;
        let [repetitions, definitions] = lengths;
        let (encoding, values) = (self.encoding, count(self.facts.items)?);
        Ok(match self.is_second {
            true => Kind::Second {
                values,
                nulls: count(self.facts.nulls)?,
                rows: count(self.rows as u64)?,
                encoding,
                definitions,
                repetitions,
                is_compressed: !self.compressor.is_none(),
            },
            false => Kind::First { values, encoding, definitions: Encoding::RLE, repetitions: Encoding::RLE },
        })
    }

    fn index_page(&mut self, entry: Option<Entry>) {
        let Some(entry) = entry else { return self.column_index.to_invalid() };
        if let Some((order, (min, max))) = self.options.order.zip(entry.bounds.as_ref()) {
            self.direction.add(order, min, max);
        }
        let is_null = entry.bounds.is_none();
        let (min, max) = entry.bounds.unwrap_or_default();
        self.column_index.append(is_null, min, max, entry.nulls);
        self.column_index.append_histograms(&entry.repetitions, &entry.definitions);
    }

    /// Finishes the chunk. `all`: facts of all its values that stay, and their bounds.
    pub(crate) fn finish(mut self, form: &Form, all: &Facts, bounds: Option<&Bounds>) -> Result<ColumnCloseResult> {
        let column = self.chunk.column;
        let bytes = self.out.bytes_written() as u64 - self.start;
        let value_bytes = column.unencoded_byte_array_data_bytes().map(|_| all.value_bytes as i64);
        let mut metadata = ColumnChunkMetaData::builder(column.column_descr_ptr())
            .set_compression_codec(column.compression_codec())
            .set_encodings_mask(*column.encodings_mask())
            .set_page_encoding_stats(std::mem::take(&mut self.counts))
            .set_total_compressed_size(bytes as i64)
            .set_total_uncompressed_size(self.uncompressed as i64)
            .set_num_values(self.items as i64)
            .set_dictionary_page_offset(self.dictionary_at.map(|it| it as i64))
            .set_data_page_offset(self.first_page.unwrap_or(0) as i64)
            .set_unencoded_byte_array_data_bytes(value_bytes)
            .set_repetition_level_histogram(histogram(&all.repetitions))
            .set_definition_level_histogram(histogram(&all.definitions));
        if form.has_statistics() {
            metadata = metadata.set_statistics(extremes::statistics(column.column_type(), bounds, all.nulls));
        }
        self.column_index.set_boundary_order(self.direction.order());
        let has_index = self.chunk.column_index.is_some() && self.column_index.valid();
        Ok(ColumnCloseResult {
            bytes_written: bytes,
            rows_written: self.rows_written,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index: if has_index { Some(self.column_index.build()?) } else { None },
            offset_index: self.chunk.offset_index.map(|_| self.offset_index.build()),
        })
    }
}

fn too_large(bytes: u64) -> ParquetError {
    ParquetError::General(format!("a page of {bytes} bytes, at most {} are possible", i32::MAX))
}

fn count(number: u64) -> Result<u32> {
    i32::try_from(number).map(i32::cast_unsigned).map_err(|_| too_large(number))
}

/// The entry of a page in a column index.
struct Entry {
    /// `None`: all values are null.
    bounds: Option<(Vec<u8>, Vec<u8>)>,
    nulls: i64,
    repetitions: Option<LevelHistogram>,
    definitions: Option<LevelHistogram>,
}

impl Entry {
    /// The entry in the index of the source.
    fn of(index: &ColumnIndexMetaData, number: usize) -> Option<Entry> {
        macro_rules! bounds {
            ($it:expr) => {
                $it.min_value(number).zip($it.max_value(number)).map(|(min, max)| {
                    let [min, max] = [min.as_bytes(), max.as_bytes()];
                    (min.to_vec(), max.to_vec())
                })
            };
        }
        if number as u64 >= index.num_pages() {
            return None;
        }
        let bounds = match index {
            ColumnIndexMetaData::NONE | ColumnIndexMetaData::BOOLEAN(_) | ColumnIndexMetaData::INT96(_) => return None,
            ColumnIndexMetaData::INT32(it) => bounds!(it),
            ColumnIndexMetaData::INT64(it) => bounds!(it),
            ColumnIndexMetaData::FLOAT(it) => bounds!(it),
            ColumnIndexMetaData::DOUBLE(it) => bounds!(it),
            ColumnIndexMetaData::BYTE_ARRAY(it) | ColumnIndexMetaData::FIXED_LEN_BYTE_ARRAY(it) => bounds!(it),
        };
        let counts = |it: Option<&[i64]>| it.map(|it| LevelHistogram::from(it.to_vec()));
        Some(Entry {
            bounds: bounds.filter(|_| !index.is_null_page(number)),
            nulls: index.null_count(number)?,
            repetitions: counts(index.repetition_level_histogram(number)),
            definitions: counts(index.definition_level_histogram(number)),
        })
    }

    /// `None`: there are values, but none has a place in the order.
    fn counted(facts: &Facts, order: Option<Order>) -> Option<Entry> {
        let bounds = order.and_then(|order| facts.extremes.bounds(order, BOUND_BYTES));
        if bounds.is_none() && facts.nulls < facts.items {
            return None;
        }
        Some(Entry {
            bounds: bounds.map(|it| (it.min, it.max)),
            nulls: facts.nulls as i64,
            repetitions: histogram(&facts.repetitions),
            definitions: histogram(&facts.definitions),
        })
    }
}
