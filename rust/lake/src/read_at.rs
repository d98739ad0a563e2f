//! Reads at positions. Readers of one file do not share a position, so they do not disturb each other. Files are not
//! mapped into memory, because truncating a mapped file would abort the process.

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A source of bytes at positions, such as a file.
pub trait ReadAt: Send + Sync {
    /// Number of bytes.
    fn bytes(&self) -> io::Result<u64>;

    /// Reads into the buffer from a position on. Returns the number of bytes, 0 at the end.
    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Fills the whole buffer.
    fn read_exact_at(&self, mut position: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(position, buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    position += count as u64;
                    buffer = &mut buffer[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl ReadAt for File {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        read_file_at(self, position, buffer)
    }
}

#[cfg(unix)]
fn read_file_at(file: &File, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, position)
}

/// Moves the position of the file too, which nothing here reads.
#[cfg(windows)]
fn read_file_at(file: &File, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, position)
}

/// A file that is in memory.
impl ReadAt for Vec<u8> {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, position: u64, mut buffer: &mut [u8]) -> io::Result<usize> {
        let start = usize::try_from(position).unwrap_or(usize::MAX).min(self.len());
        buffer.write(&self[start..])
    }
}

/// A file that is opened for each read.
pub(crate) struct Reopened {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

impl ReadAt for Reopened {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        File::open(&self.path).and_then(|file| read_file_at(&file, position, buffer))
    }
}

/// A file as decoders need it.
#[derive(Clone)]
pub(crate) struct Source {
    reader: Arc<dyn ReadAt>,
    bytes: u64,
    spare: Arc<Spare>,
    failed: Arc<Mutex<Option<io::Error>>>,
}

impl Source {
    pub(crate) fn new(reader: Arc<dyn ReadAt>) -> io::Result<Source> {
        Ok(Source { bytes: reader.bytes()?, reader, spare: Arc::default(), failed: Arc::default() })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn read(&self, position: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact_at(position, buffer).map_err(|error| self.remember(error))
    }

    /// The error of the system, if a read failed since the last call.
    pub(crate) fn failure(&self) -> Option<io::Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Stores an error of the system, and returns a copy for decoders. An early end is not an error of the system.
    fn remember(&self, error: io::Error) -> io::Error {
        if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::Interrupted) {
            return error;
        }
        let copy = io::Error::new(error.kind(), error.to_string());
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        copy
    }
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.bytes
    }
}

/// Page headers have some dozen bytes; [`ChunkReader::get_bytes`] reads the bytes of pages.
const HEADER_BYTES: usize = 512;

impl ChunkReader for Source {
    type T = BufReader<Cursor>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let cursor = Cursor { source: self.clone(), position: start };
        Ok(BufReader::with_capacity(HEADER_BYTES, cursor))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        // Lengths come from the file, so they must not request more memory than the file can fill.
        if start.checked_add(length as u64).is_none_or(|end| end > self.bytes) {
            let problem = format!("{length} bytes at {start} are needed, but the file has {}", self.bytes);
            return Err(ParquetError::EOF(problem));
        }
        let mut lent = Lent { buffer: self.spare.take(length), length, spare: self.spare.clone() };
        self.read(start, &mut lent.buffer[..length])?;
        Ok(Bytes::from_owner(lent))
    }
}

/// Buffers for pages that are reused. Filling a new one with zeros takes half as long as reading a page from memory.
#[derive(Default)]
struct Spare(Mutex<Vec<Vec<u8>>>);

/// Maximum number of buffers that are kept, and size of one.
const SPARE_MAX: usize = 2;
const SPARE_BYTES_MAX: usize = 16 << 20;

impl Spare {
    /// A buffer of at least this many bytes.
    fn take(&self, length: usize) -> Vec<u8> {
        let mut buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        buffer
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_MAX && buffer.len() <= SPARE_BYTES_MAX {
            spare.push(buffer);
        }
    }
}

/// The first bytes of a buffer, which is returned to the spare ones afterwards.
struct Lent {
    buffer: Vec<u8>,
    length: usize,
    spare: Arc<Spare>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.spare.give_back(std::mem::take(&mut self.buffer));
    }
}

/// Reads sequentially from a position.
pub(crate) struct Cursor {
    source: Source,
    position: u64,
}

impl Read for Cursor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.reader.read_at(self.position, buffer);
        let count = read.map_err(|error| self.source.remember(error))?;
        self.position += count as u64;
        Ok(count)
    }
}
