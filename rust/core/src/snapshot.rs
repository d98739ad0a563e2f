//! A table as bytes, version 1. docs/snapshot-format.md describes them.
//!
//! ```text
//! head        magic "FPSTATE\0" | version u16 | whole or delta u8 | 0 u8
//! frame       length u64 | payload | CRC-32 of everything so far except the checksums
//!
//! frames      header: policy, options, key types, counts
//!             pids, then partitions, in the order of their bytes, if they are not plain integers
//!             removed keys (delta only)
//!             entries, in an order that depends on their keys
//! ```
//!
//! Equal tables have equal bytes. Reading and writing are streams: neither holds more than some frames in memory. The
//! writer also holds the places of some lines, or all frames of a delta.

mod broker;
mod columns;
mod frames;
mod rows;

use crate::changes::{Eviction, Forgotten};
use crate::key_block::block_hash;
use crate::keys::{KEY_BYTES_MAX, KEY_PARTS_MAX, KeyKind, KeySpace, Keys, PartKind, decode_parts};
use crate::order::{Numbering, Renumbering};
use crate::ordered::Appended;
use crate::parallel::ahead;
use crate::{Dictionary, Policy, Result, StateTable, Untracked};
use frames::{Payload, Reader, Writer, as_damage, damaged, refuse};
use rows::{Before, ENTRY_BYTES_MIN, KeyRow, KeyRows, Rows};
use std::cmp::Ordering;
use std::io::{self, Read, Write};
use std::mem;

const MAGIC: [u8; 8] = *b"FPSTATE\0";
const VERSION: u16 = 1;
const WHOLE: u8 = 0;
const DELTA: u8 = 1;

/// From this number of entries on, a second thread reads the entries that this one adds.
const THREAD_ENTRIES_MIN: u64 = 1 << 18;

/// Number of keys of a dictionary after which a frame ends, and number of bytes.
const FRAME_KEYS_MAX: usize = 4096;
const FRAME_BYTES_MAX: usize = 1 << 16;
/// Maximum number of bytes of a key part with a fixed length.
const KEY_WIDTH_MAX: u32 = KEY_BYTES_MAX as u32;

impl StateTable {
    /// Writes the table. Equal tables have equal bytes. Returns the checksum by which a delta refers to this snapshot,
    /// see [`StateTable::begin_changes`].
    pub fn write_snapshot(&self, out: &mut impl Write) -> io::Result<u32> {
        Delta { table: self, since: None }.write(out)
    }

    /// The table as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write_snapshot(&mut bytes).expect("a Vec takes every write");
        bytes
    }

    /// The changes since the last snapshot or delta, to be written as a delta.
    ///
    /// Returns `Error::Snapshot` if changes are not tracked or there is no snapshot that they follow.
    pub fn delta(&self) -> Result<Delta<'_>> {
        match (self.changes().marks(), self.changes().since()) {
            (None, _) => refuse("the table does not track changes: call track_changes() and save() first"),
            (_, None) => refuse("there is no snapshot yet that a delta could follow: call save() first"),
            (Some(_), Some(since)) => Ok(Delta { table: self, since: Some(since) }),
        }
    }

    /// Reads a table. Returns `Error::Snapshot` if the bytes are not a valid snapshot or cannot be read. Data after the
    /// snapshot is not read.
    ///
    /// `bytes`: the size of the input, 0 if unknown. It limits the memory that is reserved for the entries declared in
    /// the header.
    pub fn read_snapshot(input: &mut (impl Read + Send), bytes: u64) -> Result<StateTable> {
        let (mut input, header) = Reader::open(input, WHOLE)?;
        let mut table = header.options.empty_table()?;
        let (pid, partition) = input.dictionaries(header.pid, header.partition)?;
        let bounds = KeyBounds::new(&pid, &partition);
        let entries_max = header.entries.min(bytes / ENTRY_BYTES_MIN as u64);
        let mut frames = Frames::new(&bounds, header.entries);
        let next = || frames.next(&mut input).transpose();
        ahead(entries_max >= THREAD_ENTRIES_MIN, next, |next| {
            let mut has_room = false;
            while let Some(entries) = next() {
                table.append(entries?)?;
                if !has_room {
                    has_room = table.reserve_for(entries_max)?;
                }
            }
            Ok(())
        })?;
        (table.keys_mut().pid, table.keys_mut().partition) = (pid, partition);
        table.begin_changes(input.checksum());
        Ok(table)
    }

    /// Reads a table from bytes.
    pub fn restore(mut bytes: &[u8]) -> Result<StateTable> {
        let count = bytes.len() as u64;
        let table = StateTable::read_snapshot(&mut bytes, count)?;
        no_more(bytes)?;
        Ok(table)
    }

    /// Applies a delta. It is read and checked completely before the first change.
    ///
    /// Returns `Error::Snapshot` if the bytes are not a delta, if they do not follow the snapshot or delta from which
    /// this table was read, or if the table has changed since.
    pub fn apply_delta(&mut self, mut bytes: &[u8]) -> Result<()> {
        let (mut input, header) = Reader::open(&mut bytes, DELTA)?;
        if self.changes().since() != header.follows || !self.changes().is_none() {
            return refuse(
                "the delta follows another snapshot than the one of this table: pass each delta once, in the order in \
                 which they were written",
            );
        }
        if !Options::of(self).allows(&header.options) {
            return refuse("the delta is of a table with another policy or other options");
        }
        let (pid, partition) = input.dictionaries(header.pid, header.partition)?;
        let bounds = KeyBounds::new(&pid, &partition);
        let gone = input.gone(header.gone)?;
        gone.iter().try_for_each(|&(pid, partition)| bounds.check(pid, partition))?;
        let mut frames = Frames::new(&bounds, header.entries);
        let mut entries = Vec::new();
        while let Some(of_frame) = frames.next(&mut input)? {
            of_frame.iter().try_for_each(|entry| self.check_appended(entry))?;
            entries.extend(of_frame);
        }
        let checksum = input.checksum();
        no_more(bytes)?;
        let keys = Keys { pid, partition };
        if !header.everything {
            self.check_kinds(&keys)?;
        }
        let forgotten = Forgotten {
            horizon_ms: header.options.horizon_ms,
            eviction: header.eviction,
            everything: header.everything,
            gone,
        };
        self.take_over(&keys, &forgotten, entries)?;
        self.begin_changes(checksum);
        Ok(())
    }
}

/// A snapshot to be written: a whole table, or its changes.
pub struct Delta<'a> {
    table: &'a StateTable,
    /// The checksum of the snapshot or delta that a delta follows.
    since: Option<u32>,
}

impl Delta<'_> {
    /// Writes the snapshot. Returns the checksum, see [`StateTable::begin_changes`].
    pub fn write(&self, out: &mut impl Write) -> io::Result<u32> {
        let table = self.table;
        let mut gone: Vec<(i64, i32)> = Vec::new();
        if self.since.is_some() {
            gone = table.changes().gone().to_vec();
            gone.sort_unstable();
            gone.dedup();
        }
        let numbers = Renumbering::new(table.keys(), |visit| {
            gone.iter().for_each(|&(pid, partition)| visit(pid, partition));
            table.for_each_key(|pid, partition| {
                if self.has(pid, partition) {
                    visit(pid, partition);
                }
            });
        });
        // The number of entries of a delta is known only after all are found, so they are kept until it is written.
        let (mut waiting, mut entries) = (Vec::new(), table.len());
        if self.since.is_some() {
            entries = 0;
            self.for_each_frame(&numbers, &mut |rows| {
                entries += rows.len();
                waiting.push(rows.encoded());
                io::Result::Ok(())
            })?;
        }
        let kind = if self.since.is_some() { DELTA } else { WHOLE };
        let [low, high] = VERSION.to_le_bytes();
        let head = [&MAGIC[..], &[low, high, kind, 0]].concat();
        let mut frames = Writer::new(out, &head)?;
        self.write_header(frames.payload(), &numbers, gone.len(), entries);
        frames.end_frame()?;
        write_dictionary(&mut frames, &table.keys().pid.dictionary, numbers.pid.as_ref())?;
        write_dictionary(&mut frames, &table.keys().partition.dictionary, numbers.partition.as_ref())?;
        write_gone(&mut frames, &numbers, gone)?;
        for payload in &waiting {
            frames.payload().extend_from_slice(payload);
            frames.end_frame()?;
        }
        if self.since.is_none() {
            self.for_each_frame(&numbers, &mut |rows| {
                rows.write(frames.payload());
                frames.end_frame()
            })?;
        }
        Ok(frames.checksum())
    }

    fn has(&self, pid: i64, partition: i32) -> bool {
        self.since.is_none() || self.table.changes().marks().is_none_or(|marks| marks.has(pid, partition))
    }

    fn write_header(&self, out: &mut Vec<u8>, numbers: &Renumbering, gone: usize, entries: usize) {
        let options = Options::of(self.table);
        text(out, &options.policy.to_string());
        text(out, &options.label);
        out.push(options.untracked as u8);
        out.push(options.keeps_timestamp.into());
        optional(out, options.entries_max);
        optional(out, options.horizon_ms.map(|horizon| horizon as u64));
        // If no key is used, the next one may have any type.
        let unknown = KeySpace::default();
        let keys = self.table.keys();
        let (pid, partition) = if gone + entries == 0 { (&unknown, &unknown) } else { (&keys.pid, &keys.partition) };
        key_type(out, pid, numbers.pid.as_ref());
        key_type(out, partition, numbers.partition.as_ref());
        optional(out, self.since.map(u64::from));
        let eviction = self.table.changes().eviction().filter(|_| self.since.is_some());
        optional(out, eviction.map(|eviction| eviction.idle_until as u64));
        optional(out, eviction.map(|eviction| eviction.horizon as u64));
        out.push((self.since.is_some() && self.table.changes().everything()).into());
        number(out, gone as u64);
        number(out, entries as u64);
    }

    /// Visits the entries frame by frame. `end_frame` empties its argument.
    fn for_each_frame(
        &self,
        numbers: &Renumbering,
        end_frame: &mut dyn FnMut(&mut Rows) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut rows = Rows::default();
        self.table.in_order(
            numbers,
            |pid, partition| self.has(pid, partition),
            |pid, partition, entry, whole| {
                if rows.ends_before(pid, partition) {
                    end_frame(&mut rows)?;
                }
                rows.push(pid, partition, entry, whole);
                io::Result::Ok(())
            },
        )?;
        if rows.is_empty() { Ok(()) } else { end_frame(&mut rows) }
    }
}

fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn optional(out: &mut Vec<u8>, value: Option<u64>) {
    out.push(value.is_some().into());
    number(out, value.unwrap_or(0));
}

fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Appends the type of keys and their number in the dictionary that follows.
fn key_type(out: &mut Vec<u8>, space: &KeySpace, numbering: Option<&Numbering>) {
    let parts = match &space.kind {
        None => return out.push(0),
        Some(KeyKind::Plain) => return out.push(1),
        Some(KeyKind::Parts(parts)) => parts,
    };
    out.push(2);
    number(out, parts.len() as u64);
    for part in parts {
        let (kind, bytes) = match part {
            PartKind::Int => (0, 0),
            PartKind::Utf8 => (1, 0),
            PartKind::Binary => (2, 0),
            PartKind::FixedBinary(bytes) => (3, *bytes),
        };
        out.push(kind);
        out.extend_from_slice(&bytes.to_le_bytes());
    }
    number(out, numbering.map_or(0, |numbering| numbering.sorted.len()) as u64);
}

/// Writes the used keys in the order of their bytes.
fn write_dictionary<W: Write>(
    frames: &mut Writer<'_, W>,
    dictionary: &Dictionary,
    numbering: Option<&Numbering>,
) -> io::Result<()> {
    let mut left = numbering.map_or(&[][..], |numbering| &numbering.sorted);
    while !left.is_empty() {
        let mut bytes = 0;
        let is_room = |&&number: &&u32| {
            let had_room = bytes < FRAME_BYTES_MAX;
            bytes += dictionary.bytes(number).len();
            had_room
        };
        let count = left.iter().take(FRAME_KEYS_MAX).take_while(is_room).count();
        let (keys, rest) = left.split_at(count);
        let lengths: Vec<i64> = keys.iter().map(|&number| dictionary.bytes(number).len() as i64).collect();
        number(frames.payload(), count as u64);
        columns::write(frames.payload(), &lengths, 1);
        keys.iter().for_each(|&number| frames.payload().extend_from_slice(dictionary.bytes(number)));
        frames.end_frame()?;
        left = rest;
    }
    Ok(())
}

fn write_gone<W: Write>(
    frames: &mut Writer<'_, W>,
    numbers: &Renumbering,
    mut gone: Vec<(i64, i32)>,
) -> io::Result<()> {
    gone.iter_mut().for_each(|key| *key = numbers.key(key.0, key.1));
    gone.sort_unstable_by_key(|&(pid, partition)| (block_hash(pid, partition), pid, partition));
    let mut rows = KeyRows::default();
    for chunk in gone.chunks(rows::ENTRIES_MAX) {
        chunk.iter().for_each(|&(pid, partition)| rows.push(pid, partition));
        rows.write(frames.payload());
        frames.end_frame()?;
    }
    Ok(())
}

/// The options of a table, and its horizon.
#[derive(PartialEq, Eq)]
struct Options {
    policy: Policy,
    label: String,
    untracked: Untracked,
    keeps_timestamp: bool,
    entries_max: Option<u64>,
    horizon_ms: Option<i64>,
}

impl Options {
    fn of(table: &StateTable) -> Options {
        Options {
            policy: table.policy(),
            label: table.label().into(),
            untracked: table.untracked(),
            keeps_timestamp: table.keeps_timestamp(),
            entries_max: table.entries_max(),
            horizon_ms: table.horizon_ms(),
        }
    }

    fn empty_table(self) -> Result<StateTable> {
        Ok(StateTable::new(self.policy)?
            .with_untracked(self.untracked)
            .with_entries_max(self.entries_max)
            .with_keep_timestamp(self.keeps_timestamp)
            .with_horizon_ms(self.horizon_ms)
            .with_label(self.label))
    }

    /// Whether a delta with the `later` options can follow: only the horizon may differ, and only increase.
    fn allows(&self, later: &Options) -> bool {
        let Options { policy, label, untracked, keeps_timestamp, entries_max, horizon_ms } = later;
        (self.policy, &self.label, self.untracked) == (*policy, label, *untracked)
            && (self.keeps_timestamp, self.entries_max) == (*keeps_timestamp, *entries_max)
            && self.horizon_ms <= *horizon_ms
    }
}

/// The content of the first frame.
struct Header {
    options: Options,
    pid: KeyType,
    partition: KeyType,
    /// The checksum of the snapshot or delta that a delta follows.
    follows: Option<u32>,
    eviction: Option<Eviction>,
    /// Whether all earlier entries were dropped.
    everything: bool,
    gone: u64,
    entries: u64,
}

/// A type of keys, and their number in the dictionary that follows.
type KeyType = (Option<KeyKind>, u64);

impl<'a, R: Read> Reader<'a, R> {
    fn open(input: &'a mut R, kind: u8) -> Result<(Reader<'a, R>, Header)> {
        let mut frames = Reader::new(input);
        if frames.head()? != MAGIC {
            return refuse("not a fencepost snapshot: wrong magic");
        }
        let version = u16::from_le_bytes(frames.head()?);
        if version != VERSION {
            return refuse(format!("the snapshot has version {version}, but this fencepost reads version {VERSION}"));
        }
        match frames.head()? {
            [found, 0] if found == kind => {}
            [WHOLE, 0] => return refuse("a whole snapshot where a delta is expected"),
            [DELTA, 0] => return refuse("a delta where a whole snapshot is expected"),
            [found, flags] => {
                return refuse(format!("the kind {found} or the flags {flags} of the snapshot are unknown"));
            }
        }
        let header = read_header(frames.next_frame()?)?;
        if header.follows.is_some() != (kind == DELTA)
            || (kind == WHOLE && (header.gone > 0 || header.everything || header.eviction.is_some()))
        {
            return damaged("a delta does not name what it follows, or a whole snapshot has fields of a delta");
        }
        Ok((frames, header))
    }

    fn dictionaries(&mut self, pid: KeyType, partition: KeyType) -> Result<(KeySpace, KeySpace)> {
        Ok((self.dictionary(pid)?, self.dictionary(partition)?))
    }

    fn dictionary(&mut self, (kind, keys): KeyType) -> Result<KeySpace> {
        let mut space = KeySpace { kind, dictionary: Dictionary::default() };
        let Some(KeyKind::Parts(parts)) = &space.kind else { return Ok(space) };
        let mut lengths = Vec::new();
        while (space.dictionary.len() as u64) < keys {
            let left = keys - space.dictionary.len() as u64;
            let mut payload = self.next_frame()?;
            let count = payload.number()?;
            if count == 0 || count > left.min(FRAME_KEYS_MAX as u64) {
                return damaged(format!(
                    "a frame declares {count} keys: expected 1 to {FRAME_KEYS_MAX}, no more than the {left} that are \
                     left"
                ));
            }
            columns::read(&mut payload, count as usize, 1, &mut lengths)?;
            for &length in &lengths {
                let bytes = payload.bytes(usize::try_from(length).unwrap_or(usize::MAX))?;
                add_key(&mut space.dictionary, parts, bytes)?;
            }
            payload.end()?;
        }
        Ok(space)
    }

    fn gone(&mut self, count: u64) -> Result<Vec<(i64, i32)>> {
        let (mut gone, mut before, mut is_sorted) = (Vec::new(), KeyRow::NONE, true);
        let mut rows = KeyRows::default();
        while (gone.len() as u64) < count {
            let mut payload = self.next_frame()?;
            rows.read(&mut payload, count - gone.len() as u64)?;
            payload.end()?;
            rows.try_for_each(&mut before, |key, order| {
                is_sorted &= order == Ordering::Less;
                gone.push((key.pid, key.partition));
                Ok(())
            })?;
        }
        if is_sorted { Ok(gone) } else { damaged("removed keys are out of order") }
    }
}

fn add_key(dictionary: &mut Dictionary, parts: &[PartKind], bytes: &[u8]) -> Result<()> {
    let count = dictionary.len() as u32;
    let is_sorted = count == 0 || dictionary.bytes(count - 1) < bytes;
    if !is_sorted || bytes.len() > KEY_BYTES_MAX || decode_parts(parts, bytes).is_none() || count >= i32::MAX as u32 {
        return damaged("the dictionary is out of order or has an invalid key");
    }
    dictionary.intern(bytes).map(drop)
}

fn read_header(mut payload: Payload<'_>) -> Result<Header> {
    let policy: Policy =
        payload.text()?.parse().map_err(|error| as_damage(format!("the policy cannot be read: {error}")))?;
    let label = payload.text()?.to_string();
    let untracked = if payload.flag()? { Untracked::Fail } else { Untracked::Keep };
    let keeps_timestamp = payload.flag()?;
    let entries_max = payload.optional()?;
    let horizon_ms = payload.optional()?.map(|horizon| horizon as i64);
    if horizon_ms.is_some() && !keeps_timestamp {
        return damaged("there is a horizon, but the table keeps no timestamps");
    }
    let header = Header {
        options: Options { policy, label, untracked, keeps_timestamp, entries_max, horizon_ms },
        pid: read_key_type(&mut payload)?,
        partition: read_key_type(&mut payload)?,
        follows: payload.optional()?.map(|checksum| checksum as u32),
        eviction: read_eviction(&mut payload)?,
        everything: payload.flag()?,
        gone: payload.number()?,
        entries: payload.number()?,
    };
    payload.end()?;
    Ok(header)
}

fn read_eviction(payload: &mut Payload<'_>) -> Result<Option<Eviction>> {
    match (payload.optional()?, payload.optional()?) {
        (None, None) => Ok(None),
        (Some(idle_until), Some(horizon)) => {
            Ok(Some(Eviction { idle_until: idle_until as i64, horizon: horizon as i64 }))
        }
        _ => damaged("an eviction lacks one of its two times"),
    }
}

fn read_key_type(payload: &mut Payload<'_>) -> Result<KeyType> {
    match payload.array()? {
        [0] => return Ok((None, 0)),
        [1] => return Ok((Some(KeyKind::Plain), 0)),
        [2] => {}
        [other] => return damaged(format!("a key type is {other}, not 0, 1 or 2")),
    }
    let count = payload.number()?;
    if !(1..=KEY_PARTS_MAX as u64).contains(&count) {
        return damaged(format!("a key has {count} parts; 1 to {KEY_PARTS_MAX} are allowed"));
    }
    let part = |payload: &mut Payload<'_>| {
        let ([kind], bytes) = (payload.array()?, u32::from_le_bytes(payload.array()?));
        Ok(match (kind, bytes) {
            (0, 0) => PartKind::Int,
            (1, 0) => PartKind::Utf8,
            (2, 0) => PartKind::Binary,
            (3, bytes @ 0..=KEY_WIDTH_MAX) => PartKind::FixedBinary(bytes),
            _ => {
                return damaged(format!("a key part has kind {kind} and a length of {bytes} bytes, which no kind has"));
            }
        })
    };
    let parts = (0..count).map(|_| part(payload)).collect::<Result<_>>()?;
    Ok((Some(KeyKind::Parts(parts)), payload.number()?))
}

/// The frames of entries. Keys are checked while they are read.
struct Frames<'a> {
    bounds: &'a KeyBounds,
    /// The last entry before the next frame.
    before: Before,
    /// Number of entries in the remaining frames.
    left: u64,
    rows: Rows,
}

impl<'a> Frames<'a> {
    fn new(bounds: &'a KeyBounds, entries: u64) -> Frames<'a> {
        Frames { bounds, before: Before::default(), left: entries, rows: Rows::default() }
    }

    /// The entries of the next frame, or none after the last one. After an error, nothing more is read.
    fn next(&mut self, input: &mut Reader<'_, impl Read>) -> Result<Option<Vec<Appended>>> {
        let left = mem::take(&mut self.left);
        if left == 0 {
            return Ok(None);
        }
        let count = self.rows.read(input.next_frame()?, left)?;
        let mut entries = Vec::with_capacity(count as usize);
        self.rows.try_for_each(&mut self.before, |entry| {
            self.bounds.check(entry.pid, entry.partition)?;
            entries.push(entry);
            Ok(())
        })?;
        self.left = left - count;
        Ok(Some(entries))
    }
}

/// The highest numbers of keys in the dictionaries.
struct KeyBounds {
    pid_max: i64,
    partition_max: i32,
}

impl KeyBounds {
    fn new(pid: &KeySpace, partition: &KeySpace) -> KeyBounds {
        let number_max = |space: &KeySpace| match &space.kind {
            Some(KeyKind::Parts(_)) => Some(space.dictionary.len() as i32 - 1),
            _ => None,
        };
        KeyBounds {
            pid_max: number_max(pid).map_or(i64::MAX, i64::from),
            partition_max: number_max(partition).unwrap_or(i32::MAX),
        }
    }

    #[inline]
    fn check(&self, pid: i64, partition: i32) -> Result<()> {
        if pid > self.pid_max || partition > self.partition_max {
            return damaged("an entry's key is not in the dictionary");
        }
        Ok(())
    }
}

fn no_more(bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() { Ok(()) } else { refuse(format!("{} bytes follow the snapshot", bytes.len())) }
}
