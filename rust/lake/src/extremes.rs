//! Finds the least and greatest of some values, in the order that the format defines for their type.

use parquet::basic::{BoundaryOrder, ConvertedType, LogicalType, SortOrder, Type};
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::{Statistics, ValueStatistics};
use std::cmp::Ordering;

/// Bounds are cut to this many bytes: the limit of the crate `parquet`.
pub(crate) const BOUND_BYTES: usize = 64;

/// The order of the values of a column. They are compared as plain bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
    F16,
    /// Numbers of any length, the highest byte first.
    Decimal,
    Bytes,
    /// Bytes that are cut at the end of a character.
    Text,
}

impl Order {
    /// The order of a column. `None`: the format defines no order, or this crate does not know it.
    pub(crate) fn of(column: &ColumnChunkMetaData) -> Option<Order> {
        let descriptor = column.column_descr();
        let is_unsigned = match descriptor.sort_order() {
            SortOrder::SIGNED => false,
            SortOrder::UNSIGNED => true,
            _ => return None,
        };
        let logical = descriptor.logical_type_ref();
        Some(match (descriptor.physical_type(), is_unsigned) {
            (Type::INT32, false) => Order::I32,
            (Type::INT32, true) => Order::U32,
            (Type::INT64, false) => Order::I64,
            (Type::INT64, true) => Order::U64,
            (Type::FLOAT, _) => Order::F32,
            (Type::DOUBLE, _) => Order::F64,
            (Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY, false) => match logical {
                Some(LogicalType::Float16) => Order::F16,
                _ => Order::Decimal,
            },
            (Type::BYTE_ARRAY, true)
                if logical == Some(&LogicalType::String) || descriptor.converted_type() == ConvertedType::UTF8 =>
            {
                Order::Text
            }
            (Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY, true) => Order::Bytes,
            (Type::BOOLEAN | Type::INT96, _) => return None,
        })
    }

    /// Compares values that are not NaN.
    pub(crate) fn compare(self, one: &[u8], other: &[u8]) -> Ordering {
        let floats = |one: f64, other: f64| one.partial_cmp(&other).unwrap_or(Ordering::Equal);
        match self {
            Order::I32 => i32::from_le_bytes(number(one)).cmp(&i32::from_le_bytes(number(other))),
            Order::U32 => u32::from_le_bytes(number(one)).cmp(&u32::from_le_bytes(number(other))),
            Order::I64 => i64::from_le_bytes(number(one)).cmp(&i64::from_le_bytes(number(other))),
            Order::U64 => u64::from_le_bytes(number(one)).cmp(&u64::from_le_bytes(number(other))),
            Order::F32 | Order::F64 | Order::F16 => floats(self.float(one), self.float(other)),
            Order::Decimal => compare_decimals(one, other),
            Order::Bytes | Order::Text => one.cmp(other),
        }
    }

    fn is_float(self) -> bool {
        matches!(self, Order::F32 | Order::F64 | Order::F16)
    }

    fn float(self, value: &[u8]) -> f64 {
        match self {
            Order::F32 => f32::from_le_bytes(number(value)).into(),
            Order::F16 => from_half(u16::from_le_bytes(number(value))),
            _ => f64::from_le_bytes(number(value)),
        }
    }

    /// Whether long bounds may be cut.
    fn is_cut(self) -> bool {
        matches!(self, Order::Bytes | Order::Text)
    }
}

/// The first bytes, filled with zeros.
fn number<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}

fn from_half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

fn compare_decimals(one: &[u8], other: &[u8]) -> Ordering {
    let is_negative = |it: &[u8]| it.first().is_some_and(|&first| first >= 0x80);
    let sign = is_negative(one);
    if sign != is_negative(other) {
        return if sign { Ordering::Less } else { Ordering::Greater };
    }
    // Bytes that only repeat the sign are not significant.
    let filler = if sign { 0xff } else { 0 };
    let [one, other] = [one, other].map(|it| &it[it.iter().take_while(|&&byte| byte == filler).count()..]);
    let by_length = one.len().cmp(&other.len());
    let by_length = if sign { by_length.reverse() } else { by_length };
    by_length.then_with(|| one.cmp(other))
}

/// The least and greatest of the values so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extremes {
    /// `None`: there was no value with a place in the order.
    found: Option<(Vec<u8>, Vec<u8>)>,
}

/// Adds contiguous values of a fixed width.
macro_rules! scan {
    ($type:ty, $values:expr) => {{
        let mut values = $values.chunks_exact(size_of::<$type>()).map(|it| <$type>::from_le_bytes(number(it)));
        values.next().map(|first| {
            let (min, max) = values.fold((first, first), |it, next| (it.0.min(next), it.1.max(next)));
            (min.to_le_bytes().to_vec(), max.to_le_bytes().to_vec())
        })
    }};
}

impl Extremes {
    pub(crate) fn min(&self) -> Option<&[u8]> {
        self.found.as_ref().map(|it| &it.0[..])
    }

    pub(crate) fn max(&self) -> Option<&[u8]> {
        self.found.as_ref().map(|it| &it.1[..])
    }

    pub(crate) fn see(&mut self, order: Order, value: &[u8]) {
        if order.is_float() && order.float(value).is_nan() {
            return;
        }
        let Some((min, max)) = &mut self.found else {
            self.found = Some((value.to_vec(), value.to_vec()));
            return;
        };
        if order.compare(value, min).is_lt() {
            min.clear();
            min.extend_from_slice(value);
        } else if order.compare(value, max).is_gt() {
            max.clear();
            max.extend_from_slice(value);
        }
    }

    /// Adds values of `width` bytes each.
    pub(crate) fn add_all(&mut self, order: Order, values: &[u8], width: usize) {
        let seen = match order {
            Order::I32 => scan!(i32, values),
            Order::U32 => scan!(u32, values),
            Order::I64 => scan!(i64, values),
            Order::U64 => scan!(u64, values),
            _ => return values.chunks_exact(width.max(1)).for_each(|it| self.see(order, it)),
        };
        if let Some((min, max)) = seen {
            self.see(order, &min);
            self.see(order, &max);
        }
    }

    pub(crate) fn add(&mut self, order: Order, other: &Extremes) {
        if let Some((min, max)) = &other.found {
            self.see(order, min);
            self.see(order, max);
        }
    }

    /// The bounds to write, and whether each is a value. Zeros have the sign that the format requires.
    pub(crate) fn bounds(&self, order: Order, bytes_max: usize) -> Option<Bounds> {
        let (min, max) = self.found.as_ref()?;
        if order.is_float() {
            let with_sign = |value: &[u8], sign: u8| {
                let mut value = value.to_vec();
                if order.float(&value) == 0.0
                    && let Some(last) = value.last_mut()
                {
                    *last = sign;
                }
                value
            };
            return Some(Bounds { min: with_sign(min, 0x80), max: with_sign(max, 0), are_exact: (true, true) });
        }
        let limit = if order.is_cut() { bytes_max } else { usize::MAX };
        let (low, high) = (lower(min, limit, order), upper(max, limit, order));
        let are_exact = (low.len() == min.len(), high == *max);
        Some(Bounds { min: low, max: high, are_exact })
    }
}

/// Bounds as they are written.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) min: Vec<u8>,
    pub(crate) max: Vec<u8>,
    pub(crate) are_exact: (bool, bool),
}

impl Bounds {
    /// The bounds in a footer.
    pub(crate) fn declared(statistics: &Statistics) -> Option<Bounds> {
        let (min, max) = statistics.min_bytes_opt().zip(statistics.max_bytes_opt())?;
        let are_exact = (statistics.min_is_exact(), statistics.max_is_exact());
        Some(Bounds { min: min.to_vec(), max: max.to_vec(), are_exact })
    }
}

/// Statistics of a chunk of this type.
pub(crate) fn statistics(kind: Type, bounds: Option<&Bounds>, nulls: u64) -> Statistics {
    macro_rules! of {
        ($variant:ident, $read:expr) => {{
            let read = $read;
            let [min, max] = [bounds.map(|it| read(&it.min)), bounds.map(|it| read(&it.max))];
            let are_exact = bounds.map_or((false, false), |it| it.are_exact);
            let statistics = ValueStatistics::new(min, max, None, Some(nulls), false);
            Statistics::$variant(statistics.with_min_is_exact(are_exact.0).with_max_is_exact(are_exact.1))
        }};
    }
    match kind {
        Type::INT32 => of!(Int32, |it: &[u8]| i32::from_le_bytes(number(it))),
        Type::INT64 => of!(Int64, |it: &[u8]| i64::from_le_bytes(number(it))),
        Type::FLOAT => of!(Float, |it: &[u8]| f32::from_le_bytes(number(it))),
        Type::DOUBLE => of!(Double, |it: &[u8]| f64::from_le_bytes(number(it))),
        Type::BYTE_ARRAY => of!(ByteArray, |it: &[u8]| ByteArray::from(it.to_vec())),
        Type::FIXED_LEN_BYTE_ARRAY => of!(FixedLenByteArray, |it: &[u8]| FixedLenByteArray::from(it.to_vec())),
        // Their order is not known here, so there are no bounds.
        Type::BOOLEAN => Statistics::boolean(None, None, None, Some(nulls), false),
        Type::INT96 => Statistics::int96(None, None, None, Some(nulls), false),
    }
}

/// A lower bound of at most `limit` bytes.
fn lower(min: &[u8], limit: usize, order: Order) -> Vec<u8> {
    beginning(min, limit, order).unwrap_or(min).to_vec()
}

/// An upper bound of at most `limit` bytes, or the value itself if there is none.
fn upper(max: &[u8], limit: usize, order: Order) -> Vec<u8> {
    let Some(start) = beginning(max, limit, order) else { return max.to_vec() };
    let raised = match std::str::from_utf8(start) {
        Ok(text) if order == Order::Text => raise_text(text),
        _ => raise(start),
    };
    raised.unwrap_or_else(|| max.to_vec())
}

/// The beginning of a value that is too long, for texts up to the end of a character. `None` if it is not too long.
fn beginning(value: &[u8], limit: usize, order: Order) -> Option<&[u8]> {
    if value.len() <= limit {
        return None;
    }
    let end = match std::str::from_utf8(value) {
        Ok(text) if order == Order::Text => (1..=limit).rfind(|&it| text.is_char_boundary(it))?,
        _ => limit,
    };
    Some(&value[..end])
}

/// The next greater byte string of at most the same length.
fn raise(start: &[u8]) -> Option<Vec<u8>> {
    let last = start.iter().rposition(|&byte| byte < u8::MAX)?;
    let mut raised = start[..=last].to_vec();
    raised[last] += 1;
    Some(raised)
}

/// The next greater text: the last character that has a successor of equal length becomes that successor.
fn raise_text(start: &str) -> Option<Vec<u8>> {
    start.char_indices().rev().find_map(|(at, last)| {
        let next = char::from_u32(last as u32 + 1).filter(|it| it.len_utf8() == last.len_utf8())?;
        Some(format!("{}{next}", &start[..at]).into_bytes())
    })
}

/// Whether bounds increase or decrease from page to page.
#[derive(Default)]
pub(crate) struct Direction {
    last: Option<(Vec<u8>, Vec<u8>)>,
    has_fallen: bool,
    has_risen: bool,
}

impl Direction {
    pub(crate) fn add(&mut self, order: Order, min: &[u8], max: &[u8]) {
        if let Some((last_min, last_max)) = &self.last {
            let steps = [order.compare(min, last_min), order.compare(max, last_max)];
            self.has_fallen |= steps.contains(&Ordering::Less);
            self.has_risen |= steps.contains(&Ordering::Greater);
        }
        self.last = Some((min.to_vec(), max.to_vec()));
    }

    pub(crate) fn order(&self) -> BoundaryOrder {
        match (self.has_fallen, self.has_risen) {
            (false, _) => BoundaryOrder::ASCENDING,
            (true, false) => BoundaryOrder::DESCENDING,
            (true, true) => BoundaryOrder::UNORDERED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_of_any_length_compare_as_numbers() {
        let numbers: [i64; 13] = [i64::MIN, -70_000, -257, -256, -129, -128, -1, 0, 1, 127, 128, 256, i64::MAX];
        for (at, one) in numbers.iter().enumerate() {
            for (other_at, other) in numbers.iter().enumerate() {
                let shortest = |it: i64| {
                    let bytes = it.to_be_bytes();
                    let filler = if it < 0 { 0xff } else { 0 };
                    let is_filler = |at: usize| bytes[at] == filler && (bytes[at + 1] ^ filler) < 0x80;
                    bytes[(0..7).take_while(|&at| is_filler(at)).count()..].to_vec()
                };
                for (one, other) in [
                    (one.to_be_bytes().to_vec(), other.to_be_bytes().to_vec()),
                    (shortest(*one), other.to_be_bytes().to_vec()),
                    (shortest(*one), shortest(*other)),
                ] {
                    assert_eq!(compare_decimals(&one, &other), at.cmp(&other_at), "{one:?} {other:?}");
                }
            }
        }
    }

    #[test]
    fn halves_are_numbers() {
        let halves = [(0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (1, 2f64.powi(-24)), (0x7c00, f64::INFINITY)];
        for (bits, number) in halves {
            assert_eq!(from_half(bits), number);
        }
        assert!(from_half(0x7e00).is_nan());
    }

    #[test]
    fn numbers_that_are_none_have_no_place_and_zeros_have_the_sign_of_their_side() {
        let mut seen = Extremes::default();
        for value in [f64::NAN, 0.0, f64::NAN] {
            seen.see(Order::F64, &value.to_le_bytes());
        }
        let bounds = seen.bounds(Order::F64, BOUND_BYTES);
        let bounds = bounds.map(|it| [it.min, it.max].map(|it| f64::from_le_bytes(number(&it)).to_bits()));
        assert_eq!(bounds, Some([(-0.0f64).to_bits(), 0.0f64.to_bits()]));
    }
}
