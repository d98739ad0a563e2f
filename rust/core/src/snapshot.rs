//! A table as bytes. Version 0: unstable, for state between runs of one version of this crate.
//!
//! ```text
//! magic "FPSTATE\0" | version u16 | policy, label, untracked, entries_max | key types | dictionaries
//! entries, sorted by key | CRC-32 over all of it
//! ```
//!
//! Numbers are LEB128 varints unless a width is given. Entries are sorted by the values of their keys
//! and each is written as its difference from the one before, so equal tables give equal bytes.

use crate::keys::{KeyKind, KeySpace, PartKind, decode_parts};
use crate::{Dictionary, Entry, Error, Hole, Policy, Result, StateTable, Untracked};
use std::io::{self, Read, Write};

const MAGIC: [u8; 8] = *b"FPSTATE\0";
const VERSION: u16 = 0;
/// Longest text or key that is read: a length that lies must not allocate.
const BYTES_MAX: u64 = 1 << 20;

impl StateTable {
    /// Writes the table. Equal tables give equal bytes.
    pub fn write_snapshot(&self, out: &mut impl Write) -> io::Result<()> {
        let mut out = Writer { out, crc: crc32fast::Hasher::new() };
        out.bytes(&MAGIC)?;
        out.bytes(&VERSION.to_le_bytes())?;
        out.text(self.policy().to_string().as_bytes())?;
        out.text(self.label().as_bytes())?;
        out.number(u64::from(self.untracked() == Untracked::Fail))?;
        out.number(self.entries_max().map_or(0, |entries| entries.saturating_add(1)))?;
        out.number(u64::from(self.keeps_timestamp()))?;
        out.optional(self.horizon_ms())?;
        let entries = self.entries();
        let pid = out.keys(&self.keys().pid, entries.iter().map(|entry| entry.pid as u32))?;
        let partition = out.keys(&self.keys().partition, entries.iter().map(|entry| entry.partition as u32))?;
        out.number(entries.len() as u64)?;
        let mut before = (0, 0);
        for entry in &entries {
            let key = (
                pid.as_ref().map_or(entry.pid as u64, |numbers| numbers[entry.pid as usize]),
                partition.as_ref().map_or(entry.partition as u64, |numbers| numbers[entry.partition as usize]),
            );
            out.entry(before, key, entry)?;
            before = key;
        }
        let crc = out.crc.clone().finalize();
        out.out.write_all(&crc.to_le_bytes())
    }

    /// The table as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write_snapshot(&mut bytes).expect("a Vec takes every write");
        bytes
    }

    /// Reads a table back. `Error::Snapshot` where the bytes are not one; what cannot be read at all
    /// is one too.
    pub fn read_snapshot(input: &mut impl Read) -> Result<StateTable> {
        let mut input = Reader { input, crc: crc32fast::Hasher::new() };
        if input.array()? != MAGIC {
            return refuse("not a fencepost snapshot: wrong magic");
        }
        let version = u16::from_le_bytes(input.array()?);
        if version != VERSION {
            return refuse(&format!("snapshot of version {version}, this build reads version {VERSION}"));
        }
        let text = input.text()?;
        let policy: Policy = std::str::from_utf8(&text)
            .map_err(|_| Error::Snapshot("the policy is not text".into()))?
            .parse()
            .map_err(|error| Error::Snapshot(format!("the policy cannot be read: {error}")))?;
        let label = String::from_utf8(input.text()?).map_err(|_| Error::Snapshot("the label is not text".into()))?;
        let untracked = if input.number()? == 0 { Untracked::Keep } else { Untracked::Fail };
        let entries_max = input.number()?.checked_sub(1);
        let keeps_timestamp = input.number()? != 0;
        let horizon_ms = input.optional()?;
        let mut table = StateTable::new(policy)?
            .with_untracked(untracked)
            .with_entries_max(entries_max)
            .with_keep_timestamp(keeps_timestamp)
            .with_horizon_ms(horizon_ms)
            .with_label(label);
        let pid = input.keys()?;
        let partition = input.keys()?;
        let count = input.number()?;
        let mut before = None;
        for _ in 0..count {
            let entry = input.entry(before)?;
            let key = (entry.pid, entry.partition, entry.epoch);
            if before.is_some_and(|before| before >= key) {
                return refuse("entries are out of order");
            }
            for (space, number) in [(&pid, entry.pid), (&partition, i64::from(entry.partition))] {
                if matches!(space.kind(), KeyKind::Parts(_)) && number >= space.dictionary.len() as i64 {
                    return refuse("an entry's key is not in the dictionary");
                }
            }
            table.insert(&entry)?;
            before = Some(key);
        }
        (table.keys_mut().pid, table.keys_mut().partition) = (pid, partition);
        input.end()?;
        Ok(table)
    }

    /// The table that the bytes hold.
    pub fn restore(mut bytes: &[u8]) -> Result<StateTable> {
        let table = StateTable::read_snapshot(&mut bytes)?;
        if bytes.is_empty() { Ok(table) } else { refuse(&format!("{} bytes follow the snapshot", bytes.len())) }
    }
}

fn refuse<T>(problem: &str) -> Result<T> {
    Err(Error::Snapshot(problem.into()))
}

struct Writer<'a, W> {
    out: &'a mut W,
    crc: crc32fast::Hasher,
}

impl<W: Write> Writer<'_, W> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.crc.update(bytes);
        self.out.write_all(bytes)
    }

    fn number(&mut self, mut value: u64) -> io::Result<()> {
        let mut bytes = [0; 10];
        let mut count = 0;
        while value >= 0x80 {
            bytes[count] = value as u8 | 0x80;
            value >>= 7;
            count += 1;
        }
        bytes[count] = value as u8;
        self.bytes(&bytes[..=count])
    }

    fn text(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.number(bytes.len() as u64)?;
        self.bytes(bytes)
    }

    /// Writes a type and the keys in use, sorted; gives the number of each in that order, where keys
    /// are numbered.
    fn keys(&mut self, space: &KeySpace, used: impl Iterator<Item = u32>) -> io::Result<Option<Vec<u64>>> {
        let parts = match &space.kind {
            None => return self.number(0).map(|()| None),
            Some(KeyKind::Plain) => return self.number(1).map(|()| None),
            Some(KeyKind::Parts(parts)) => parts,
        };
        self.number(2)?;
        self.number(parts.len() as u64)?;
        for part in parts {
            match part {
                PartKind::Int => self.number(0)?,
                PartKind::Utf8 => self.number(1)?,
                PartKind::Binary => self.number(2)?,
                PartKind::FixedBinary(bytes) => self.number(3 + u64::from(*bytes))?,
            }
        }
        let mut order: Vec<u32> = used.collect();
        order.sort_unstable();
        order.dedup();
        order.sort_unstable_by_key(|&number| space.dictionary.bytes(number));
        self.number(order.len() as u64)?;
        let mut numbers = vec![0; space.dictionary.len()];
        for (rank, number) in order.into_iter().enumerate() {
            self.text(space.dictionary.bytes(number))?;
            numbers[number as usize] = rank as u64;
        }
        Ok(Some(numbers))
    }

    fn entry(&mut self, before: (u64, u64), key: (u64, u64), entry: &Entry) -> io::Result<()> {
        self.number(key.0 - before.0)?;
        self.number(if key.0 == before.0 { key.1 - before.1 } else { key.1 })?;
        self.number(entry.epoch as u64)?;
        self.number((entry.first << 1 ^ entry.first >> 63) as u64)?;
        let reach = entry.last.wrapping_sub(entry.first);
        self.number((reach << 1 ^ reach >> 63) as u64)?;
        self.number(entry.holes.len() as u64)?;
        let mut from = entry.first;
        for hole in &entry.holes {
            self.number((hole.first - from) as u64)?;
            self.number((hole.last - hole.first) as u64)?;
            self.optional(hole.timestamp)?;
            from = hole.last;
        }
        self.optional(entry.final_range.map(|range| range.0))?;
        self.optional(entry.final_range.map(|range| range.1))?;
        self.optional(entry.last_timestamp)
    }

    /// 0, or 1 and the value.
    fn optional(&mut self, value: Option<i64>) -> io::Result<()> {
        self.number(u64::from(value.is_some()))?;
        value.map_or(Ok(()), |value| self.number((value << 1 ^ value >> 63) as u64))
    }
}

struct Reader<'a, R> {
    input: &'a mut R,
    crc: crc32fast::Hasher,
}

impl<R: Read> Reader<'_, R> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Error::Snapshot("the snapshot is truncated".into()),
            _ => Error::Snapshot(format!("the snapshot cannot be read: {error}")),
        })?;
        self.crc.update(bytes);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        refuse("a number is wider than 64 bits")
    }

    fn text(&mut self) -> Result<Vec<u8>> {
        let count = self.number()?;
        if count > BYTES_MAX {
            return refuse(&format!("a text of {count} bytes, at most {BYTES_MAX} are allowed"));
        }
        let mut bytes = vec![0; count as usize];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn keys(&mut self) -> Result<KeySpace> {
        let kind = match self.number()? {
            0 => None,
            1 => Some(KeyKind::Plain),
            2 => Some(KeyKind::Parts(self.parts()?)),
            other => return refuse(&format!("a key type {other}, which does not exist")),
        };
        let mut dictionary = Dictionary::default();
        if let Some(KeyKind::Parts(parts)) = &kind {
            for number in 0..self.number()? {
                let bytes = self.text()?;
                let is_sorted = number == 0 || dictionary.bytes(number as u32 - 1) < &bytes[..];
                if !is_sorted || decode_parts(parts, &bytes).is_none() || number >= i32::MAX as u64 {
                    return refuse("the dictionary is out of order or holds what is no key");
                }
                dictionary.intern(&bytes);
            }
        }
        Ok(KeySpace { kind, dictionary })
    }

    fn parts(&mut self) -> Result<Vec<PartKind>> {
        let count = self.number()?;
        if !(1..=64).contains(&count) {
            return refuse(&format!("keys of {count} parts, 1 to 64 are allowed"));
        }
        (0..count)
            .map(|_| {
                Ok(match self.number()? {
                    0 => PartKind::Int,
                    1 => PartKind::Utf8,
                    2 => PartKind::Binary,
                    more => PartKind::FixedBinary(
                        u32::try_from(more - 3).map_err(|_| Error::Snapshot("a key part of no type".into()))?,
                    ),
                })
            })
            .collect()
    }

    fn entry(&mut self, before: Option<(i64, i32, i16)>) -> Result<Entry> {
        let wrong = || Error::Snapshot("an entry's numbers are out of range".into());
        let narrow = |value: u64| i64::try_from(value).map_err(|_| wrong());
        let add = |base: i64, more: u64| base.checked_add(narrow(more)?).ok_or_else(wrong);
        let (pid_before, partition_before) = before.map_or((0, 0), |(pid, partition, _)| (pid, i64::from(partition)));
        let pid = add(pid_before, self.number()?)?;
        let partition = add(if pid == pid_before { partition_before } else { 0 }, self.number()?)?;
        let partition = i32::try_from(partition).map_err(|_| wrong())?;
        let epoch = i16::try_from(self.number()?).map_err(|_| wrong())?;
        let first = self.signed()?;
        let last = first.checked_add(self.signed()?).ok_or_else(wrong)?;
        let mut holes = Vec::new();
        let mut from = first;
        for _ in 0..self.number()? {
            let first = add(from, self.number()?)?;
            let last = add(first, self.number()?)?;
            holes.push(Hole { first, last, timestamp: self.optional()? });
            from = last;
        }
        let final_range = self.optional()?.zip(self.optional()?);
        let last_timestamp = self.optional()?;
        Ok(Entry { pid, partition, epoch, first, last, holes, final_range, last_timestamp })
    }

    fn optional(&mut self) -> Result<Option<i64>> {
        if self.number()? == 0 { Ok(None) } else { self.signed().map(Some) }
    }

    fn signed(&mut self) -> Result<i64> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn end(&mut self) -> Result<()> {
        let found = self.crc.clone().finalize();
        let written = u32::from_le_bytes(self.array()?);
        if written == found { Ok(()) } else { refuse("the checksum does not match: the snapshot is damaged") }
    }
}
