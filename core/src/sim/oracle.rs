//! Oracle: knows what has to hold, looks after every event, and remembers what it saw of all replicas together.
//!
//! | invariant | where |
//! |---|---|
//! | a term has one leader | `look` |
//! | what is committed at one replica is committed at all, for ever: entries by term and digest | `entry` |
//! | what a replica shows is what was committed, byte for byte | `shows` |
//! | indexes have no holes but those that discards beyond the end made | `commits` |
//! | a record was proposed, and stands once | `commits` |
//! | positions never go back, a term neither | `look` |
//! | an acknowledged record is committed, and durable on a majority of the voters of both halves | `acknowledged`, `is_durable` |
//! | a term and a vote are durable before a message tells of them | `leaves` |
//! | what is committed and not in force is bounded | `look` |
//! | no poison without a fault of the disk | `may_fail` |
//!
//! Must not know: how the replicas do it.

use super::history::number_of;
use super::host::Host;
use super::machine::{Kept, Machine};
use super::plan::Plan;
use crate::cluster::Role;
use crate::completion::Appended;
use crate::error::{Error, ErrorKind};
use crate::moment::Moment;
use crate::store::block::{BlockHeader, Kind};
use crate::transport::Envelope;
use crate::types::{Index, NodeId, RaftIndex, Term};
use std::collections::{BTreeMap, BTreeSet};

/// What went wrong, in words.
pub(super) type Check<T = ()> = Result<T, String>;

/// Changes of membership that can wait to come into force: one, and what leaves its joint configuration, for each of a few
/// leaders that came and went.
const CHANGES_WAITING_MAX: usize = 8;

/// Why an entry could not be looked at, or what is wrong with it.
enum Trouble {
    Unreadable(Error),
    Wrong(String),
}

/// What tells one entry from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seal {
    term: Term,
    kind: Kind,
    first: Index,
    records: u32,
    digest: u32,
}

impl Seal {
    fn of(header: &BlockHeader) -> Self {
        Self {
            term: header.term,
            kind: header.kind,
            first: header.first,
            records: header.record_count,
            digest: header.body_digest,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Oracle {
    leaders: BTreeMap<Term, NodeId>,
    /// All entries that were ever committed, from the first one on.
    entries: Vec<Seal>,
    /// All records that were ever committed.
    log: BTreeMap<Index, u64>,
    /// Entries of records, by their first one.
    places: BTreeMap<Index, RaftIndex>,
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
        if machine.changes_not_in_force() > CHANGES_WAITING_MAX {
            return Err(format!("node {node}: keeps entries that are committed and not in force"));
        }
        // A disk that is off, or was damaged, need not be readable.
        let (off, maimed) = (host.disk.is_off(), host.maimed);
        let unreadable =
            |e: &Error| (off || maimed) && matches!(e.kind(), ErrorKind::Io | ErrorKind::Corrupt);
        if machine.is_poisoned() {
            return Ok(news); // it has decided more than it has written, and will not act on it
        }
        if glance.committed_raft > host.checked {
            let seen = machine.has_seen(host.checked.next());
            let from = if seen { host.checked } else { host.checked.max(glance.base_raft) };
            for index in from.0 + 1..=glance.committed_raft.0 {
                match self.entry(node, machine, RaftIndex(index)) {
                    Err(Trouble::Unreadable(e)) if unreadable(&e) => break,
                    Err(Trouble::Unreadable(e)) => {
                        return Err(format!("node {node}: entry {index} is committed: {e:?}; {glance:?}"));
                    }
                    Err(Trouble::Wrong(why)) => return Err(why),
                    Ok(()) => {}
                }
            }
            host.checked = glance.committed_raft;
        }
        if glance.committed > host.committed {
            host.committed = glance.committed;
            let fresh = match machine.follow() {
                Err(e) if unreadable(&e) => Vec::new(),
                Err(e) => {
                    return Err(format!("node {node}: cannot read what it committed: {e:?}; {glance:?}"));
                }
                Ok(fresh) => fresh,
            };
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

    /// An entry is committed at a replica: it is the same everywhere, and none is left out.
    fn entry(&mut self, node: NodeId, machine: &Machine, index: RaftIndex) -> Result<(), Trouble> {
        let Some(header) = machine.entry(index).map_err(Trouble::Unreadable)? else {
            return Err(Trouble::Wrong(format!("node {node}: entry {index} is committed and not here")));
        };
        let seal = Seal::of(&header);
        match self.entries.get(index.0 as usize - 1) {
            Some(known) if *known == seal => return Ok(()),
            Some(known) => {
                return Err(Trouble::Wrong(format!(
                    "node {node}: entry {index} is committed as {seal:?}, and was committed as {known:?}"
                )));
            }
            None => {}
        }
        if self.entries.len() as u64 + 1 != index.0 {
            return Err(Trouble::Wrong(format!(
                "node {node}: entry {index} is committed; the last one known is {}",
                self.entries.len()
            )));
        }
        self.entries.push(seal);
        if seal.records > 0 {
            self.places.insert(seal.first, index);
        }
        for (index, record) in machine.records_of(&header).map_err(Trouble::Unreadable)? {
            self.commits(node, index, &record).map_err(Trouble::Wrong)?;
        }
        Ok(())
    }

    /// A record is committed for the first time.
    fn commits(&mut self, node: NodeId, index: Index, record: &[u8]) -> Check {
        let Some(number) = number_of(record) else {
            return Err(format!("node {node} has committed bytes at {index} that nobody appended"));
        };
        let expected = self.last().next();
        if index < expected || (index > expected && index > self.asked) {
            return Err(format!(
                "node {node} has committed record {number} at {index}; the next is {expected}"
            ));
        }
        if !self.proposed.contains(&number) {
            return Err(format!(
                "node {node} has committed record {number} at {index}, which nobody appended"
            ));
        }
        if !self.committed.insert(number) {
            return Err(format!(
                "node {node} has committed record {number} at {index}; it stands in the log already"
            ));
        }
        self.log.insert(index, number);
        Ok(())
    }

    /// A replica shows a record as committed.
    pub(super) fn shows(&self, node: NodeId, index: Index, record: &[u8]) -> Check {
        match (number_of(record), self.log.get(&index)) {
            (None, _) => Err(format!("node {node} serves bytes at {index} that nobody appended")),
            (Some(number), Some(known)) if *known == number => Ok(()),
            (Some(number), known) => {
                Err(format!("node {node} shows record {number} at {index}; committed there: {known:?}"))
            }
        }
    }

    /// An entry is fed to a follower: it is the one that was committed there.
    pub(super) fn is_fed(&self, node: NodeId, header: &BlockHeader) -> Check {
        let seal = Seal::of(header);
        match self.entries.get((header.raft_index.0 as usize).wrapping_sub(1)) {
            Some(known) if *known == seal => Ok(()),
            known => Err(format!(
                "follower {node} is fed entry {} as {seal:?}; committed was {known:?}",
                header.raft_index
            )),
        }
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

    /// Whether what was acknowledged is on the disks of a majority, whatever the replicas believe. A configuration is
    /// in force once it is applied: entries that the leader had until then may have been committed under the one before.
    pub(super) fn is_durable(&self, last: Index, leader: &Host, hosts: &BTreeMap<NodeId, Host>) -> Check {
        let now = leader.machine.as_ref().map(Machine::voters).unwrap_or_default();
        let by_now = Self::is_durable_on(last, &now, hosts);
        let Some(entry) = self.places.range(..=last).next_back().map(|(_, raft)| *raft) else {
            return by_now;
        };
        let earlier =
            leader.voters_before.iter().filter(|(_, until)| entry <= *until).map(|(voters, _)| voters);
        let mut all = earlier.chain([&leader.voters]);
        by_now.or_else(|wrong| {
            if all.any(|v| Self::is_durable_on(last, v, hosts).is_ok()) { Ok(()) } else { Err(wrong) }
        })
    }

    fn is_durable_on(
        last: Index,
        (incoming, outgoing): &(Vec<NodeId>, Vec<NodeId>),
        hosts: &BTreeMap<NodeId, Host>,
    ) -> Check {
        for half in [incoming, outgoing].into_iter().filter(|half| !half.is_empty()) {
            let kept = |n: &&NodeId| hosts.get(n).is_some_and(|h| h.kept.last >= last || h.maimed);
            let count = half.iter().filter(kept).count();
            if count * 2 <= half.len() {
                let on: Vec<_> = half.iter().filter(kept).collect();
                let all: Vec<_> = hosts.values().map(|h| (h.node.0, h.kept.last.0)).collect();
                return Err(format!(
                    "record {last} was acknowledged and is durable on {on:?} of {half:?} only; \
                     voters {incoming:?} {outgoing:?}, last durable records {all:?}"
                ));
            }
        }
        Ok(())
    }

    /// A message leaves: it must not tell of a term or a vote that a power cut would take back.
    pub(super) fn leaves(&self, host: &Host, plan: &Plan, envelope: &Envelope) -> Check {
        let Some((term, vote)) = super::machine::tells_of(envelope) else { return Ok(()) };
        let goes_beyond =
            |kept: Kept| kept.term < term || (vote.is_some() && kept.term == term && vote != Some(kept.vote));
        if !goes_beyond(host.kept) {
            return Ok(());
        }
        let kept = host.kept_in_truth(plan).unwrap_or_default();
        if goes_beyond(kept) {
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
        let faulty = host.disk.faults_fired() > 0 || host.maimed;
        match error.kind() {
            _ if faulty => Ok(()),
            // A full disk is no reason: there is a reserve for what cannot wait.
            kind if host.cramped && kind != ErrorKind::Full => Ok(()),
            _ => Err(format!("node {}: failed although its disk is sound: {error:?}", host.node)),
        }
    }
}
