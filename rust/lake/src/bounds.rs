//! Bounds of integer columns from footers, for planning.

use crate::error::{Error, Result};
use crate::file::ParquetFile;
use crate::read_at::ReadAt;
use parquet::basic::{ConvertedType, LogicalType};
use parquet::file::metadata::ParquetStatisticsPolicy;
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnDescriptor;
use std::path::Path;
use std::sync::Arc;

/// Least and greatest value of an integer column per row group. `None` if the footer does not have them.
pub type Bounds = Vec<Option<(i64, i64)>>;

impl ParquetFile {
    /// Opens a file and reads the bounds of these columns. Statistics of other columns are not decoded.
    ///
    /// `reader`: reads an object that is not a local file.
    pub fn open_for_bounds(
        path: &Path,
        reader: Option<&Arc<dyn ReadAt>>,
        columns: &[&str],
    ) -> Result<(ParquetFile, Vec<Bounds>)> {
        let open = |statistics| match reader {
            None => ParquetFile::open_with(path, statistics),
            Some(reader) => ParquetFile::read(path, reader.clone(), statistics),
        };
        let file = open(ParquetStatisticsPolicy::SkipAll)?;
        let schema = file.metadata().file_metadata().schema_descr();
        let leaves = columns.iter().map(|&name| {
            schema.columns().iter().position(|column| column.path().parts() == [name]).ok_or_else(|| Error::Column {
                path: path.into(),
                name: name.into(),
                problem: "missing, or not a plain column".into(),
            })
        });
        let leaves = leaves.collect::<Result<Vec<usize>>>()?;
        if leaves.is_empty() {
            return Ok((file, vec![]));
        }
        let file = open(ParquetStatisticsPolicy::skip_except(&leaves))?;
        let bounds = leaves.iter().map(|&leaf| file.bounds(leaf)).collect();
        Ok((file, bounds))
    }

    fn bounds(&self, leaf: usize) -> Bounds {
        let of_group = |group: &parquet::file::metadata::RowGroupMetaData| {
            let column = group.column(leaf);
            let is_unsigned = is_unsigned(column.column_descr());
            match column.statistics()? {
                Statistics::Int32(found) => {
                    let widen = |value: i32| if is_unsigned { i64::from(value as u32) } else { i64::from(value) };
                    Some((widen(*found.min_opt()?), widen(*found.max_opt()?)))
                }
                Statistics::Int64(found) if !is_unsigned => Some((*found.min_opt()?, *found.max_opt()?)),
                Statistics::Int64(found) => {
                    Some((i64::try_from(*found.min_opt()? as u64).ok()?, i64::try_from(*found.max_opt()? as u64).ok()?))
                }
                _ => None,
            }
        };
        self.metadata().row_groups().iter().map(of_group).collect()
    }
}

fn is_unsigned(column: &ColumnDescriptor) -> bool {
    use ConvertedType::{UINT_8, UINT_16, UINT_32, UINT_64};
    matches!(column.logical_type_ref(), Some(LogicalType::Integer(it)) if !it.is_signed)
        || matches!(column.converted_type(), UINT_8 | UINT_16 | UINT_32 | UINT_64)
}
