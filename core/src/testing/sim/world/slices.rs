//! The checks of slices: what lands in the object store was committed, and the object store alone always leads as far as a replica has
//! said.

use super::{Check, World};
use crate::error::ErrorKind;
use crate::store::format::block::BlockHeader;
use crate::sync::completion::{Appended, Durability};
use crate::testing::sim::excuse;
use crate::testing::sim::machine::Machine;
use crate::testing::sim::vault::SimVault;
use crate::types::{EntryIndex, Index, LogNumber, NodeId};

/// The checks' knowledge of slices.
#[derive(Debug, Default)]
pub(in crate::testing::sim) struct Slices {
    /// Entries of slices that no replica has shown as committed yet.
    unknown: Vec<BlockHeader>,
    /// The last entry that a replica has said to be in the object store.
    said: EntryIndex,
    /// The last entry that a replica has said a log has that is made of the object store alone.
    said_whole: EntryIndex,
}

impl World {
    /// Checks slices after a step of a node.
    pub(in crate::testing::sim) fn judge_slices(&mut self, node: NodeId) -> Check {
        let Some(vault) = self.vault.clone() else { return Ok(()) };
        self.judge_begins(node, &vault)?;
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
        let (said, whole, log) = (machine.sliced_upto(), machine.in_store_upto(), machine.log());
        for (log, last) in machine.logs_in_store() {
            self.oracle.is_stored_of(log, last, whole).map_err(|why| format!("node {node}: {why}"))?;
        }
        let is_new = said > self.slices.said || whole > self.slices.said_whole;
        self.slices.said = self.slices.said.max(said);
        self.slices.said_whole = self.slices.said_whole.max(whole);
        if !vault.has_changed() && !is_new {
            return Ok(());
        }
        let (said, whole) = (self.slices.said, self.slices.said_whole);
        if whole > EntryIndex(0) && self.oracle.entries() as u64 >= whole.0 {
            let wrong = |why| format!("node {node}: {why}");
            let (end, places) = vault.tail(log).map_err(|error| wrong(error.to_string()))?;
            self.oracle.is_in_store(end, &places, whole).map_err(wrong)?;
        }
        match vault.reach(log) {
            Ok(reach) if reach >= said => Ok(()),
            Err(e) if e.kind() == ErrorKind::NotFound && said == EntryIndex(0) => Ok(()),
            reach => Err(format!(
                "the object store has entries up to {reach:?}, and a replica said that it has those up to {said}"
            )),
        }
    }

    /// Checks what an acknowledgement says of the object store: it has these records, if they are durable there.
    pub(super) fn judge_durability(&self, node: NodeId, log: LogNumber, appended: Appended) -> Check {
        if appended.durability != Some(Durability::Object) {
            return Ok(());
        }
        let machine = self.hosts.get(&node).and_then(|host| host.machine.as_ref());
        let said = machine.map_or(EntryIndex(0), Machine::in_store_upto);
        self.oracle.is_stored_of(log, appended.last(), said.max(self.slices.said_whole))
    }

    /// Checks slices that begin with the state of the log, after a step of the node that has put them: they have all records that a log of
    /// the group still has.
    fn judge_begins(&mut self, node: NodeId, vault: &SimVault) -> Check {
        let begins = vault.take_begins();
        let Some(machine) = self.hosts.get(&node).and_then(|host| host.machine.as_ref()) else {
            return Ok(());
        };
        let settled = (!begins.is_empty()).then(|| machine.settled());
        let lacks = |begin: &Index| settled.as_ref().is_some_and(|s| *begin > s.first && s.first < s.next);
        match begins.iter().find(|begin| lacks(begin)) {
            Some(begin) => {
                let first = settled.map(|settled| settled.first);
                Err(format!(
                    "node {node}: a slice without others before it begins with record {begin}, not with {first:?}"
                ))
            }
            None => Ok(()),
        }
    }

    /// Checks that the log that would be made of the object store alone is the leader's, which has all in slices: it ends with the
    /// same state, and has all records.
    pub(in crate::testing::sim) fn judge_made(&mut self, leader: NodeId) -> Check {
        let Some(vault) = self.vault.clone() else { return Ok(()) };
        let Some(machine) = self.hosts.get(&leader).and_then(|host| host.machine.as_ref()) else {
            return Ok(());
        };
        let Some((header, body, first)) = machine.settled_state().filter(|_| machine.has_all_in_slices())
        else {
            return Ok(());
        };
        let made = machine.made_of(&vault);
        let made = made.map_err(|error| format!("no log can be made of the object store alone: {error}"))?;
        if let Some(begin) = made.begin.filter(|begin| *begin > first && first < header.first) {
            return Err(format!(
                "the log of the object store alone begins with record {begin}, not with {first}"
            ));
        }
        if made.sequencer.object_opening() != (header, body) {
            let (here, there) = ((header.raft_index, header.term, header.first), made.sequencer.end());
            return Err(format!(
                "the log of the object store alone ends with another state, at {there:?}; the leader is at {here:?}"
            ));
        }
        Ok(())
    }

    /// Checks payload slices after a step of the node that has put them: it is the leader of their term, and an entry of the term is
    /// committed (P4). Else the term may not be durable, and a later process could lead in it again and put other bytes under these names.
    pub(in crate::testing::sim) fn judge_puts(&mut self, node: NodeId) -> Check {
        let Some(vault) = &self.vault else { return Ok(()) };
        // The oracle does not look at all entries of a replica that has failed.
        let has_failed =
            self.hosts.get(&node).and_then(|host| host.machine.as_ref()).is_none_or(Machine::is_poisoned);
        for id in vault.take_payloads() {
            if has_failed {
                self.oracle.excuse(excuse::FAILED);
            } else if let Some(leader) = self.oracle.leader_of(id.term).filter(|leader| *leader != node) {
                return Err(format!(
                    "node {node} has put payload slice {id}, and node {leader} led in its term"
                ));
            } else if !self.oracle.has_committed_in(id.term) {
                return Err(format!(
                    "node {node} has put payload slice {id}, and no entry of its term is committed"
                ));
            }
        }
        Ok(())
    }

    /// Checks, after payload slices were deleted, that all are there that a log needs that is made of the object store alone.
    pub(in crate::testing::sim) fn judge_payloads(&mut self, node: NodeId) -> Check {
        let Some(vault) = self.vault.clone().filter(|vault| vault.has_deleted()) else { return Ok(()) };
        let Some(log) =
            self.hosts.get(&node).and_then(|host| host.machine.as_ref()).map(|machine| machine.log())
        else {
            return Ok(());
        };
        let wrong = |e: crate::error::Error| format!("node {node}: {e}");
        let from = vault.payload_from(log).map_err(wrong)?;
        for id in self.oracle.payloads_behind(from) {
            if !vault.has_payload(log, id).map_err(wrong)? {
                return Err(format!(
                    "payload slice {id} was deleted, and an entry behind {from} refers to it"
                ));
            }
        }
        Ok(())
    }

    /// Checks that every entry in a slice was committed.
    pub(in crate::testing::sim) fn judge_unknown(&self) -> Check {
        match self.slices.unknown.first() {
            None => Ok(()),
            Some(header) => Err(format!("a slice has entry {header:?}, which was never committed")),
        }
    }
}
