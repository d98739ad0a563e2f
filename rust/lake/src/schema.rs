//! Converts the columns of a file to Arrow types.

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};
use parquet::arrow::parquet_to_arrow_schema;
use parquet::errors::Result;
use parquet::file::metadata::KeyValue;
use parquet::schema::types::SchemaDescriptor;
use std::sync::Arc;

/// The schema without details that differ between writers: nullability, and metadata such as field ids.
pub(crate) fn of(descriptor: &SchemaDescriptor) -> Result<Schema> {
    let schema = parquet_to_arrow_schema(descriptor, None)?;
    Ok(Schema::new(schema.fields().iter().map(bare).collect::<Fields>()))
}

fn bare(field: &FieldRef) -> FieldRef {
    Arc::new(Field::new(field.name(), bare_type(field.data_type()), true))
}

fn bare_type(kind: &DataType) -> DataType {
    match kind {
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(bare).collect()),
        DataType::List(item) => DataType::List(bare(item)),
        // Arrow requires keys that are never null.
        DataType::Map(entries, is_sorted) => match entries.data_type() {
            DataType::Struct(fields) if fields.len() == 2 => {
                let value = bare(&fields[1]);
                let key = Field::new(fields[0].name(), bare_type(fields[0].data_type()), false);
                let entries = Field::new(entries.name(), DataType::Struct([Arc::new(key), value].into()), false);
                DataType::Map(Arc::new(entries), *is_sorted)
            }
            _ => kind.clone(),
        },
        _ => kind.clone(),
    }
}

/// The units of times and durations in the Arrow schema of a writer, column by column. The Parquet types do not have
/// those of durations.
pub(crate) fn units(descriptor: &SchemaDescriptor, metadata: Option<&Vec<KeyValue>>) -> Result<String> {
    let mut units = String::new();
    let schema = parquet_to_arrow_schema(descriptor, metadata)?;
    schema.fields().iter().for_each(|field| put_units(field.data_type(), &mut units));
    Ok(units)
}

fn put_units(kind: &DataType, units: &mut String) {
    match kind {
        DataType::Duration(unit) | DataType::Timestamp(unit, _) => units.push_str(&format!("{unit:?}")),
        DataType::Dictionary(_, values) => return put_units(values, units),
        DataType::Struct(fields) => fields.iter().for_each(|field| put_units(field.data_type(), units)),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => {
            put_units(item.data_type(), units);
        }
        _ => {}
    }
    units.push(',');
}

/// Adds the metadata by which Spark chooses the calendar for the dates of a file: whether a version before 3.0 or 3.1
/// wrote it, or a later one with the old calendar.
pub(crate) fn put_calendar(pair: &KeyValue, text: &mut Vec<u8>) {
    let value = pair.value.as_deref().unwrap_or_default();
    match pair.key.strip_prefix("org.apache.spark.") {
        Some("version") if value.starts_with("2.") || value.starts_with("1.") => text.extend(b"spark 2"),
        Some("version") if value.starts_with("3.0.") => text.extend(b"spark 3.0"),
        Some("version") => text.extend(b"spark"),
        Some(name @ ("legacyDateTime" | "legacyINT96" | "timeZone")) => text.extend(name.bytes().chain(value.bytes())),
        _ => {}
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use parquet::schema::parser::parse_message_type;

    fn schema(columns: &str) -> Schema {
        let message = parse_message_type(&format!("message schema {{ {columns} }}")).unwrap();
        of(&SchemaDescriptor::new(Arc::new(message))).unwrap()
    }

    #[test]
    fn differences_between_writers_do_not_change_the_schema() {
        let item = "optional group many (LIST) { repeated group list { REPETITION int32 element = 7; } }";
        let of_two = |columns: &str| ["optional", "required"].map(|it| schema(&columns.replace("REPETITION", it)));
        for columns in [
            "REPETITION int64 seq = 3;",
            "REPETITION group place { REPETITION double x; REPETITION binary name (STRING); }",
            item,
            "optional group pairs (MAP) { repeated group key_value { required int32 key; REPETITION int32 value; } }",
        ] {
            let [first, second] = of_two(columns);
            assert_eq!(first, second, "{columns}");
        }
    }

    #[test]
    fn another_type_makes_another_schema() {
        let columns = [
            "optional int32 a;",
            "optional int64 a;",
            "optional int64 b;",
            "optional int64 a (TIMESTAMP(MILLIS,true));",
            "optional int64 a (TIMESTAMP(MICROS,true));",
            "optional binary a;",
            "optional binary a (STRING);",
            "optional group a { optional int32 x; }",
            "optional group a { optional int64 x; }",
        ];
        let schemas = columns.map(schema);
        for (at, first) in schemas.iter().enumerate() {
            assert!(!schemas[at + 1..].contains(first), "{}", columns[at]);
        }
    }
}
