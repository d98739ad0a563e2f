//! The result of a call.

use crate::arrow_out::{batch, has_epochs, listed_batches, stale_batches};
use arrow_array::builder::Int64Builder;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, UInt8Array};
use arrow_buffer::{BooleanBuffer, Buffer, ScalarBuffer};
use arrow_schema::{DataType, Field};
use fencepost_core::{BrokerJudged, Judged, Keys, StateTable, Verdict, kept_bits};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// The result of one call: a verdict per row, and counts.
pub struct Verdicts {
    /// The code of a verdict for each row.
    pub verdict: UInt8Array,
    /// Number of rows by verdict.
    pub counts: [u64; Verdict::COUNT],
    /// Number of rows below the highest accepted epoch of their key.
    pub stale_epoch: u64,
    /// Number of rows whose lap only the border of the wrap decided.
    pub border: u64,
    expected: Vec<(u64, i64)>,
    /// The offsets of produce batches, if any has one; -1 if a batch has none.
    offsets: Option<Vec<i64>>,
    missing: Listed,
    /// Rows below the highest epoch by producer, in at least one batch.
    pub stale: Vec<RecordBatch>,
}

/// Batches that are built at the first request.
type Listed = LazyLock<Vec<RecordBatch>, Box<dyn FnOnce() -> Vec<RecordBatch> + Send>>;

impl Verdicts {
    /// The result for rows.
    pub fn new(mut judged: Judged, table: &StateTable) -> Verdicts {
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

    /// The result for produce batches. Nothing is missing, because gaps are refused.
    pub fn of_batches(judged: BrokerJudged, keys: &Keys) -> Verdicts {
        let BrokerJudged { verdicts, counts, expected, offsets } = judged;
        Verdicts {
            missing: listed(listed_batches(keys, true, std::iter::empty())),
            stale: stale_batches(keys, true, &[]),
            verdict: UInt8Array::new(ScalarBuffer::from(verdicts), None),
            counts,
            stale_epoch: counts[Verdict::Fenced as usize],
            border: 0,
            expected,
            offsets: Some(offsets),
        }
    }

    /// One per row.
    pub fn codes(&self) -> &[u8] {
        self.verdict.values()
    }

    /// Whether each row is kept.
    pub fn kept_bits(&self) -> BooleanBuffer {
        bits(kept_bits(self.codes()), self.verdict.len())
    }

    /// The ranges that rows of this call skipped and that no row filled, in at least one batch. The first call can take
    /// long.
    pub fn missing(&self) -> &[RecordBatch] {
        &self.missing
    }

    /// The sequence number that would have been accepted, for each row that is out of order; null for other rows.
    pub fn expected(&self) -> Int64Array {
        let mut out = Int64Builder::with_capacity(self.verdict.len());
        let mut from = 0;
        for &(row, seq) in &self.expected {
            out.append_nulls(row as usize - from);
            out.append_value(seq);
            from = row as usize + 1;
        }
        out.append_nulls(self.verdict.len() - from);
        out.finish()
    }

    /// The column `verdict`, and `offset` for produce batches.
    pub fn batch(&self) -> RecordBatch {
        let verdict: ArrayRef = Arc::new(self.verdict.clone());
        let mut columns = vec![(Field::new("verdict", DataType::UInt8, false), verdict)];
        if self.offsets.is_some() {
            columns.push((Field::new("offset", DataType::Int64, true), Arc::new(self.offsets())));
        }
        batch(columns, HashMap::new())
    }

    /// The offset of each row; null if it has none.
    pub fn offsets(&self) -> Int64Array {
        match self.offsets.as_deref() {
            None | Some([]) => Int64Array::new_null(self.verdict.len()),
            Some(offsets) => offsets.iter().map(|&offset| (offset >= 0).then_some(offset)).collect(),
        }
    }
}

/// The first bits of words, as an Arrow buffer.
pub(crate) fn bits(words: Vec<u64>, count: usize) -> BooleanBuffer {
    BooleanBuffer::new(Buffer::from_vec(words), 0, count)
}

/// Number of keys whose names take as long to share as a missing range to list.
const KEYS_A_RANGE: usize = 16_384;

/// The missing ranges of a call, listed on request. It shares the names of keys, because the table can forget or
/// renumber them. A few ranges among many keys are listed at once.
fn missing_of(judged: Judged, table: &StateTable) -> Listed {
    let has_epochs = has_epochs(table);
    let names = table.keys().pid.dictionary.len() + table.keys().partition.dictionary.len();
    let is_short = judged.opened() < names / KEYS_A_RANGE;
    let list = move |keys: &Keys| listed_batches(keys, has_epochs, judged.missing(keys));
    if is_short {
        return listed(list(table.keys()));
    }
    let keys = table.keys().names();
    LazyLock::new(Box::new(move || list(&keys)))
}

fn listed(batches: Vec<RecordBatch>) -> Listed {
    LazyLock::new(Box::new(move || batches))
}
