//! A chunk of byte strings that has no dictionary, without some of its rows: that is where most bytes of most files are.
//!
//! Values are not decoded one by one: what stays of a page is copied in pieces as long as the rows that stay together.

use crate::chunk::{Form, Outcome, Rewriting};
use crate::error::Fault;
use crate::levels::{self, Levels};
use crate::pages::Pages;
use bytes::Bytes;
use parquet::basic::{
    BoundaryOrder, Compression, ConvertedType, Encoding, EncodingMask, LogicalType, PageType, SortOrder, Type,
};
use parquet::column::page::{CompressedPage, Page, PageReader, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{
    ColumnChunkMetaData, ColumnIndexBuilder, LevelHistogram, OffsetIndexBuilder, PageEncodingStats,
};
use parquet::file::properties::{EnabledStatistics, WriterVersion};
use parquet::file::statistics::{Statistics, ValueStatistics};
use std::ops::Range;

/// A page ends where it has so many bytes or rows: the limits of the crate `parquet`.
const PAGE_BYTES: usize = 1 << 20;
const PAGE_ROWS: usize = 20_000;
/// What a page begins with, for the levels that are known at its end.
const LEVELS_BYTES: usize = 4096;
/// Bounds of pages are cut to so many bytes: the crate's limit.
const BOUND_BYTES: usize = 64;

/// The pages of a chunk that can be gone through in this way.
pub(crate) struct PlainPages {
    codec: Codec,
    first: Option<Page>,
    others: Pages,
}

/// None: not byte strings in the order of their bytes, or not one a row, or not plain.
pub(crate) fn open(chunk: &Rewriting<'_>, form: &Form) -> Result<Option<PlainPages>> {
    let descriptor = chunk.column.column_descr();
    let is_plain = descriptor.physical_type() == Type::BYTE_ARRAY
        && descriptor.max_rep_level() == 0
        && (0..=levels::MAX).contains(&descriptor.max_def_level())
        && descriptor.sort_order() == SortOrder::UNSIGNED
        && chunk.column.geo_statistics().is_none()
        && !form.has_dictionary
        && form.encoding.is_none_or(|it| it == Encoding::PLAIN);
    let Some(codec) = Codec::of(chunk.column.compression()).filter(|_| is_plain) else { return Ok(None) };
    let mut others = chunk.pages()?;
    let first = others.get_next_page()?;
    let is_known = first.as_ref().is_none_or(|it| is_known(it, descriptor.max_def_level()));
    Ok(is_known.then_some(PlainPages { codec, first, others }))
}

/// Old files have levels in another encoding, and say nothing of it in front of the pages.
fn is_known(page: &Page, level_max: i16) -> bool {
    page.encoding() == Encoding::PLAIN
        && match page {
            Page::DataPage { def_level_encoding, .. } => level_max == 0 || *def_level_encoding == Encoding::RLE,
            Page::DataPageV2 { .. } => true,
            Page::DictionaryPage { .. } => false,
        }
}

/// Writes the rows that stay.
pub(crate) fn write(
    chunk: &Rewriting<'_>,
    form: &Form,
    source: PlainPages,
    pages: Box<dyn PageWriter + '_>,
) -> Outcome<ColumnCloseResult> {
    let PlainPages { codec, first: mut page, mut others } = source;
    let mut writer = Writer::new(chunk, form, codec, pages);
    let level_max = chunk.column.column_descr().max_def_level();
    let (mut kept, mut start) = (chunk.kept, 0);
    while let Some(it) = page {
        let (levels, values) = parts_of(&it, level_max).map_err(Fault::Source)?;
        let end = start + u64::from(it.num_values());
        let rows = Rows { levels, level_max, values, row: 0, at: 0 };
        writer.take(rows, parts_within(kept, start..end))?;
        kept = &kept[kept.partition_point(|range| range.end <= end)..];
        start = end;
        page = others.get_next_page().map_err(Fault::Source)?;
    }
    if start < chunk.rows {
        return Err(chunk.too_few());
    }
    writer.close()
}

/// What of these ranges is in the rows of a page, counted from its first.
fn parts_within(kept: &[Range<u64>], page: Range<u64>) -> impl Iterator<Item = Range<usize>> {
    let inside = kept.iter().take_while(move |range| range.start < page.end);
    inside.map(move |range| {
        (range.start.max(page.start) - page.start) as usize..(range.end.min(page.end) - page.start) as usize
    })
}

/// The levels of a page, if it has any, and its values.
fn parts_of(page: &Page, level_max: i16) -> Result<(Option<Levels<'_>>, &[u8])> {
    let count = page.num_values() as usize;
    if !is_known(page, level_max) {
        let problem = format!("a page has the encoding {} behind plain ones", page.encoding());
        return Err(ParquetError::General(problem));
    }
    let too_short = || ParquetError::EOF(String::from("a page ends before its levels do"));
    let (of_levels, values) = match page {
        Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
            let start = *rep_levels_byte_len as usize;
            let levels = buf.get(start..).and_then(|it| it.split_at_checked(*def_levels_byte_len as usize));
            levels.ok_or_else(too_short)?
        }
        page if level_max == 0 => (&[][..], &page.buffer()[..]),
        page => {
            let (length, rest) = page.buffer().split_first_chunk::<4>().ok_or_else(too_short)?;
            rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(too_short)?
        }
    };
    Ok(((level_max > 0).then(|| Levels::new(of_levels, level_max, count)), values))
}

/// A page that is gone through row by row.
struct Rows<'a> {
    /// None: every row has a value.
    levels: Option<Levels<'a>>,
    level_max: i16,
    values: &'a [u8],
    row: usize,
    at: usize,
}

impl<'a> Rows<'a> {
    /// The next row's level, where there are levels, and its value; None: null.
    fn next(&mut self) -> Result<(Option<u8>, Option<&'a [u8]>)> {
        let level = self.levels.as_mut().map(Levels::next).transpose().map_err(ParquetError::General)?;
        self.row += 1;
        if level.is_some_and(|level| i16::from(level) < self.level_max) {
            return Ok((level, None));
        }
        let value = self.values[self.at..]
            .split_first_chunk::<4>()
            .and_then(|(length, rest)| rest.get(..u32::from_le_bytes(*length) as usize));
        let value = value.ok_or_else(|| ParquetError::EOF(String::from("a page ends before its values do")))?;
        self.at += 4 + value.len();
        Ok((level, Some(value)))
    }
}

/// Least and greatest value.
#[derive(Default)]
struct Bounds {
    is_some: bool,
    min: Vec<u8>,
    max: Vec<u8>,
}

impl Bounds {
    fn widen(&mut self, min: &[u8], max: &[u8]) {
        if !self.is_some || min < &self.min[..] {
            self.min.clear();
            self.min.extend_from_slice(min);
        }
        if !self.is_some || max > &self.max[..] {
            self.max.clear();
            self.max.extend_from_slice(max);
        }
        self.is_some = true;
    }
}

/// The page that is being filled, and what is known of the pages before.
struct Writer<'a> {
    chunk: &'a Rewriting<'a>,
    form: &'a Form,
    pages: Box<dyn PageWriter + 'a>,
    codec: Codec,
    level_max: i16,
    /// LEVELS_BYTES of nothing, and the values.
    page: Vec<u8>,
    /// Of the page's rows; empty where every row has a value for certain.
    levels: Vec<u8>,
    rows: usize,
    bounds: Bounds,
    pages_written: i32,
    rows_written: u64,
    bytes: (u64, u64),
    first_page: Option<u64>,
    nulls: u64,
    value_bytes: i64,
    /// How many rows have which level; None where there is only one.
    histogram: Option<LevelHistogram>,
    all: Bounds,
    order: Order,
    column_index: ColumnIndexBuilder,
    offset_index: OffsetIndexBuilder,
}

impl<'a> Writer<'a> {
    fn new(chunk: &'a Rewriting<'a>, form: &'a Form, codec: Codec, pages: Box<dyn PageWriter + 'a>) -> Writer<'a> {
        let descriptor = chunk.column.column_descr();
        Writer {
            chunk,
            form,
            pages,
            codec,
            level_max: descriptor.max_def_level(),
            page: vec![0; LEVELS_BYTES],
            levels: vec![],
            rows: 0,
            bounds: Bounds::default(),
            pages_written: 0,
            rows_written: 0,
            bytes: (0, 0),
            first_page: None,
            nulls: 0,
            value_bytes: 0,
            histogram: LevelHistogram::try_new(descriptor.max_def_level()),
            all: Bounds::default(),
            order: Order::default(),
            column_index: ColumnIndexBuilder::new(Type::BYTE_ARRAY),
            offset_index: OffsetIndexBuilder::new(),
        }
    }

    /// The rows of a page that stay.
    fn take(&mut self, mut page: Rows<'_>, kept: impl Iterator<Item = Range<usize>>) -> Outcome<()> {
        let has_bounds = self.form.statistics != EnabledStatistics::None;
        for rows in kept {
            while page.row < rows.start {
                page.next().map_err(Fault::Source)?;
            }
            let (mut start, mut first) = (page.at, page.row);
            while page.row < rows.end {
                let (level, value) = page.next().map_err(Fault::Source)?;
                self.levels.extend(level);
                if let Some(value) = value.filter(|_| has_bounds) {
                    self.bounds.widen(value, value);
                }
                let bytes = self.page.len() - LEVELS_BYTES + page.at - start;
                if bytes >= PAGE_BYTES || self.rows + page.row - first >= PAGE_ROWS || page.row == rows.end {
                    self.page.extend_from_slice(&page.values[start..page.at]);
                    self.rows += page.row - first;
                    (start, first) = (page.at, page.row);
                    if bytes >= PAGE_BYTES || self.rows >= PAGE_ROWS {
                        self.write_page().map_err(Fault::Sink)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn write_page(&mut self) -> Result<()> {
        let nulls = self.levels.iter().filter(|&&level| i16::from(level) < self.level_max).count();
        let value_bytes = self.page.len() - LEVELS_BYTES - 4 * (self.rows - nulls);
        let page = self.compressed(nulls)?;
        let written = self.pages.write_page(page)?;
        self.page.truncate(LEVELS_BYTES);
        self.pages_written += 1;
        self.rows_written += self.rows as u64;
        self.first_page.get_or_insert(written.offset);
        self.bytes.0 += written.compressed_size as u64;
        self.bytes.1 += written.uncompressed_size as u64;
        self.nulls += nulls as u64;
        self.value_bytes += value_bytes as i64;
        if let Some(all) = &mut self.histogram {
            let mut counts = vec![0; all.len()];
            self.levels.iter().for_each(|&level| counts[usize::from(level)] += 1);
            let of_page = LevelHistogram::from(counts);
            all.add(&of_page);
            self.column_index.append_histograms(&None, &Some(of_page));
        }
        self.offset_index.append_offset_and_size(written.offset as i64, written.compressed_size as i32);
        self.offset_index.append_row_count(self.rows as i64);
        self.offset_index.append_unencoded_byte_array_data_bytes(Some(value_bytes as i64));
        self.index_page(nulls as i64);
        self.rows = 0;
        self.levels.clear();
        Ok(())
    }

    /// Bounds of the page that was written, for the column index and for those of all pages.
    fn index_page(&mut self, nulls: i64) {
        let Bounds { is_some, min, max } = std::mem::take(&mut self.bounds);
        if !is_some {
            return self.column_index.append(true, vec![], vec![], nulls);
        }
        self.all.widen(&min, &max);
        let text = is_text(self.chunk.column);
        self.column_index.append(false, lower(&min, BOUND_BYTES, text), upper(&max, BOUND_BYTES, text), nulls);
        self.order.add(min, max);
    }

    /// The page as it is written.
    fn compressed(&mut self, nulls: usize) -> Result<CompressedPage> {
        let mut levels = vec![];
        if self.level_max > 0 {
            levels::encode(&self.levels, self.level_max, &mut levels);
        }
        let count = self.rows as u32;
        if self.form.version == WriterVersion::PARQUET_2_0 {
            let values = &self.page[LEVELS_BYTES..];
            let uncompressed = levels.len() + values.len();
            let def_levels_byte_len = levels.len() as u32;
            let buf = self.codec.compress(&levels, values)?;
            let page = Page::DataPageV2 {
                buf,
                num_values: count,
                encoding: Encoding::PLAIN,
                num_nulls: nulls as u32,
                num_rows: count,
                def_levels_byte_len,
                rep_levels_byte_len: 0,
                is_compressed: !matches!(self.codec, Codec::None),
                statistics: None,
            };
            return Ok(CompressedPage::new(page, uncompressed));
        }
        if self.level_max > 0 {
            levels.splice(..0, (levels.len() as u32).to_le_bytes());
        }
        let start = match LEVELS_BYTES.checked_sub(levels.len()) {
            Some(start) => start,
            None => {
                self.page.splice(..0, std::iter::repeat_n(0, levels.len() - LEVELS_BYTES));
                0
            }
        };
        self.page[start..start + levels.len()].copy_from_slice(&levels);
        let buf = self.codec.compress(&[], &self.page[start..])?;
        let page = Page::DataPage {
            buf,
            num_values: count,
            encoding: Encoding::PLAIN,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        Ok(CompressedPage::new(page, self.page.len() - start))
    }

    fn close(mut self) -> Outcome<ColumnCloseResult> {
        if self.rows > 0 {
            self.write_page().map_err(Fault::Sink)?;
        }
        self.pages.close().map_err(Fault::Sink)?;
        self.finish().map_err(Fault::Sink)
    }

    fn finish(mut self) -> Result<ColumnCloseResult> {
        let is_second = self.form.version == WriterVersion::PARQUET_2_0;
        let page_type = if is_second { PageType::DATA_PAGE_V2 } else { PageType::DATA_PAGE };
        let encodings = [Encoding::PLAIN, Encoding::RLE];
        let mut metadata = ColumnChunkMetaData::builder(self.chunk.column.column_descr_ptr())
            .set_compression(self.chunk.column.compression())
            .set_encodings_mask(EncodingMask::new_from_encodings(encodings.iter()))
            .set_page_encoding_stats(vec![PageEncodingStats {
                page_type,
                encoding: Encoding::PLAIN,
                count: self.pages_written,
            }])
            .set_total_compressed_size(self.bytes.0 as i64)
            .set_total_uncompressed_size(self.bytes.1 as i64)
            .set_num_values(self.rows_written as i64)
            .set_data_page_offset(self.first_page.unwrap_or(0) as i64);
        if self.form.statistics != EnabledStatistics::None {
            metadata = metadata
                .set_statistics(self.statistics())
                .set_unencoded_byte_array_data_bytes(Some(self.value_bytes))
                .set_definition_level_histogram(self.histogram.take());
        }
        self.column_index.set_boundary_order(self.order.told());
        let has_index = self.form.statistics == EnabledStatistics::Page;
        Ok(ColumnCloseResult {
            bytes_written: self.bytes.0,
            rows_written: self.rows_written,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index: if has_index { Some(self.column_index.build()?) } else { None },
            offset_index: self.chunk.has_offset_index.then(|| self.offset_index.build()),
        })
    }

    fn statistics(&self) -> Statistics {
        let nulls = Some(self.nulls);
        if !self.all.is_some || self.form.has_no_bounds {
            return Statistics::byte_array(None, None, None, nulls, false);
        }
        let limit = if self.form.has_long_bounds { usize::MAX } else { BOUND_BYTES };
        let text = is_text(self.chunk.column);
        let min = lower(&self.all.min, limit, text);
        let max = upper(&self.all.max, limit, text);
        let are_exact = (min.len() == self.all.min.len(), max == self.all.max);
        let told = ValueStatistics::new(Some(ByteArray::from(min)), Some(ByteArray::from(max)), None, nulls, false);
        Statistics::ByteArray(told.with_min_is_exact(are_exact.0).with_max_is_exact(are_exact.1))
    }
}

fn is_text(column: &ColumnChunkMetaData) -> bool {
    let descriptor = column.column_descr();
    descriptor.logical_type_ref() == Some(&LogicalType::String) || descriptor.converted_type() == ConvertedType::UTF8
}

/// Something of at most so many bytes that no value is below.
fn lower(min: &[u8], limit: usize, is_text: bool) -> Vec<u8> {
    beginning(min, limit, is_text).unwrap_or(min).to_vec()
}

/// Something of at most so many bytes that no value is above; the value itself where there is no such thing.
fn upper(max: &[u8], limit: usize, is_text: bool) -> Vec<u8> {
    let Some(start) = beginning(max, limit, is_text) else { return max.to_vec() };
    let raised = match std::str::from_utf8(start) {
        Ok(text) if is_text => raise_text(text),
        _ => raise(start),
    };
    raised.unwrap_or_else(|| max.to_vec())
}

/// The beginning of a value that is too long, for texts up to the end of a character; None where it is not too long.
fn beginning(value: &[u8], limit: usize, is_text: bool) -> Option<&[u8]> {
    if value.len() <= limit {
        return None;
    }
    let end = match std::str::from_utf8(value) {
        Ok(text) if is_text => (1..=limit).rfind(|&it| text.is_char_boundary(it))?,
        _ => limit,
    };
    Some(&value[..end])
}

/// The next greater string of at most as many bytes.
fn raise(start: &[u8]) -> Option<Vec<u8>> {
    let last = start.iter().rposition(|&byte| byte < u8::MAX)?;
    let mut raised = start[..=last].to_vec();
    raised[last] += 1;
    Some(raised)
}

/// The same for texts: its last character that has a successor as long as itself becomes that.
fn raise_text(start: &str) -> Option<Vec<u8>> {
    start.char_indices().rev().find_map(|(at, last)| {
        let next = char::from_u32(last as u32 + 1).filter(|it| it.len_utf8() == last.len_utf8())?;
        Some(format!("{}{next}", &start[..at]).into_bytes())
    })
}

/// Whether bounds go up or down from page to page.
#[derive(Default)]
struct Order {
    last: Option<(Vec<u8>, Vec<u8>)>,
    has_fallen: bool,
    has_risen: bool,
}

impl Order {
    fn add(&mut self, min: Vec<u8>, max: Vec<u8>) {
        if let Some(last) = &self.last {
            self.has_fallen |= min < last.0 || max < last.1;
            self.has_risen |= min > last.0 || max > last.1;
        }
        self.last = Some((min, max));
    }

    fn told(&self) -> BoundaryOrder {
        match (self.has_fallen, self.has_risen) {
            (false, _) => BoundaryOrder::ASCENDING,
            (true, false) => BoundaryOrder::DESCENDING,
            (true, true) => BoundaryOrder::UNORDERED,
        }
    }
}

/// Codecs of which the working memory is kept from page to page.
enum Codec {
    None,
    Snappy(Box<snap::raw::Encoder>, Bytes),
    Zstd(Box<zstd::bulk::Compressor<'static>>),
}

impl Codec {
    fn of(codec: Compression) -> Option<Codec> {
        match codec {
            Compression::UNCOMPRESSED => Some(Codec::None),
            Compression::SNAPPY => Some(Codec::Snappy(Box::new(snap::raw::Encoder::new()), Bytes::new())),
            Compression::ZSTD(level) => {
                zstd::bulk::Compressor::new(level.compression_level()).ok().map(|it| Codec::Zstd(Box::new(it)))
            }
            _ => None,
        }
    }

    /// `before` as it is, and behind it the values, compressed.
    fn compress(&mut self, before: &[u8], values: &[u8]) -> Result<Bytes> {
        let told = |error: &dyn std::fmt::Display| ParquetError::General(error.to_string());
        match self {
            Codec::None => Ok([before, values].concat().into()),
            Codec::Snappy(encoder, last) => {
                let mut out = std::mem::take(last).try_into_mut().unwrap_or_default();
                out.resize(before.len() + snap::raw::max_compress_len(values.len()), 0);
                out[..before.len()].copy_from_slice(before);
                let length = encoder.compress(values, &mut out[before.len()..]).map_err(|error| told(&error))?;
                out.truncate(before.len() + length);
                *last = out.freeze();
                Ok(last.clone())
            }
            Codec::Zstd(encoder) => {
                let compressed = encoder.compress(values).map_err(|error| told(&error))?;
                Ok(if before.is_empty() { compressed.into() } else { [before, &compressed].concat().into() })
            }
        }
    }
}
