//! The checks of slices: what lands in the object store was committed, and the object store alone always leads as far as a replica has
//! said.

use super::{Check, World};
use crate::error::ErrorKind;
use crate::store::format::block::BlockHeader;
use crate::types::{EntryIndex, NodeId};

/// The checks' knowledge of slices.
#[derive(Debug, Default)]
pub(in crate::testing::sim) struct Slices {
    /// Entries of slices that no replica has shown as committed yet.
    unknown: Vec<BlockHeader>,
    /// The last entry that a replica has said to be in the object store.
    said: EntryIndex,
}

impl World {
    /// Checks slices after a step of a node.
    pub(in crate::testing::sim) fn judge_slices(&mut self, node: NodeId) -> Check {
        let Some(vault) = self.vault.clone() else { return Ok(()) };
        self.slices.unknown.extend(vault.take_landed());
        let mut unknown = Vec::new();
        for header in std::mem::take(&mut self.slices.unknown) {
            if !self.oracle.is_sliced(&header).map_err(|why| format!("node {node}: {why}"))? {
                unknown.push(header);
            }
        }
        self.slices.unknown = unknown;
        let Some(machine) = self.hosts.get(&node).and_then(|host| host.machine.as_ref()) else {
            return Ok(());
        };
        let (said, log) = (machine.sliced_upto(), machine.log());
        let is_new = said > self.slices.said;
        self.slices.said = self.slices.said.max(said);
        if !vault.has_changed() && !is_new {
            return Ok(());
        }
        let said = self.slices.said;
        match vault.reach(log) {
            Ok(reach) if reach >= said => Ok(()),
            Err(e) if e.kind() == ErrorKind::NotFound && said == EntryIndex(0) => Ok(()),
            reach => Err(format!(
                "the object store has entries up to {reach:?}, and a replica said that it has those up to {said}"
            )),
        }
    }

    /// Checks that every entry in a slice was committed.
    pub(in crate::testing::sim) fn judge_unknown(&self) -> Check {
        match self.slices.unknown.first() {
            None => Ok(()),
            Some(header) => Err(format!("a slice has entry {header:?}, which was never committed")),
        }
    }
}
