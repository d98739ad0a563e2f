//! Reads records of a log from Arrow data.

use crate::batches::read_timestamps;
use crate::failure::Failure;
use crate::identity::wrong_type;
use crate::rows::Rows;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field, Fields};
use fencepost_kafka::BatchBuilder;

/// The column of keys.
pub const KEY: &str = "key";
/// The column of values.
pub const VALUE: &str = "value";
/// The column of headers.
pub const HEADERS: &str = "headers";
const TIMESTAMP: &str = "timestamp";
/// All columns of records. Only `value` is required.
pub const RECORD_COLUMNS: [&str; 4] = [KEY, VALUE, TIMESTAMP, HEADERS];

/// Builds a batch from rows with the column value and, if they exist, key, timestamp and headers.
pub fn build_records(rows: Rows, now_ms: i64) -> Result<BatchBuilder, Failure> {
    let names: Vec<&str> =
        [VALUE, KEY, TIMESTAMP, HEADERS].into_iter().filter(|&name| name == VALUE || rows.has(name)).collect();
    let mut builder = BatchBuilder::default();
    for columns in rows.select(&names)? {
        let of = |name: &str| names.iter().position(|&it| it == name).map(|at| &columns[at]);
        let before = builder.count() as usize;
        let value = of(VALUE).map(|column| to_binary(VALUE, column)).transpose()?;
        let key = of(KEY).map(|column| to_binary(KEY, column)).transpose()?;
        let times = of(TIMESTAMP).map(|column| read_timestamps(TIMESTAMP, column, before)).transpose()?;
        let headers = of(HEADERS).map(to_headers).transpose()?;
        let rows = columns.first().map_or(0, |column| column.len());
        let headers_of = |row: usize| {
            let Some(headers) = headers.as_ref().filter(|it| it.is_valid(row)) else { return Ok(Vec::new()) };
            let pairs = headers.as_list::<i32>().value(row);
            let (names, values) = (pairs.as_struct().column(0).clone(), pairs.as_struct().column(1).clone());
            let pair = |at: usize| {
                if names.is_null(at) {
                    return Err(Failure::batch(HEADERS, Some(before + row), "a header without a name"));
                }
                let value = values.is_valid(at).then(|| values.as_binary::<i32>().value(at).to_vec());
                Ok((names.as_string::<i32>().value(at).to_string(), value))
            };
            (0..pairs.len()).map(pair).collect::<Result<Vec<_>, _>>()
        };
        fn bytes_of(column: &Option<ArrayRef>, row: usize) -> Option<&[u8]> {
            column.as_ref().filter(|it| it.is_valid(row)).map(|it| it.as_binary::<i64>().value(row))
        }
        for row in 0..rows {
            let timestamp = times.as_ref().map_or(now_ms, |times| times[row]);
            if timestamp < 0 {
                let found = if timestamp == -1 { "null or -1".to_string() } else { format!("value {timestamp}") };
                let problem = format!("{found}, but a timestamp is 0..={} ms", i64::MAX);
                return Err(Failure::batch(TIMESTAMP, Some(before + row), problem));
            }
            let headers = headers_of(row)?;
            let pairs: Vec<_> = headers.iter().map(|(name, value)| (name.as_bytes(), value.as_deref())).collect();
            builder.push(timestamp, bytes_of(&key, row), bytes_of(&value, row), pairs.into_iter());
        }
    }
    Ok(builder)
}

fn to_binary(name: &str, column: &ArrayRef) -> Result<ArrayRef, Failure> {
    let kind = match column.data_type() {
        DataType::Dictionary(_, values) => values,
        kind => kind,
    };
    let is_bytes = kind.is_string() || kind.is_binary() || kind.is_null();
    if !is_bytes {
        return Err(wrong_type(name, column.data_type(), "binary or strings"));
    }
    Ok(arrow_cast::cast(column, &DataType::LargeBinary)?)
}

fn to_headers(column: &ArrayRef) -> Result<ArrayRef, Failure> {
    let pair = vec![Field::new("key", DataType::Utf8, true), Field::new("value", DataType::Binary, true)];
    let expected = DataType::new_list(DataType::Struct(Fields::from(pair)), true);
    let wrong = || wrong_type(HEADERS, column.data_type(), "lists of structs of key (utf8) and value (binary)");
    arrow_cast::cast(column, &expected).map_err(|_| wrong())
}
