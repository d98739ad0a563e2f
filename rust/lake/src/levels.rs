//! Definition levels: the hybrid of runs and packed bits that the format has for them, for levels of one byte.

/// The highest level that is known here.
pub(crate) const MAX: i16 = 255;

/// From how many on equal levels are a run of their own.
const RUN: usize = 8;

fn width(max: i16) -> usize {
    (i16::BITS - max.leading_zeros()) as usize
}

/// Appends `count` levels.
pub(crate) fn decode(mut bytes: &[u8], max: i16, count: usize, levels: &mut Vec<u8>) -> Result<(), String> {
    let (width, end) = (width(max), levels.len() + count);
    while levels.len() < end {
        let header = varint(&mut bytes)?;
        let wanted = end - levels.len();
        let start = levels.len();
        if header & 1 == 0 {
            let length = (header >> 1) as usize;
            let (&level, rest) = bytes.split_first().ok_or("a run of levels has no level")?;
            if length == 0 {
                return Err(String::from("a run of no levels"));
            }
            bytes = rest;
            levels.resize(start + length.min(wanted), level);
        } else {
            let groups = (header >> 1) as usize;
            let length = groups.saturating_mul(8).min(wanted);
            let packed = bytes.get(..(length * width).div_ceil(8)).ok_or("packed levels end too early")?;
            if length == 0 {
                return Err(String::from("no packed levels"));
            }
            levels.extend((0..length).map(|place| unpack(packed, place * width, width)));
            bytes = bytes.get(groups.saturating_mul(width)..).unwrap_or_default();
        }
        if let Some(level) = levels[start..].iter().find(|&&level| i16::from(level) > max) {
            return Err(format!("a level is {level}, the highest is {max}"));
        }
    }
    Ok(())
}

/// The bits from `at` on, the lowest first.
fn unpack(packed: &[u8], at: usize, width: usize) -> u8 {
    (0..width).map(|bit| (packed[(at + bit) / 8] >> ((at + bit) % 8) & 1) << bit).sum()
}

fn varint(bytes: &mut &[u8]) -> Result<u32, String> {
    let mut value = 0_u32;
    for shift in (0..32).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or("levels end too early")?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(String::from("a run of levels is too long"))
}

/// Appends these levels, encoded.
pub(crate) fn encode(levels: &[u8], max: i16, out: &mut Vec<u8>) {
    let width = width(max);
    let run_at = |at: usize| levels[at..].iter().take_while(|&&it| it == levels[at]).count();
    let mut at = 0;
    while at < levels.len() {
        let run = run_at(at);
        if run >= RUN {
            put_varint((run as u32) << 1, out);
            out.push(levels[at]);
            at += run;
            continue;
        }
        let start = at;
        while at < levels.len() && run_at(at) < RUN {
            at = (at + 8).min(levels.len());
        }
        let groups = (at - start).div_ceil(8);
        put_varint((groups as u32) << 1 | 1, out);
        let first = out.len();
        out.resize(first + groups * width, 0);
        for (place, &level) in levels[start..at].iter().enumerate() {
            for bit in 0..width {
                let to = place * width + bit;
                out[first + to / 8] |= (level >> bit & 1) << (to % 8);
            }
        }
    }
}

fn put_varint(mut value: u32, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn levels_come_back_as_they_were() {
        for max in [1, 2, 3, 5, 8, 127, 255] {
            for (seed, count) in [(1_u64, 1_usize), (2, 7), (3, 8), (4, 9), (5, 64), (6, 1000), (7, 20_001)] {
                let mut state = seed;
                let mut levels = Vec::new();
                while levels.len() < count {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let run = if state >> 63 == 0 { 1 } else { (state >> 40) as usize % 40 };
                    let level = (state >> 33) as i16 & 0xff;
                    levels.extend(std::iter::repeat_n((level % (max + 1)) as u8, run));
                }
                levels.truncate(count);
                let mut encoded = vec![];
                encode(&levels, max, &mut encoded);
                let mut decoded = vec![];
                decode(&encoded, max, count, &mut decoded).unwrap();
                assert_eq!(decoded, levels, "{max} {count}");
                assert!(decode(&encoded[..1], max, count, &mut vec![]).is_err());
            }
        }
    }

    #[test]
    fn an_array_of_packed_bits_is_what_the_format_says() {
        // 0 to 7 with three bits each: the example of the format's own page.
        let mut levels = vec![];
        decode(&[0x03, 0b1000_1000, 0b1100_0110, 0b1111_1010], 7, 8, &mut levels).unwrap();
        assert_eq!(levels, [0, 1, 2, 3, 4, 5, 6, 7]);
        let mut encoded = vec![];
        encode(&levels, 7, &mut encoded);
        assert_eq!(encoded, [0x03, 0b1000_1000, 0b1100_0110, 0b1111_1010]);
    }

    #[test]
    fn lies_are_refused() {
        for bytes in [&[][..], &[0x00, 1], &[0x01], &[0x03], &[0x10], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80], &[0x10, 9]]
        {
            assert!(decode(bytes, 1, 8, &mut vec![]).is_err(), "{bytes:?}");
        }
    }
}
