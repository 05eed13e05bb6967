//! Oracle: checks the invariants after every event, against everything that it has seen of all replicas.
//!
//! | invariant | where |
//! |---|---|
//! | a term has one leader | `look` |
//! | an entry that is committed at one replica is committed at all, for ever; compared by term and digest | `entry` |
//! | the records that can be read at a replica are the committed ones, byte for byte | `shows` |
//! | indexes of a log have no holes except those of discards beyond the end | [`Contents`] |
//! | a record was proposed for its log, and is in one log, once | [`Contents`] |
//! | a named log takes records between its opening and its seal or drop only | [`Contents`] |
//! | positions and terms never decrease | `look` |
//! | an acknowledged record is committed, and its entry, by term and digest, durable on a majority of both halves | `acknowledged`, `is_durable` |
//! | a term and a vote are durable before a message with them is sent | `leaves` |
//! | a replica remembers each vote that it has sent | `look` |
//! | a replica whose last vote was lost to damage gives none again | `has_learnt` |
//! | a replica that has started votes only after another replica's introduction | `leaves` |
//! | an object is forgotten only without a record that is left; rows that left the table are in the object store | `object_rows.rs` |
//! | after the same entry all replicas have the same sessions, membership, named logs, objects, options of the log, positions and time, live and after a replay or a jump | `check_state` |
//! | a log that opens has at most one change of membership that is not known to be committed | `opens` |
//! | the number of committed changes that are not in force is bounded | `look` |
//! | no poison without a fault of the disk | `may_fail` |
//!
//! A check that found what it looks for, and accepts it for a reason, is an [`excuse`](super::excuse) and is counted.
//!
//! Must not know: how the replicas do it.

use super::contents::{Contents, LogSummaries, LogSummary};
use super::excuse;
use super::history::number_of;
use super::host::{Host, Maimed, Voters};
use super::kept::{Kept, Seal};
use super::machine::Machine;
use super::machine::state::ReplicatedState;
use super::object_rows::ObjectRows;
use super::plan::Plan;
use super::threads::Records;
use super::vault::PayloadPlace;
use crate::cluster::membership::Membership;
use crate::cluster::options::Role;
use crate::cluster::transport::Envelope;
use crate::error::{Error, ErrorKind};
use crate::options::log_options::LogOptions;
use crate::record::reference::PayloadId;
use crate::replica::queue::proposals::{Command, ObjectCommand};
use crate::store::format::block::{BlockHeader, Kind};
use crate::sync::completion::Appended;
use crate::types::{EntryIndex, Index, LogNumber, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The result of a check; the error describes the violation.
pub(super) type Check<T = ()> = Result<T, String>;

/// How many changes of membership can wait to come into force: one, and the end of its joint configuration, for each
/// of a few successive leaders.
const CHANGES_WAITING_MAX: usize = 8;

/// The reason why an entry could not be checked, or the violation.
enum Trouble {
    Unreadable(Error),
    Wrong(String),
}

/// After this many acknowledgements the disks themselves are read, not only the records of their syncs.
const ACKNOWLEDGEMENTS_A_LOOK: u64 = 16;

/// The membership that the newest committed change leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) changed: EntryIndex,
    pub(super) voters: Vec<NodeId>,
    pub(super) outgoing: Vec<NodeId>,
    pub(super) learners: Vec<NodeId>,
}

impl Config {
    fn of(membership: &Membership, changed: EntryIndex) -> Self {
        let nodes = |v: Vec<u64>| v.into_iter().map(NodeId).collect();
        Self {
            changed,
            voters: nodes(membership.voters()),
            outgoing: nodes(membership.voters_outgoing()),
            learners: nodes(membership.learners()),
        }
    }

    /// Whether these are a majority of each half.
    pub(super) fn has_majority(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let of = |half: &[NodeId]| {
            half.is_empty() || half.iter().filter(|n| nodes.contains(n)).count() * 2 > half.len()
        };
        !self.voters.is_empty() && of(&self.voters) && of(&self.outgoing)
    }
}

#[derive(Debug, Default)]
pub(super) struct Oracle {
    leaders: BTreeMap<Term, NodeId>,
    /// All entries that were ever committed, from the first one on.
    entries: Vec<Seal>,
    /// Entries that refer to payload: as copies and objects have them.
    resolved: BTreeMap<EntryIndex, Seal>,
    /// The payload slices to which committed entries refer, with the last entry of each.
    payloads: BTreeMap<PayloadId, EntryIndex>,
    /// The places of the batches to which committed entries refer, and the committed entries that are no commands.
    references: BTreeMap<EntryIndex, Vec<PayloadPlace>>,
    uncommanded: BTreeSet<EntryIndex>,
    /// The last reference.
    last_reference: Option<(PayloadId, u32)>,
    /// The entry that cut the first object.
    objects_from: Option<EntryIndex>,
    /// The objects of the log, as entries say.
    pub(super) object_rows: ObjectRows,
    /// The next record and the first one, and the named logs, after each of them.
    after: Vec<(Index, Index, Rc<LogSummaries>)>,
    /// The state after an entry, by its index and term, and the first node that was there.
    replicated_states: BTreeMap<(EntryIndex, Term), (NodeId, ReplicatedState)>,
    /// The committed membership after an entry, and the first node that had it.
    memberships: BTreeMap<EntryIndex, (NodeId, u64)>,
    /// The committed options of the log after an entry, and the first node that had them.
    options: BTreeMap<EntryIndex, (NodeId, LogOptions)>,
    /// The newest committed membership.
    pub(super) config: Config,
    /// The excuses, and how often each was used.
    pub(super) excuses: BTreeMap<&'static str, u64>,
    /// All records that were ever committed.
    pub(super) contents: Contents,
    pub(super) acknowledged: u64,
    pub(super) leader_changes: u64,
}

impl Oracle {
    /// How many entries were ever committed.
    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// The log's first record, after all committed discards.
    pub(super) fn first(&self) -> Index {
        self.after.last().map_or(Index(1), |(_, first, _)| *first)
    }

    pub(super) fn excuse(&mut self, why: &'static str) {
        *self.excuses.entry(why).or_default() += 1;
    }

    pub(super) fn excuse_all(&mut self, excuses: BTreeMap<&'static str, u64>) {
        excuses.into_iter().for_each(|(why, times)| *self.excuses.entry(why).or_default() += times);
    }

    /// Checks a replica. Returns an event for the story, if there is one.
    pub(super) fn look(&mut self, host: &mut Host) -> Check<Option<String>> {
        let node = host.node;
        let Some(machine) = host.machine.as_mut() else { return Ok(None) };
        let summary = machine.summary();
        let mut news = None;
        if summary.role == Role::Leader {
            match self.leaders.insert(summary.term, node) {
                None => {
                    self.leader_changes += 1;
                    news = Some(format!("leads in term {}", summary.term));
                }
                Some(other) if other != node => {
                    return Err(format!("nodes {other} and {node} both lead in term {}", summary.term));
                }
                Some(_) => {}
            }
        }
        if summary.term < host.term {
            return Err(format!("node {node}: term decreased from {} to {}", host.term, summary.term));
        }
        host.term = summary.term;
        if summary.committed < host.committed {
            let (before, after) = (host.committed, summary.committed);
            return Err(format!("node {node}: its committed index decreased from {before} to {after}"));
        }
        if machine.changes_not_in_force() > CHANGES_WAITING_MAX {
            return Err(format!("node {node}: has too many committed changes that are not in force"));
        }
        // A disk that is off, or was damaged, need not be readable.
        let may_be_unreadable = host.disk.is_off() || host.maimed == Some(Maimed::Rotten);
        let unreadable =
            |e: &Error| may_be_unreadable && matches!(e.kind(), ErrorKind::Io | ErrorKind::Corrupt);
        if machine.is_poisoned() {
            // It has decided more than it has written, and will not act on that; but the records that it published
            // before are committed.
            for index in host.checked.0 + 1..=summary.committed_raft.0 {
                let shown = |h: &BlockHeader| h.next_record() <= summary.committed.next();
                match machine.entry(EntryIndex(index)) {
                    Ok(Some(header)) if shown(&header) => {}
                    _ => break,
                }
                match self.entry(node, machine, EntryIndex(index)) {
                    Err(Trouble::Wrong(why)) => return Err(why),
                    Err(Trouble::Unreadable(_)) => break,
                    Ok(()) => host.checked = EntryIndex(index),
                }
            }
            return Ok(news);
        }
        let (promised, says, raft) = (host.promised, summary.says, (summary.term, summary.vote));
        let keeps = |(term, vote): (Term, u64)| term > promised.0 || (term, vote) == promised;
        if promised.0 > Term(0) && !(keeps(says) && keeps(raft)) {
            return Err(format!(
                "node {node}: has sent the term and vote {promised:?} and does not remember them: raft has {raft:?}, its \
                 blocks have {says:?}"
            ));
        }
        if summary.committed_raft > host.checked {
            let seen = machine.has_seen(host.checked.next());
            let from = if seen { host.checked } else { host.checked.max(summary.base_raft) };
            for index in from.0 + 1..=summary.committed_raft.0 {
                match self.entry(node, machine, EntryIndex(index)) {
                    Err(Trouble::Unreadable(e)) if unreadable(&e) => {
                        self.excuse(excuse::UNREADABLE);
                        break;
                    }
                    Err(Trouble::Unreadable(e)) => {
                        return Err(format!("node {node}: entry {index} is committed: {e:?}; {summary:?}"));
                    }
                    Err(Trouble::Wrong(why)) => return Err(why),
                    Ok(()) => {}
                }
            }
            host.checked = summary.committed_raft;
        }
        if summary.committed > host.committed {
            host.committed = summary.committed;
            let fresh = match machine.read_on() {
                Err(e) if unreadable(&e) => Vec::new(),
                Err(e) => {
                    return Err(format!("node {node}: cannot read what it committed: {e:?}; {summary:?}"));
                }
                Ok(fresh) => fresh,
            };
            for (log, index, record) in fresh {
                self.shows(node, log, index, &record)?;
            }
        }
        if summary.committed > summary.written {
            return Err(format!(
                "node {node}: has published records up to {} and has them up to {}",
                summary.committed, summary.written
            ));
        }
        match machine.compare_objects() {
            Err(e) if !unreadable(&e) => return Err(format!("node {node}: an object cannot be made: {e:?}")),
            _ => {}
        }
        self.excuse_all(machine.take_excuses());
        self.check_state(node, machine)?;
        self.object_rows.check(node, machine)?;
        Ok(news)
    }

    /// Checks that a replica at an entry has the same state as every other one at that entry, live, after a replay
    /// and after a jump.
    fn check_state(&mut self, node: NodeId, machine: &Machine) -> Check {
        let here = machine.replicated_state();
        let (other, there) = *self.replicated_states.entry(here.end).or_insert((node, here));
        if there != here {
            return Err(format!(
                "after entry {:?} node {node} has another state than node {other} had: {here:?}, and not {there:?}",
                here.end
            ));
        }
        let settled = machine.settled();
        let after = |raft: EntryIndex| raft.0.checked_sub(1).and_then(|n| self.after.get(n as usize));
        let Some((next, first, logs)) = after(settled.raft).cloned() else { return Ok(()) };
        let (base_raft, base_next) = settled.base;
        // The discard that let a replica jump can come after the jump.
        let first = if settled.has_objects { first } else { first.max(base_next) };
        if (settled.next, settled.first) != (next, first) {
            return Err(format!(
                "node {node}: after the committed entry {} its log goes from {} to before {}; it is from {first} to before {next}",
                settled.raft, settled.first, settled.next
            ));
        }
        if settled.published_logs != settled.logs {
            return Err(format!(
                "node {node}: readers see the named logs {:?}; after the committed entry {} they are {:?}",
                settled.published_logs, settled.raft, settled.logs
            ));
        }
        // The same of each named log, unless the log had objects there: then the records before are in them, or discarded.
        let had_objects = self.objects_from.is_some_and(|cut| cut <= base_raft);
        let begun = after(base_raft).filter(|_| !had_objects).map(|(.., logs)| logs.clone());
        let begun = begun.unwrap_or_default();
        let first =
            |log: &LogNumber, end: &LogSummary| begun.get(log).map_or(end.first, |b| b.next.max(end.first));
        let logs = logs.iter().map(|(log, end)| (*log, LogSummary { first: first(log, end), ..*end }));
        if !settled.logs.clone().into_iter().eq(logs.clone()) {
            return Err(format!(
                "node {node}: after the committed entry {} its named logs are {:?}; they are {:?}",
                settled.raft,
                settled.logs,
                logs.collect::<LogSummaries>()
            ));
        }
        let (other, members) = *self.memberships.entry(settled.raft).or_insert((node, settled.members));
        if members != settled.members {
            return Err(format!(
                "after the committed entry {} node {node} has another membership than node {other}",
                settled.raft
            ));
        }
        let (other, options) = *self.options.entry(settled.raft).or_insert((node, settled.options));
        if options != settled.options {
            return Err(format!(
                "after the committed entry {} the log's options are {} at node {node}, and were {options} at node {other}",
                settled.raft, settled.options
            ));
        }
        let (membership, changed) = machine.committed_membership();
        if changed > self.config.changed || self.config.voters.is_empty() {
            self.config = Config::of(&membership, changed);
        }
        Ok(())
    }

    /// Checks an entry that is committed at a replica: it is the same everywhere, and no entry is left out.
    fn entry(&mut self, node: NodeId, machine: &Machine, index: EntryIndex) -> Result<(), Trouble> {
        let Some(header) = machine.entry(index).map_err(Trouble::Unreadable)? else {
            return Err(Trouble::Wrong(format!(
                "node {node}: entry {index} is committed and does not exist"
            )));
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
        let (mut next, mut first) = self.after.last().map_or((Index(1), Index(1)), |(n, f, _)| (*n, *f));
        next = next.plus(seal.records.into());
        let wrong = |why| Trouble::Wrong(format!("node {node}, entry {index}: {why}"));
        match machine.command_of(&header).map_err(Trouble::Unreadable)? {
            Some(Command::Discard { first: wanted }) => {
                (next, first) = (next.max(wanted), first.max(wanted));
            }
            Some(Command::Object(command)) => {
                if matches!(command, ObjectCommand::Cut { .. }) {
                    self.objects_from.get_or_insert(index);
                }
                self.object_rows.learn(command);
            }
            Some(Command::Log(command)) => {
                self.contents.apply_command(command, header.timestamp).map_err(wrong)?;
            }
            _ => {}
        }
        let records = machine.records_of(&header).map_err(Trouble::Unreadable)?;
        let references = machine.references_of(&header).map_err(Trouble::Unreadable)?;
        if !references.is_empty() {
            let (resolved, _) = machine.resolved(&header).map_err(Trouble::Unreadable)?;
            self.resolved.insert(index, Seal::of(&resolved));
        }
        if header.kind != Kind::Command {
            self.uncommanded.insert(index);
        }
        if !references.is_empty() && references.len() == header.batch_count as usize {
            self.references.insert(index, references.clone());
        }
        for (id, offset, _) in references {
            if id.term != header.term || self.last_reference.is_some_and(|last| last >= (id, offset)) {
                let last = self.last_reference;
                return Err(wrong(format!(
                    "it refers to {id} at {offset} in term {}, behind {last:?}",
                    header.term
                )));
            }
            if !machine.has_payload(id).map_err(Trouble::Unreadable)? {
                return Err(wrong(format!(
                    "it is committed, and payload slice {id} is not in the object store"
                )));
            }
            self.last_reference = Some((id, offset));
            self.payloads.insert(id, index);
        }
        self.entries.push(seal);
        for (log, at, record) in &records {
            self.contents.add_record((index, header.timestamp), *log, *at, record).map_err(wrong)?;
        }
        let numbers = records.iter().filter_map(|(.., record)| number_of(record));
        self.contents.is_whole(index, numbers).map_err(wrong)?;
        self.after.push((next, first, self.contents.summaries().clone()));
        Ok(())
    }

    /// Checks a record that a replica publishes as committed.
    pub(super) fn shows(&self, node: NodeId, log: LogNumber, index: Index, record: &[u8]) -> Check {
        self.contents.check_read(log, index, record).map_err(|why| format!("node {node} {why}"))
    }

    /// Whether an entry of this term, or of a later one, is known to be committed.
    pub(super) fn has_committed_in(&self, term: Term) -> bool {
        self.entries.last().is_some_and(|last| last.term >= term)
    }

    /// The node that leads in this term, or did, as far as is known.
    pub(super) fn leader_of(&self, term: Term) -> Option<NodeId> {
        self.leaders.get(&term).copied()
    }

    /// Checks an entry of a slice: it is the one that was committed at this index. False: no replica has shown yet what was.
    pub(super) fn is_sliced(&self, header: &BlockHeader) -> Check<bool> {
        let seal = Seal::of(header);
        match self.entries.get((header.raft_index.0 as usize).wrapping_sub(1)) {
            Some(known) if *known == seal => Ok(true),
            None => Ok(false),
            known => {
                Err(format!("a slice has entry {} as {seal:?}; committed was {known:?}", header.raft_index))
            }
        }
    }

    /// The payload slices to which committed entries behind this one refer.
    pub(super) fn payloads_behind(&self, entry: EntryIndex) -> impl Iterator<Item = PayloadId> + '_ {
        self.payloads.iter().filter(move |(_, last)| **last > entry).map(|(id, _)| *id)
    }

    /// Checks that a log that is made of the object store alone has all entries up to `upto`: objects and slices of entries give those up
    /// to `end`, and behind it come the batches at these places.
    pub(super) fn is_in_store(&self, end: EntryIndex, places: &[PayloadPlace], upto: EntryIndex) -> Check {
        let mut places = places.iter();
        for entry in self.uncommanded.range(end.next()..).take_while(|entry| **entry <= upto) {
            let wanted = self.references.get(entry).map_or(&[][..], |wanted| wanted);
            let found: Vec<_> = places.by_ref().take(wanted.len()).copied().collect();
            if wanted.is_empty() || found != wanted {
                return Err(format!(
                    "the object store alone has entries up to {end} and then payload at {found:?}; a replica said that it has entries \
                     up to {upto}, and entry {entry} refers to {wanted:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the object store alone has a named log up to this record, if it has all entries up to `upto`.
    pub(super) fn is_stored_of(&self, log: LogNumber, last: Index, upto: EntryIndex) -> Check {
        match self.contents.entry_of(log, last) {
            Some(entry) if entry > upto => Err(format!(
                "record {last} of log {log} is said to be in the object store, which has entries up to {upto}; it is in entry {entry}"
            )),
            _ => Ok(()),
        }
    }

    /// Checks an entry that is fed to a follower: it is the one that was committed at this index.
    pub(super) fn is_fed(&self, node: NodeId, header: &BlockHeader) -> Check {
        let seal = Seal::of(header);
        match self.entries.get((header.raft_index.0 as usize).wrapping_sub(1)) {
            Some(known) if *known == seal || self.resolved.get(&header.raft_index) == Some(&seal) => Ok(()),
            known => Err(format!(
                "follower {node} is fed entry {} as {seal:?}; committed was {known:?}",
                header.raft_index
            )),
        }
    }

    /// Checks everything that a replica, or a follower, returns at the end: these logs, each from its first record on, are
    /// all that there is.
    pub(super) fn has_all(&self, node: NodeId, firsts: &[(LogNumber, Index)], all: &Records) -> Check {
        let logs: Vec<LogNumber> = firsts.iter().map(|(log, _)| *log).collect();
        if !logs.iter().filter(|log| !log.is_none()).eq(self.contents.summaries().keys()) {
            let named = self.contents.summaries();
            return Err(format!("node {node} has logs {logs:?}, and there are {named:?}"));
        }
        firsts.iter().try_for_each(|(log, first)| self.has_all_of(node, *log, *first, all))?;
        all.iter().try_for_each(|(log, index, record)| self.shows(node, *log, *index, record))
    }

    /// Checks that a node has all committed records of one log from its first one on, and that they are right.
    pub(super) fn has_all_of(&self, node: NodeId, log: LogNumber, first: Index, all: &Records) -> Check {
        let of_log = || all.iter().filter(|(of, ..)| *of == log);
        let has: Vec<Index> = of_log().map(|(_, index, _)| *index).collect();
        if !has.iter().eq(self.contents.of(log).range(first..).map(|(index, _)| index)) {
            let last = self.contents.last(log);
            return Err(format!(
                "node {node} returns {has:?} of log {log} from {first} on; committed up to {last}"
            ));
        }
        of_log().try_for_each(|(_, index, record)| self.shows(node, log, *index, record))
    }

    /// Checks a member at the end, when it has everything: its named logs begin where discards let them begin.
    pub(super) fn begins_right(&self, node: NodeId, firsts: &[(LogNumber, Index)]) -> Check {
        for (log, first) in firsts {
            let wanted = self.contents.summaries().get(log).map(|end| end.first);
            if wanted.is_some_and(|wanted| wanted != *first) {
                return Err(format!("node {node} has log {log} from {first} on; discards left {wanted:?}"));
            }
        }
        Ok(())
    }

    pub(super) fn acknowledged(
        &mut self,
        node: NodeId,
        log: LogNumber,
        appended: Appended,
        records: &[u64],
    ) -> Check {
        self.acknowledged += 1;
        if appended.count as usize != records.len() {
            return Err(format!("node {node}: {} records were acknowledged as {appended:?}", records.len()));
        }
        self.contents
            .check_acknowledged(log, appended.first, records)
            .map_err(|why| format!("node {node}: {why}"))
    }

    /// Checks that an acknowledged record is on the disks of a majority, whatever the replicas report. A
    /// configuration is in force once it is applied: entries that the leader had until then may have been committed
    /// under the one before.
    pub(super) fn is_durable(
        &mut self,
        log: LogNumber,
        last: Index,
        leader: &Host,
        hosts: &BTreeMap<NodeId, Host>,
        plan: &Plan,
    ) -> Check {
        let Some(entry) = self.contents.entry_of(log, last) else {
            return Err(format!("record {last} was acknowledged and is in no committed entry"));
        };
        let known = self.entries[entry.0 as usize - 1];
        let look = self.acknowledged.is_multiple_of(ACKNOWLEDGEMENTS_A_LOOK);
        let mut on = BTreeSet::new();
        for host in hosts.values() {
            let mut has = host.kept.holds(entry, &known);
            if has && look && host.maimed.is_none_or(|m| m == Maimed::Rotten) {
                has = self.has_in_truth(host, plan, entry, known)?;
            }
            if !has && host.lost.holds(entry, &known) {
                self.excuse(excuse::WAS_LOST);
                has = true;
            }
            if has {
                on.insert(host.node);
            }
        }
        // The world learns of a thread's syncs when its step ends. In this one an earlier sync can have made the entry durable
        // before a later one failed.
        if !on.contains(&leader.node) && leader.machine.as_ref().is_some_and(Machine::is_poisoned) {
            let is_there = self.has_in_truth(leader, plan, entry, known)?;
            on.extend(is_there.then_some(leader.node));
        }
        let now = leader.machine.as_ref().map(Machine::voters).unwrap_or_default();
        let is_on = |(incoming, outgoing): &Voters| {
            let (voters, outgoing, learners) = (incoming.clone(), outgoing.clone(), Vec::new());
            Config { changed: EntryIndex(0), voters, outgoing, learners }.has_majority(&on)
        };
        if is_on(&now) {
            return Ok(());
        }
        let earlier =
            leader.voters_before.iter().filter(|(_, until)| entry <= *until).map(|(voters, _)| voters);
        if earlier.chain([&leader.voters]).any(is_on) {
            self.excuse(excuse::EARLIER);
            return Ok(());
        }
        Err(format!(
            "record {last} was acknowledged, and its entry {entry} ({known:?}) is durable on {on:?} only; voters {now:?}"
        ))
    }

    /// Whether a disk that counts as having an entry has it.
    fn has_in_truth(&mut self, host: &Host, plan: &Plan, entry: EntryIndex, known: Seal) -> Check<bool> {
        match host.entry_in_truth(plan, entry, known) {
            Ok(there) => Ok(there == Some(known)),
            Err(_) if host.maimed == Some(Maimed::Rotten) => {
                self.excuse(excuse::ROTTEN);
                Ok(true)
            }
            Err(e) => Err(format!("node {}: its disk would not open after a power cut: {e:?}", host.node)),
        }
    }

    /// Checks a message that is sent: it must not hold a term or a vote that a power cut would undo, nor a vote
    /// before another replica could report that this disk is an older one.
    pub(super) fn leaves(&self, host: &mut Host, plan: &Plan, envelope: &Envelope) -> Check {
        let Some((term, vote)) = super::promises::promises_of(envelope) else { return Ok(()) };
        let node = host.node;
        if let Some(vote) = vote {
            if host.has_past && host.introduced_by.is_empty() {
                return Err(format!("node {node}: votes before another replica's introduction"));
            }
            if host.promised.0 == term && host.promised.1 != vote {
                return Err(format!(
                    "node {node}: votes for {vote} in term {term}, and did for {}",
                    host.promised.1
                ));
            }
            host.promised = host.promised.max((term, vote));
        }
        let goes_beyond = |kept: &Kept| {
            kept.term < term || (vote.is_some() && kept.term == term && vote != Some(kept.vote))
        };
        if !goes_beyond(&host.kept) {
            return Ok(());
        }
        let kept = host.kept_in_truth(plan).unwrap_or_default();
        if goes_beyond(&kept) {
            return Err(format!(
                "node {node}: sends term {term} and vote {vote:?}, and has term {} and vote {} on its disk",
                kept.term, kept.vote
            ));
        }
        Ok(())
    }

    /// Whether another entry was committed at this one's index.
    pub(super) fn is_superseded(&self, (entry, term): (EntryIndex, Term)) -> bool {
        let committed = entry.0.checked_sub(1).and_then(|n| self.entries.get(n as usize));
        committed.is_some_and(|seal| seal.term != term)
    }

    /// Checks a replica that takes part after its disk had lost its last term and vote. It gives no vote again: in
    /// the term of its last vote it has the same vote, or one for the term's leader, or for itself, which no replica
    /// counts. It may only forget a candidacy of its own that no other replica has heard of. `heard` is the latest
    /// term of the others.
    pub(super) fn has_learnt(&self, host: &mut Host, heard: Term) -> Check {
        let Some(machine) = host.machine.as_ref().filter(|_| std::mem::take(&mut host.state_lost)) else {
            return Ok(());
        };
        let (node, (told, named)) = (host.node, host.promised);
        let summary = machine.summary();
        let vote = NodeId(summary.vote);
        let is_harmless = vote.0 == named || vote == node || self.leaders.get(&told) == Some(&vote);
        let keeps = summary.term > told || summary.term == told && is_harmless;
        let is_unheard = named == node.0 && heard < told;
        if !(keeps || is_unheard) {
            return Err(format!(
                "node {node}: sent a vote for {named} in term {told}, and continues in term {} with a vote for {vote}",
                summary.term
            ));
        }
        if summary.vote != 0 {
            host.promised = (summary.term, summary.vote);
        } else if !keeps {
            host.promised = (Term(0), 0);
        }
        Ok(())
    }

    /// Checks a process that has opened its log.
    pub(super) fn opens(&self, host: &Host) -> Check {
        let in_doubt = host.machine.as_ref().map_or(0, Machine::changes_in_doubt);
        if in_doubt > 1 {
            return Err(format!(
                "node {}: opens with {in_doubt} changes of membership that are not known to be committed: majorities of \
                 memberships two changes apart need not meet",
                host.node
            ));
        }
        Ok(())
    }

    /// Checks a process that failed: there must be a fault of its disk.
    pub(super) fn may_fail(&mut self, host: &Host, error: &Error) -> Check {
        let rotten = host.maimed == Some(Maimed::Rotten);
        match error.kind() {
            _ if host.disk.faults_fired() > 0 => Ok(()),
            ErrorKind::Corrupt | ErrorKind::Io if rotten => Ok(()),
            // A full disk is no excuse: the reserve has room for the blocks that cannot wait, and files are allocated.
            _ => Err(format!("node {}: failed although its disk is sound: {error:?}", host.node)),
        }
    }
}
