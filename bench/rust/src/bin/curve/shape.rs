//! What keys a table holds and by which rules.

use fencepost_core::{KeyKind, PartKind, Partitions, Policy, StateTable};

/// A kind of table.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    policy: &'static str,
    /// Of each producer.
    pub(crate) partitions: usize,
    /// Producers are strings, numbered by the table's dictionary.
    pub(crate) has_names: bool,
    pub(crate) has_timestamps: bool,
}

pub(crate) const SHAPES: [Shape; 7] = [
    Shape { name: "kafka", policy: "kafka", partitions: 1000, has_names: false, has_timestamps: false },
    Shape { name: "any_order", policy: "any_order", partitions: 1000, has_names: false, has_timestamps: false },
    // 64-bit sequences without epochs.
    Shape { name: "wide", policy: "kafka_offsets", partitions: 1000, has_names: false, has_timestamps: false },
    Shape { name: "strings", policy: "any_order", partitions: 1000, has_names: true, has_timestamps: false },
    Shape { name: "timestamps", policy: "kafka", partitions: 1000, has_names: false, has_timestamps: true },
    Shape { name: "lone_kafka", policy: "kafka", partitions: 1, has_names: false, has_timestamps: false },
    Shape { name: "lone_any", policy: "any_order", partitions: 1, has_names: false, has_timestamps: false },
];

impl Shape {
    pub(crate) fn named(name: &str) -> Result<&'static Shape, String> {
        SHAPES.iter().find(|shape| shape.name == name).ok_or_else(|| {
            let names: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
            format!("'{name}' is none of {}", names.join(", "))
        })
    }

    pub(crate) fn policy(&self) -> Policy {
        Policy::preset(self.policy).expect("a preset")
    }

    /// Whether sequences are 64 bits wide; then there are no epochs either.
    pub(crate) fn is_wide(&self) -> bool {
        self.policy().wrap.is_none()
    }

    /// The first sequence of every key.
    pub(crate) fn first_seq(&self) -> i64 {
        if self.is_wide() { 1 << 40 } else { 0 }
    }

    pub(crate) fn table(&self) -> StateTable {
        self.table_of(self.policy())
    }

    /// A table with a declared number of partitions per producer.
    pub(crate) fn declared_table(&self) -> StateTable {
        let partitions = if self.partitions == 1 { Partitions::One } else { Partitions::Many };
        self.table().with_partitions(Some(partitions))
    }

    /// The same keys under another policy.
    pub(crate) fn table_of(&self, policy: Policy) -> StateTable {
        let mut table = StateTable::new(policy).expect("a valid policy").with_keep_timestamp(self.has_timestamps);
        if self.has_names {
            let text = KeyKind::Parts(vec![PartKind::Utf8]);
            table.keys_mut().fix(text, KeyKind::Plain).expect("a table that was not used yet");
        }
        table
    }
}
