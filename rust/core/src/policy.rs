use crate::{Error, Result};
use std::fmt;

/// Which new positions are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Admit {
    /// Every position that was not accepted before, in any order.
    Any,
    /// Only positions above the highest.
    Forward,
    /// Only highest + 1.
    Next,
}

/// The meaning of epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epochs {
    /// Each epoch has its own state.
    Key,
    /// Lower epochs are fenced; a higher one replaces the state.
    Fence,
    /// Epochs are not read.
    Ignore,
}

/// The sequence number with which an unknown key may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum First {
    /// Any number.
    Any,
    /// Sequence 0. `Next` and `Forward` refuse anything else, `Any` counts the head as missing.
    Zero,
}

/// The verdict of a row at or below the highest position that was never accepted (`Forward` only).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Late {
    /// Out of order.
    OutOfOrder,
    /// A duplicate.
    Duplicate,
}

/// Whether a hole counts as missing rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gaps {
    /// Yes.
    Report,
    /// No: skipped sequence numbers are normal.
    Normal,
}

/// The rules by which rows are judged. A plain value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Which new positions are accepted.
    pub admit: Admit,
    /// The meaning of epochs.
    pub epochs: Epochs,
    /// The sequence number with which an unknown key may begin.
    pub first: First,
    /// `Next` only: the number of most recent rows of an epoch that are recognized as duplicates.
    pub window: u64,
    /// `Forward` only: the verdict of late rows that were never accepted.
    pub late: Late,
    /// Whether a hole counts as missing rows.
    pub gaps: Gaps,
    /// Sequence numbers go from 0 to n-1 and then begin at 0 again. `None`: they never wrap.
    pub wrap: Option<u64>,
    /// `Any` and `Forward`: a row more than this above the highest position is out of order.
    pub max_jump: Option<u64>,
    /// Holes more than this below the highest position become final. Only for policies that keep holes.
    pub reach: Option<u64>,
    /// The table refuses a call if it already has this many holes. Only for policies that keep holes.
    pub intervals_max: Option<u64>,
}

/// A named policy with its default columns.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name.
    pub name: &'static str,
    /// The rules.
    pub policy: Policy,
    /// Default column of the pid.
    pub pid: &'static str,
    /// Default column of the epoch, if the policy reads epochs.
    pub epoch: Option<&'static str>,
    /// Default column of the partition.
    pub partition: &'static str,
    /// Default column of the sequence number.
    pub seq: &'static str,
}

/// Sequence space of Kafka's producers: 0 … 2^31-1.
const KAFKA_WRAP: u64 = 1 << 31;

/// The largest sequence space that wraps. A 64-bit position then has thousands of laps.
const WRAP_MAX: u64 = 1 << 48;

/// The largest distance or count in a policy.
const COUNT_MAX: u64 = 1 << 62;

const ANY_ORDER: Policy = Policy {
    admit: Admit::Any,
    epochs: Epochs::Key,
    first: First::Any,
    window: 5,
    late: Late::OutOfOrder,
    gaps: Gaps::Report,
    wrap: Some(KAFKA_WRAP),
    max_jump: None,
    reach: None,
    intervals_max: None,
};
const IN_ORDER: Policy = Policy { admit: Admit::Forward, epochs: Epochs::Fence, ..ANY_ORDER };
const KAFKA: Policy = Policy { admit: Admit::Next, ..IN_ORDER };
const STRICT: Policy = Policy { first: First::Zero, window: 1, ..KAFKA };
const WATERMARK: Policy =
    Policy { epochs: Epochs::Ignore, late: Late::Duplicate, gaps: Gaps::Normal, wrap: None, ..IN_ORDER };
const KAFKA_OFFSETS: Policy = Policy { epochs: Epochs::Ignore, gaps: Gaps::Normal, wrap: None, ..ANY_ORDER };

/// All presets. Other languages build their presets from this list.
pub const PRESETS: [Preset; 6] = [
    preset("any_order", ANY_ORDER),
    preset("in_order", IN_ORDER),
    preset("kafka", KAFKA),
    preset("strict", STRICT),
    Preset { epoch: None, ..preset("watermark", WATERMARK) },
    Preset { pid: "topic", epoch: None, seq: "offset", ..preset("kafka_offsets", KAFKA_OFFSETS) },
];

const fn preset(name: &'static str, policy: Policy) -> Preset {
    Preset { name, policy, pid: "pid", epoch: Some("epoch"), partition: "partition", seq: "seq" }
}

impl Policy {
    /// The policy of the preset with this name, or `None`.
    pub fn preset(name: &str) -> Option<Policy> {
        PRESETS.iter().find(|preset| preset.name == name).map(|preset| preset.policy)
    }

    /// Returns an error for combinations of fields that contradict each other.
    pub fn validate(&self) -> Result<()> {
        let refuse = |problem: String| Err(Error::Policy(problem));
        if let Some(wrap) = self.wrap
            && !(4..=WRAP_MAX).contains(&wrap)
        {
            return refuse(format!("wrap={wrap} is outside 4..={WRAP_MAX}"));
        }
        if self.admit == Admit::Next {
            let window_max = self.wrap.map_or(COUNT_MAX, |wrap| wrap - 1);
            if !(1..=window_max).contains(&self.window) {
                return refuse(format!("window={} is outside 1..={window_max}", self.window));
            }
        }
        let (jump, reach) = (("max_jump", self.max_jump), ("reach", self.reach));
        for (field, value) in [jump, reach, ("intervals_max", self.intervals_max)] {
            let Some(value) = value else { continue };
            if self.admit == Admit::Next {
                return refuse(format!(
                    "{field} has no effect under admit='next', which accepts no jump: leave it out"
                ));
            }
            if field != "max_jump" && !self.keeps_holes() {
                return refuse(format!(
                    "{field} has no effect under late='duplicate' and gaps='normal', which keep no holes: leave it out"
                ));
            }
            if !(1..=COUNT_MAX).contains(&value) {
                return refuse(format!("{field}={value} is outside 1..={COUNT_MAX}"));
            }
        }
        Ok(())
    }

    /// The highest valid sequence number.
    pub fn seq_max(&self) -> i64 {
        self.wrap.map_or(i64::MAX, |wrap| (wrap - 1) as i64)
    }

    /// Whether entries store holes: if late rows may still be accepted or must be distinguished from repeats, or if
    /// holes are reported.
    pub(crate) fn keeps_holes(&self) -> bool {
        match self.admit {
            Admit::Any => true,
            Admit::Forward => self.late == Late::OutOfOrder || self.gaps == Gaps::Report,
            Admit::Next => false,
        }
    }
}

/// The fields as `field=value`, separated by spaces. Snapshots and messages contain this text.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Policy { admit, epochs, first, window, late, gaps, wrap, max_jump, reach, intervals_max } = self;
        let (admit, epochs, first) = (admit.name(), epochs.name(), first.name());
        let (late, gaps) = (late.name(), gaps.name());
        let (wrap, max_jump) = (optional(*wrap), optional(*max_jump));
        let (reach, intervals_max) = (optional(*reach), optional(*intervals_max));
        write!(
            f,
            "admit={admit} epochs={epochs} first={first} window={window} late={late} gaps={gaps} wrap={wrap} \
             max_jump={max_jump} reach={reach} intervals_max={intervals_max}"
        )
    }
}

fn optional(value: Option<u64>) -> String {
    value.map_or("none".into(), |value| value.to_string())
}

/// The inverse of `Display`. Fields that are not listed have the value of `any_order`.
impl std::str::FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Policy> {
        let mut policy = ANY_ORDER;
        for pair in text.split_whitespace() {
            let (field, value) =
                pair.split_once('=').ok_or_else(|| Error::Policy(format!("'{pair}': expected field=value")))?;
            policy.set(field, value)?;
        }
        policy.validate()?;
        Ok(policy)
    }
}

impl Policy {
    /// Sets one field from text, without validating the policy. Call [`Policy::validate`] after all fields are set.
    pub fn set(&mut self, field: &str, value: &str) -> Result<()> {
        match field {
            "admit" => self.admit = Admit::parse(value)?,
            "epochs" => self.epochs = Epochs::parse(value)?,
            "first" => self.first = First::parse(value)?,
            "late" => self.late = Late::parse(value)?,
            "gaps" => self.gaps = Gaps::parse(value)?,
            "window" => self.window = parse_count(field, value)?,
            "wrap" => self.wrap = parse_optional(field, value)?,
            "max_jump" => self.max_jump = parse_optional(field, value)?,
            "reach" => self.reach = parse_optional(field, value)?,
            "intervals_max" => self.intervals_max = parse_optional(field, value)?,
            _ => {
                return Err(Error::Policy(format!(
                    "a policy has no field '{field}'; fields are admit, epochs, first, window, late, gaps, wrap, \
                     max_jump, reach, intervals_max"
                )));
            }
        }
        Ok(())
    }
}

fn parse_optional(field: &str, value: &str) -> Result<Option<u64>> {
    if value == "none" { Ok(None) } else { parse_count(field, value).map(Some) }
}

fn parse_count(field: &str, value: &str) -> Result<u64> {
    value.parse().map_err(|_| Error::Policy(format!("{field}={value} is not a whole number of at least 0")))
}

/// Converts between an enum of a policy and its names.
macro_rules! named {
    ($kind:ident, $field:literal, $($variant:ident = $name:literal),+) => {
        impl $kind {
            /// The name in all APIs.
            pub fn name(self) -> &'static str {
                match self { $($kind::$variant => $name),+ }
            }

            fn parse(name: &str) -> Result<Self> {
                match name {
                    $($name => Ok($kind::$variant),)+
                    _ => Err(Error::Policy(format!(
                        "{}='{name}' must be one of {}", $field, [$($name),+].join(", ")
                    ))),
                }
            }
        }
    };
}

named!(Admit, "admit", Any = "any", Forward = "forward", Next = "next");
named!(Epochs, "epochs", Key = "key", Fence = "fence", Ignore = "ignore");
named!(First, "first", Any = "any", Zero = "zero");
named!(Late, "late", OutOfOrder = "out_of_order", Duplicate = "duplicate");
named!(Gaps, "gaps", Report = "report", Normal = "normal");

/// How rows without a producer identity are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Untracked {
    /// They are kept, with their own verdict.
    Keep,
    /// They raise an error, because they would indicate a wrong mapping of columns.
    Fail,
}
