//! What pages of deltas say of themselves in front of their values: decoders hold all lengths of such a page at once.

use parquet::errors::{ParquetError, Result};

/// Checks that each of the `streams` of lengths that these bytes begin with has at most `count_max` of them.
pub(crate) fn check(mut bytes: &[u8], streams: usize, count_max: u64) -> Result<()> {
    // A page of nulls may have none.
    for number in 1..=if bytes.is_empty() { 0 } else { streams } {
        let too_short = || ParquetError::EOF("a page ends before its deltas do".into());
        let stream = Stream::read(&mut bytes).ok_or_else(too_short)?;
        if stream.count > count_max {
            let problem = format!("a page has {} deltas, at most {count_max} are possible", stream.count);
            return Err(ParquetError::General(problem));
        }
        if number < streams {
            bytes = stream.skip(bytes).ok_or_else(too_short)?;
        }
    }
    Ok(())
}

struct Stream {
    count: u64,
    /// Blocks have as many smaller ones, of so many deltas each.
    parts: u64,
    part_count: u64,
}

impl Stream {
    fn read(bytes: &mut &[u8]) -> Option<Stream> {
        let (block, parts, count) = (varint(bytes)?, varint(bytes)?, varint(bytes)?);
        varint(bytes)?;
        Some(Stream { count, parts, part_count: block.checked_div(parts)? })
    }

    /// What is behind the stream whose blocks these bytes begin with.
    fn skip<'a>(&self, mut bytes: &'a [u8]) -> Option<&'a [u8]> {
        // The first value is in front of the blocks.
        let mut left = self.count.saturating_sub(1);
        while left > 0 {
            varint(&mut bytes)?;
            let (widths, mut rest) = bytes.split_at_checked(usize::try_from(self.parts).ok()?)?;
            for &width in widths.iter() {
                if left == 0 {
                    break;
                }
                let length = u64::from(width).checked_mul(self.part_count)? / 8;
                rest = rest.get(usize::try_from(length).ok()?..)?;
                left = left.saturating_sub(self.part_count);
            }
            bytes = rest;
        }
        Some(bytes)
    }
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
        assert!(check(&two, 2, 6).is_ok());
        assert!(check(&two, 2, 5).is_err_and(|error| error.to_string().contains("6 deltas")));
        let mut other = two.clone();
        other[18 + 3] = 7;
        assert!(check(&other, 2, 6).is_err_and(|error| error.to_string().contains("7 deltas")));
        assert!(check(&other, 1, 6).is_ok());
        assert!(check(&two[..20], 2, 6).is_err() && check(&[], 2, 0).is_ok());
    }
}
