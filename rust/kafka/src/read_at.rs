//! Reads at positions. Files are not mapped into memory: a broker can truncate its log at any time, and accessing a
//! mapping of removed bytes would abort the process.
//!
//! `rust/lake` has the same trait and reads files by the same calls. These few lines do not justify a crate, and the two
//! crates must not depend on each other.

use std::fs::File;
use std::io;

/// A source of bytes at positions, such as a file or an object of a store.
pub trait ReadAt: Send + Sync {
    /// Number of bytes.
    fn bytes(&self) -> io::Result<u64>;

    /// Reads into the buffer from a position on. Returns the number of bytes, 0 at the end.
    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Whether two threads read faster than one.
    fn is_quick(&self) -> bool {
        false
    }

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

    fn is_quick(&self) -> bool {
        true
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

impl<R: ReadAt + ?Sized> ReadAt for std::sync::Arc<R> {
    fn bytes(&self) -> io::Result<u64> {
        (**self).bytes()
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(position, buffer)
    }

    fn is_quick(&self) -> bool {
        (**self).is_quick()
    }
}

impl ReadAt for Vec<u8> {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(position).ok().and_then(|from| self.get(from..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn is_quick(&self) -> bool {
        true
    }
}
