//! A [`BrokerTable`] as bytes. Frames are those of other tables; entries are different.

use super::frames::{Payload, Reader, Writer, as_damage, damaged, refuse};
use super::{KeyBounds, columns, key_type, no_more, number, read_key_type, text, write_dictionary};
use crate::order::Renumbering;
use crate::{BrokerOptions, BrokerTable, Error, ProducerEntry, Result, WindowBatch};
use std::io::{self, Read, Write};

const MAGIC: [u8; 8] = *b"FPBROKR\0";
const VERSION: u16 = 1;

/// Number of entries, or of ends of logs, after which a frame ends.
const FRAME_ENTRIES_MAX: usize = 4096;

impl BrokerTable {
    /// Writes the table. Equal tables have equal bytes.
    pub fn write_snapshot(&self, out: &mut impl Write) -> io::Result<()> {
        let keys = self.sorted_keys();
        let mut ends = self.log_ends();
        let numbers = Renumbering::new(self.keys(), |visit| {
            keys.iter().for_each(|&(pid, partition)| visit(pid, partition));
            ends.iter().for_each(|&(partition, _)| visit(0, partition));
        });
        let [low, high] = VERSION.to_le_bytes();
        let mut frames = Writer::new(out, &[&MAGIC[..], &[low, high, 0, 0]].concat())?;
        self.write_header(frames.payload(), &numbers, ends.len());
        frames.end_frame()?;
        write_dictionary(&mut frames, &self.keys().partition.dictionary, numbers.partition.as_ref())?;
        ends.iter_mut().for_each(|end| end.0 = numbers.key(0, end.0).1);
        for ends in ends.chunks(FRAME_ENTRIES_MAX) {
            write_column(frames.payload(), ends, 1, |end| end.0.into());
            write_column(frames.payload(), ends, 0, |end| end.1);
            frames.end_frame()?;
        }
        let mut entries = Vec::with_capacity(FRAME_ENTRIES_MAX.min(keys.len()));
        for keys in keys.chunks(FRAME_ENTRIES_MAX) {
            entries.clear();
            entries.extend(keys.iter().map(|&(pid, partition)| {
                let entry = self.get(pid, partition).expect("a known key");
                ProducerEntry { partition: numbers.key(pid, partition).1, ..entry }
            }));
            write_entries(frames.payload(), &entries);
            frames.end_frame()?;
        }
        Ok(())
    }

    /// The table as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write_snapshot(&mut bytes).expect("a Vec takes every write");
        bytes
    }

    /// Reads a table. Returns `Error::Snapshot` if the bytes are not a valid snapshot. Data after the snapshot is not
    /// read.
    pub fn read_snapshot(input: &mut impl Read) -> Result<BrokerTable> {
        let mut frames = Reader::new(input);
        if frames.head::<8>()? != MAGIC {
            return refuse("these bytes are not a snapshot of a BrokerTable");
        }
        let version = u16::from_le_bytes(frames.head()?);
        if version != VERSION {
            return refuse(format!("the snapshot has version {version}, but this fencepost reads version {VERSION}"));
        }
        if frames.head()? != [0, 0] {
            return refuse("the kind of the snapshot is unknown");
        }
        let mut payload = frames.next_frame()?;
        let (options, has_times) = read_options(&mut payload)?;
        let partition = read_key_type(&mut payload)?;
        let (ends, entries) = (payload.number()?, payload.number()?);
        payload.end()?;
        let mut table = BrokerTable::new(options)?;
        let pid = table.keys().pid.clone();
        let partition = frames.dictionary(partition)?;
        let bounds = KeyBounds::new(&pid, &partition);
        table.keys_mut().partition = partition;
        read_ends(&mut frames, ends, &bounds, &mut table)?;
        read_entries(&mut frames, entries, &bounds, &mut table)?;
        table.set_has_times(has_times);
        Ok(table)
    }

    /// Reads a table from bytes.
    pub fn restore(mut bytes: &[u8]) -> Result<BrokerTable> {
        let table = BrokerTable::read_snapshot(&mut bytes)?;
        no_more(bytes)?;
        Ok(table)
    }

    fn write_header(&self, out: &mut Vec<u8>, numbers: &Renumbering, ends: usize) {
        let options = self.options();
        text(out, &options.version.to_string());
        out.extend([options.window, options.begins_at_zero.into(), options.assigns_offsets.into()]);
        out.push(self.has_times().into());
        number(out, options.max_idle_ms as u64);
        // If no key is used, the next one may have any type.
        if self.is_blank() {
            out.push(0)
        } else {
            key_type(out, &self.keys().partition, numbers.partition.as_ref())
        }
        number(out, ends as u64);
        number(out, self.len() as u64);
    }
}

fn read_options(payload: &mut Payload<'_>) -> Result<(BrokerOptions, bool)> {
    let version = payload.text()?.parse().map_err(|error: Error| Error::Snapshot(error.to_string()))?;
    let [window] = payload.array()?;
    let (begins_at_zero, assigns_offsets, has_times) = (payload.flag()?, payload.flag()?, payload.flag()?);
    let max_idle_ms = payload.number()? as i64;
    if window == 0 || max_idle_ms < 0 {
        return damaged(format!("a window of {window} batches or max_idle_ms={max_idle_ms} is invalid"));
    }
    Ok((BrokerOptions { version, window, begins_at_zero, assigns_offsets, max_idle_ms }, has_times))
}

fn write_column<T>(out: &mut Vec<u8>, items: &[T], width_min: usize, value: impl Fn(&T) -> i64) {
    columns::write(out, &items.iter().map(value).collect::<Vec<_>>(), width_min);
}

/// The columns with one number per entry, and how each is computed.
const ENTRY_COLUMNS: [fn(&ProducerEntry) -> i64; 8] = [
    |entry| entry.pid,
    |entry| entry.partition.into(),
    |entry| entry.epoch.into(),
    |entry| entry.coordinator_epoch.into(),
    |entry| entry.last_timestamp,
    |entry| entry.is_open.into(),
    |entry| entry.open_from,
    |entry| entry.batches.len() as i64,
];

const BATCH_COLUMNS: [fn(&WindowBatch) -> i64; 3] =
    [|batch| batch.last_seq.into(), |batch| batch.offset_delta.into(), |batch| batch.last_offset];

fn write_entries(out: &mut Vec<u8>, entries: &[ProducerEntry]) {
    number(out, entries.len() as u64);
    ENTRY_COLUMNS.iter().for_each(|value| write_column(out, entries, 1, value));
    let batches: Vec<WindowBatch> = entries.iter().flat_map(|entry| entry.batches.iter().copied()).collect();
    BATCH_COLUMNS.iter().for_each(|value| write_column(out, &batches, 1, value));
}

fn read_ends<R: Read>(
    frames: &mut Reader<'_, R>,
    count: u64,
    bounds: &KeyBounds,
    table: &mut BrokerTable,
) -> Result<()> {
    let (mut partitions, mut ends, mut before) = (Vec::new(), Vec::new(), -1);
    let mut left = count;
    while left > 0 {
        let mut payload = frames.next_frame()?;
        let rows = left.min(FRAME_ENTRIES_MAX as u64) as usize;
        columns::read(&mut payload, rows, 1, &mut partitions)?;
        columns::read(&mut payload, rows, 0, &mut ends)?;
        payload.end()?;
        for (&partition, &end) in partitions.iter().zip(&ends) {
            let is_next = partition > before;
            before = partition;
            match i32::try_from(partition) {
                Ok(partition) if is_next && end >= 0 => {
                    bounds.check(0, partition)?;
                    table.set_log_end(partition, end)?;
                }
                _ => return damaged("the ends of logs are out of order or invalid"),
            }
        }
        left -= rows as u64;
    }
    Ok(())
}

fn read_entries<R: Read>(
    frames: &mut Reader<'_, R>,
    count: u64,
    bounds: &KeyBounds,
    table: &mut BrokerTable,
) -> Result<()> {
    let mut before = None;
    let mut left = count;
    while left > 0 {
        let mut payload = frames.next_frame()?;
        let rows = payload.number()?;
        if rows == 0 || rows > left.min(FRAME_ENTRIES_MAX as u64) {
            return damaged(format!(
                "a frame declares {rows} entries: expected 1 to {FRAME_ENTRIES_MAX}, no more than the {left} that are \
                 left"
            ));
        }
        for entry in read_frame(&mut payload, rows as usize)? {
            let key = (entry.pid, entry.partition);
            if before.is_some_and(|before| before >= key) {
                return damaged("entries are out of order");
            }
            before = Some(key);
            bounds.check(entry.pid, entry.partition)?;
            table.add(&entry)?;
        }
        payload.end()?;
        left -= rows;
    }
    Ok(())
}

fn read_frame(payload: &mut Payload<'_>, rows: usize) -> Result<Vec<ProducerEntry>> {
    let mut numbers: [Vec<i64>; ENTRY_COLUMNS.len()] = Default::default();
    numbers.iter_mut().try_for_each(|values| columns::read(payload, rows, 1, values))?;
    let [pids, partitions, epochs, coordinators, timestamps, open, open_from, lengths] = numbers;
    let batches = lengths.iter().try_fold(0_usize, |sum, &length| {
        usize::try_from(length).ok().filter(|&length| length <= usize::from(u8::MAX)).map(|length| sum + length)
    });
    let Some(batches) = batches else { return damaged("the length of a window is outside 0..=255") };
    let mut of_batches: [Vec<i64>; BATCH_COLUMNS.len()] = Default::default();
    of_batches.iter_mut().try_for_each(|values| columns::read(payload, batches, 1, values))?;
    let [last_seqs, deltas, last_offsets] = of_batches;
    let batch = |at: usize| -> Result<WindowBatch> {
        Ok(WindowBatch {
            last_seq: narrow(last_seqs[at])?,
            offset_delta: narrow(deltas[at])?,
            last_offset: last_offsets[at],
        })
    };
    let mut from = 0;
    let entry = |row: usize| {
        let window = from..from + lengths[row] as usize;
        from = window.end;
        Ok(ProducerEntry {
            pid: pids[row],
            partition: narrow(partitions[row])?,
            epoch: narrow(epochs[row])?,
            coordinator_epoch: narrow(coordinators[row])?,
            last_timestamp: timestamps[row],
            is_open: flag(open[row])?,
            open_from: open_from[row],
            batches: window.map(batch).collect::<Result<_>>()?,
        })
    };
    (0..rows).map(entry).collect()
}

fn flag(value: i64) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => damaged(format!("a flag is {other}, not 0 or 1")),
    }
}

fn narrow<T: TryFrom<i64>>(value: i64) -> Result<T> {
    T::try_from(value).map_err(|_| as_damage(format!("a number of an entry is out of range: {value}")))
}
