//! Kafka's log for Python: Arrow streams that read segments on demand, and the small files beside the segments.

use crate::objects::{Blocks, Object, interrupt_again};
use crate::raise::Raise;
use crate::rows::table_of;
use arrow_array::{ArrayRef, Int16Array, Int32Array, Int64Array, RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use fencepost_columns::Failure;
use fencepost_columns::{BatchArrays, RecordArrays, without_panic};
use fencepost_kafka as kafka;
use kafka::index::IndexCheck;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyCapsule;
use pyo3_arrow::{PyRecordBatch, PyRecordBatchReader, PyTable};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of rows of a record batch.
const BATCH_ROWS: usize = 1 << 16;
/// Maximum number of bytes to read before a stream is exported.
const AHEAD_BYTES: usize = 16 << 20;
/// Maximum size of an offset index. A broker's default is 10 MB (segment.index.bytes).
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// Why a stream ends early.
enum Stop {
    Damage(kafka::Error),
    Interrupt(PyErr),
    /// An earlier read failed.
    Broken,
}

const BROKEN: &str = "an earlier read of this stream failed midway; open the stream again";

impl From<kafka::Error> for Stop {
    fn from(error: kafka::Error) -> Stop {
        Stop::Damage(error)
    }
}

impl Stop {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Stop::Damage(error) => Failure::from(error).raise(py),
            Stop::Interrupt(error) => error,
            Stop::Broken => PyValueError::new_err(BROKEN),
        }
    }

    /// Converts to an error of an Arrow stream, which carries only a text. Raises a pending interrupt again later.
    fn into_arrow(self) -> ArrowError {
        match self {
            Stop::Damage(error) => ArrowError::ExternalError(Box::new(error)),
            Stop::Interrupt(error) => {
                Python::attach(|py| interrupt_again(py, &error));
                ArrowError::ExternalError("interrupted".into())
            }
            Stop::Broken => ArrowError::ExternalError(BROKEN.into()),
        }
    }
}

fn check_signals() -> Result<(), Stop> {
    Python::attach(|py| py.check_signals()).map_err(Stop::Interrupt)
}

/// Returns the next rows, and the damage that follows them.
type Pull = Box<dyn FnMut() -> Result<(Option<RecordBatch>, Option<kafka::Error>), Stop> + Send>;

/// The state of a stream, shared with its exports.
struct Rows {
    pull: Pull,
    /// Record batches that `read_ahead` has read.
    ahead: VecDeque<RecordBatch>,
    /// Damage after the last returned rows.
    damage: Option<kafka::Error>,
    is_done: bool,
    /// Whether a read failed. The missing rows must not look like the end of the stream.
    is_broken: bool,
}

impl Rows {
    fn next(&mut self) -> Result<Option<RecordBatch>, Stop> {
        if self.is_broken {
            return Err(Stop::Broken);
        }
        // It stays so after a panic, too.
        self.is_broken = true;
        let next = self.read();
        self.is_broken = next.is_err();
        next
    }

    fn read(&mut self) -> Result<Option<RecordBatch>, Stop> {
        if let Some(ahead) = self.ahead.pop_front() {
            return Ok(Some(ahead));
        }
        if let Some(damage) = self.damage.take() {
            return Err(damage.into());
        }
        if self.is_done {
            return Ok(None);
        }
        self.is_done = true;
        check_signals()?;
        let (rows, damage) = (self.pull)()?;
        self.is_done = rows.is_none() || damage.is_some();
        match damage {
            Some(damage) if rows.is_none() => return Err(damage.into()),
            damage => self.damage = damage,
        }
        Ok(rows)
    }

    /// Reads up to the size of a full record batch, so that damage in these rows is raised here. It reads several
    /// record batches if segments are small, because each segment begins a new one.
    fn read_ahead(&mut self) -> Result<(), Stop> {
        let mut ahead = VecDeque::new();
        let (mut rows, mut bytes) = (0, 0);
        while rows < BATCH_ROWS && bytes < AHEAD_BYTES {
            let Some(batch) = self.next()? else { break };
            rows += batch.num_rows();
            bytes += batch.get_array_memory_size();
            ahead.push_back(batch);
        }
        self.ahead = ahead;
        self.damage.take().map_or(Ok(()), |damage| {
            self.is_broken = true;
            Err(damage.into())
        })
    }
}

type Findings = Arc<Mutex<Vec<kafka::Error>>>;

/// Rows of a Kafka log, read on demand and only once.
///
/// Pass the stream to ``pyarrow.table``, ``polars.DataFrame`` or any other consumer of Arrow streams, or iterate over
/// its record batches. It holds a few record batches in memory, each with 65 536 rows or slightly more than 16 MiB. It
/// releases the interpreter while it reads, and handles Ctrl-C between record batches.
///
/// Iteration returns all rows before damage and then raises SourceError (path, position). Consumers of an Arrow stream
/// get only a text, and raise their own error with it. Therefore the first 65 536 rows are read before the stream is
/// exported: damage in them raises SourceError there too.
#[pyclass(frozen, module = "fencepost._native")]
pub(crate) struct KafkaStream {
    schema: SchemaRef,
    rows: Arc<Mutex<Rows>>,
    findings: Findings,
}

impl KafkaStream {
    fn new(schema: SchemaRef, findings: Findings, pull: Pull) -> KafkaStream {
        let rows = Rows { pull, ahead: VecDeque::new(), damage: None, is_done: false, is_broken: false };
        KafkaStream { schema, rows: Arc::new(Mutex::new(rows)), findings }
    }
}

#[pymethods]
impl KafkaStream {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let ahead = py.detach(|| self.rows.lock().unwrap_or_else(PoisonError::into_inner).read_ahead());
        ahead.map_err(|stop| stop.raise(py))?;
        let export = Export { schema: self.schema.clone(), rows: self.rows.clone() };
        let reader = PyRecordBatchReader::new(Box::new(export)).into_pyobject(py)?;
        let capsule = reader.call_method1("__arrow_c_stream__", (requested_schema,))?;
        Ok(capsule.cast_into::<PyCapsule>()?)
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyRecordBatch>> {
        let next = py.detach(|| self.rows.lock().unwrap_or_else(PoisonError::into_inner).next());
        next.map(|batch| batch.map(PyRecordBatch::new)).map_err(|stop| stop.raise(py))
    }

    /// Findings of ``damage="report"`` so far, in the order of reading.
    #[getter]
    fn findings<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let class = py.import("fencepost.kafka.finding")?.getattr("Finding")?;
        let findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let finding = |it: kafka::Error| class.call1((it.kind.name(), it.path, it.position, it.reason));
        findings.into_iter().map(finding).collect()
    }
}

/// The exported stream. Its consumer may or may not hold the interpreter.
struct Export {
    schema: SchemaRef,
    rows: Arc<Mutex<Rows>>,
}

impl Iterator for Export {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let pull = || self.rows.lock().unwrap_or_else(PoisonError::into_inner).next();
        without_panic(|| Python::attach(|py| py.detach(pull)).map_err(Stop::into_arrow).transpose())
    }
}

impl RecordBatchReader for Export {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

/// A segment from Python: its path or URI, the offset in its name, and, unless it is a local file, an object with
/// ``size()`` and ``read(offset, length)``.
type NamedSegment = (String, Option<i64>, Option<Py<PyAny>>);

fn segment((path, base_offset, object): NamedSegment) -> kafka::Segment {
    let open: Box<dyn Fn() -> io::Result<Box<dyn kafka::ReadAt>> + Send + Sync> = match object {
        None => {
            let path = path.clone();
            Box::new(move || Ok(Box::new(File::open(&path)?)))
        }
        Some(object) => Box::new(move || Ok(Box::new(Object::open(&object, Blocks::SEQUENTIAL)?))),
    };
    kafka::Segment { path, base_offset, open }
}

/// Return the batch headers of segments in the order of their offsets, one per row. See
/// ``fencepost.kafka.read_batches``.
///
/// Args:
///     segments: (path, base offset, object) of each segment.
///     reports: Report damage as a finding. The segment ends there, and reading continues with the next one.
#[pyfunction]
#[pyo3(signature = (segments, topic=None, partition=None, *, reports=false))]
pub(crate) fn kafka_batches(
    segments: Vec<NamedSegment>,
    topic: Option<String>,
    partition: Option<i32>,
    reports: bool,
) -> KafkaStream {
    let findings = Findings::default();
    let indexes = if reports { IndexChecks::of(&segments) } else { IndexChecks::default() };
    let mut arrays = BatchArrays::new(topic, partition);
    let (scan, findings_of) = (scan_of(segments), findings.clone());
    let mut batches = Batches { scan, indexes, findings: findings_of, reports, second: None, damage: None };
    let schema = arrays.schema();
    let pull = move || {
        let (columns, damage) = batches.next()?;
        Ok((columns.map(|columns| arrays.batch(batches.scan.path(), columns)), damage))
    };
    KafkaStream::new(schema, findings, Box::new(pull))
}

fn scan_of(segments: Vec<NamedSegment>) -> kafka::PartitionScan {
    kafka::PartitionScan::new(segments.into_iter().map(segment))
}

struct Batches {
    scan: kafka::PartitionScan,
    indexes: IndexChecks,
    findings: Findings,
    reports: bool,
    /// Rows that were read together with the rows before them, and the damage after them.
    second: Option<kafka::BatchColumns>,
    damage: Option<kafka::Error>,
}

impl Batches {
    /// The next non-empty rows, all of one segment, and the damage after them.
    fn next(&mut self) -> Result<(Option<kafka::BatchColumns>, Option<kafka::Error>), Stop> {
        if let Some(second) = self.second.take() {
            return Ok((Some(second), self.damage.take()));
        }
        loop {
            let mut pieces = <[kafka::BatchColumns; 2]>::default();
            let read = self.scan.read_two(&mut pieces, BATCH_ROWS);
            let is_end = matches!(read, Ok(false));
            let mut damage = read.err();
            if self.reports {
                let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
                findings.extend(self.scan.take_gap());
                for columns in &pieces {
                    findings.extend(self.indexes.add(self.scan.path(), columns, is_end));
                }
                findings.extend(damage.take());
            }
            let [first, second] = pieces.map(|columns| (!columns.is_empty()).then_some(columns));
            if second.is_some() {
                (self.second, self.damage) = (second, damage);
                return Ok((first, None));
            }
            if first.is_some() || damage.is_some() || is_end {
                return Ok((first, damage));
            }
            check_signals()?;
        }
    }
}

/// Compares the offset indexes beside local segments with the segments, while these are read.
#[derive(Default)]
struct IndexChecks {
    base_offsets: HashMap<String, i64>,
    open: Option<(String, IndexCheck)>,
}

impl IndexChecks {
    fn of(segments: &[NamedSegment]) -> IndexChecks {
        let local = segments.iter().filter(|(_, _, object)| object.is_none());
        let base_offsets = local.filter_map(|(path, base, _)| Some((path.clone(), (*base)?))).collect();
        IndexChecks { base_offsets, open: None }
    }

    /// Adds rows of a segment. Returns what is wrong with the index of the previous segment and with its own.
    fn add(&mut self, path: &str, columns: &kafka::BatchColumns, is_last: bool) -> Vec<kafka::Error> {
        let mut found = Vec::new();
        let index = Path::new(path).with_extension("index").display().to_string();
        if self.open.as_ref().is_none_or(|(open, _)| *open != index) {
            found.extend(self.finish());
            if let Some(base) = self.base_offsets.remove(path) {
                match open_index(Path::new(&index), base) {
                    Ok(check) => self.open = check.map(|check| (index.clone(), check)),
                    Err(error) => found.push(error.in_file(&index)),
                }
            }
        }
        if let Some((path, check)) = &mut self.open
            && let Err(error) = check.add(columns)
        {
            found.push(error.in_file(path));
            self.open = None;
        }
        if is_last {
            found.extend(self.finish());
        }
        found
    }

    fn finish(&mut self) -> Option<kafka::Error> {
        let (path, mut check) = self.open.take()?;
        check.finish().err().map(|error| error.in_file(&path))
    }
}

/// `None` if there is no index.
fn open_index(path: &Path, base_offset: i64) -> kafka::Result<Option<IndexCheck>> {
    let unreadable = |reason: String| kafka::Error {
        path: String::new(),
        position: None,
        kind: kafka::Kind::Unreadable,
        reason: format!("cannot be read: {reason}"),
    };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(metadata) if metadata.len() > INDEX_BYTES_MAX => {
            let bytes = metadata.len();
            return Err(unreadable(format!("it has {bytes} bytes, but an index at most {INDEX_BYTES_MAX}")));
        }
        _ => {}
    }
    let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
    Ok(Some(IndexCheck::new(kafka::index::read(&bytes, base_offset)?)))
}

/// Return the data records of segments in the order of their offsets, one per row. See
/// ``fencepost.kafka.read_records``.
///
/// Args:
///     committed: None, "folder" (the segments are complete) or "segment" (one of several segments).
///     aborted: Path and bytes of the transaction index beside the segment, if there is one. Only with "segment".
///     from_offset: The first offset to return.
///     first_segment: Index of the first segment whose records are read. Of earlier ones, only headers are read.
#[pyfunction]
#[pyo3(signature = (
    segments, topic=None, partition=None, *, committed=None, aborted=None, from_offset=0, first_segment=0,
    batch_bytes_max=kafka::BATCH_BYTES_MAX,
))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
pub(crate) fn kafka_records(
    py: Python<'_>,
    mut segments: Vec<NamedSegment>,
    topic: Option<String>,
    partition: Option<i32>,
    committed: Option<&str>,
    aborted: Option<(String, PyBackedBytes)>,
    from_offset: i64,
    first_segment: usize,
    batch_bytes_max: usize,
) -> PyResult<KafkaStream> {
    if batch_bytes_max > kafka::BATCH_BYTES_MAX {
        let most = kafka::BATCH_BYTES_MAX;
        return Err(PyValueError::new_err(format!("batch_bytes_max={batch_bytes_max}: at most {most} are possible")));
    }
    let copy = |it: &NamedSegment| (it.0.clone(), it.1, it.2.as_ref().map(|object| object.clone_ref(py)));
    let isolation = match (committed, aborted) {
        (None, _) => Isolation::Uncommitted,
        (Some("folder"), _) => Isolation::Folder(segments.iter().map(copy).collect()),
        (Some(_), None) => Isolation::Segment(segments.iter().map(copy).collect(), vec![]),
        (Some(_), Some((path, bytes))) => {
            let index = kafka::aborted::read(&bytes).map_err(|error| Failure::from(error.in_file(&path)).raise(py))?;
            Isolation::Segment(segments.iter().map(copy).collect(), index)
        }
    };
    let partition_scan = scan_of(segments.split_off(first_segment.min(segments.len())));
    let source = Records { to_read: Some((isolation, partition_scan)), scan: None, from_offset, batch_bytes_max };
    Ok(source.into_stream(topic, partition))
}

/// The records of a scan, one per row.
pub(crate) fn record_stream(topic: Option<String>, partition: Option<i32>, scan: kafka::RecordScan) -> KafkaStream {
    let batch_bytes_max = kafka::BATCH_BYTES_MAX;
    let source = Records { to_read: None, scan: Some(scan), from_offset: 0, batch_bytes_max };
    source.into_stream(topic, partition)
}

/// Which records are returned, and the segments whose headers decide the outcomes of transactions.
enum Isolation {
    Uncommitted,
    Folder(Vec<NamedSegment>),
    Segment(Vec<NamedSegment>, Vec<kafka::aborted::AbortedTxn>),
}

impl Isolation {
    fn view(self) -> Result<kafka::View, Stop> {
        Ok(match self {
            Isolation::Uncommitted => kafka::View::uncommitted(),
            Isolation::Folder(segments) => outcomes(segments)?.view(),
            Isolation::Segment(segments, index) => {
                let path = segments.first().map(|(path, _, _)| path.clone()).unwrap_or_default();
                outcomes(segments)?.view_of_segment(&index).map_err(|error| error.in_file(&path))?
            }
        })
    }
}

/// Reads the outcomes of transactions from all headers.
fn outcomes(segments: Vec<NamedSegment>) -> Result<kafka::Outcomes, Stop> {
    let (mut scan, mut pieces) = (scan_of(segments), <[kafka::BatchColumns; 2]>::default());
    let mut outcomes = kafka::Outcomes::default();
    loop {
        pieces.iter_mut().for_each(kafka::BatchColumns::clear);
        let has_more = scan.read_two(&mut pieces, BATCH_ROWS)?;
        pieces.iter().for_each(|columns| outcomes.add(columns));
        if !has_more {
            return Ok(outcomes);
        }
        check_signals()?;
    }
}

struct Records {
    to_read: Option<(Isolation, kafka::PartitionScan)>,
    scan: Option<kafka::RecordScan>,
    from_offset: i64,
    batch_bytes_max: usize,
}

impl Records {
    fn into_stream(mut self, topic: Option<String>, partition: Option<i32>) -> KafkaStream {
        let mut arrays = RecordArrays::new(topic, partition);
        let schema = arrays.schema();
        let pull = move || {
            let (columns, damage) = self.next()?;
            Ok((columns.map(|columns| arrays.batch(columns)), damage))
        };
        KafkaStream::new(schema, Findings::default(), Box::new(pull))
    }

    fn next(&mut self) -> Result<(Option<kafka::RecordColumns>, Option<kafka::Error>), Stop> {
        if let Some((isolation, partition)) = self.to_read.take() {
            let view = isolation.view()?.starting_at(self.from_offset);
            self.scan = Some(kafka::RecordScan::new(partition, view, self.batch_bytes_max));
        }
        let Some(scan) = &mut self.scan else { return Ok((None, None)) };
        loop {
            let mut columns = kafka::RecordColumns::default();
            let read = scan.read(&mut columns, BATCH_ROWS);
            let is_end = matches!(read, Ok(false));
            let damage = read.err();
            if !columns.is_empty() || damage.is_some() || is_end {
                return Ok(((!columns.is_empty()).then_some(columns), damage));
            }
            check_signals()?;
        }
    }
}

/// Return the entries of a broker's snapshot of producer state. ``path`` is only for error messages.
#[pyfunction]
pub(crate) fn kafka_snapshot(py: Python<'_>, bytes: PyBackedBytes, path: &str) -> PyResult<PyTable> {
    let entries = py.detach(|| kafka::snapshot::read(&bytes));
    let entries = entries.map_err(|error| Failure::from(error.in_file(path)).raise(py))?;
    let long = |of: fn(&kafka::snapshot::ProducerEntry) -> i64| Int64Array::from_iter_values(entries.iter().map(of));
    let int = |of: fn(&kafka::snapshot::ProducerEntry) -> i32| Int32Array::from_iter_values(entries.iter().map(of));
    table(vec![
        ("pid", Arc::new(long(|it| it.pid))),
        ("epoch", Arc::new(Int16Array::from_iter_values(entries.iter().map(|it| it.epoch)))),
        ("last_seq", Arc::new(int(|it| it.last_seq))),
        ("last_offset", Arc::new(long(|it| it.last_offset))),
        ("offset_delta", Arc::new(int(|it| it.offset_delta))),
        ("timestamp", Arc::new(long(|it| it.timestamp))),
        ("coordinator_epoch", Arc::new(int(|it| it.coordinator_epoch))),
        ("txn_first_offset", Arc::new(long(|it| it.txn_first_offset))),
    ])
}

/// Return the entries of a broker's index of aborted transactions. ``path`` is only for error messages.
#[pyfunction]
pub(crate) fn kafka_aborted(py: Python<'_>, bytes: PyBackedBytes, path: &str) -> PyResult<PyTable> {
    let entries = py.detach(|| kafka::aborted::read(&bytes));
    let entries = entries.map_err(|error| Failure::from(error.in_file(path)).raise(py))?;
    let long = |of: fn(&kafka::aborted::AbortedTxn) -> i64| Int64Array::from_iter_values(entries.iter().map(of));
    table(vec![
        ("pid", Arc::new(long(|it| it.pid))),
        ("first_offset", Arc::new(long(|it| it.first_offset))),
        ("last_offset", Arc::new(long(|it| it.last_offset))),
        ("last_stable_offset", Arc::new(long(|it| it.last_stable_offset))),
    ])
}

fn table(columns: Vec<(&str, ArrayRef)>) -> PyResult<PyTable> {
    let columns = columns.into_iter().map(|(name, array)| (name, array, false));
    table_of(vec![RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")])
}
