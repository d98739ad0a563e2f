/// The outcome for one row. The codes are the wire codes of every door and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Verdict {
    /// New: kept.
    Accepted = 0,
    /// Already accepted: not kept.
    Duplicate = 1,
    /// Neither new nor known under this policy: not kept.
    OutOfOrder = 2,
    /// Of an epoch that a higher one has replaced: not kept.
    Fenced = 3,
    /// A transaction in a state that does not allow it (produce batches only).
    InvalidTxnState = 4,
    /// A marker of a deposed coordinator (produce batches only).
    CoordinatorFenced = 5,
    /// Carries no producer identity: not judged, kept.
    Untracked = 6,
    /// Older than what is still remembered: set aside.
    Forgotten = 7,
}

impl Verdict {
    /// How many codes there are.
    pub const COUNT: usize = 8;

    /// Every verdict, in the order of its code.
    pub const ALL: [Verdict; Self::COUNT] = [
        Verdict::Accepted,
        Verdict::Duplicate,
        Verdict::OutOfOrder,
        Verdict::Fenced,
        Verdict::InvalidTxnState,
        Verdict::CoordinatorFenced,
        Verdict::Untracked,
        Verdict::Forgotten,
    ];

    /// The name by which every door knows it.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Accepted => "ACCEPTED",
            Verdict::Duplicate => "DUPLICATE",
            Verdict::OutOfOrder => "OUT_OF_ORDER",
            Verdict::Fenced => "FENCED",
            Verdict::InvalidTxnState => "INVALID_TXN_STATE",
            Verdict::CoordinatorFenced => "COORDINATOR_FENCED",
            Verdict::Untracked => "UNTRACKED",
            Verdict::Forgotten => "FORGOTTEN",
        }
    }

    /// Whether a row with this verdict belongs in the output.
    pub fn is_kept(self) -> bool {
        matches!(self, Verdict::Accepted | Verdict::Untracked)
    }
}
