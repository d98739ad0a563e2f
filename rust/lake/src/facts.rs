//! Statistics of the values of a chunk, for its footer and page indexes, and the pages from which they are counted.

use crate::extremes::{Extremes, Order};
use crate::indexes;
use crate::levels::Levels;
use crate::pages::{Pages, Parts};
use crate::thrift::Kind;
use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, LevelHistogram};
use std::ops::Range;

fn too_short() -> ParquetError {
    ParquetError::EOF(String::from("a page ends before its values do"))
}

pub(crate) fn is_dictionary(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY)
}

/// Finds where plain byte strings begin, each after four bytes with its length, and where the last one ends.
fn starts(bytes: &[u8], count: usize, out: &mut Vec<u32>) -> Result<()> {
    out.clear();
    let mut at = 0;
    for _ in 0..count {
        out.push(at as u32);
        let (length, rest) = bytes[at..].split_first_chunk::<4>().ok_or_else(too_short)?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > rest.len() {
            return Err(too_short());
        }
        at += 4 + length;
    }
    out.push(at as u32);
    Ok(())
}

/// Number of bytes of a value; 0: each value has its length.
fn width(column: &ColumnChunkMetaData) -> usize {
    match column.column_type() {
        Type::BOOLEAN | Type::BYTE_ARRAY => 0,
        Type::INT32 | Type::FLOAT => 4,
        Type::INT64 | Type::DOUBLE => 8,
        Type::INT96 => 12,
        Type::FIXED_LEN_BYTE_ARRAY => column.column_descr().type_length().max(0) as usize,
    }
}

/// The values of a dictionary.
pub(crate) struct Dictionary {
    bytes: Bytes,
    width: usize,
    starts: Vec<u32>,
    pub(crate) count: usize,
}

impl Dictionary {
    pub(crate) fn read(column: &ColumnChunkMetaData, bytes: Bytes, count: usize) -> Result<Dictionary> {
        let (width, mut found) = (width(column), vec![]);
        match width {
            0 => starts(&bytes, count, &mut found)?,
            width if count.checked_mul(width).is_none_or(|it| it > bytes.len()) => return Err(too_short()),
            _ => {}
        }
        Ok(Dictionary { bytes, width, starts: found, count })
    }

    fn value(&self, index: u32) -> &[u8] {
        let index = index as usize;
        match self.width {
            0 => &self.bytes[self.starts[index] as usize + 4..self.starts[index + 1] as usize],
            width => &self.bytes[index * width..][..width],
        }
    }
}

pub(crate) enum Values<'a> {
    Fixed { bytes: &'a [u8], width: usize },
    Strings { bytes: &'a [u8], starts: &'a [u32] },
    Indexes(&'a [u32]),
}

impl<'a> Values<'a> {
    /// The bytes of plain values.
    pub(crate) fn bytes(&self, values: Range<usize>) -> &'a [u8] {
        match self {
            Values::Fixed { bytes, width } => &bytes[values.start * width..values.end * width],
            Values::Strings { bytes, starts } => &bytes[starts[values.start] as usize..starts[values.end] as usize],
            Values::Indexes(_) => &[],
        }
    }
}

/// A data page: the levels and values of its items.
pub(crate) struct Page<'a> {
    pub(crate) encoding: Encoding,
    /// Empty if the column has none.
    pub(crate) repetitions: &'a [u8],
    pub(crate) definitions: &'a [u8],
    pub(crate) values: Values<'a>,
}

/// Buffers for decoded pages, which are reused.
#[derive(Default)]
pub(crate) struct Buffers {
    repetitions: Vec<u8>,
    definitions: Vec<u8>,
    starts: Vec<u32>,
    indexes: Vec<u32>,
}

impl Buffers {
    pub(crate) fn decode<'a>(
        &'a mut self,
        column: &ColumnChunkMetaData,
        pages: &Pages,
        (kind, bytes): (Kind, &'a Bytes),
        dictionary: Option<&Dictionary>,
    ) -> Result<Page<'a>> {
        let (Kind::First { values, encoding, .. } | Kind::Second { values, encoding, .. }) = kind else {
            return Err(ParquetError::General(String::from("a dictionary follows pages of data")));
        };
        let descriptor = column.column_descr();
        let items = values as usize;
        let Parts { repetitions, definitions, of_values } = pages.parts(kind, bytes)?;
        let decode = |bytes: Option<&[u8]>, max: i16, out: &mut Vec<u8>| {
            out.clear();
            match bytes.filter(|_| max > 0) {
                Some(bytes) => Levels::new(bytes, max, items).append_to(out).map_err(ParquetError::General),
                None => Ok(()),
            }
        };
        decode(repetitions, descriptor.max_rep_level(), &mut self.repetitions)?;
        decode(definitions, descriptor.max_def_level(), &mut self.definitions)?;
        let level_max = descriptor.max_def_level();
        let absent = self.definitions.iter().filter(|&&it| i16::from(it) < level_max).count();
        let present = items - absent;
        let values = if is_dictionary(encoding) {
            self.indexes.clear();
            indexes::decode(of_values, present, &mut self.indexes).map_err(ParquetError::General)?;
            let (greatest, count) = (self.indexes.iter().max(), dictionary.map_or(0, |it| it.count));
            if let Some(greatest) = greatest.filter(|&&it| it as usize >= count) {
                let problem = format!("a page has the index {greatest} into a dictionary of {count} values");
                return Err(ParquetError::General(problem));
            }
            Values::Indexes(&self.indexes)
        } else {
            match width(column) {
                0 => {
                    starts(of_values, present, &mut self.starts)?;
                    Values::Strings { bytes: of_values, starts: &self.starts }
                }
                width if present.checked_mul(width).is_none_or(|it| it > of_values.len()) => return Err(too_short()),
                width => Values::Fixed { bytes: of_values, width },
            }
        };
        Ok(Page { encoding, repetitions: &self.repetitions, definitions: &self.definitions, values })
    }
}

/// Consecutive items of a page, and the values among them.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) items: Range<usize>,
    pub(crate) values: Range<usize>,
}

/// Which facts to collect.
#[derive(Clone, Debug)]
pub(crate) struct FactOptions {
    /// `None`: no bounds.
    pub(crate) order: Option<Order>,
    pub(crate) value_bytes: bool,
    /// Highest levels, if levels are counted.
    pub(crate) repetition_max: Option<i16>,
    pub(crate) definition_max: Option<i16>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) items: u64,
    pub(crate) nulls: u64,
    /// Number of bytes of byte strings, without their lengths.
    pub(crate) value_bytes: u64,
    pub(crate) repetitions: Vec<i64>,
    pub(crate) definitions: Vec<i64>,
    pub(crate) extremes: Extremes,
    /// Values of the dictionary that occurred.
    pub(crate) seen: Vec<bool>,
}

impl Facts {
    pub(crate) fn new(options: &FactOptions) -> Facts {
        let counts = |max: Option<i16>| vec![0; max.map_or(0, |it| it as usize + 1)];
        Facts {
            repetitions: counts(options.repetition_max),
            definitions: counts(options.definition_max),
            ..Facts::default()
        }
    }

    pub(crate) fn count(
        &mut self,
        options: &FactOptions,
        page: &Page<'_>,
        piece: &Piece,
        dictionary: Option<&Dictionary>,
    ) {
        self.items += piece.items.len() as u64;
        self.nulls += (piece.items.len() - piece.values.len()) as u64;
        let add = |counts: &mut [i64], levels: &[u8]| {
            if !counts.is_empty() && !levels.is_empty() {
                levels[piece.items.clone()].iter().for_each(|&level| counts[usize::from(level)] += 1);
            }
        };
        add(&mut self.repetitions, page.repetitions);
        add(&mut self.definitions, page.definitions);
        match (&page.values, dictionary) {
            (Values::Indexes(indexes), Some(dictionary)) => {
                self.count_indexes(options, &indexes[piece.values.clone()], dictionary);
            }
            (Values::Indexes(_), None) => {}
            (Values::Fixed { width, .. }, _) => {
                if let Some(order) = options.order {
                    self.extremes.add_all(order, page.values.bytes(piece.values.clone()), *width);
                }
            }
            (Values::Strings { bytes, starts }, _) => {
                let lengths = 4 * piece.values.len();
                self.value_bytes += (page.values.bytes(piece.values.clone()).len() - lengths) as u64;
                if let Some(order) = options.order {
                    for ends in starts[piece.values.start..=piece.values.end].windows(2) {
                        self.extremes.see(order, &bytes[ends[0] as usize + 4..ends[1] as usize]);
                    }
                }
            }
        }
    }

    fn count_indexes(&mut self, options: &FactOptions, indexes: &[u32], dictionary: &Dictionary) {
        if options.value_bytes {
            self.value_bytes += indexes.iter().map(|&it| dictionary.value(it).len() as u64).sum::<u64>();
        }
        let Some(order) = options.order else { return };
        self.seen.resize(dictionary.count, false);
        for &index in indexes {
            if !std::mem::replace(&mut self.seen[index as usize], true) {
                self.extremes.see(order, dictionary.value(index));
            }
        }
    }

    pub(crate) fn add(&mut self, options: &FactOptions, other: &Facts) {
        self.items += other.items;
        self.nulls += other.nulls;
        self.value_bytes += other.value_bytes;
        for (own, others) in [(&mut self.repetitions, &other.repetitions), (&mut self.definitions, &other.definitions)]
        {
            own.iter_mut().zip(others).for_each(|(sum, count)| *sum += count);
        }
        if let Some(order) = options.order {
            self.extremes.add(order, &other.extremes);
        }
    }

    /// Clears the facts and keeps the memory.
    pub(crate) fn clear(&mut self) {
        let Facts { repetitions, definitions, seen, .. } = std::mem::take(self);
        *self = Facts { repetitions, definitions, seen, ..Facts::default() };
        self.repetitions.fill(0);
        self.definitions.fill(0);
        self.seen.fill(false);
    }
}

pub(crate) fn histogram(counts: &[i64]) -> Option<LevelHistogram> {
    (!counts.is_empty()).then(|| LevelHistogram::from(counts.to_vec()))
}
