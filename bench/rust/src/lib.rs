//! Workloads for the core's benchmark: columns in memory, made from a seed.

use fencepost_core::{Batch, Seqs};

/// Rows by column.
pub struct Columns {
    /// Producers.
    pub pid: Vec<i64>,
    /// Partitions.
    pub partition: Vec<i32>,
    /// Epochs, all 0.
    pub epoch: Vec<i16>,
    /// Sequence numbers.
    pub seq: Vec<i32>,
}

impl Columns {
    /// Rows of `keys` keys of 1000 partitions each producer, a key drawn at random for every run of
    /// `run` rows, one run in 20 repeated at once. Gives the columns and how many rows are repeats.
    pub fn random(rows: usize, keys: u64, run: usize, seed: u64) -> (Columns, u64) {
        let mut columns = Columns { pid: vec![], partition: vec![], epoch: vec![], seq: vec![] };
        let mut next = vec![0i32; keys as usize];
        let mut state = seed;
        let mut repeats = 0;
        while columns.pid.len() < rows {
            let key = random(&mut state) % keys;
            let times = if random(&mut state).is_multiple_of(20) { 2 } else { 1 };
            repeats += (times - 1) * run as u64;
            for _ in 0..times {
                columns.push_run(key, next[key as usize], run);
            }
            next[key as usize] += run as i32;
        }
        (columns, repeats)
    }

    fn push_run(&mut self, key: u64, seq: i32, rows: usize) {
        self.pid.extend(std::iter::repeat_n((key / 1000) as i64, rows));
        self.partition.extend(std::iter::repeat_n((key % 1000) as i32, rows));
        self.epoch.extend(std::iter::repeat_n(0, rows));
        self.seq.extend(seq..seq + rows as i32);
    }

    /// The columns cut into batches of `rows` rows.
    pub fn batches(&self, rows: usize) -> Vec<Batch<'_>> {
        let cut = |from: usize| {
            let to = (from + rows).min(self.pid.len());
            Batch {
                pid: &self.pid[from..to],
                partition: &self.partition[from..to],
                epoch: Some(&self.epoch[from..to]),
                seq: Seqs::I32(&self.seq[from..to]),
                timestamp: None,
            }
        };
        (0..self.pid.len()).step_by(rows).map(cut).collect()
    }

    /// Reads the four columns once and adds everything up: the least that any judge must do.
    pub fn sum(&self) -> i64 {
        let wide = |sum: i64, value: i64| sum.wrapping_add(value);
        self.pid.iter().copied().fold(0, wide)
            + self.partition.iter().map(|&it| i64::from(it)).fold(0, wide)
            + self.epoch.iter().map(|&it| i64::from(it)).fold(0, wide)
            + self.seq.iter().map(|&it| i64::from(it)).fold(0, wide)
    }
}

/// The next number of a seed: SplitMix64.
pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
