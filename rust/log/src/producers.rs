//! Converts between the producer state of a table and of Kafka's snapshot, which has only the last batch.

use fencepost_core::{ProducerEntry, WindowBatch};
use fencepost_kafka::snapshot;

/// Converts to Kafka's snapshot. `None` if offsets are unknown.
pub fn to_kafka(entry: &ProducerEntry) -> Option<snapshot::ProducerEntry> {
    let batch = entry.batches.last();
    if batch.is_some_and(|batch| batch.last_offset < 0) || (entry.is_open && entry.open_from < 0) {
        return None;
    }
    Some(snapshot::ProducerEntry {
        pid: entry.pid,
        epoch: entry.epoch,
        last_seq: batch.map_or(-1, |batch| batch.last_seq),
        last_offset: batch.map_or(-1, |batch| batch.last_offset),
        offset_delta: batch.map_or(0, |batch| batch.offset_delta),
        timestamp: entry.last_timestamp,
        coordinator_epoch: entry.coordinator_epoch,
        txn_first_offset: entry.open_from,
    })
}

/// The state after a restart. `None` if the last batch has no offset.
pub fn of_kafka(entry: &snapshot::ProducerEntry, partition: i32) -> Option<ProducerEntry> {
    let has_batch = entry.last_offset >= 0;
    if !has_batch && (entry.last_seq, entry.last_offset, entry.offset_delta) != (-1, -1, 0) {
        return None;
    }
    let batch =
        WindowBatch { last_seq: entry.last_seq, offset_delta: entry.offset_delta, last_offset: entry.last_offset };
    Some(ProducerEntry {
        pid: entry.pid,
        partition,
        epoch: entry.epoch,
        coordinator_epoch: entry.coordinator_epoch,
        last_timestamp: entry.timestamp,
        is_open: entry.txn_first_offset >= 0,
        open_from: entry.txn_first_offset,
        batches: if has_batch { vec![batch] } else { Vec::new() },
    })
}
