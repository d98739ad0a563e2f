//! Objects of a store, which are read through Python.

use fencepost_kafka as kafka;
use fencepost_lake as lake;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use std::io;
use std::sync::{Mutex, PoisonError};

/// Bytes at the end of an object that are read together, because footers are there.
const TAIL_BYTES: u64 = 64 << 10;

/// How many bytes of an object a request reads, and how many such blocks are kept.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    pub(crate) bytes: u64,
    pub(crate) kept: usize,
}

impl Blocks {
    /// For sequential readers.
    pub(crate) const SEQUENTIAL: Blocks = Blocks { bytes: 4 << 20, kept: 1 };
    /// For readers of several columns, each sequential in its own chunk.
    pub(crate) const COLUMNS: Blocks = Blocks { bytes: 1 << 20, kept: 16 };
    /// For readers of whole files, one column chunk after the other.
    pub(crate) const WHOLE: Blocks = Blocks { bytes: 16 << 20, kept: 2 };
}

/// An object of a store. It is read in blocks, because a request takes as long as the transfer of some megabytes.
///
/// The Python object has ``size()``, and ``read(offset, length)``, which returns exactly as many bytes.
pub(crate) struct Object {
    object: Py<PyAny>,
    bytes: u64,
    blocks: Blocks,
    /// (first byte, content) of each block. The most recently used are at the end.
    blocks_kept: Mutex<Vec<(u64, PyBackedBytes)>>,
}

impl Object {
    pub(crate) fn open(object: &Py<PyAny>, blocks: Blocks) -> io::Result<Object> {
        let bytes = call_python(|py| object.bind(py).call_method0("size")?.extract())?;
        let object = Python::attach(|py| object.clone_ref(py));
        Ok(Object { object, bytes, blocks, blocks_kept: Mutex::default() })
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if position >= self.bytes || buffer.is_empty() {
            return Ok(0);
        }
        let mut blocks_kept = self.blocks_kept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_in = |(start, bytes): &(u64, PyBackedBytes)| (*start..*start + bytes.len() as u64).contains(&position);
        let block = match blocks_kept.iter().position(is_in) {
            Some(at) => blocks_kept.remove(at),
            None => {
                let block = self.read_block(position, buffer.len() as u64)?;
                if blocks_kept.len() == self.blocks.kept {
                    blocks_kept.remove(0);
                }
                block
            }
        };
        let rest = &block.1[(position - block.0) as usize..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        blocks_kept.push(block);
        Ok(count)
    }

    fn read_block(&self, position: u64, needed: u64) -> io::Result<(u64, PyBackedBytes)> {
        let start = position.min(self.bytes.saturating_sub(TAIL_BYTES));
        let length = (self.bytes - start).min(self.blocks.bytes.max(position - start + needed));
        let read = |py: Python<'_>| {
            let bytes = self.object.bind(py).call_method1("read", (start, length))?;
            Ok(bytes.extract::<PyBackedBytes>()?)
        };
        let bytes = call_python(read)?;
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

/// Calls a method of a Python object.
fn call_python<T>(call: impl FnOnce(Python<'_>) -> PyResult<T>) -> io::Result<T> {
    Python::attach(|py| {
        call(py).map_err(|error| {
            // Formats the error first: the formatting itself would be stopped by the interrupt.
            let value = error.value(py);
            let text = value.getattr("message").and_then(|it| it.extract()).unwrap_or_else(|_| value.to_string());
            interrupt_again(py, &error);
            io::Error::other(text)
        })
    })
}

/// Schedules a KeyboardInterrupt again if it was raised where it cannot be propagated.
pub(crate) fn interrupt_again(py: Python<'_>, error: &PyErr) {
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        let again = py.import("_thread").and_then(|thread| thread.call_method0("interrupt_main"));
        again.map(drop).unwrap_or_else(|error| error.write_unraisable(py, None));
    }
}
