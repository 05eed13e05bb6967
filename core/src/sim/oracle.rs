//! Oracle: knows what has to hold, looks after every event, and remembers what it saw of all replicas together.
//!
//! | invariant | where |
//! |---|---|
//! | a term has one leader | `look` |
//! | what one replica shows as committed every replica shows, byte for byte, for ever | `look` |
//! | indexes have no holes but those that discards beyond the end made | `look` |
//! | a record was proposed, and stands once | `look` |
//! | positions never go back, a term neither | `look` |
//! | an acknowledged record is committed, and durable on a majority of the voters of both halves | `acknowledged`, `is_durable` |
//! | a term and a vote are durable before a message tells of them | `leaves` |
//! | no poison without a fault of the disk | `may_fail` |
//!
//! Must not know: how the replicas do it.

use super::history::number_of;
use super::host::Host;
use super::world::Check;
use crate::cluster::Role;
use crate::completion::Appended;
use crate::error::{Error, ErrorKind};
use crate::moment::Moment;
use crate::transport::Envelope;
use crate::types::{Index, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Oracle {
    leaders: BTreeMap<Term, NodeId>,
    /// All records that were ever committed.
    log: BTreeMap<Index, u64>,
    proposed: BTreeSet<u64>,
    committed: BTreeSet<u64>,
    /// The farthest that a discard was asked for.
    asked: Index,
    pub(super) acknowledged: u64,
    pub(super) leader_changes: u64,
}

impl Oracle {
    /// The last committed record that any replica has shown.
    pub(super) fn last(&self) -> Index {
        self.log.last_key_value().map_or(Index(0), |(index, _)| *index)
    }

    /// All records that were ever committed.
    pub(super) fn log(&self) -> &BTreeMap<Index, u64> {
        &self.log
    }

    pub(super) fn proposed(&mut self, records: &[u64]) {
        self.proposed.extend(records);
    }

    pub(super) fn asked_to_discard(&mut self, first: Index) {
        self.asked = self.asked.max(first);
    }

    /// Looks at a replica. Says what is worth telling.
    pub(super) fn look(&mut self, host: &mut Host, now: Moment) -> Check<Option<String>> {
        let node = host.node;
        let Some(machine) = host.machine.as_mut() else { return Ok(None) };
        let glance = machine.glance();
        let mut news = None;
        if glance.role == Role::Leader {
            match self.leaders.insert(glance.term, node) {
                None => {
                    self.leader_changes += 1;
                    news = Some(format!("leads in term {}", glance.term));
                }
                Some(other) if other != node => {
                    return Err(format!("nodes {other} and {node} both lead in term {}", glance.term));
                }
                Some(_) => {}
            }
        }
        if glance.term < host.term {
            return Err(format!("node {node}: went back from term {} to {}", host.term, glance.term));
        }
        host.term = glance.term;
        if glance.committed < host.committed {
            let (before, after) = (host.committed, glance.committed);
            return Err(format!("node {node}: its committed index went back from {before} to {after}"));
        }
        if glance.committed > host.committed {
            host.committed = glance.committed;
            let fresh = machine.follow().or_else(|e| match e.kind() {
                ErrorKind::Io | ErrorKind::Corrupt => Ok(Vec::new()), // its disk is off, or rotten
                _ => Err(format!("node {node}: cannot read what it committed: {e:?}")),
            })?;
            for (index, record) in fresh {
                self.shows(node, index, &record)?;
            }
        }
        if glance.committed > glance.written {
            return Err(format!("node {node}: shows up to {} and has {}", glance.committed, glance.written));
        }
        let _ = now;
        Ok(news)
    }

    /// A replica shows a record as committed.
    pub(super) fn shows(&mut self, node: NodeId, index: Index, record: &[u8]) -> Check {
        let Some(number) = number_of(record) else {
            return Err(format!("node {node} serves bytes at {index} that nobody appended"));
        };
        if let Some(known) = self.log.get(&index) {
            if *known == number {
                return Ok(());
            }
            return Err(format!("node {node} shows record {number} at {index}, where {known} was committed"));
        }
        let expected = self.last().next();
        if index < expected || (index > expected && index > self.asked) {
            return Err(format!("node {node} shows record {number} at {index}; the next is {expected}"));
        }
        if !self.proposed.contains(&number) {
            return Err(format!("node {node} shows record {number} at {index}, which nobody appended"));
        }
        if !self.committed.insert(number) {
            return Err(format!(
                "node {node} shows record {number} at {index}; it stands in the log already"
            ));
        }
        self.log.insert(index, number);
        Ok(())
    }

    pub(super) fn acknowledged(&mut self, node: NodeId, appended: Appended, records: &[u64]) -> Check {
        self.acknowledged += 1;
        if appended.count as usize != records.len() {
            return Err(format!("node {node}: {} records were acknowledged as {appended:?}", records.len()));
        }
        for (n, record) in records.iter().enumerate() {
            let index = appended.first.plus(n as u64);
            if self.log.get(&index) != Some(record) {
                let there = self.log.get(&index);
                return Err(format!(
                    "node {node}: acknowledged record {record} at {index}; committed there: {there:?}"
                ));
            }
        }
        Ok(())
    }

    /// Whether what was acknowledged is on the disks of a majority, whatever the replicas believe.
    pub(super) fn is_durable(
        &self,
        last: Index,
        (incoming, outgoing): &(Vec<NodeId>, Vec<NodeId>),
        hosts: &BTreeMap<NodeId, Host>,
    ) -> Check {
        for half in [incoming, outgoing].into_iter().filter(|half| !half.is_empty()) {
            let kept = |n: &&NodeId| hosts.get(n).is_some_and(|h| h.kept.last >= last || h.maimed);
            let count = half.iter().filter(kept).count();
            if count * 2 <= half.len() {
                let on: Vec<_> = half.iter().filter(kept).collect();
                return Err(format!(
                    "record {last} was acknowledged and is durable on {on:?} of {half:?} only"
                ));
            }
        }
        Ok(())
    }

    /// A message leaves: it must not tell of a term or a vote that a power cut would take back.
    pub(super) fn leaves(&self, host: &Host, envelope: &Envelope) -> Check {
        let Some((term, vote)) = super::machine::tells_of(envelope) else { return Ok(()) };
        let kept = host.kept;
        if kept.term < term || (vote.is_some() && kept.term == term && vote != Some(kept.vote)) {
            let node = host.node;
            return Err(format!(
                "node {node}: tells of term {term} and vote {vote:?}, and has term {} and vote {} on its disk",
                kept.term, kept.vote
            ));
        }
        Ok(())
    }

    /// A process failed: something has to have been wrong with its disk.
    pub(super) fn may_fail(&self, host: &Host, error: &Error) -> Check {
        let faulty = host.disk.faults_fired() > 0 || host.maimed || host.cramped;
        match error.kind() {
            _ if faulty => Ok(()),
            _ => Err(format!("node {}: failed although its disk is sound: {error:?}", host.node)),
        }
    }
}
