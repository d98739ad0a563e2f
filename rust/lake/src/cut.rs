//! Writes a chunk without some of its rows, page by page. The dictionary and pages whose rows all stay are copied as
//! bytes. From other pages, the rows that stay are cut out: plain values by their positions, byte strings by their
//! lengths, and indexes into a dictionary without look-ups.
//!
//! If all pages were decoded, the statistics of values are counted. If some were copied, they are the source's
//! statistics minus those of the removed rows. If this is not possible, the pages are read once more.

use crate::chunk::{Form, Outcome, Rewriting};
use crate::compressor::Compressor;
use crate::error::Fault;
use crate::extremes::{BOUND_BYTES, Bounds, Extremes, Order};
use crate::facts::{Buffers, Dictionary, FactOptions, Facts, Page, Piece, is_dictionary};
use crate::levels;
use crate::paged::Paged;
use crate::pages::{Packed, Pages, Survey, is_dense};
use crate::thrift::Kind;
use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::LevelHistogram;
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::writer::TrackedWrite;
use std::io::Write;
use std::ops::Range;

/// How a chunk is cut.
pub(crate) struct Cut {
    options: FactOptions,
    is_second: bool,
    has_crc: bool,
}

/// `None`: pages, or statistics of them, that this module cannot cut.
pub(crate) fn open(chunk: &Rewriting<'_>, form: &Form, survey: &Survey) -> Option<Cut> {
    let column = chunk.column;
    let order = Order::of(column).filter(|_| !form.has_no_bounds);
    let are_bounds_known = form.has_no_bounds
        || order.is_some()
            && column.statistics().is_some_and(|it| Bounds::declared(it).is_some() && !it.is_min_max_deprecated());
    if !are_bounds_known || !are_pages_known(chunk, survey) || !are_indexes_whole(chunk, survey.pages) {
        return None;
    }
    let is_declared_by_page = chunk.offset_index.is_some_and(|it| it.unencoded_byte_array_data_bytes().is_some());
    let histogram_of = |max: i16, is_declared: bool| (max > 0 && is_declared).then_some(max);
    let levels = column.column_descr();
    Some(Cut {
        options: FactOptions {
            order,
            value_bytes: is_declared_by_page || column.unencoded_byte_array_data_bytes().is_some(),
            repetition_max: histogram_of(levels.max_rep_level(), column.repetition_level_histogram().is_some()),
            definition_max: histogram_of(levels.max_def_level(), column.definition_level_histogram().is_some()),
        },
        is_second: survey.versions.1,
        has_crc: survey.has_crc,
    })
}

fn are_pages_known(chunk: &Rewriting<'_>, survey: &Survey) -> bool {
    let column = chunk.column;
    let descriptor = column.column_descr();
    let is_type_known = match column.column_type() {
        Type::BOOLEAN => false,
        Type::FIXED_LEN_BYTE_ARRAY => descriptor.type_length() > 0,
        _ => true,
    };
    let is_cut_by_place = |it: &Encoding| *it == Encoding::PLAIN || is_dictionary(*it);
    let is_level = |it: i16| (0..=levels::MAX).contains(&it);
    let kept: u64 = chunk.kept.iter().map(|it| it.end - it.start).sum();
    is_type_known
        && survey.has_runs_only
        && survey.versions != (true, true)
        && survey.encodings.iter().all(is_cut_by_place)
        // Otherwise most of the output could be a dictionary of removed values.
        && (kept >= chunk.rows / 2 || !survey.encodings.iter().any(|&it| is_dictionary(it)))
        && is_level(descriptor.max_rep_level())
        && is_level(descriptor.max_def_level())
        // All levels of a page are in memory.
        && !is_dense(column)
        && (descriptor.max_rep_level() > 0 || u64::try_from(column.num_values()) == Ok(chunk.rows))
        && column.geo_statistics().is_none()
}

/// Whether the page indexes have, for every page, the data of those that are written.
fn are_indexes_whole(chunk: &Rewriting<'_>, pages: usize) -> bool {
    let column = chunk.column;
    let has_places = chunk.offset_index.is_none_or(|it| {
        it.page_locations().len() == pages && it.unencoded_byte_array_data_bytes().is_none_or(|it| it.len() == pages)
    });
    has_places
        && chunk.column_index.is_none_or(|index| {
            let has_counts = |declared: Option<&[i64]>, of_chunk: bool| pages == 0 || declared.is_some() == of_chunk;
            chunk.offset_index.is_some()
                && !matches!(index, ColumnIndexMetaData::INT96(_))
                && index.num_pages() == pages as u64
                && index.null_counts().is_some_and(|it| it.len() == pages)
                && has_counts(index.repetition_level_histogram(0), column.repetition_level_histogram().is_some())
                && has_counts(index.definition_level_histogram(0), column.definition_level_histogram().is_some())
        })
}

impl Cut {
    /// Writes the rows that stay.
    pub(crate) fn write<W: Write + Send>(
        &self,
        chunk: &Rewriting<'_>,
        form: &Form,
        out: &mut TrackedWrite<W>,
    ) -> Outcome<ColumnCloseResult> {
        let compressor = Compressor::of(chunk.column.compression()).map_err(Fault::Sink)?;
        let mut writer = Paged::new(chunk, &self.options, compressor, (self.is_second, self.has_crc), out);
        let mut source = Source::open(chunk)?;
        if let Some(page) = &source.dictionary_page {
            writer.copy_dictionary(page)?;
        }
        while let Some(read) = source.next()? {
            let rows = source.rows.take(&read).map_err(Fault::Source)?;
            if rows.is_whole && source.is_apart(&read) {
                writer.copy(&read.packed, read.items, rows.count)?;
                continue;
            }
            let ends_row = source.ends_row();
            source.decode(&read, |page, dictionary| {
                let pieces = rows.pieces(page, chunk.column.column_descr().max_def_level());
                for (number, (piece, is_kept)) in pieces.iter().enumerate() {
                    if !is_kept {
                        writer.leave_out(page, piece, dictionary);
                        continue;
                    }
                    let is_end = number + 1 < pieces.len() || ends_row;
                    writer.take(page, piece, dictionary, is_end).map_err(Fault::Sink)?;
                }
                Ok(())
            })?;
        }
        writer.end_page().map_err(Fault::Sink)?;
        source.rows.check_end(chunk)?;
        let (all, bounds) = match writer.copied {
            0 => (writer.kept.clone(), self.bounds(form, &writer.kept)),
            _ => match self.by_difference(chunk, &writer.kept, &writer.lost) {
                Some(known) => known,
                None => {
                    let all = self.count_again(chunk)?;
                    let bounds = self.bounds(form, &all);
                    (all, bounds)
                }
            },
        };
        writer.finish(form, &all, bounds.as_ref()).map_err(Fault::Sink)
    }

    fn bounds(&self, form: &Form, all: &Facts) -> Option<Bounds> {
        let limit = if form.has_long_bounds { usize::MAX } else { BOUND_BYTES };
        self.options.order.and_then(|order| all.extremes.bounds(order, limit))
    }

    /// The source's statistics minus those of the removed rows. `None` if this is not possible.
    fn by_difference(&self, chunk: &Rewriting<'_>, kept: &Facts, lost: &Facts) -> Option<(Facts, Option<Bounds>)> {
        let column = chunk.column;
        let without = |declared: &[i64], lost: &[i64]| -> Option<Vec<i64>> {
            let counts =
                declared.iter().zip(lost).map(|(declared, lost)| declared.checked_sub(*lost).filter(|&it| it >= 0));
            counts.collect()
        };
        let levels = |declared: Option<&LevelHistogram>, lost: &[i64]| match declared {
            Some(declared) if !lost.is_empty() => without(declared.values(), lost).filter(|it| it.len() == lost.len()),
            _ => Some(vec![]),
        };
        let all = Facts {
            nulls: match column.statistics() {
                Some(it) => it.null_count_opt()?.checked_sub(lost.nulls)?,
                None => 0,
            },
            value_bytes: match column.unencoded_byte_array_data_bytes() {
                Some(declared) => u64::try_from(declared).ok()?.checked_sub(lost.value_bytes)?,
                None => 0,
            },
            repetitions: levels(column.repetition_level_histogram(), &lost.repetitions)?,
            definitions: levels(column.definition_level_histogram(), &lost.definitions)?,
            ..Facts::default()
        };
        let Some(order) = self.options.order else { return Some((all, None)) };
        let declared = column.statistics().and_then(Bounds::declared)?;
        still_hold(order, &declared, &kept.extremes, &lost.extremes).then_some((all, Some(declared)))
    }

    /// Reads all pages again, including copied ones.
    fn count_again(&self, chunk: &Rewriting<'_>) -> Outcome<Facts> {
        let mut all = Facts::new(&self.options);
        let mut source = Source::open(chunk)?;
        while let Some(read) = source.next()? {
            let rows = source.rows.take(&read).map_err(Fault::Source)?;
            source.decode(&read, |page, dictionary| {
                let pieces = rows.pieces(page, chunk.column.column_descr().max_def_level());
                let kept = pieces.iter().filter(|(_, is_kept)| *is_kept);
                kept.for_each(|(piece, _)| all.count(&self.options, page, piece, dictionary));
                Ok(())
            })?;
        }
        Ok(all)
    }
}

/// Whether the bounds of all values also hold for the remaining ones, because the removed values were not the extremes.
fn still_hold(order: Order, declared: &Bounds, kept: &Extremes, lost: &Extremes) -> bool {
    // Only bounds of byte strings are cut in footers; some writers do not declare that bounds are exact.
    let is_number = !matches!(order, Order::Bytes | Order::Text);
    let holds = |declared: &[u8], is_exact: bool, kept: Option<&[u8]>, lost: Option<&[u8]>, is_max: bool| {
        let is_within = |value: &[u8], than: &[u8]| {
            let ordering = order.compare(than, value);
            if is_max { ordering.reverse() } else { ordering }
        };
        // Wrong bounds of a footer are not copied.
        let is_true = |value: Option<&[u8]>| value.is_none_or(|it| is_within(it, declared).is_le());
        is_true(kept)
            && is_true(lost)
            && lost.is_none_or(|lost| {
                (is_exact || is_number) && is_within(lost, declared).is_lt()
                    || kept.is_some_and(|kept| is_within(lost, kept).is_le())
            })
    };
    holds(&declared.min, declared.are_exact.0, kept.min(), lost.min(), false)
        && holds(&declared.max, declared.are_exact.1, kept.max(), lost.max(), true)
}

/// A page, and the part of it that was read to find its rows.
struct Read {
    packed: Packed,
    items: usize,
    /// The decompressed page, for nested columns.
    unpacked: Option<Bytes>,
    repetitions: Vec<u8>,
}

impl Read {
    fn is_begun_within_row(&self) -> bool {
        self.repetitions.first().is_some_and(|&it| it > 0)
    }
}

/// The pages of a chunk, with one page of look-ahead.
struct Source<'a> {
    chunk: &'a Rewriting<'a>,
    pages: Pages,
    dictionary_page: Option<Packed>,
    dictionary: Option<Dictionary>,
    ahead: Option<Read>,
    rows: Rows<'a>,
    buffers: Buffers,
}

impl<'a> Source<'a> {
    fn open(chunk: &'a Rewriting<'a>) -> Outcome<Source<'a>> {
        let pages = chunk.pages().map_err(Fault::Source)?;
        let mut source = Source {
            chunk,
            pages,
            dictionary_page: None,
            dictionary: None,
            ahead: None,
            rows: Rows { kept: chunk.kept, started: 0 },
            buffers: Buffers::default(),
        };
        source.start().map_err(Fault::Source)?;
        Ok(source)
    }

    fn start(&mut self) -> Result<()> {
        let Some(first) = self.pages.next_packed()? else { return Ok(()) };
        if let Kind::Dictionary { values, encoding, .. } = first.header.kind {
            if !matches!(encoding, Encoding::PLAIN | Encoding::PLAIN_DICTIONARY) {
                return Err(ParquetError::General(format!("a dictionary has the encoding {encoding}")));
            }
            let bytes = self.pages.unpack(&first)?;
            self.dictionary = Some(Dictionary::read(self.chunk.column, bytes, values as usize)?);
            self.dictionary_page = Some(first);
            self.ahead = self.read()?;
        } else {
            self.ahead = Some(self.with_rows(first)?);
        }
        Ok(())
    }

    fn read(&mut self) -> Result<Option<Read>> {
        match self.pages.next_packed()? {
            Some(packed) => self.with_rows(packed).map(Some),
            None => Ok(None),
        }
    }

    fn with_rows(&mut self, packed: Packed) -> Result<Read> {
        let (Kind::First { values, .. } | Kind::Second { values, .. }) = packed.header.kind else {
            return Err(ParquetError::General(String::from("a dictionary follows another page")));
        };
        let max = self.chunk.column.column_descr().max_rep_level();
        let mut read = Read { packed, items: values as usize, unpacked: None, repetitions: vec![] };
        if max > 0 {
            let bytes = self.pages.unpack(&read.packed)?;
            let levels = self.pages.parts(read.packed.header.kind, &bytes)?.repetitions.unwrap_or_default();
            let levels = levels::Levels::new(levels, max, read.items);
            levels.append_to(&mut read.repetitions).map_err(ParquetError::General)?;
            read.unpacked = Some(bytes);
        }
        Ok(read)
    }

    fn next(&mut self) -> Outcome<Option<Read>> {
        let Some(next) = self.ahead.take() else { return Ok(None) };
        self.ahead = self.read().map_err(Fault::Source)?;
        Ok(Some(next))
    }

    /// Whether the last page ends with a row.
    fn ends_row(&self) -> bool {
        !self.ahead.as_ref().is_some_and(Read::is_begun_within_row)
    }

    /// Whether a page shares no row with others and is where the page index declares it.
    fn is_apart(&self, read: &Read) -> bool {
        let place = |it: &parquet::file::page_index::offset_index::OffsetIndexMetaData| {
            it.page_locations().get(read.packed.number).map(|it| it.offset as u64)
        };
        let is_in_place = self.chunk.offset_index.is_none_or(|it| place(it) == Some(read.packed.start));
        is_in_place && !read.is_begun_within_row() && self.ends_row()
    }

    fn decode(&mut self, read: &Read, take: impl FnOnce(&Page<'_>, Option<&Dictionary>) -> Outcome<()>) -> Outcome<()> {
        let unpacked = match &read.unpacked {
            Some(bytes) => bytes.clone(),
            None => self.pages.unpack(&read.packed).map_err(Fault::Source)?,
        };
        let page = (read.packed.header.kind, &unpacked);
        let page = self.buffers.decode(self.chunk.column, &self.pages, page, self.dictionary.as_ref());
        take(&page.map_err(Fault::Source)?, self.dictionary.as_ref())
    }
}

/// The rows that stay, and the number of rows that have begun.
struct Rows<'a> {
    kept: &'a [Range<u64>],
    started: u64,
}

/// The items of a page, in stretches whose rows all stay or are all removed.
struct PageRows {
    stretches: Vec<(Range<usize>, bool)>,
    count: usize,
    is_whole: bool,
}

impl Rows<'_> {
    /// The rows of the next page.
    fn take(&mut self, read: &Read) -> Result<PageRows> {
        if self.started == 0 && read.is_begun_within_row() {
            return Err(ParquetError::General(String::from("the first page of a chunk begins within a row")));
        }
        let found = if read.repetitions.is_empty() { self.flat(read.items) } else { self.nested(&read.repetitions) };
        let current = self.started.saturating_sub(1);
        // A row can continue in the next page.
        self.kept = &self.kept[self.kept.partition_point(|it| it.end <= current)..];
        Ok(found)
    }

    fn flat(&mut self, items: usize) -> PageRows {
        let (start, mut at) = (self.started, 0);
        let mut stretches = vec![];
        for range in self.kept {
            let first = (range.start.max(start) - start).min(items as u64) as usize;
            let end = (range.end.max(start) - start).min(items as u64) as usize;
            if first >= end {
                if first >= items { break } else { continue }
            }
            if at < first {
                stretches.push((at..first, false));
            }
            stretches.push((first..end, true));
            at = end;
        }
        if at < items {
            stretches.push((at..items, false));
        }
        self.started += items as u64;
        let is_whole = matches!(&stretches[..], [(_, true)]);
        PageRows { stretches, count: items, is_whole }
    }

    fn nested(&mut self, repetitions: &[u8]) -> PageRows {
        let (mut stretches, mut count): (Vec<(Range<usize>, bool)>, _) = (vec![], 0);
        let mut kept = self.kept;
        for (item, &level) in repetitions.iter().enumerate() {
            if level == 0 {
                self.started += 1;
                count += 1;
            }
            let row = self.started.saturating_sub(1);
            while kept.first().is_some_and(|it| it.end <= row) {
                kept = &kept[1..];
            }
            let is_kept = kept.first().is_some_and(|it| it.contains(&row));
            match stretches.last_mut() {
                Some((items, last)) if *last == is_kept => items.end = item + 1,
                _ => stretches.push((item..item + 1, is_kept)),
            }
        }
        let is_whole = matches!(&stretches[..], [(_, true)]);
        PageRows { stretches, count, is_whole }
    }

    fn check_end(&self, chunk: &Rewriting<'_>) -> Outcome<()> {
        if self.started < chunk.rows {
            return Err(chunk.too_few());
        }
        if self.started > chunk.rows {
            let (name, found) = (chunk.column.column_path(), self.started);
            let problem = format!("column {name} has {found} rows, its group {}", chunk.rows);
            return Err(Fault::Source(ParquetError::General(problem)));
        }
        Ok(())
    }
}

impl PageRows {
    /// The stretches with the values among their items.
    fn pieces(&self, page: &Page<'_>, level_max: i16) -> Vec<(Piece, bool)> {
        let mut value = 0;
        let stretches = self.stretches.iter().map(|(items, is_kept)| {
            let values = match page.definitions {
                [] => items.len(),
                levels => levels[items.clone()].iter().filter(|&&it| i16::from(it) == level_max).count(),
            };
            let piece = Piece { items: items.clone(), values: value..value + values };
            value += values;
            (piece, *is_kept)
        });
        stretches.collect()
    }
}
