//! Conversion between sequence numbers and positions.
//!
//! A sequence number that wraps gives the place of a row on its lap, but not the lap. A position is the number that the
//! row would have without wrapping. Except at the border of the wrap, the lap is that of the entry's highest position.
//! A replay is therefore recognized at any distance.
//!
//! ```text
//!   lap k                                          lap k+1
//!   |0 ... H|            ...            |W-H ... W-1|0 ... H|   ...
//!                          highest in here ^          ^ a low seq is on the next lap
//!         a high seq is on the previous lap ^           ^ highest in here
//! ```

/// The sequence space of a wrapping policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wrap {
    modulus: i64,
    /// Width of the zone on either side of the border: min(W/4, 2^20).
    border: i64,
    /// The highest lap that can be followed by another, so that positions stay within 64 bits.
    lap_max: i64,
}

impl Wrap {
    pub(crate) fn new(modulus: u64) -> Wrap {
        let modulus = modulus as i64;
        Wrap { modulus, border: (modulus / 4).min(1 << 20), lap_max: (1 << 61) / modulus }
    }

    /// The end of the zone after the border.
    pub(crate) fn border(self) -> i64 {
        self.border
    }

    /// The beginning of the zone before the border.
    pub(crate) fn upper_zone(self) -> i64 {
        self.modulus - self.border
    }

    /// Whether a position is on a lap that rows can reach.
    pub(crate) fn has(self, position: i64) -> bool {
        (-self.lap_max..=self.lap_max).contains(&position.div_euclid(self.modulus))
    }

    /// The sequence number of a position.
    #[inline]
    pub(crate) fn seq(self, position: i64) -> i64 {
        // Most positions are on the first lap, and a division takes as long as all else that is done with a range.
        if (0..self.modulus).contains(&position) { position } else { position.rem_euclid(self.modulus) }
    }

    /// Whether positions `first..=last` touch the zone after a border, and whether they touch the zone before it.
    pub(crate) fn zones_of(self, first: i64, last: i64) -> (bool, bool) {
        let seq = self.seq(first);
        let lower = seq < self.border || self.modulus - seq <= last - first;
        let upper = seq >= self.upper_zone() || self.upper_zone() - seq <= last - first;
        (lower, upper)
    }

    /// How many rows of a span that begins at `seq` are in one zone, so that one placement is right for all of them.
    pub(crate) fn zone_rows(self, seq: i64, rows: i64) -> i64 {
        let upper = self.upper_zone();
        let end = if seq < self.border {
            self.border
        } else if seq < upper {
            upper
        } else {
            self.modulus
        };
        rows.min(end - seq)
    }

    /// The position of `seq` in an entry whose highest position is `highest`. The previous lap is possible only for
    /// entries that may begin anywhere, and on later laps.
    pub(crate) fn place(self, seq: i64, highest: i64, may_begin_anywhere: bool) -> Place {
        let upper = self.upper_zone();
        if seq >= self.border && seq < upper && highest >= 0 && highest < self.modulus {
            return Place { position: seq, border: Border::None };
        }
        let lap = highest.div_euclid(self.modulus);
        let within = highest.rem_euclid(self.modulus);
        let on = |lap: i64, border| Place { position: lap * self.modulus + seq, border };
        if within >= upper && seq < self.border && lap < self.lap_max {
            on(lap + 1, Border::NextLap)
        } else if within < self.border && seq >= upper && (may_begin_anywhere || lap > 0) && lap > -self.lap_max {
            on(lap - 1, Border::LapBefore)
        } else {
            on(lap, Border::None)
        }
    }
}

/// The position of a row, and whether the border rule decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) position: i64,
    pub(crate) border: Border,
}

/// Which of the two border rules placed a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Border {
    None,
    NextLap,
    LapBefore,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(wrap: u64, seq: i64, highest: i64) -> i64 {
        Wrap::new(wrap).place(seq, highest, true).position
    }

    #[test]
    fn the_lap_changes_at_the_border_only() {
        assert_eq!(position(16, 0, 15), 16);
        assert_eq!(position(16, 3, 12), 19);
        assert_eq!(position(16, 4, 15), 4);
        assert_eq!(position(16, 3, 11), 3);
        assert_eq!(position(16, 15, 16), 15);
        assert_eq!(position(16, 15, 0), -1);
        assert_eq!(position(16, 12, -1), -4);
        assert_eq!(position(16, 8, -1), -8);
        assert_eq!(position(16, 4, 31), 20);
        assert_eq!(position(16, 11, 16), 27);
        assert_eq!(position(1 << 31, 0, (1 << 31) - 1), 1 << 31);
        assert_eq!(position(1 << 31, 0, 1_200_000_000), 0);
    }

    #[test]
    fn an_entry_that_begins_at_zero_has_no_lap_before() {
        let wrap = Wrap::new(16);
        assert_eq!(wrap.place(15, 0, false).position, 15);
        assert_eq!(wrap.place(15, 16, false).position, 15);
    }

    #[test]
    fn the_last_laps_are_followed_by_none() {
        let (wrap, end) = (Wrap::new(16), 1 << 61);
        assert_eq!([end, end + 15, end + 16].map(|it| wrap.has(it)), [true, true, false]);
        assert_eq!([-end, -end - 1].map(|it| wrap.has(it)), [true, false]);
        assert_eq!([end - 1, end + 15].map(|highest| position(16, 0, highest)), [end, end]);
        assert_eq!([16 - end, -end].map(|highest| position(16, 15, highest)), [15 - end, 15 - end]);
    }

    #[test]
    fn zones_are_those_of_single_rows() {
        let wrap = Wrap::new(16);
        assert_eq!((wrap.border(), wrap.upper_zone()), (4, 12));
        for (first, more) in (-40..40).flat_map(|first| (0..20).map(move |more| (first, more))) {
            let zones: Vec<_> = (first..=first + more).map(|it| (wrap.seq(it) >= 4, wrap.seq(it) >= 12)).collect();
            let touched = (zones.contains(&(false, false)), zones.contains(&(true, true)));
            assert_eq!(wrap.zones_of(first, first + more), touched, "{first} and {more} more");
            let seq = wrap.seq(first);
            let same = zones.iter().take((16 - seq) as usize).take_while(|&&it| it == zones[0]).count();
            assert_eq!(wrap.zone_rows(seq, more + 1), same as i64, "{seq} and {more} more");
        }
    }

    #[test]
    fn the_sequence_number_is_recovered_from_any_position() {
        let wrap = Wrap::new(10);
        assert!((-40..40).all(|position| wrap.seq(position) == position.rem_euclid(10)));
    }
}
