//! Keys that are not plain integers: encoded exactly, numbered, and decoded again.
//!
//! A pid or a partition of one integer column is that integer. All other keys (strings, binary, several columns) are
//! encoded as bytes that have the order of the values. A [`Dictionary`] numbers the bytes. Two keys are equal if and
//! only if their bytes are equal; hashes do not decide.

use crate::dictionary::Dictionary;
use crate::key_block::BLOCK_PARTITIONS;
use crate::{Column, Error, Result};
use std::cmp::Ordering;

/// The key and epoch of a row: its pid and its partition, or their numbers.
pub(crate) type Key = (i64, i32, i16);

/// Maximum number of parts of a key.
pub const KEY_PARTS_MAX: usize = 64;

/// Maximum number of bytes of an encoded key: the maximum of one value of the arrays that return keys.
pub const KEY_BYTES_MAX: usize = 1 << 30;

/// The type of one part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartKind {
    /// Integers of any width.
    Int,
    /// Strings.
    Utf8,
    /// Bytes.
    Binary,
    /// Bytes of one length, such as UUIDs.
    FixedBinary(u32),
}

impl std::fmt::Display for PartKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PartKind::Int => f.write_str("integer"),
            PartKind::Utf8 => f.write_str("string"),
            PartKind::Binary => f.write_str("binary"),
            PartKind::FixedBinary(bytes) => write!(f, "binary of {bytes} bytes"),
        }
    }
}

/// The type of a pid or of a partition. The first rows of a table determine it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// One integer column, used as it is.
    Plain,
    /// Anything else, part by part.
    Parts(Vec<PartKind>),
}

impl std::fmt::Display for KeyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeyKind::Plain => f.write_str("integer"),
            KeyKind::Parts(parts) => {
                let names: Vec<String> = parts.iter().map(PartKind::to_string).collect();
                write!(f, "({})", names.join(", "))
            }
        }
    }
}

/// The value of one part of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartValue {
    /// A part of kind `Int`.
    Int(i64),
    /// A part of any other kind.
    Bytes(Vec<u8>),
}

const ESCAPED_ZERO: [u8; 2] = [0, 0xff];
const END: [u8; 2] = [0, 0];

/// Appends an integer part: eight bytes, big endian, with the sign bit inverted so that the order is preserved.
#[inline]
pub fn encode_int(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(&(value ^ i64::MIN).to_be_bytes());
}

/// Appends a part of bytes. Zeros are escaped and an end mark follows, so that parts can be concatenated and the order
/// is preserved.
#[inline]
pub fn encode_bytes(out: &mut Vec<u8>, value: &[u8]) {
    if value.contains(&0) {
        for &byte in value {
            if byte == 0 { out.extend_from_slice(&ESCAPED_ZERO) } else { out.push(byte) }
        }
    } else {
        out.extend_from_slice(value);
    }
    out.extend_from_slice(&END);
}

/// Decodes the parts of a key. `None` if the bytes are not an encoding of parts of these kinds.
pub fn decode_parts(kinds: &[PartKind], mut bytes: &[u8]) -> Option<Vec<PartValue>> {
    let mut values = Vec::with_capacity(kinds.len());
    for kind in kinds {
        let value = match kind {
            PartKind::Int => {
                let (value, rest) = bytes.split_first_chunk()?;
                bytes = rest;
                PartValue::Int(i64::from_be_bytes(*value) ^ i64::MIN)
            }
            _ => PartValue::Bytes(decode_bytes(&mut bytes)?),
        };
        match (kind, &value) {
            (PartKind::FixedBinary(count), PartValue::Bytes(value)) if value.len() != *count as usize => {
                return None;
            }
            (PartKind::Utf8, PartValue::Bytes(value)) if std::str::from_utf8(value).is_err() => {
                return None;
            }
            _ => values.push(value),
        }
    }
    bytes.is_empty().then_some(values)
}

fn decode_bytes(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    loop {
        let zero = bytes.iter().position(|&byte| byte == 0)?;
        value.extend_from_slice(&bytes[..zero]);
        let (mark, rest) = bytes[zero..].split_first_chunk::<2>()?;
        *bytes = rest;
        match *mark {
            END => return Some(value),
            ESCAPED_ZERO => value.push(0),
            _ => return None,
        }
    }
}

/// A pid or a partition, for [`shard_hash`].
#[derive(Clone, Copy, Debug)]
pub enum KeyRef<'a> {
    /// A plain integer.
    Plain(i64),
    /// The encoded parts.
    Encoded(&'a [u8]),
}

/// Chooses the shard of a key. It depends on the key alone and is the same on every machine and in every version,
/// because it decides where state is stored.
///
/// Plain partitions of a block share a shard, as they share a segment of a table. A single entry takes several times
/// the memory and time of one among neighbours.
pub fn shard_hash(pid: KeyRef<'_>, partition: KeyRef<'_>) -> u64 {
    let hash = |key| match key {
        KeyRef::Plain(value) => spread(value as u64 ^ 0x9e37_79b9_7f4a_7c15),
        KeyRef::Encoded(bytes) => hash_bytes(bytes),
    };
    let block = match partition {
        KeyRef::Plain(value) => KeyRef::Plain(value / i64::from(BLOCK_PARTITIONS)),
        encoded => encoded,
    };
    spread(hash(pid) ^ hash(block).rotate_left(32))
}

fn spread(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Hashes the length and the words of 8 bytes; the last one is filled with zeros. Shards on disk depend on it.
fn hash_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let add = |hash: u64, word: [u8; 8]| spread(hash ^ u64::from_le_bytes(word));
    let hash = words.iter().fold(bytes.len() as u64, |hash, word| add(hash, *word));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    add(hash, last)
}

/// One half of a key: its type, if known, and its dictionary, if the type needs one.
#[derive(Clone, Debug, Default)]
pub struct KeySpace {
    /// `None` before the first rows of the table.
    pub(crate) kind: Option<KeyKind>,
    /// The numbers of keys that are not plain integers.
    pub dictionary: Dictionary,
}

impl KeySpace {
    /// The type. Plain integers until the first rows determine it.
    pub fn kind(&self) -> &KeyKind {
        self.kind.as_ref().unwrap_or(&KeyKind::Plain)
    }

    /// Whether rows have determined the type.
    pub fn is_fixed(&self) -> bool {
        self.kind.is_some()
    }

    /// Number of bytes of a key that is not a plain integer; 0 for plain integers.
    pub fn bytes_of(&self, number: i64) -> usize {
        match self.kind() {
            KeyKind::Plain => 0,
            KeyKind::Parts(_) => self.dictionary.bytes(number as u32).len(),
        }
    }

    /// The order of two keys by value.
    #[inline]
    pub(crate) fn order(&self, one: i64, other: i64) -> Ordering {
        if one == other || self.dictionary.is_empty() {
            one.cmp(&other)
        } else {
            self.dictionary.bytes(one as u32).cmp(self.dictionary.bytes(other as u32))
        }
    }

    /// A key as messages show it: the value of the number.
    pub(crate) fn name(&self, number: i64) -> String {
        let KeyKind::Parts(kinds) = self.kind() else { return number.to_string() };
        let parts = decode_parts(kinds, self.dictionary.bytes(number as u32)).expect("numbered keys are encoded");
        let name = |part: &PartValue| match part {
            PartValue::Int(value) => value.to_string(),
            PartValue::Bytes(bytes) => format!("'{}'", String::from_utf8_lossy(bytes)),
        };
        let names: Vec<_> = parts.iter().map(name).collect();
        if names.len() == 1 { names.concat() } else { format!("({})", names.join(", ")) }
    }

    fn fix(&mut self, column: Column, kind: KeyKind) -> Result<()> {
        let problem = match &self.kind {
            None if matches!(&kind, KeyKind::Parts(parts) if parts.len() > KEY_PARTS_MAX) => {
                format!("is of type {kind}: a key has at most {KEY_PARTS_MAX} parts")
            }
            Some(fixed) if *fixed != kind => {
                format!("is of type {kind}, but this table's keys are of type {fixed} since its first use")
            }
            _ => {
                self.kind = Some(kind);
                return Ok(());
            }
        };
        Err(Error::Batch { column, row: None, problem })
    }
}

/// The keys of a table: their types and their numbers.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// Producers.
    pub pid: KeySpace,
    /// Partitions.
    pub partition: KeySpace,
}

/// The size of the keys at some time, for [`Keys::go_back`].
#[derive(Clone, Debug)]
pub struct KeyMark {
    pid: (Option<KeyKind>, usize),
    partition: (Option<KeyKind>, usize),
}

impl Keys {
    /// Whether keys are plain integers, so that no dictionary is needed to name or order them.
    pub fn are_plain(&self) -> bool {
        self.pid.dictionary.is_empty() && self.partition.dictionary.is_empty()
    }

    /// A copy that can name and order keys, and takes little memory.
    pub fn names(&self) -> Keys {
        let names = |space: &KeySpace| KeySpace { kind: space.kind.clone(), dictionary: space.dictionary.names() };
        Keys { pid: names(&self.pid), partition: names(&self.partition) }
    }

    /// The order of keys by value. The numbers of a dictionary have the order of arrival.
    pub(crate) fn order(&self, one: Key, other: Key) -> Ordering {
        let by_pid = self.pid.order(one.0, other.0);
        by_pid.then_with(|| self.partition.order(one.1.into(), other.1.into())).then(one.2.cmp(&other.2))
    }

    /// Sets the types of keys at the first use. Later uses must have the same types.
    pub fn fix(&mut self, pid: KeyKind, partition: KeyKind) -> Result<()> {
        let before = self.mark();
        let fixed = self.pid.fix(Column::Pid, pid).and_then(|()| self.partition.fix(Column::Partition, partition));
        if fixed.is_err() {
            self.go_back(before);
        }
        fixed
    }

    /// The current size of the keys.
    pub fn mark(&self) -> KeyMark {
        let mark = |space: &KeySpace| (space.kind.clone(), space.dictionary.len());
        KeyMark { pid: mark(&self.pid), partition: mark(&self.partition) }
    }

    /// Removes all keys added after the mark: a call that failed or was only a check leaves no trace.
    pub fn go_back(&mut self, mark: KeyMark) {
        for (space, (kind, count)) in [(&mut self.pid, mark.pid), (&mut self.partition, mark.partition)] {
            space.kind = kind;
            space.dictionary.truncate(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_preserve_order_and_round_trip() {
        let kinds = [PartKind::Binary, PartKind::Int];
        let mut keys: Vec<(Vec<u8>, i64)> = Vec::new();
        for bytes in [&b""[..], b"\0", b"\0\0", b"\0\xff", b"a", b"a\0", b"a\0b", b"ab", b"b", b"\xff"] {
            keys.extend([i64::MIN, -1, 0, 1, i64::MAX].map(|int| (bytes.to_vec(), int)));
        }
        keys.sort();
        let encoded: Vec<Vec<u8>> = keys
            .iter()
            .map(|(bytes, int)| {
                let mut out = Vec::new();
                encode_bytes(&mut out, bytes);
                encode_int(&mut out, *int);
                out
            })
            .collect();
        assert!(encoded.is_sorted_by(|a, b| a < b));
        for ((bytes, int), encoded) in keys.into_iter().zip(&encoded) {
            let parts = decode_parts(&kinds, encoded).expect("encoded above");
            assert_eq!(parts, [PartValue::Bytes(bytes), PartValue::Int(int)]);
        }
        assert_eq!(decode_parts(&kinds, b"no end"), None);
    }

    #[test]
    fn shards_on_disk_are_found_again() {
        use KeyRef::{Encoded, Plain};
        let hashes = [
            (Plain(0), Plain(0), 0x0aa0_d81f_768d_95cb),
            (Plain(7), Plain(23), 0xf1b4_effc_3c89_8e1e),
            (Plain(7), Plain(24), 0x3a7b_8348_1395_cce6),
            (Plain(-1), Plain(5), 0x2d22_75b6_08ab_ecea),
            (Encoded(b"device-17"), Plain(0), 0x9465_77b4_8464_ac4c),
            (Plain(7), Encoded(b"a"), 0x4763_e1f7_3e5b_8113),
            (Encoded(b"12345678"), Encoded(b""), 0x5b7b_0fcb_4664_e042_u64),
        ];
        for (number, (pid, partition, hash)) in hashes.into_iter().enumerate() {
            assert_eq!(shard_hash(pid, partition), hash, "key {number}");
        }
        assert_eq!(shard_hash(Plain(7), Plain(0)), shard_hash(Plain(7), Plain(23)), "partitions of one block");
    }
}
