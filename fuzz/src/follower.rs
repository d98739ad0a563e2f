use fencepost_core::StateTable;

/// A table that is read from a snapshot and the deltas that followed it.
#[derive(Default)]
pub(crate) struct Follower {
    table: Option<StateTable>,
}

impl Follower {
    /// Updates the follower to the state of the table, and swaps the two: it writes a base first, then deltas.
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
