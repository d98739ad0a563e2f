//! Writes and reads frames. Each has a checksum over everything up to its end.
//!
//! A frame is verified before it is decoded. Damage is therefore distinguished from an invalid snapshot and found at
//! the first damaged frame. The checksum of the last frame is that of the whole snapshot, and a delta refers to its
//! snapshot by it. Checksums are not part of the checksummed bytes: a checksum that includes itself would be the same
//! for every frame.

use crate::{Error, Result};
use std::io::{self, Read, Write};

/// Returns the error for bytes that are not a valid snapshot.
pub(super) fn refuse<T>(problem: impl Into<String>) -> Result<T> {
    Err(Error::Snapshot(problem.into()))
}

/// Refuses content that no table writes.
pub(super) fn damaged<T>(problem: impl Into<String>) -> Result<T> {
    Err(as_damage(problem))
}

pub(super) fn as_damage(problem: impl Into<String>) -> Error {
    let problem: String = problem.into();
    Error::Snapshot(format!("the snapshot is damaged: {problem}"))
}

/// Writes frames. [`Writer::end_frame`] writes the bytes that were pushed to `payload`.
pub(super) struct Writer<'a, W> {
    out: &'a mut W,
    checksum: crc32fast::Hasher,
    /// Eight bytes of length, then the payload.
    frame: Vec<u8>,
}

const LENGTH_BYTES: usize = 8;

impl<'a, W: Write> Writer<'a, W> {
    pub(super) fn new(out: &'a mut W, head: &[u8]) -> io::Result<Writer<'a, W>> {
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(head);
        out.write_all(head)?;
        Ok(Writer { out, checksum, frame: vec![0; LENGTH_BYTES] })
    }

    pub(super) fn payload(&mut self) -> &mut Vec<u8> {
        &mut self.frame
    }

    pub(super) fn end_frame(&mut self) -> io::Result<()> {
        let length = (self.frame.len() - LENGTH_BYTES) as u64;
        self.frame[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        self.checksum.update(&self.frame);
        let checksum = self.checksum();
        self.frame.extend_from_slice(&checksum.to_le_bytes());
        self.out.write_all(&self.frame)?;
        self.frame.truncate(LENGTH_BYTES);
        Ok(())
    }

    /// The checksum of all written bytes.
    pub(super) fn checksum(&self) -> u32 {
        self.checksum.clone().finalize()
    }
}

/// Reads frames.
pub(super) struct Reader<'a, R> {
    input: &'a mut R,
    checksum: crc32fast::Hasher,
    frame: Vec<u8>,
}

impl<'a, R: Read> Reader<'a, R> {
    pub(super) fn new(input: &'a mut R) -> Reader<'a, R> {
        Reader { input, checksum: crc32fast::Hasher::new(), frame: Vec::new() }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).map_err(unreadable)?;
        Ok(bytes)
    }

    /// Reads the first bytes, which are not in a frame.
    pub(super) fn head<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.array()?;
        self.checksum.update(&bytes);
        Ok(bytes)
    }

    /// Reads and verifies the next frame. Memory grows with the bytes that exist, not with the declared length.
    pub(super) fn next_frame(&mut self) -> Result<Payload<'_>> {
        let length = self.array::<LENGTH_BYTES>()?;
        self.checksum.update(&length);
        let length = u64::from_le_bytes(length);
        self.frame.clear();
        let found = self.input.take(length).read_to_end(&mut self.frame).map_err(unreadable)?;
        if (found as u64) < length {
            return Err(unreadable(io::ErrorKind::UnexpectedEof.into()));
        }
        self.checksum.update(&self.frame);
        if u32::from_le_bytes(self.array()?) != self.checksum() {
            return damaged("its checksum does not match");
        }
        Ok(Payload::new(&self.frame))
    }

    /// The checksum of all bytes read.
    pub(super) fn checksum(&self) -> u32 {
        self.checksum.clone().finalize()
    }
}

fn unreadable(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::Snapshot("the snapshot is truncated".into()),
        _ => Error::Snapshot(format!("the snapshot cannot be read: {error}")),
    }
}

/// The unread bytes of a frame.
pub(super) struct Payload<'a>(&'a [u8]);

impl<'a> Payload<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Payload<'a> {
        Payload(bytes)
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((bytes, rest)) = self.0.split_at_checked(count) else {
            return damaged("a frame ends before the content that it declares");
        };
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.bytes(N)?.try_into().expect("exactly N bytes"))
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn flag(&mut self) -> Result<bool> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => damaged(format!("a flag is {other}, not 0 or 1")),
        }
    }

    /// A number, or none.
    pub(super) fn optional(&mut self) -> Result<Option<u64>> {
        let (is_some, number) = (self.flag()?, self.number()?);
        Ok(is_some.then_some(number))
    }

    pub(super) fn text(&mut self) -> Result<&'a str> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        std::str::from_utf8(self.bytes(count)?).map_err(|_| as_damage("a text is not UTF-8"))
    }

    pub(super) fn end(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { damaged("a frame has bytes after its content") }
    }
}
