use arrow_array::BooleanArray;
use fencepost_core::Verdict;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use pyo3_arrow::{PyArray, PyTable};
use std::sync::Arc;

/// The outcome of one call, row by row and in sum.
///
/// Arrow results follow the PyCapsule protocol and need no pyarrow; ``numpy.asarray(verdicts.verdict)``
/// gives NumPy. The object itself is an Arrow stream with the column ``verdict``, and ``offset`` where they are
/// those of produce batches.
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

    /// Arrow uint8, one ``Verdict`` code a row.
    #[getter]
    fn verdict(&self) -> PyArray {
        PyArray::from_array_ref(Arc::new(self.0.verdict.clone()))
    }

    /// Arrow boolean, one a row: true for ACCEPTED and UNTRACKED.
    #[getter]
    fn kept(&self, py: Python<'_>) -> PyArray {
        let kept = py.detach(|| self.0.kept_bits());
        PyArray::from_array_ref(Arc::new(BooleanArray::new(kept, None)))
    }

    /// Rows by ``Verdict``, every verdict named.
    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let class = py.import("fencepost.verdict")?.getattr("Verdict")?;
        let counts = PyDict::new(py);
        for (code, count) in self.0.counts.iter().enumerate() {
            counts.set_item(class.call1((code,))?, count)?;
        }
        Ok(counts)
    }

    /// Rows below the highest epoch accepted of their key, kept or not: how a zombie shows.
    #[getter]
    fn stale_epoch(&self) -> u64 {
        self.0.stale_epoch
    }

    /// Arrow table of those rows by producer: the key columns, epoch (int16) and count (int64), in key order.
    #[getter]
    fn stale(&self) -> PyResult<PyTable> {
        PyTable::try_new(self.0.stale.clone(), self.0.stale[0].schema())
    }

    /// Rows that only the border of the wrap could place on a lap.
    #[getter]
    fn border(&self) -> u64 {
        self.0.border
    }

    /// Arrow table of the ranges that rows of this call jumped over and none filled: the key columns,
    /// epoch (int16), first_seq, last_seq and count (int64), in key order.
    #[getter]
    fn missing(&self, py: Python<'_>) -> PyResult<PyTable> {
        let batches = py.detach(|| self.0.missing());
        PyTable::try_new(batches.to_vec(), batches[0].schema())
    }

    /// Arrow int64, one a row: for OUT_OF_ORDER rows the sequence that would have been accepted, else null.
    #[getter]
    fn expected(&self, py: Python<'_>) -> PyArray {
        PyArray::from_array_ref(py.detach(|| Arc::new(self.0.expected())))
    }

    /// Arrow int64, one a row, of produce batches: the first offset of one that was accepted, or of the original of a
    /// duplicate; null where there is none, and for all rows of a StateTable.
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
        let batch = self.0.batch();
        let schema = batch.schema();
        let table = Bound::new(py, PyTable::try_new(vec![batch], schema)?)?;
        table.call_method1("__arrow_c_stream__", (requested_schema,))
    }
}
