//! Options of the log: a leader changes them once all other members are known to know them.
//!
//! ```text
//! leader                                      members
//! ------                                      -------
//! the options are to be changed
//! Version ----------------------------------> which version of the format do you read, how large are your segments?
//!                                 <---------- ReadsVersion(2, 64 MiB). An older version: no answer
//! all know them and have room: the leader proposes the command
//! ```
//!
//! A replica of an older version would not understand the command, and would have to stop. A replica whose segments are
//! too small for the records that an option allows could not write them, and commits would stop. So such a change sends
//! new requests: an answer is void once the node's program or options may have been replaced.
//!
//! A change for which the members need neither another version nor room does not wait for answers: all that count know what the log
//! has already. So a limit can be changed while a member is down.
//!
//! A member that is added later is asked as well, once it is a member: before that its address is not known. It starts
//! as a learner, which counts for no majority. It is not promoted until it has reported that it knows the log's options
//! and has room for them. The program's log names learners that have not.
//!
//! Invariants:
//! - the command holds all options as of the entry before it, including the unchanged ones;
//! - changes of one option take effect in the order of their requests;
//! - members are asked only while a change waits that they may not know, and learners only while the log has options.

use super::Replica;
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::{LogOption, LogOptions};
use crate::record::batch::Malformed;
use crate::replica::queue::proposals::{Command, LogCommand};
use crate::replica::raft::propose::body_bytes_of;
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::HeadKind;
use crate::replica::writer::plan::Plan;
use crate::store::format::segment::FORMAT_VERSION_SECOND;
use crate::sync::clock::Moment;
use crate::sync::completer::Completer;
use crate::sync::completion::Outcome;
use crate::types::{Index, LogNumber, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of changes that wait. A caller can give up its wait, so the number of callers does not bound
/// them.
const CHANGES_MAX: usize = 1024;

/// The error of a change that timed out while it waited for a file.
const NO_FILE: &str = "no file was ready in time; nothing was changed";

/// A member's own [`Options::segment_bytes`].
type SegmentBytes = u32;

/// Changes of the log's options that wait for the members' answers.
#[derive(Debug, Default)]
pub(super) struct OptionChanges {
    pending: Vec<OptionChange>,
    /// The answers of members that know the log's options.
    know: BTreeMap<NodeId, SegmentBytes>,
    /// When the members were first asked, and when last.
    asked: Option<(Moment, Moment)>,
}

/// The version answers of learners, since this replica leads.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    /// The answers of learners that know the log's options, with their times: a learner can restart with other
    /// segments.
    know: BTreeMap<NodeId, (SegmentBytes, Moment)>,
    /// When each of the others was first asked, and whether it was named in the log since.
    asked: BTreeMap<NodeId, (Moment, bool)>,
    again: Moment,
}

/// A change that waits.
#[derive(Debug)]
pub(super) struct OptionChange {
    /// 0: the directory's own log, or the whole group.
    pub(super) log: LogNumber,
    pub(super) changes: Vec<(LogOption, Option<u64>)>,
    /// The version of the format that members need to read what changes.
    version: u32,
    /// Nothing changes: the program asks whether they read that version.
    only_asks: bool,
    pub(super) until: Moment,
    pub(super) completer: Completer,
}

impl OptionChanges {
    /// The first change of this kind that no earlier one has to go before.
    fn first_in_turn(&self, is_one: impl Fn(&OptionChange) -> bool) -> Option<usize> {
        let waits = |at: usize| self.pending[..at].iter().any(|earlier| earlier.meets(&self.pending[at]));
        (0..self.pending.len()).find(|at| is_one(&self.pending[*at]) && !waits(*at))
    }
}

impl OptionChange {
    pub(super) fn new(
        log: LogNumber,
        changes: Vec<(LogOption, Option<u64>)>,
        until: Moment,
        completer: Completer,
    ) -> Self {
        let version = LogOptions::default().with(&changes).version();
        Self { log, changes, version, only_asks: false, until, completer }
    }

    /// Whether every member that counts reads what this change writes, and has room for it, without being asked. `known`: the version
    /// that they are known to read.
    fn needs_no_answers(&self, known: Option<u32>) -> bool {
        !self.only_asks
            && known.is_some_and(|known| self.version <= known)
            // The limits of a named log can only lower those of its group.
            && !(self.log.is_none() && self.changes.iter().any(|(option, _)| option.takes_room()))
    }

    /// Whether it changes an option that this one changes, too.
    fn meets(&self, other: &Self) -> bool {
        let changes_too = |option| other.changes.iter().any(|(changed, _)| *changed == option);
        self.log == other.log && self.changes.iter().any(|(option, _)| changes_too(*option))
    }

    /// The question whether all members read this version of the format.
    pub(super) fn question(version: u32, until: Moment, completer: Completer) -> Self {
        Self { log: LogNumber::OWN, changes: Vec::new(), version, only_asks: true, until, completer }
    }
}

impl Replica {
    /// Takes a request to change options of the log.
    pub(super) fn request_options(
        &mut self,
        change: OptionChange,
        now: Moment,
        plan: &mut Plan,
    ) -> Result<()> {
        if self.option_changes.pending.len() >= CHANGES_MAX {
            let what = format!("{CHANGES_MAX} changes of the log's options already wait; try again");
            change.completer.answer(Outcome::Failed(Error::new(ErrorKind::Busy, what)));
            return Ok(());
        }
        if change.version > FORMAT_VERSION_SECOND && !change.needs_no_answers(self.known_version()) {
            // Members of an older version may have answered.
            self.option_changes.know.clear();
            self.option_changes.asked = None;
        }
        self.option_changes.pending.push(change);
        self.set_options_once_known(now, plan)
    }

    /// Proposes the waiting changes that every member is known to know, and refuses those that timed out.
    pub(super) fn set_options_once_known(&mut self, now: Moment, plan: &mut Plan) -> Result<()> {
        if self.option_changes.pending.is_empty() {
            return Ok(());
        }
        if let Some(refusal) = self.refusal() {
            if self.is_leader() && matches!(self.is_held(), Some(None)) {
                // The file that raft's ready waits for is being prepared.
                self.give_up_options(now, ErrorKind::Timeout, NO_FILE, |_| true);
            } else {
                self.refuse_options(&refusal);
            }
            return Ok(());
        }
        let known = self.known_version();
        let is_unknown = |change: &OptionChange| !change.needs_no_answers(known);
        self.order_options(now, plan, known)?;
        if !self.option_changes.pending.iter().any(is_unknown) {
            return Ok(()); // none is left, or one waits for a file
        }
        self.request_versions(now);
        let waits_for = self.those_who_may_not_know();
        let Some(node) = waits_for.first() else { return Ok(()) };
        let pending = &self.option_changes.pending;
        let unknown = match pending.iter().map(|change| change.version).max() {
            Some(version) if pending.iter().all(|change| change.only_asks) => {
                format!("version {version} of the format")
            }
            _ => "options of the log".to_owned(),
        };
        let is_there = waits_for.iter().copied().find(|node| self.is_active(*node, now));
        if let (None, Some((first, _))) = (is_there, &mut self.option_changes.asked) {
            *first = now; // one that comes back has as long to answer as one that was there
        }
        let first = self.option_changes.asked.map_or(now, |(first, _)| first);
        let is_silent = now >= first.plus(self.cluster.election_timeout * 2);
        if let Some(node) = is_there.filter(|_| is_silent) {
            let what = format!(
                "node {node} does not report that it knows {unknown}: it runs an older version; nothing was changed; upgrade all \
                 members to this version first"
            );
            let refusal = Error::new(ErrorKind::Unsupported, what);
            for change in self.option_changes.pending.extract_if(.., |change| is_unknown(change)) {
                change.completer.answer(Outcome::Failed(refusal.clone()));
            }
            self.rest_when_done();
            return Ok(());
        }
        let what = format!(
            "node {node} did not answer, and may run a version that does not know {unknown}; nothing was changed; start it, or \
             remove it from the cluster"
        );
        // Also those that wait for an earlier change of the same option.
        self.give_up_options(now, ErrorKind::Unsupported, &what, |_| true);
        Ok(())
    }

    /// Refuses those of these changes that timed out.
    fn give_up_options(
        &mut self,
        now: Moment,
        kind: ErrorKind,
        why: &str,
        is_one: impl Fn(&OptionChange) -> bool,
    ) {
        for late in self.option_changes.pending.extract_if(.., |p| p.until <= now && is_one(p)) {
            late.completer.answer(Outcome::Failed(Error::new(kind, why)));
        }
        self.rest_when_done();
    }

    /// When waiting changes need the next step.
    pub(super) fn options_deadline(&self) -> Option<Moment> {
        self.option_changes.pending.iter().map(|p| p.until).min()
    }

    /// Proposes the changes that all members know.
    fn order_options(&mut self, now: Moment, plan: &mut Plan, known: Option<u32>) -> Result<()> {
        loop {
            self.lockstep(now, plan)?;
            // This lockstep may have refused the changes: leadership may have been lost.
            let all_answered = self.those_who_may_not_know().is_empty();
            let is_next = |change: &OptionChange| all_answered || change.needs_no_answers(known);
            let Some(at) = self.option_changes.first_in_turn(is_next) else { break };
            let pending = &self.option_changes.pending[at];
            if pending.only_asks {
                let OptionChange { completer, .. } = self.option_changes.pending.remove(at);
                completer.answer(Outcome::Placed { first: Index(0) });
                continue;
            }
            let (log, before) = (pending.log, self.options_of(pending.log));
            let set = before.with(&pending.changes);
            let command = match log.is_none() {
                true => Command::SetOptions(set),
                false => Command::Log(LogCommand::SetOptions { log, options: set }),
            };
            if plan.awaits_file(body_bytes_of(&command), self.purpose_of(&command)) {
                // The helper thread notifies the node when the file is ready.
                self.give_up_options(now, ErrorKind::Timeout, NO_FILE, is_next);
                return Ok(());
            }
            let OptionChange { changes, completer, .. } = self.option_changes.pending.remove(at);
            let changed: Vec<LogOption> = changes.iter().map(|(option, _)| *option).collect();
            let checked = match log.is_none() {
                true if before.get(LogOption::ObjectBytes).is_some()
                    && set.get(LogOption::ObjectBytes).is_none() =>
                {
                    let what = "object_bytes cannot be unset: records of the log may be in the object store alone; set \
                                another size instead";
                    Err(Error::new(ErrorKind::InvalidArgument, what))
                }
                true if before.get(LogOption::PayloadSlices).is_some()
                    && set.get(LogOption::PayloadSlices).is_none() =>
                {
                    let what = "payload_slices cannot be unset: the log may refer to payload in the object store; set it to 0 instead";
                    Err(Error::new(ErrorKind::InvalidArgument, what))
                }
                true if before.get(LogOption::ObjectRows).is_some()
                    && set.get(LogOption::ObjectRows).is_none() =>
                {
                    let what = "object_rows cannot be unset: rows of the log's objects may be in objects alone; set another number instead";
                    Err(Error::new(ErrorKind::InvalidArgument, what))
                }
                true => set
                    .check(&self.options)
                    .and_then(|()| self.sequencer.check_for_logs(&set))
                    .and_then(|()| self.check_room_of_members(&set, &changed)),
                false => self.sequencer.check_options_of(log, &set),
            };
            match checked {
                Ok(()) => self.command(command, Some(completer), now, plan)?,
                Err(refusal) => completer.answer(Outcome::Failed(refusal)),
            }
        }
        self.rest_when_done();
        Ok(())
    }

    /// The newest version of the format that options of the log needed so far: every member that counts reads it. None: it has none.
    fn known_version(&self) -> Option<u32> {
        let committed = self.sequencer.committed();
        let named = committed.logs.with_options().map(|(_, options)| options);
        let set = named.chain([&committed.options]).filter(|options| !options.is_empty());
        set.map(LogOptions::version).max()
    }

    /// The options that are set for a log after the last entry.
    pub(super) fn options_of(&self, log: LogNumber) -> LogOptions {
        match log.is_none() {
            true => self.sequencer.options_at_end(),
            false => self.sequencer.logs().options(log),
        }
    }

    /// Checks that every other member's segments have room for the records that these options allow.
    fn check_room_of_members(&self, set: &LogOptions, changed: &[LogOption]) -> Result<()> {
        self.all_members().into_iter().try_for_each(|member| {
            match self.option_changes.know.get(&member.node) {
                Some(bytes) => set.check_room_of(member.node, *bytes, changed, &self.options),
                None => Ok(()), // this node itself, or nothing changes that takes room
            }
        })
    }

    /// Asks the members that have not answered for their version, with every heartbeat.
    fn request_versions(&mut self, now: Moment) {
        let due = |(_, last): (Moment, Moment)| now >= last.plus(self.cluster.heartbeat);
        if !self.option_changes.asked.is_none_or(due) {
            return;
        }
        let first = self.option_changes.asked.map_or(now, |(first, _)| first);
        self.option_changes.asked = Some((first, now));
        for node in self.those_who_may_not_know() {
            self.post(node, raft_message::head(HeadKind::Version, &[]));
        }
    }

    /// In a log with options: asks learners with every heartbeat whether they know them, and discards old answers.
    /// Names learners that do not report it.
    pub(super) fn poll_learners(&mut self, now: Moment) {
        if !self.is_leader() || self.sequencer.options_at_end().is_empty() {
            self.newcomers = Newcomers::default();
            return;
        }
        if now < self.newcomers.again {
            return;
        }
        self.newcomers.again = now.plus(self.cluster.heartbeat);
        let learners: BTreeSet<NodeId> =
            self.all_members().into_iter().filter(|m| m.is_learner()).map(|m| m.node).collect();
        self.newcomers.asked.retain(|node, _| learners.contains(node));
        let old = self.cluster.election_timeout * 2;
        self.newcomers.know.retain(|node, (_, said)| learners.contains(node) && now < said.plus(old));
        for node in learners {
            self.post(node, raft_message::head(HeadKind::Version, &[]));
            if self.newcomers.know.contains_key(&node) {
                continue;
            }
            let heard = self.is_active(node, now);
            let (first, named) = self.newcomers.asked.entry(node).or_insert((now, false));
            if heard && !*named && now >= first.plus(self.cluster.election_timeout * 2) {
                *named = true;
                tracing::warn!(
                    %node,
                    "the learner does not report that it knows the log's options: it runs an older version, cannot \
                     follow this log, and is not promoted; upgrade it to this version, with an empty directory and a \
                     new number if it has stopped"
                );
            }
        }
    }

    /// The reason why this learner cannot vote in a log with options: it has not reported that it knows them, or lacks
    /// room.
    pub(super) fn cannot_take_options(&self, node: NodeId) -> Option<Error> {
        let options = self.sequencer.options_at_end();
        if options.is_empty() || !self.member(node).is_some_and(|m| m.is_learner()) {
            return None;
        }
        let Some((segment_bytes, _)) = self.newcomers.know.get(&node) else {
            let what = format!(
                "node {node} does not report that it knows options of the log, which this log has: it runs an older \
                 version, or does not answer. Nothing was changed: upgrade it to this version, then promote it"
            );
            return Some(Error::new(ErrorKind::Unsupported, what));
        };
        options.check_room_of(node, *segment_bytes, &LogOption::ALL, &self.options).err()
    }

    /// The other members, including those of changes that are not in force, that have not reported that they know the
    /// options.
    fn those_who_may_not_know(&self) -> Vec<NodeId> {
        let others = self.all_members().into_iter().map(|m| m.node).filter(|node| *node != self.node());
        others.filter(|node| !self.option_changes.know.contains_key(node)).collect()
    }

    /// Receives a request for the version of the format that this replica reads.
    pub(super) fn on_version_request(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        if !body.is_empty() {
            return Err("version request has an unexpected length");
        }
        self.post(from, raft_message::reads_version(self.options.segment_bytes));
        Ok(())
    }

    /// Receives the version of the format that a member reads. The next step proposes the changes that wait for it.
    pub(super) fn on_version(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let (version, segment_bytes) = raft_message::parse_reads_version(body)?;
        let is_newcomer = self.newcomers.asked.contains_key(&from);
        if self.option_changes.pending.is_empty() && !is_newcomer {
            return Err("version answer that was not requested");
        }
        let needed = self.option_changes.pending.iter().map(|change| change.version).max();
        if needed.is_some_and(|needed| version >= needed) {
            self.option_changes.know.insert(from, segment_bytes);
        }
        if is_newcomer && version >= self.sequencer.options_at_end().version() {
            self.newcomers.know.insert(from, (segment_bytes, self.newcomers.again));
        }
        Ok(())
    }

    /// Refuses all waiting changes: none of them is in the log.
    pub(super) fn refuse_options(&mut self, refusal: &Error) {
        for pending in std::mem::take(&mut self.option_changes).pending {
            pending.completer.answer(Outcome::Failed(refusal.clone()));
        }
    }

    fn rest_when_done(&mut self) {
        if self.option_changes.pending.is_empty() {
            self.option_changes = OptionChanges::default();
        }
    }
}
