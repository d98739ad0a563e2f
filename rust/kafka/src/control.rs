/// The kind of a control batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Control {
    /// Commits a transaction.
    Commit,
    /// Aborts a transaction.
    Abort,
    /// Compaction removed its record, and also the transaction that it ended.
    Empty,
    /// Any other record of brokers: a change of leaders, the frame of a snapshot.
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

    /// Decodes the key of a control record, and for a marker its coordinator's epoch from the value. `None` if it is
    /// not a control record.
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
