//! Rule-book reader, naive oracle and seeded workload: everything that judges the core and shares no code with it.

pub mod oracle;
pub mod rulebook;
pub mod workload;
