use fencepost_core::StateTable;

/// What a table comes to that is read from a snapshot and the deltas which followed it.
#[derive(Default)]
pub(crate) struct Follower {
    table: Option<StateTable>,
}

impl Follower {
    /// Brings the follower to where the table is, and lets the two change places: a base is written the first
    /// time, a delta each time after.
    pub(crate) fn take_over(&mut self, table: &mut StateTable) -> Result<(), String> {
        let mut bytes = Vec::new();
        let whole = table.snapshot();
        let mut follower = match self.table.take() {
            None => {
                let checksum = table.write_snapshot(&mut bytes).expect("a Vec takes every write");
                table.begin_changes(checksum);
                StateTable::restore(&bytes).map_err(|error| format!("its own snapshot: {error}"))?
            }
            Some(mut follower) => {
                let delta = table.delta().expect("changes are tracked and follow a snapshot");
                let checksum = delta.write(&mut bytes).expect("a Vec takes every write");
                follower.apply_delta(&bytes).map_err(|error| format!("its own delta: {error}"))?;
                table.begin_changes(checksum);
                follower
            }
        };
        if follower.snapshot() != whole {
            return Err("base and deltas are not the whole".into());
        }
        follower.track_changes(true);
        std::mem::swap(table, &mut follower);
        self.table = Some(follower);
        Ok(())
    }
}
