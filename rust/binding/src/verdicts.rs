use crate::rows::table_of;
use arrow_array::BooleanArray;
use fencepost_core::Verdict;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use pyo3_arrow::{PyArray, PyTable};
use std::sync::Arc;

/// The result of one call: a verdict per row, counts, and lists.
///
/// Arrow results follow the PyCapsule protocol and do not need pyarrow. ``numpy.asarray(verdicts.verdict)`` returns a
/// NumPy array. The object itself is an Arrow stream with the column ``verdict``, and ``offset`` for produce batches.
#[pyclass(frozen, module = "fencepost")]
pub(crate) struct Verdicts(pub(crate) fencepost_columns::Verdicts);

#[pymethods]
impl Verdicts {
    fn __len__(&self) -> usize {
        self.0.verdict.len()
    }

    fn __repr__(&self) -> String {
        let counts = Verdict::ALL.iter().zip(self.0.counts).filter(|&(_, count)| count > 0);
        let counts: Vec<String> = counts.map(|(verdict, count)| format!("{} {count}", verdict.name())).collect();
        format!("<Verdicts of {} rows: {}>", self.0.verdict.len(), counts.join(", "))
    }

    /// Arrow uint8 array with one ``Verdict`` code per row.
    #[getter]
    fn verdict(&self) -> PyArray {
        PyArray::from_array_ref(Arc::new(self.0.verdict.clone()))
    }

    /// Arrow boolean array with one value per row: true for ACCEPTED and UNTRACKED.
    #[getter]
    fn kept(&self, py: Python<'_>) -> PyArray {
        let kept = py.detach(|| self.0.kept_bits());
        PyArray::from_array_ref(Arc::new(BooleanArray::new(kept, None)))
    }

    /// Number of rows by ``Verdict``. Every verdict is listed.
    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let class = py.import("fencepost.verdict")?.getattr("Verdict")?;
        let counts = PyDict::new(py);
        for (code, count) in self.0.counts.iter().enumerate() {
            counts.set_item(class.call1((code,))?, count)?;
        }
        Ok(counts)
    }

    /// Number of rows below the highest accepted epoch of their key, kept or not. They indicate a zombie.
    #[getter]
    fn stale_epoch(&self) -> u64 {
        self.0.stale_epoch
    }

    /// The rows of ``stale_epoch`` by producer, as an Arrow table in key order: the key columns, epoch (int16) and
    /// count (int64).
    #[getter]
    fn stale(&self) -> PyResult<PyTable> {
        table_of(self.0.stale.clone())
    }

    /// Number of rows that were put into another lap than the highest accepted row, because both are near the end of
    /// the number range. A lap is one pass from 0 to wrap - 1.
    #[getter]
    fn border(&self) -> u64 {
        self.0.border
    }

    /// Ranges that rows of this call skipped and that no row filled, as an Arrow table in key order.
    ///
    /// The columns are the key columns, epoch (int16), first_seq, last_seq and count (int64).
    #[getter]
    fn missing(&self, py: Python<'_>) -> PyResult<PyTable> {
        table_of(py.detach(|| self.0.missing()).to_vec())
    }

    /// Arrow int64 array with one value per row: the sequence number that would have been accepted instead of an
    /// OUT_OF_ORDER row. Null for other rows.
    #[getter]
    fn expected(&self, py: Python<'_>) -> PyArray {
        PyArray::from_array_ref(py.detach(|| Arc::new(self.0.expected())))
    }

    /// Arrow int64 array with one offset per produce batch: the first offset of an accepted batch, or of the original
    /// of a duplicate. Null if there is none, and for all rows of a StateTable.
    #[getter]
    fn offsets(&self, py: Python<'_>) -> PyArray {
        PyArray::from_array_ref(py.detach(|| Arc::new(self.0.offsets())))
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let table = Bound::new(py, table_of(vec![self.0.batch()])?)?;
        table.call_method1("__arrow_c_stream__", (requested_schema,))
    }
}
