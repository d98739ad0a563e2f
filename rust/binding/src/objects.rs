//! Objects of a store, which Python reads.

use fencepost_kafka as kafka;
use fencepost_lake as lake;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use std::io;
use std::sync::{Mutex, PoisonError};

/// What is read together with the end of an object: footers stand there.
const TAIL_BYTES: u64 = 64 << 10;

/// How much of an object is read by one request, and how many of such blocks are kept.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    pub(crate) bytes: u64,
    pub(crate) kept: usize,
}

impl Blocks {
    /// For readers that read on from where they are.
    pub(crate) const SEQUENTIAL: Blocks = Blocks { bytes: 4 << 20, kept: 1 };
    /// For readers of several columns, each of which reads on in its own chunk.
    pub(crate) const COLUMNS: Blocks = Blocks { bytes: 1 << 20, kept: 16 };
    /// For readers of whole files, a column chunk after the other.
    pub(crate) const WHOLE: Blocks = Blocks { bytes: 16 << 20, kept: 2 };
}

/// An object of a store: a request takes as long as some megabytes, so it is read in blocks.
///
/// The Python object has ``size()``, and ``read(offset, length)``, which gives just as many bytes.
pub(crate) struct Object {
    object: Py<PyAny>,
    bytes: u64,
    blocks: Blocks,
    /// (first byte, content), those that were used last at the end.
    held: Mutex<Vec<(u64, PyBackedBytes)>>,
}

impl Object {
    pub(crate) fn open(object: &Py<PyAny>, blocks: Blocks) -> io::Result<Object> {
        let bytes = ask(|py| object.bind(py).call_method0("size")?.extract())?;
        let object = Python::attach(|py| object.clone_ref(py));
        Ok(Object { object, bytes, blocks, held: Mutex::default() })
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if position >= self.bytes || buffer.is_empty() {
            return Ok(0);
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let is_in = |(start, bytes): &(u64, PyBackedBytes)| (*start..*start + bytes.len() as u64).contains(&position);
        let block = match held.iter().position(is_in) {
            Some(at) => held.remove(at),
            None => {
                let block = self.read_block(position, buffer.len() as u64)?;
                if held.len() == self.blocks.kept {
                    held.remove(0);
                }
                block
            }
        };
        let rest = &block.1[(position - block.0) as usize..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        held.push(block);
        Ok(count)
    }

    fn read_block(&self, position: u64, wanted: u64) -> io::Result<(u64, PyBackedBytes)> {
        let start = position.min(self.bytes.saturating_sub(TAIL_BYTES));
        let length = (self.bytes - start).min(self.blocks.bytes.max(position - start + wanted));
        let read = |py: Python<'_>| {
            let bytes = self.object.bind(py).call_method1("read", (start, length))?;
            Ok(bytes.extract::<PyBackedBytes>()?)
        };
        let bytes = ask(read)?;
        if bytes.len() as u64 <= position - start {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((start, bytes))
    }
}

impl kafka::ReadAt for Object {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Object::read_at(self, position, buffer)
    }
}

impl lake::ReadAt for Object {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Object::read_at(self, position, buffer)
    }
}

/// Asks Python for something of an object.
fn ask<T>(question: impl FnOnce(Python<'_>) -> PyResult<T>) -> io::Result<T> {
    Python::attach(|py| {
        question(py).map_err(|error| {
            // To make a text of it is a call that would meet the interrupt.
            let value = error.value(py);
            let text = value.getattr("message").and_then(|it| it.extract()).unwrap_or_else(|_| value.to_string());
            interrupt_again(py, &error);
            io::Error::other(text)
        })
    })
}

/// A KeyboardInterrupt that was raised where nobody can pass it on is raised once more, later.
pub(crate) fn interrupt_again(py: Python<'_>, error: &PyErr) {
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        let again = py.import("_thread").and_then(|thread| thread.call_method0("interrupt_main"));
        again.map(drop).unwrap_or_else(|error| error.write_unraisable(py, None));
    }
}
