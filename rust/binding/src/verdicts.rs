use crate::arrow_out::{has_epochs, missing_batches, stale_batches};
use crate::failure::Failure;
use arrow_array::builder::Int64Builder;
use arrow_array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, UInt8Array};
use arrow_buffer::{BooleanBuffer, Buffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};
use fencepost_core::{BrokerJudged, Judged, Keys, StateTable, Verdict, kept_bits};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use pyo3_arrow::{PyArray, PyTable};
use std::sync::{Arc, LazyLock};

/// The outcome of one call, row by row and in sum.
///
/// Arrow results follow the PyCapsule protocol and need no pyarrow; ``numpy.asarray(verdicts.verdict)``
/// gives NumPy. The object itself is an Arrow stream with the column ``verdict``, and ``offset`` where they are
/// those of produce batches.
#[pyclass(frozen, module = "fencepost")]
pub(crate) struct Verdicts {
    verdict: UInt8Array,
    counts: [u64; Verdict::COUNT],
    stale_epoch: u64,
    border: u64,
    expected: Vec<(u64, i64)>,
    /// Of produce batches, where any has one; -1 where it has none.
    offsets: Option<Vec<i64>>,
    missing: Listed,
    stale: Vec<RecordBatch>,
}

/// Batches that are made when they are first asked for.
type Listed = LazyLock<Vec<RecordBatch>, Box<dyn FnOnce() -> Vec<RecordBatch> + Send>>;

impl Verdicts {
    pub(crate) fn new(mut judged: Judged, table: &StateTable) -> Verdicts {
        Verdicts {
            stale: stale_batches(table.keys(), has_epochs(table), &judged.stale),
            verdict: UInt8Array::new(ScalarBuffer::from(std::mem::take(&mut judged.verdicts)), None),
            counts: judged.counts,
            stale_epoch: judged.stale_epoch,
            border: judged.border,
            expected: std::mem::take(&mut judged.expected),
            offsets: None,
            missing: missing_of(judged, table),
        }
    }

    /// Of produce batches, which leave nothing missing: a gap is refused.
    pub(crate) fn of_batches(judged: BrokerJudged, keys: &Keys) -> Verdicts {
        let BrokerJudged { verdicts, counts, expected, offsets } = judged;
        Verdicts {
            missing: listed(missing_batches(keys, true, std::iter::empty())),
            stale: stale_batches(keys, true, &[]),
            verdict: UInt8Array::new(ScalarBuffer::from(verdicts), None),
            counts,
            stale_epoch: counts[Verdict::Fenced as usize],
            border: 0,
            expected,
            offsets: Some(offsets),
        }
    }

    /// One a row.
    pub(crate) fn codes(&self) -> &[u8] {
        self.verdict.values()
    }

    /// Whether each row is kept.
    pub(crate) fn kept_bits(&self) -> BooleanBuffer {
        bits(kept_bits(self.codes()), self.verdict.len())
    }

    /// Null where a row has none.
    fn offsets_array(&self) -> Int64Array {
        match self.offsets.as_deref() {
            None | Some([]) => Int64Array::new_null(self.verdict.len()),
            Some(offsets) => offsets.iter().map(|&offset| (offset >= 0).then_some(offset)).collect(),
        }
    }
}

/// So many of the bits of words, as Arrow has them.
pub(crate) fn bits(words: Vec<u64>, count: usize) -> BooleanBuffer {
    BooleanBuffer::new(Buffer::from_vec(words), 0, count)
}

/// Keys whose names take as long to share as a missing range to list.
const KEYS_A_RANGE: usize = 16_384;

/// What a call left missing, listed when it is asked for: by names of the keys that are shared, because the table may
/// forget or renumber them. A few ranges among many keys are listed at once.
fn missing_of(judged: Judged, table: &StateTable) -> Listed {
    let has_epochs = has_epochs(table);
    let names = table.keys().pid.dictionary.len() + table.keys().partition.dictionary.len();
    let is_short = judged.opened() < names / KEYS_A_RANGE;
    let list = move |keys: &Keys| missing_batches(keys, has_epochs, judged.missing(keys));
    if is_short {
        return listed(list(table.keys()));
    }
    let keys = table.keys().names();
    LazyLock::new(Box::new(move || list(&keys)))
}

fn listed(batches: Vec<RecordBatch>) -> Listed {
    LazyLock::new(Box::new(move || batches))
}

#[pymethods]
impl Verdicts {
    fn __len__(&self) -> usize {
        self.verdict.len()
    }

    fn __repr__(&self) -> String {
        let counts = Verdict::ALL.iter().zip(self.counts).filter(|&(_, count)| count > 0);
        let counts: Vec<String> = counts.map(|(verdict, count)| format!("{} {count}", verdict.name())).collect();
        format!("<Verdicts of {} rows: {}>", self.verdict.len(), counts.join(", "))
    }

    /// Arrow uint8, one ``Verdict`` code a row.
    #[getter]
    fn verdict(&self) -> PyArray {
        PyArray::from_array_ref(Arc::new(self.verdict.clone()))
    }

    /// Arrow boolean, one a row: true for ACCEPTED and UNTRACKED.
    #[getter]
    fn kept(&self, py: Python<'_>) -> PyArray {
        let kept = py.detach(|| self.kept_bits());
        PyArray::from_array_ref(Arc::new(BooleanArray::new(kept, None)))
    }

    /// Rows by ``Verdict``, every verdict named.
    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let class = py.import("fencepost.verdict")?.getattr("Verdict")?;
        let counts = PyDict::new(py);
        for (code, count) in self.counts.iter().enumerate() {
            counts.set_item(class.call1((code,))?, count)?;
        }
        Ok(counts)
    }

    /// Rows below the highest epoch accepted of their key, kept or not: how a zombie shows.
    #[getter]
    fn stale_epoch(&self) -> u64 {
        self.stale_epoch
    }

    /// Arrow table of those rows by producer: the key columns, epoch (int16) and count (int64), in key order.
    #[getter]
    fn stale(&self) -> PyResult<PyTable> {
        PyTable::try_new(self.stale.clone(), self.stale[0].schema())
    }

    /// Rows that only the border of the wrap could place on a lap.
    #[getter]
    fn border(&self) -> u64 {
        self.border
    }

    /// Arrow table of the ranges that rows of this call jumped over and none filled: the key columns,
    /// epoch (int16), first_seq, last_seq and count (int64), in key order.
    #[getter]
    fn missing(&self, py: Python<'_>) -> PyResult<PyTable> {
        let batches = py.detach(|| LazyLock::force(&self.missing));
        PyTable::try_new(batches.clone(), batches[0].schema())
    }

    /// Arrow int64, one a row: for OUT_OF_ORDER rows the sequence that would have been accepted, else null.
    #[getter]
    fn expected(&self, py: Python<'_>) -> PyArray {
        let expected = py.detach(|| {
            let mut out = Int64Builder::with_capacity(self.verdict.len());
            let mut from = 0;
            for &(row, seq) in &self.expected {
                out.append_nulls(row as usize - from);
                out.append_value(seq);
                from = row as usize + 1;
            }
            out.append_nulls(self.verdict.len() - from);
            out.finish()
        });
        PyArray::from_array_ref(Arc::new(expected))
    }

    /// Arrow int64, one a row, of produce batches: the first offset of one that was accepted, or of the original of a
    /// duplicate; null where there is none, and for all rows of a StateTable.
    #[getter]
    fn offsets(&self, py: Python<'_>) -> PyArray {
        PyArray::from_array_ref(py.detach(|| Arc::new(self.offsets_array())))
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut fields = vec![Field::new("verdict", DataType::UInt8, false)];
        let mut columns: Vec<ArrayRef> = vec![Arc::new(self.verdict.clone())];
        if self.offsets.is_some() {
            fields.push(Field::new("offset", DataType::Int64, true));
            columns.push(Arc::new(self.offsets_array()));
        }
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(schema.clone(), columns).map_err(|it| Failure::from(it).raise(py))?;
        let table = Bound::new(py, PyTable::try_new(vec![batch], schema)?)?;
        table.call_method1("__arrow_c_stream__", (requested_schema,))
    }
}
