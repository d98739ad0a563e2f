//! Rule-book reader, naive oracles and seeded workload: code that judges the core and shares no code with it. One
//! module compares the oracle with the core.

pub mod broker;
pub mod log;
pub mod oracle;
pub mod pair;
pub mod rulebook;
pub mod transactions;
pub mod workload;
