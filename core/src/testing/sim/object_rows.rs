//! Object rows: each object as the committed entries say, to judge which objects a replica has, and where it says that their rows are.
//!
//! Must not know: hosts, clients.

use super::machine::Machine;
use crate::replica::queue::proposals::ObjectCommand;
use crate::store::format::objects::ObjectState;
use crate::types::{Index, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The objects of the log.
#[derive(Debug, Default)]
pub(super) struct ObjectRows {
    /// All that were ever cut.
    cut: BTreeMap<u64, ObjectState>,
    /// The runs of older rows that were compared: the number behind each, and its holder.
    compared: BTreeSet<(u64, u64)>,
}

impl ObjectRows {
    /// Learns of a command that is committed.
    pub(super) fn learn(&mut self, command: ObjectCommand) {
        match command {
            ObjectCommand::Cut { number, end, timestamp, .. } => {
                self.cut.insert(number, ObjectState { end, timestamp, stored: None });
            }
            ObjectCommand::Stored { number, object } => {
                if let Some(state) = self.cut.get_mut(&number) {
                    state.stored.get_or_insert(object);
                }
            }
            ObjectCommand::MoveRows { .. } | ObjectCommand::Begin { .. } => {}
        }
    }

    /// The last record that is in an object that counts as stored.
    pub(super) fn stored_upto(&self) -> Index {
        let stored = self.cut.values().filter(|state| state.stored.is_some());
        stored.map(|state| state.end.next.previous()).max().unwrap_or_default()
    }

    /// How many runs were seen.
    pub(super) fn runs(&self) -> u64 {
        self.compared.len() as u64
    }

    /// Checks that a replica has forgotten only objects without a record that is left, and that the holder of older rows has these.
    pub(super) fn check(&mut self, node: NodeId, machine: &Machine) -> Result<(), String> {
        let (first, number, runs) = machine.older_rows();
        if let Some((early, state)) = self.cut.range(..number).find(|(_, state)| state.end.next > first) {
            return Err(format!(
                "node {node}: the log begins with record {first}, and its table with object {number}; object {early} has records up to \
                 {}",
                state.end.next.previous()
            ));
        }
        for run in runs {
            if !self.compared.insert((run.rows.below, run.rows.holder)) {
                continue;
            }
            let Some(rows) = machine.rows_in_holder(&run) else { continue };
            let found = run
                .objects(&rows)
                .map_err(|why| format!("node {node}: object {}: {why}", run.rows.holder))?;
            for at in found {
                if self.cut.get(&at.number) != Some(&at.state) {
                    return Err(format!(
                        "node {node}: object {} has a row of object {} that is {:?}, and the log says {:?}",
                        run.rows.holder,
                        at.number,
                        at.state,
                        self.cut.get(&at.number)
                    ));
                }
            }
        }
        Ok(())
    }
}
