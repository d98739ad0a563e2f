/// Bytes that never end: zeros follow.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    pub(crate) fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(crate) fn below(&mut self, end: u8) -> u8 {
        self.next() % end
    }

    pub(crate) fn wide(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.next()))
    }
}
