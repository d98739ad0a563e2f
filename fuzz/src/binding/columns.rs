//! Columns of any type that Arrow has for integers, texts and bytes, and of some that are refused.

use crate::bytes::Bytes;
use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, FixedSizeBinaryArray, Float64Array, Int32Array, Int64Array,
    ListArray, NullArray, PrimitiveArray, RunArray, StringArray, new_null_array,
};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, TimeUnit};
use std::sync::Arc;

const INTEGERS: [DataType; 8] = [
    DataType::Int8,
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::UInt8,
    DataType::UInt16,
    DataType::UInt32,
    DataType::UInt64,
];
const TEXTS: [DataType; 6] = [
    DataType::Utf8,
    DataType::LargeUtf8,
    DataType::Utf8View,
    DataType::Binary,
    DataType::LargeBinary,
    DataType::BinaryView,
];
const UNITS: [TimeUnit; 4] = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];

/// How a column is put into Arrow: the same for all batches of a stream.
#[derive(Clone, Copy)]
pub(super) struct Form {
    kind: u8,
    /// Chooses among the kind's types.
    detail: u8,
    /// How many rows of other batches lie before and behind in the same buffers.
    before: usize,
    behind: usize,
}

impl Form {
    /// Mostly integers: keys, and what may be refused, are chosen by the higher kinds.
    pub(super) fn read(bytes: &mut Bytes<'_>) -> Form {
        let (kind, detail, slice) = (bytes.next(), bytes.next(), bytes.next());
        Form { kind: kind % 16, detail, before: usize::from(slice % 4), behind: usize::from(slice / 4 % 4) }
    }

    pub(super) fn is_integer(self) -> bool {
        self.kind < 10
    }

    /// Whether the values are texts, plain or in a dictionary, which may hold nulls itself.
    pub(super) fn is_text(self) -> bool {
        match self.kind {
            10 | 11 => self.detail % 6 < 3, // the first of TEXTS
            12 => true,
            _ => false,
        }
    }

    /// Whether sequence numbers of this form have 32 bits.
    pub(super) fn is_narrow(self) -> bool {
        match self.kind {
            0..=5 => matches!(self.detail % 8, 0 | 1 | 2 | 4 | 5),
            7 => true,
            _ => false,
        }
    }

    /// The values in this form, as a part of longer buffers.
    pub(super) fn array(self, values: &[Option<i64>]) -> ArrayRef {
        let (before, behind) = (vec![Some(7); self.before], vec![None; self.behind]);
        let all = [&before[..], values, &behind].concat();
        self.whole(&Int64Array::from(all)).slice(self.before, values.len())
    }

    fn whole(self, values: &Int64Array) -> ArrayRef {
        let array: ArrayRef = Arc::new(values.clone());
        let to = |kind: &DataType| cast(&array, kind).expect("a cast that Arrow has");
        let detail = usize::from(self.detail);
        match self.kind {
            0..=5 => to(&INTEGERS[detail % 8]),
            6 => narrow_keys(values, detail),
            7 => dictionary(to(&DataType::Int32)),
            8 if !values.is_empty() => {
                let ends = Int32Array::from_iter_values((1..=values.len()).map(|end| end as i32));
                Arc::new(RunArray::<Int32Type>::try_new(&ends, &array).expect("a run a value"))
            }
            8 => array,
            9 => Arc::new(NullArray::new(values.len())),
            10 | 11 => cast(&to(&DataType::Utf8), &TEXTS[detail % 6]).expect("a text"),
            12 => dictionary(to(&DataType::Utf8)),
            13 => fixed(values, detail % 20),
            14 => {
                let unit = DataType::Timestamp(UNITS[detail % 4], (detail > 127).then(|| "+02:00".into()));
                cast(&array, &unit).expect("ticks")
            }
            _ => refused(values, detail),
        }
    }
}

/// A key a value. Nulls are in the values.
fn dictionary(values: ArrayRef) -> ArrayRef {
    let keys = PrimitiveArray::<Int32Type>::from_iter((0..values.len()).map(|at| Some(at as i32)));
    Arc::new(DictionaryArray::new(keys, values))
}

/// A key a value, as long as there are keys of 8 bits. Nulls are in the keys.
fn narrow_keys(values: &Int64Array, detail: usize) -> ArrayRef {
    let narrow = cast(values, &INTEGERS[detail % 8]).expect("a cast that Arrow has");
    if values.len() > 100 {
        return narrow;
    }
    let key = |at: usize| values.is_valid(at).then_some(at as i8);
    let keys = PrimitiveArray::<Int8Type>::from_iter((0..values.len()).map(key));
    Arc::new(DictionaryArray::new(keys, narrow))
}

fn fixed(values: &Int64Array, width: usize) -> ArrayRef {
    let bytes = values.iter().map(|value| {
        let value = value?.to_le_bytes();
        Some((0..width).map(|at| value[at % 8]).collect::<Vec<u8>>())
    });
    Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes, width as i32).expect("of that width"))
}

/// What no role takes.
fn refused(values: &Int64Array, detail: usize) -> ArrayRef {
    let length = values.len();
    match detail % 6 {
        0 => Arc::new(Float64Array::from_iter(values.iter().map(|value| value.map(|value| value as f64)))),
        1 => Arc::new(BooleanArray::from_iter(values.iter().map(|value| value.map(|value| value > 0)))),
        2 => Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>((0..length).map(|_| Some([Some(1)])))),
        3 => new_null_array(&DataType::Decimal128(38, 0), length),
        4 => new_null_array(&DataType::Struct(vec![Field::new("a", DataType::Int64, true)].into()), length),
        _ => Arc::new(StringArray::from_iter(
            values.iter().map(|value| value.map(|value| "ü".repeat(value as usize & 63))),
        )),
    }
}
