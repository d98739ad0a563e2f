//! A record of a batch:
//!
//! ```text
//! length varint | attributes i8 | timestamp delta varlong | offset delta varint
//! | key length varint, key | value length varint, value | headers varint, (key length, key, value length, value) ...
//! ```
//!
//! A length of -1 is null. The length at the front must be that of what follows.

use crate::varint::{varint, varlong};

/// A record of a batch, borrowed from its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) timestamp_delta: i64,
    pub(crate) offset_delta: i32,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) headers: Headers<'a>,
}

/// The headers of a checked record: alternating names and values, each after its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headers<'a>(&'a [u8]);

/// A problem of a record.
pub(crate) type Problem = &'static str;

impl<'a> Record<'a> {
    /// Decodes the record at the beginning of bytes, and returns its length.
    #[inline]
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<(Record<'a>, usize), Problem> {
        let (length, start) = varint(bytes).ok_or("its length cannot be read")?;
        let length = usize::try_from(length).map_err(|_| "its length is negative")?;
        let body = bytes[start..].get(..length).ok_or("it is longer than its batch")?;
        let mut fields = Fields(body);
        fields.take(1).ok_or("its attributes are missing")?;
        let timestamp_delta = fields.long().ok_or("its timestamp cannot be read")?;
        let offset_delta = fields.int().ok_or("its offset cannot be read")?;
        let key = fields.bytes().ok_or("its key has an invalid length")?;
        let value = fields.bytes().ok_or("its value has an invalid length")?;
        let headers = fields.headers()?;
        if !fields.0.is_empty() {
            return Err("it has bytes after its last header");
        }
        Ok((Record { timestamp_delta, offset_delta, key, value, headers }, start + length))
    }
}

impl<'a> Headers<'a> {
    /// Each header's key and value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + use<'a> {
        let mut fields = Fields(self.0);
        std::iter::from_fn(move || Some((fields.bytes()??, fields.bytes()?)))
    }
}

/// The unread bytes of a record.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    #[inline]
    fn int(&mut self) -> Option<i32> {
        let (value, length) = varint(self.0)?;
        self.0 = &self.0[length..];
        Some(value)
    }

    #[inline]
    fn long(&mut self) -> Option<i64> {
        let (value, length) = varlong(self.0)?;
        self.0 = &self.0[length..];
        Some(value)
    }

    /// Reads bytes after their length, or null. `None` if the length is invalid.
    #[inline]
    fn bytes(&mut self) -> Option<Option<&'a [u8]>> {
        match self.int()? {
            -1 => Some(None),
            length => self.take(usize::try_from(length).ok()?).map(Some),
        }
    }

    /// A header has two bytes or more, so a wrong count ends with the bytes.
    #[inline]
    fn headers(&mut self) -> Result<Headers<'a>, Problem> {
        let count = self.int().ok_or("the number of its headers cannot be read")?;
        let count = u32::try_from(count).map_err(|_| "the number of its headers is negative")?;
        let bytes = self.0;
        for _ in 0..count {
            self.bytes().flatten().ok_or("a header has an invalid key")?;
            self.bytes().ok_or("a header has an invalid value")?;
        }
        Ok(Headers(&bytes[..bytes.len() - self.0.len()]))
    }
}
