//! Columns of numbers: the lowest value, then the difference of each value from it, in as few whole bytes as the
//! largest one needs.
//!
//! Varints per byte are smaller if few numbers are large, but take 2 to 3 times as long.

use super::frames::{Payload, damaged};
use crate::Result;

/// Appends a column: width (one byte), lowest value (eight bytes), then `width` bytes per row, all little endian.
///
/// If `width_min` is not 0, the number of bytes limits the number of rows.
pub(super) fn write(out: &mut Vec<u8>, values: &[i64], width_min: usize) {
    let (low, spread) = low_and_spread(values);
    let width = (u64::BITS - spread.leading_zeros()).div_ceil(8).max(width_min as u32) as usize;
    out.push(width as u8);
    out.extend_from_slice(&low.to_le_bytes());
    let pack = [pack::<0>, pack::<1>, pack::<2>, pack::<3>, pack::<4>, pack::<5>, pack::<6>, pack::<7>, pack::<8>];
    pack[width](out, values, low);
}

/// The lowest value, and the difference of the highest from it.
fn low_and_spread(values: &[i64]) -> (i64, u64) {
    let first = values.first().copied().unwrap_or(0);
    // In most columns all numbers are equal. This test is four times as fast as finding the lowest and highest.
    if values.iter().fold(0, |differ, it| differ | (it ^ first)) == 0 {
        return (first, 0);
    }
    let (low, high) = values.iter().fold((first, first), |(low, high), &it| (low.min(it), high.max(it)));
    (low, high.wrapping_sub(low) as u64)
}

fn pack<const WIDTH: usize>(out: &mut Vec<u8>, values: &[i64], low: i64) {
    let from = out.len();
    out.resize(from + values.len() * WIDTH, 0);
    if WIDTH > 0 {
        for (bytes, value) in out[from..].chunks_exact_mut(WIDTH).zip(values) {
            bytes.copy_from_slice(&value.wrapping_sub(low).to_le_bytes()[..WIDTH]);
        }
    }
}

/// Reads `rows` numbers of a column into `values`.
pub(super) fn read(payload: &mut Payload<'_>, rows: usize, width_min: usize, values: &mut Vec<i64>) -> Result<()> {
    let [width] = payload.array()?;
    let low = i64::from_le_bytes(payload.array()?);
    if !(width_min..=8).contains(&usize::from(width)) {
        return damaged(format!("a column is {width} bytes wide, {width_min} to 8 are allowed"));
    }
    let bytes = payload.bytes(rows.saturating_mul(width.into()))?;
    values.clear();
    let unpack = [
        unpack::<0>,
        unpack::<1>,
        unpack::<2>,
        unpack::<3>,
        unpack::<4>,
        unpack::<5>,
        unpack::<6>,
        unpack::<7>,
        unpack::<8>,
    ];
    unpack[usize::from(width)](bytes, rows, low, values);
    Ok(())
}

fn unpack<const WIDTH: usize>(bytes: &[u8], rows: usize, low: i64, values: &mut Vec<i64>) {
    if WIDTH == 0 {
        return values.resize(rows, low);
    }
    values.extend(bytes.chunks_exact(WIDTH).map(|bytes| {
        let mut wide = [0; 8];
        wide[..WIDTH].copy_from_slice(bytes);
        low.wrapping_add(i64::from_le_bytes(wide))
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_round_trips() {
        for bits in 0..=64 {
            let high = if bits == 0 { 0 } else { u64::MAX >> (64 - bits) };
            for low in [0, -3, i64::MIN, i64::MAX] {
                let values = [0, high, high / 2, 0].map(|it| low.wrapping_add(it as i64));
                let mut bytes = Vec::new();
                write(&mut bytes, &values, 0);
                let mut back = Vec::new();
                let mut payload = Payload::new(&bytes);
                read(&mut payload, values.len(), 0, &mut back).expect("written above");
                payload.end().expect("read whole");
                assert_eq!(back, values);
            }
        }
    }

    #[test]
    fn a_column_that_is_too_short_or_of_no_width_is_refused() {
        let mut bytes = Vec::new();
        write(&mut bytes, &[1, 2], 4);
        assert_eq!(bytes.len(), 9 + 8);
        for (rows, width_min) in [(3, 4), (usize::MAX, 0), (2, 5)] {
            assert!(read(&mut Payload::new(&bytes), rows, width_min, &mut Vec::new()).is_err());
        }
        bytes[0] = 9;
        assert!(read(&mut Payload::new(&bytes), 0, 0, &mut Vec::new()).is_err());
    }
}
