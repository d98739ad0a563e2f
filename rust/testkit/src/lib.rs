//! Rule-book reader, naive oracle and seeded workload: everything that judges the core and shares no code with it,
//! and the oracle beside the core.

pub mod broker;
pub mod log;
pub mod oracle;
pub mod pair;
pub mod rulebook;
pub mod transactions;
pub mod workload;
