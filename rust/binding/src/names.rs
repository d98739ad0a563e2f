//! The columns of each role, from the classes of Python.

use crate::raise::Raise;
use crate::rows::take_rows;
use fencepost_columns::{BatchNames, ColumnNames, Failure, LogColumns, Rows, origin_of};
use pyo3::prelude::*;

/// The names in a Python `Columns`.
pub(crate) fn column_names(columns: &Bound<'_, PyAny>) -> PyResult<ColumnNames> {
    Ok(ColumnNames {
        pid: columns.call_method1("parts", ("pid",))?.extract()?,
        epoch: columns.getattr("epoch")?.extract()?,
        partition: columns.call_method1("parts", ("partition",))?.extract()?,
        seq: columns.getattr("seq")?.extract()?,
        timestamp: columns.getattr("timestamp")?.extract()?,
        length: None,
    })
}

/// The names in a Python `BatchColumns`, for a table of produce batches.
pub(crate) fn batch_names(columns: &Bound<'_, PyAny>) -> PyResult<BatchNames> {
    let mut optional = Vec::new();
    for role in BatchNames::OPTIONAL {
        if let Some(name) = columns.getattr(role.to_string().as_str())?.extract::<Option<String>>()? {
            optional.push((role, name));
        }
    }
    let origin: String = columns.getattr("default_origin")?.extract()?;
    Ok(BatchNames {
        pid: columns.getattr("pid")?.extract()?,
        epoch: columns.getattr("epoch")?.extract()?,
        partition: columns.call_method1("parts", ("partition",))?.extract()?,
        base_seq: columns.getattr("base_seq")?.extract()?,
        optional,
        default_origin: origin_of(&origin).expect("BatchColumns has validated it"),
    })
}

/// The names in a Python `BatchColumns`, for an index of transactions.
pub(crate) fn log_columns(columns: &Bound<'_, PyAny>) -> PyResult<LogColumns> {
    let py = columns.py();
    let class = py.import("fencepost.policy")?.getattr("BatchColumns")?;
    if !columns.is_instance(&class)? {
        let message = format!("columns={}: expected a fencepost.BatchColumns", columns.repr()?);
        return Err(Failure::Policy(message).raise(py));
    }
    let needed = |role: &str| match columns.getattr(role)?.extract::<Option<String>>()? {
        Some(name) => Ok(name),
        None => {
            let message =
                format!("BatchColumns({role}=None): the outcomes of transactions cannot be found without this column");
            Err(Failure::Policy(message).raise(py))
        }
    };
    let optional = |role: &str| columns.getattr(role)?.extract::<Option<String>>();
    Ok(LogColumns {
        pid: needed("pid")?,
        epoch: needed("epoch")?,
        partition: columns.call_method1("parts", ("partition",))?.extract()?,
        offset: needed("offset")?,
        control: needed("control")?,
        last_offset: optional("last_offset")?,
        transactional: optional("transactional")?,
        timestamp: optional("timestamp")?,
    })
}

/// Reads the rows, and returns them with the first layout whose columns they have.
pub(crate) fn take_log_rows(layouts: &[LogColumns], rows: &Bound<'_, PyAny>) -> PyResult<(LogColumns, Rows)> {
    let names: Vec<&str> = layouts.iter().flat_map(LogColumns::all).collect();
    let rows = take_rows(rows, Some(&names))?;
    Ok((LogColumns::found_in(layouts, &rows), rows))
}
