/// What a control batch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Control {
    /// Ends a transaction: its records stand.
    Commit,
    /// Ends a transaction: its records do not stand.
    Abort,
    /// Compaction has removed its record: whatever it ended is gone too.
    Empty,
    /// Anything else that brokers note for themselves: a change of leaders, the frame of a snapshot.
    Other,
}

impl Control {
    /// As text.
    pub fn name(self) -> &'static str {
        ["commit", "abort", "empty", "other"][self as usize]
    }

    /// Key and value of the record of a marker, as [`Control::decode`] reads them.
    pub(crate) fn encode(is_commit: bool, coordinator_epoch: i32) -> ([u8; 4], [u8; 6]) {
        let [e0, e1, e2, e3] = coordinator_epoch.to_be_bytes();
        ([0, 0, 0, u8::from(is_commit)], [0, 0, e0, e1, e2, e3])
    }

    /// What the key of a control record says, and for a marker its coordinator's epoch, which stands in the value.
    /// `None`: it cannot be such a record.
    pub(crate) fn decode(key: &[u8], value: Option<&[u8]>) -> Option<(Control, Option<i32>)> {
        let [0, _, kind @ ..] = key else { return None };
        let kind = i16::from_be_bytes([*kind.first()?, *kind.get(1)?]);
        let control = match kind {
            0 => Control::Abort,
            1 => Control::Commit,
            2.. => return Some((Control::Other, None)),
            _ => return None,
        };
        let [0, _, epoch @ ..] = value? else { return None };
        let epoch: [u8; 4] = epoch.get(..4)?.try_into().ok()?;
        Some((control, Some(i32::from_be_bytes(epoch))))
    }
}
