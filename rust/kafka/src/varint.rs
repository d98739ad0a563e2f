//! Kafka's variable-length integers: seven bits per byte, the lowest first, with zigzag encoding so that small negative
//! numbers are short.

/// Decodes the integer at the beginning of bytes, and returns its length. `None`: truncated, or longer than 32 bits.
#[inline]
pub(crate) fn varint(bytes: &[u8]) -> Option<(i32, usize)> {
    if let Some(&byte) = bytes.first()
        && byte < 0x80
    {
        return Some(((byte >> 1) as i32 ^ -((byte & 1) as i32), 1));
    }
    let (value, length) = unsigned(bytes, 5)?;
    let value = u32::try_from(value).ok()?;
    Some(((value >> 1) as i32 ^ -((value & 1) as i32), length))
}

/// Like `varint`, with 64 bits.
#[inline]
pub(crate) fn varlong(bytes: &[u8]) -> Option<(i64, usize)> {
    let (value, length) = unsigned(bytes, 10)?;
    let value = u64::try_from(value).ok()?;
    Some(((value >> 1) as i64 ^ -((value & 1) as i64), length))
}

/// Appends a number of 32 or 64 bits. The encoding of 32-bit numbers is the same for both.
#[inline]
pub(crate) fn put(bytes: &mut Vec<u8>, value: i64) {
    let mut rest = zigzag(value);
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

/// Encoded size of a number in bytes.
#[inline]
pub(crate) fn bytes_of(value: i64) -> usize {
    (64 - (zigzag(value) | 1).leading_zeros() as usize).div_ceil(7)
}

#[inline]
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unsigned(bytes: &[u8], length_max: usize) -> Option<(u128, usize)> {
    let mut value = 0u128;
    for (at, &byte) in bytes.iter().take(length_max).enumerate() {
        value |= u128::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Some((value, at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: i64) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, value);
        assert_eq!(bytes_of(value), bytes.len(), "{value}");
        bytes
    }

    #[test]
    fn numbers_round_trip() {
        for value in [0, -1, 1, 63, -64, 64, -65, 300, 8191, 8192, i64::from(i32::MAX), i64::from(i32::MIN)] {
            let bytes = written(value);
            assert_eq!(varint(&bytes), Some((value as i32, bytes.len())));
            assert_eq!(varlong(&bytes), Some((value, bytes.len())));
        }
        for value in [i64::MAX, i64::MIN, 1 << 40] {
            let bytes = written(value);
            assert_eq!(varlong(&bytes), Some((value, bytes.len())));
            assert_eq!(varint(&bytes), None, "{value} has more than 32 bits");
        }
    }

    #[test]
    fn truncated_and_long_numbers_are_refused() {
        assert_eq!(varint(&[]), None);
        assert_eq!(varint(&[0x80]), None);
        assert_eq!(varint(&[0x80; 5]), None);
        assert_eq!(varint(&[0xff, 0xff, 0xff, 0xff, 0x1f]), None);
        assert_eq!(varlong(&[0x80; 10]), None);
        assert_eq!(varlong(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]), None);
    }
}
