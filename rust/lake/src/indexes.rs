//! Indexes into a dictionary: the run-length and bit-packing hybrid of levels, for numbers of up to 32 bits, after a
//! byte with the bit width.

use crate::levels::{put_varint, varint};

/// Minimum number of equal indexes of a run, and number of indexes that are packed together.
const GROUP: usize = 8;

/// Appends the first `count` indexes of a page's values.
pub(crate) fn decode(values: &[u8], count: usize, out: &mut Vec<u32>) -> Result<(), String> {
    if count == 0 {
        return Ok(());
    }
    let (&width, mut bytes) = values.split_first().ok_or("a page has no indexes")?;
    let width = usize::from(width);
    if width > 32 {
        return Err(format!("indexes of {width} bits, at most 32 are possible"));
    }
    let end = out.len() + count;
    while out.len() < end {
        let header = varint(&mut bytes)?;
        let (length, left) = ((header >> 1) as usize, end - out.len());
        if length == 0 {
            return Err(String::from("a run of no indexes"));
        }
        if header & 1 == 0 {
            let (value, rest) = bytes.split_at_checked(width.div_ceil(8)).ok_or("a run of indexes has no index")?;
            bytes = rest;
            let value = value.iter().rev().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
            out.resize(out.len() + length.min(left), value);
        } else {
            let needed = length.saturating_mul(GROUP).min(left);
            let packed = bytes.get(..(needed * width).div_ceil(8)).ok_or("packed indexes end too early")?;
            unpack(packed, width, needed, out);
            bytes = bytes.get(length.saturating_mul(width)..).unwrap_or_default();
        }
    }
    Ok(())
}

fn unpack(packed: &[u8], width: usize, count: usize, out: &mut Vec<u32>) {
    let mask = (1_u64 << width) - 1;
    let at = |index: usize| (index * width / 8, index * width % 8);
    // As long as eight bytes follow an index.
    let words = (packed.len().saturating_sub(7) * 8).checked_div(width).map_or(count, |it| it.min(count));
    out.extend((0..words).map(|index| {
        let (byte, shift) = at(index);
        let word = packed.get(byte..).and_then(|it| it.first_chunk()).map_or(0, |it| u64::from_le_bytes(*it));
        (word >> shift & mask) as u32
    }));
    out.extend((words..count).map(|index| {
        let (byte, shift) = at(index);
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(&packed[byte.min(packed.len())..]) {
            *to = *from;
        }
        (u64::from_le_bytes(word) >> shift & mask) as u32
    }));
}

/// Appends indexes as the values of a page, in as few bits as they need.
pub(crate) fn encode(indexes: &[u32], out: &mut Vec<u8>) {
    let greatest = indexes.iter().copied().max().unwrap_or(0);
    // Some readers do not support indexes of zero bits.
    let width = ((u32::BITS - greatest.leading_zeros()) as usize).max(1);
    out.push(width as u8);
    let (mut at, mut packed_from) = (0, 0);
    while at < indexes.len() {
        let rest = &indexes[at..];
        let is_run = rest.len() >= GROUP && rest[..GROUP].iter().all(|&it| it == rest[0]);
        if !is_run {
            at = (at + GROUP).min(indexes.len());
            continue;
        }
        let run = rest.iter().take_while(|&&it| it == rest[0]).count();
        pack(&indexes[packed_from..at], width, out);
        put_varint((run as u32) << 1, out);
        out.extend_from_slice(&rest[0].to_le_bytes()[..width.div_ceil(8)]);
        at += run;
        packed_from = at;
    }
    pack(&indexes[packed_from..], width, out);
}

/// Appends groups of indexes; the last one is filled with zeros.
fn pack(indexes: &[u32], width: usize, out: &mut Vec<u8>) {
    if indexes.is_empty() {
        return;
    }
    let groups = indexes.len().div_ceil(GROUP);
    put_varint((groups as u32) << 1 | 1, out);
    let end = out.len() + groups * width;
    let (mut word, mut filled) = (0_u64, 0);
    for &index in indexes {
        word |= u64::from(index) << filled;
        filled += width;
        if filled >= 32 {
            out.extend_from_slice(&(word as u32).to_le_bytes());
            word >>= 32;
            filled -= 32;
        }
    }
    out.extend_from_slice(&word.to_le_bytes()[..filled.div_ceil(8)]);
    out.resize(end, 0);
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn indexes_round_trip() {
        let mut state = 1_u64;
        for bits in 0..=32 {
            for count in [1, 7, 8, 9, 64, 1000, 5001] {
                let mut indexes = vec![];
                while indexes.len() < count {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let run = if state >> 62 == 0 { (state >> 40) as usize % 40 } else { 1 };
                    let index = (state >> 31) & ((1_u64 << bits) - 1);
                    indexes.extend(std::iter::repeat_n(index as u32, run));
                }
                indexes.truncate(count);
                let (mut encoded, mut decoded) = (vec![], vec![7]);
                encode(&indexes, &mut encoded);
                decode(&encoded, count, &mut decoded).unwrap();
                assert!(decoded[1..] == indexes, "{bits} {count}");
                assert!(decode(&encoded[..1], count, &mut decoded).is_err());
            }
        }
    }

    #[test]
    fn output_of_other_writers_is_read() {
        let decoded = |bytes: &[u8], count: usize| {
            let mut out = vec![];
            decode(bytes, count, &mut out).map(|()| out)
        };
        // The example of the format's own page: 0 to 7 with three bits each.
        assert_eq!(decoded(&[3, 3, 0b1000_1000, 0b1100_0110, 0b1111_1010], 8).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        // A dictionary of one value, in no bits: a run and a group.
        assert_eq!(decoded(&[0, 6, 3], 5).unwrap(), [0; 5]);
        for wrong in [&[][..], &[33, 2, 0], &[1], &[1, 0], &[1, 1], &[8, 2], &[8, 3, 1, 2], &[1, 0x80, 0x80]] {
            assert!(decoded(wrong, 5).is_err(), "{wrong:?}");
        }
        // A run of a billion, of which a page has five.
        assert_eq!(decoded(&[1, 0x80, 0xa8, 0xd6, 0xb9, 7, 1], 5).unwrap(), [1; 5]);
    }
}
