//! Definition levels: the format's run-length and bit-packing hybrid, for levels of one byte.

/// The highest supported level.
pub(crate) const MAX: i16 = 255;

/// Minimum number of equal levels of a run.
const RUN: usize = 8;

fn width(max: i16) -> usize {
    (i16::BITS - max.leading_zeros()) as usize
}

/// Iterates over levels without storing them: a run of a billion takes six bytes of a file.
pub(crate) struct Levels<'a> {
    bytes: &'a [u8],
    max: i16,
    /// Levels after the run.
    left: usize,
    run: Run<'a>,
}

enum Run<'a> {
    Same { level: u8, left: usize },
    Packed { bytes: &'a [u8], at: usize, left: usize },
}

impl<'a> Levels<'a> {
    /// `count` levels of at most `max`, which is at most [`MAX`].
    pub(crate) fn new(bytes: &'a [u8], max: i16, count: usize) -> Levels<'a> {
        Levels { bytes, max, left: count, run: Run::Same { level: 0, left: 0 } }
    }

    /// The next level and how often it repeats. `None` at the end.
    pub(crate) fn next_run(&mut self) -> Result<Option<(u8, usize)>, String> {
        if let Run::Same { left: 0, .. } | Run::Packed { left: 0, .. } = self.run {
            if self.left == 0 {
                return Ok(None);
            }
            self.read_run()?;
        }
        let (level, count) = match &mut self.run {
            Run::Same { level, left } => {
                let count = std::mem::take(left);
                (*level, count)
            }
            Run::Packed { bytes, at, left } => {
                let width = width(self.max);
                let level = unpack(bytes, *at * width, width);
                (*at, *left) = (*at + 1, *left - 1);
                (level, 1)
            }
        };
        if i16::from(level) > self.max {
            return Err(format!("a level is {level}, the highest is {}", self.max));
        }
        Ok(Some((level, count)))
    }

    /// Appends all remaining levels.
    pub(crate) fn append_to(mut self, out: &mut Vec<u8>) -> Result<(), String> {
        let (first, width) = (out.len(), width(self.max));
        while self.left > 0 {
            self.read_run()?;
            match self.run {
                Run::Same { level, left } => out.resize(out.len() + left, level),
                Run::Packed { bytes, left, .. } => out.extend((0..left).map(|at| unpack(bytes, at * width, width))),
            }
        }
        match out[first..].iter().find(|&&level| i16::from(level) > self.max) {
            Some(level) => Err(format!("a level is {level}, the highest is {}", self.max)),
            None => Ok(()),
        }
    }

    fn read_run(&mut self) -> Result<(), String> {
        let header = varint(&mut self.bytes)?;
        let count = (header >> 1) as usize;
        if count == 0 {
            return Err(String::from("a run of no levels"));
        }
        let left = if header & 1 == 0 {
            let (&level, rest) = self.bytes.split_first().ok_or("a run of levels has no level")?;
            self.bytes = rest;
            let left = count.min(self.left);
            self.run = Run::Same { level, left };
            left
        } else {
            let width = width(self.max);
            let left = count.saturating_mul(8).min(self.left);
            let bytes = self.bytes.get(..(left * width).div_ceil(8)).ok_or("packed levels end too early")?;
            self.bytes = self.bytes.get(count.saturating_mul(width)..).unwrap_or_default();
            self.run = Run::Packed { bytes, at: 0, left };
            left
        };
        self.left -= left;
        Ok(())
    }
}

/// Up to eight bits from `at` on, the lowest first.
fn unpack(packed: &[u8], at: usize, width: usize) -> u8 {
    let high = packed.get(at / 8 + 1).copied().unwrap_or(0);
    let word = u16::from_le_bytes([packed[at / 8], high]) >> (at % 8);
    (word & ((1 << width) - 1)) as u8
}

pub(crate) fn varint(bytes: &mut &[u8]) -> Result<u32, String> {
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

pub(crate) fn put_varint(mut value: u32, out: &mut Vec<u8>) {
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

    fn decode(bytes: &[u8], max: i16, count: usize) -> Result<Vec<u8>, String> {
        let mut all = vec![];
        let done = Levels::new(bytes, max, count).append_to(&mut all);
        let mut runs = Levels::new(bytes, max, count);
        let mut by_run = vec![];
        while let Ok(Some((level, count))) = runs.next_run() {
            by_run.resize(by_run.len() + count, level);
        }
        assert!(done.is_err() || by_run == all);
        done.map(|()| all)
    }

    #[test]
    fn levels_round_trip() {
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
                assert_eq!(decode(&encoded, max, count).unwrap(), levels, "{max} {count}");
                assert!(decode(&encoded[..1], max, count).is_err());
            }
        }
    }

    #[test]
    fn packed_bits_match_the_format() {
        // 0 to 7 with three bits each: the example of the format's own page.
        let levels = decode(&[0x03, 0b1000_1000, 0b1100_0110, 0b1111_1010], 7, 8).unwrap();
        assert_eq!(levels, [0, 1, 2, 3, 4, 5, 6, 7]);
        let mut encoded = vec![];
        encode(&levels, 7, &mut encoded);
        assert_eq!(encoded, [0x03, 0b1000_1000, 0b1100_0110, 0b1111_1010]);
    }

    #[test]
    fn wrong_counts_are_refused() {
        for bytes in [&[][..], &[0x00, 1], &[0x01], &[0x03], &[0x10], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80], &[0x10, 9]]
        {
            assert!(decode(bytes, 1, 8).is_err(), "{bytes:?}");
        }
    }
}
