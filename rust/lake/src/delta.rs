//! Checks the headers of delta-encoded pages: decoders hold all lengths of such a page at once.

use parquet::errors::{ParquetError, Result};
use std::ops::RangeInclusive;

/// Checks a page of `DELTA_BINARY_PACKED` or `DELTA_LENGTH_BYTE_ARRAY`: its number of values is in `counts`, and at
/// most `count_max`.
pub(crate) fn check_count(mut bytes: &[u8], counts: RangeInclusive<u64>, count_max: u64) -> Result<()> {
    if bytes.is_empty() {
        return check_empty(&counts);
    }
    Stream::read(&mut bytes, &counts, count_max).map(drop)
}

/// Checks a page of `DELTA_BYTE_ARRAY`, whose values take at most `bytes_max`. Each value can repeat all of the
/// previous one, so a page of some bytes can decode to any number of bytes.
pub(crate) fn check_prefixed(
    mut bytes: &[u8],
    counts: RangeInclusive<u64>,
    count_max: u64,
    bytes_max: u64,
) -> Result<()> {
    if bytes.is_empty() {
        return check_empty(&counts);
    }
    let mut length = 0_u64;
    for _ in ["prefixes", "suffixes"] {
        let stream = Stream::read(&mut bytes, &counts, count_max)?;
        length = length.saturating_add(stream.sum(&mut bytes).ok_or_else(too_short)?);
    }
    if length > bytes_max {
        let problem = format!("a page has values of {length} bytes, at most {bytes_max} are possible");
        return Err(ParquetError::General(problem));
    }
    Ok(())
}

/// A page of nulls can have no bytes.
fn check_empty(counts: &RangeInclusive<u64>) -> Result<()> {
    if counts.contains(&0) { Ok(()) } else { Err(too_short()) }
}

fn too_short() -> ParquetError {
    ParquetError::EOF("a page ends before its deltas do".into())
}

/// Lengths of 32 bits, encoded as deltas.
struct Stream {
    count: u64,
    first: i32,
    /// Number of smaller blocks of a block, and their number of deltas.
    parts: u64,
    part_count: u64,
}

impl Stream {
    fn read(bytes: &mut &[u8], counts: &RangeInclusive<u64>, count_max: u64) -> Result<Stream> {
        let mut numbers = || Some([varint(bytes)?, varint(bytes)?, varint(bytes)?, varint(bytes)?]);
        let [block, parts, count, first] = numbers().ok_or_else(too_short)?;
        if count > count_max.min(*counts.end()) {
            let possible = count_max.min(*counts.end());
            return Err(ParquetError::General(format!("a page has {count} deltas, at most {possible} are possible")));
        }
        if !counts.contains(&count) {
            return Err(ParquetError::General(format!("a page has {count} deltas, but {} values", counts.start())));
        }
        let part_count = block.checked_div(parts).ok_or_else(too_short)?;
        Ok(Stream { count, first: zigzag(first) as i32, parts, part_count })
    }

    /// Sums the lengths in the blocks with which these bytes begin, and leaves the rest. Lengths below 0 count as 0,
    /// because decoders refuse them.
    fn sum(&self, bytes: &mut &[u8]) -> Option<u64> {
        let as_length = |value: i32| u64::from(value.max(0).cast_unsigned());
        let mut left = self.count.saturating_sub(1);
        let (mut value, mut sum) = (self.first, if self.count > 0 { as_length(self.first) } else { 0 });
        while left > 0 {
            let least = zigzag(varint(bytes)?);
            let (widths, rest) = bytes.split_at_checked(usize::try_from(self.parts).ok()?)?;
            *bytes = rest;
            for &width in widths.iter().take_while(|_| self.part_count > 0) {
                if left == 0 {
                    break;
                }
                let length = u64::from(width).checked_mul(self.part_count)? / 8;
                let (packed, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
                *bytes = rest;
                for at in 0..left.min(self.part_count) {
                    let delta = unpack(packed, at, width)?;
                    value = value.wrapping_add(least.wrapping_add_unsigned(delta) as i32);
                    sum = sum.saturating_add(as_length(value));
                }
                left = left.saturating_sub(self.part_count);
            }
            if self.part_count == 0 || widths.is_empty() {
                return None; // never ends
            }
        }
        Some(sum)
    }
}

/// Unpacks one of several numbers of `width` bits each.
fn unpack(packed: &[u8], at: u64, width: u8) -> Option<u64> {
    if width > 64 {
        return None;
    }
    let bit = at * u64::from(width);
    let (first, shift) = ((bit / 8) as usize, bit % 8);
    let wide =
        packed[first.min(packed.len())..].iter().take(9).rev().fold(0_u128, |sum, &byte| sum << 8 | u128::from(byte));
    Some((wide >> shift & ((1 << width) - 1)) as u64)
}

fn zigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 128 in 4 parts, 6 deltas from 7 on: one block, whose first part has deltas of 2 bits.
    const STREAM: [u8; 18] = [128, 1, 4, 6, 14, 0, 2, 9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8];

    #[test]
    fn both_streams_are_found() {
        let two = [STREAM, STREAM].concat();
        assert!(check_prefixed(&two, 6..=6, 9, 1000).is_ok());
        assert!(check_prefixed(&two, 0..=6, 6, 1000).is_ok());
        assert!(check_prefixed(&two, 6..=6, 5, 1000).is_err_and(|error| error.to_string().contains("at most 5")));
        assert!(check_prefixed(&two, 5..=5, 9, 1000).is_err_and(|error| error.to_string().contains("at most 5")));
        assert!(check_prefixed(&two, 7..=7, 9, 1000).is_err_and(|error| error.to_string().contains("but 7 values")));
        let mut other = two.clone();
        other[18 + 3] = 7;
        assert!(check_prefixed(&other, 6..=6, 9, 1000).is_err_and(|error| error.to_string().contains("7 deltas")));
        assert!(check_count(&other, 6..=6, 9).is_ok());
        assert!(check_count(&other, 5..=5, 9).is_err() && check_count(&other, 7..=7, 9).is_err());
        assert!(check_prefixed(&two[..20], 6..=6, 9, 1000).is_err());
        assert!(check_prefixed(&[], 0..=0, 0, 0).is_ok() && check_count(&[], 0..=3, 0).is_ok());
        assert!(check_prefixed(&[], 1..=1, 9, 9).is_err() && check_count(&[], 1..=1, 9).is_err());
    }

    /// From 7 on, deltas of 2 bits: 1, 0, 0, 0 of the byte 1, and 2 of the byte 2.
    #[test]
    fn lengths_are_summed() {
        let two = [STREAM, STREAM].concat();
        let sum = 7 + 8 + 8 + 8 + 8 + 10;
        assert!(check_prefixed(&two, 6..=6, 6, 2 * sum).is_ok());
        let refused = check_prefixed(&two, 6..=6, 6, 2 * sum - 1).expect_err("one byte more");
        assert!(refused.to_string().contains("values of 98 bytes, at most 97"), "{refused}");
    }

    #[test]
    fn numbers_of_any_width_are_unpacked() {
        for width in 0..=64_u8 {
            let numbers: Vec<u64> =
                (0..32).map(|at| u64::MAX.wrapping_mul(at * 77 + 5) & ((1_u128 << width) - 1) as u64).collect();
            let mut packed = vec![0_u8; 4 * usize::from(width)];
            for (at, number) in numbers.iter().enumerate() {
                for bit in (0..usize::from(width)).filter(|bit| number >> bit & 1 == 1) {
                    let place = at * usize::from(width) + bit;
                    packed[place / 8] |= 1 << (place % 8);
                }
            }
            let found: Vec<u64> = (0..32).map(|at| unpack(&packed, at, width).expect("a width")).collect();
            assert_eq!(found, numbers, "{width}");
        }
        assert_eq!(unpack(&[], 0, 65), None);
    }
}
