//! Proposals: appends and commands become entries of the log, or are refused. Their callers are answered once the
//! entries are committed, or once the outcome cannot be known any more.
//!
//! Invariant: a refused append is not in the log. An append that was proposed is never reported as absent.

use super::Replica;
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::{LogOption, LogOptions};
use crate::read::view::shared_group;
use crate::replica::queue::proposals::{BlockBuilder, Command, LogCommand};
use crate::replica::state::command::{CUT_COMMAND_BYTES, SET_OPTIONS_BYTES, opens};
use crate::replica::state::sequencer::{Decision, SequencedBlock};
use crate::replica::wire::raft_message;
use crate::replica::writer::plan::Plan;
use crate::store::allocator::Purpose;
use crate::store::format::geometry::LOG_OPTION_BYTES;
use crate::store::format::segment::HARD_STATE_BYTES;
use crate::store::segment::Base;
use crate::store::{NewBlock, block_bytes};
use crate::sync::clock::Moment;
use crate::sync::completer::Completer;
use crate::sync::completion::{Durability, Outcome};
use crate::types::{EntryIndex, LogNumber, Timestamp};
use bytes::Bytes;
use raft::eraftpb::{Entry, Message, MessageType};
use std::ops::RangeInclusive;

/// Room for a command's block, rounded up generously.
const COMMAND_BODY_BYTES: usize = 64;
/// Room for a command that sets all options of the log.
const OPTIONS_BODY_BYTES: usize = SET_OPTIONS_BYTES + LogOption::ALL.len() * LOG_OPTION_BYTES;

/// The bytes of room that a command needs before it is proposed. For opening a session: also for the close of the
/// session that may have to be closed. For all that may use the end of a segment although no file is ready after it: also for the commit
/// record that their ready needs. Without it they would be ordered, and then wait; and the files of a discard would stay.
pub(crate) fn body_bytes_of(command: &Command) -> usize {
    let word = block_bytes(HARD_STATE_BYTES);
    match command {
        Command::OpenSession { .. } => COMMAND_BODY_BYTES + block_bytes(COMMAND_BODY_BYTES),
        Command::Discard { .. } => COMMAND_BODY_BYTES + word,
        Command::Log(LogCommand::Drop { .. } | LogCommand::Discard { .. }) => COMMAND_BODY_BYTES + word,
        Command::PassOver { .. } => COMMAND_BODY_BYTES + block_bytes(COMMAND_BODY_BYTES) + word,
        Command::SetOptions(_) | Command::Log(LogCommand::SetOptions { .. }) => OPTIONS_BODY_BYTES + word,
        Command::Object(_) => CUT_COMMAND_BYTES + word,
        Command::CloseSession { .. } | Command::OpenAfter { .. } | Command::Log(_) => COMMAND_BODY_BYTES,
    }
}

/// An append that waits until its entry is committed.
pub(super) struct Waiting {
    pub(super) raft: EntryIndex,
    pub(super) completer: Completer,
    pub(super) outcome: Outcome,
    /// How many appends it answers; a command counts as one.
    pub(super) appends: usize,
    pub(super) is_command: bool,
    /// Whether it is answered once its entry is committed, whatever the object store has.
    pub(super) awaits_commit_alone: bool,
}

/// The entry that a block of appends has become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proposed {
    /// The position behind its entry. None: all of its appends were retries, or refused.
    pub(crate) entry: Option<Base>,
    /// Whether the entry has all of its records.
    pub(crate) is_whole: bool,
}

impl Replica {
    /// Proposes a block of appends, or refuses it. No part of a refused block is in the log.
    pub(crate) fn propose(
        &mut self,
        gathered: BlockBuilder,
        now: Moment,
        plan: &mut Plan,
    ) -> Result<Option<Proposed>> {
        self.lockstep(now, plan)?;
        let is_of_no_log = !gathered.is_mixed() && self.sequencer.logs().is_shared();
        let room = match is_of_no_log && self.refusal().is_none() {
            true => Err(shared_group()),
            false => self.make_room(gathered.bytes, Purpose::Data, now, plan),
        };
        if let Err(refusal) = room {
            gathered.into_pieces(None).1.answer(Outcome::Failed(refusal));
            return Ok(None);
        }
        let time = self.look_at_clock(now);
        let batches = gathered.batches.len() as u32;
        let SequencedBlock { block, completer, outcome } = self.sequencer.data(gathered, time);
        let is_whole = block.as_ref().is_some_and(|block| block.header.batch_count == batches);
        let entry = block.is_some().then(|| self.sequencer.end());
        if let Some(block) = block {
            self.has_taken(block.header.stride());
            self.order(block)?;
        }
        self.wait(completer, outcome, batches as usize, false);
        self.process(now, plan)?;
        Ok(Some(Proposed { entry, is_whole }))
    }

    /// The purpose of the room for a command. The reserve is for commands that can make room. Other commands do not use
    /// it, because without it nothing could be discarded from a full log.
    pub(crate) fn purpose_of(&self, command: &Command) -> Purpose {
        match command {
            Command::Discard { .. } | Command::Log(LogCommand::Drop { .. }) => Purpose::Metadata,
            Command::Log(LogCommand::Discard { .. }) => Purpose::OneLog,
            Command::SetOptions(set) if may_make_room(set, &self.options_of(LogNumber::OWN)) => {
                Purpose::Metadata
            }
            Command::Log(LogCommand::SetOptions { log, options })
                if may_make_room(options, &self.options_of(*log)) =>
            {
                Purpose::OneLog
            }
            // Without them no file here can be removed for those in the object store.
            Command::Object(_) => Purpose::Metadata,
            Command::OpenSession { .. }
            | Command::CloseSession { .. }
            | Command::OpenAfter { .. }
            | Command::PassOver { .. }
            | Command::SetOptions(_)
            | Command::Log(_) => Purpose::Data,
        }
    }

    /// Proposes a command, or answers it. To open a session when the table is full, first closes a session that never
    /// appended: a client that opens sessions without using them keeps no other client out. The close is a command in
    /// the log like any other, so that every replica has the same sessions, whatever its options.
    pub(crate) fn command(
        &mut self,
        command: Command,
        completer: Option<Completer>,
        now: Moment,
        plan: &mut Plan,
    ) -> Result<()> {
        self.lockstep(now, plan)?;
        let time = self.look_at_clock(now);
        if let Command::OpenSession { log, .. } = command
            && self.refusal().is_none()
            && let Some(id) = self.sequencer.session_to_go(log, time)
            // Only if there is room for both, so that no session is closed without effect.
            && self.make_room(body_bytes_of(&command), self.purpose_of(&command), now, plan).is_ok()
        {
            self.command(Command::CloseSession { id }, None, now, plan)?;
            self.lockstep(now, plan)?;
        }
        let command = match command {
            // Of logs that are opened together one was refused, or was lost when an earlier leader was deposed. None behind it may be
            // opened: it could not be opened any more.
            Command::OpenAfter { after, .. }
                if self.refusal().is_none() && self.sequencer.logs().opened() < after =>
            {
                let what =
                    format!("log {after}, which comes before it, was not opened in the group; try again");
                let refused = Error::new(ErrorKind::Unavailable, what);
                completer.into_iter().for_each(|c| c.answer(Outcome::Failed(refused.clone())));
                return Ok(());
            }
            Command::OpenAfter { log, .. } => opens(log),
            Command::PassOver { log } => {
                let room = self.make_room(body_bytes_of(&command), self.purpose_of(&command), now, plan);
                match room.map(|()| self.sequencer.command(command, time)) {
                    Ok(Decision::Write(block, _)) => {
                        self.order(block)?;
                        self.process(now, plan)?;
                        self.lockstep(now, plan)?;
                    }
                    Ok(Decision::Done(_)) => {} // it is open
                    Ok(Decision::Refused(error)) | Err(error) => {
                        completer.into_iter().for_each(|c| c.answer(Outcome::Failed(error.clone())));
                        return Ok(());
                    }
                }
                Command::Log(LogCommand::Drop { log })
            }
            command => command,
        };
        let room = match command {
            Command::Discard { .. } | Command::SetOptions(_) | Command::Log(_) | Command::Object(_) => {
                body_bytes_of(&command)
            }
            _ => COMMAND_BODY_BYTES, // room for the close was made above
        };
        let room = self.make_room(room, self.purpose_of(&command), now, plan);
        // Records of named logs are discarded log by log. Only the node itself removes segments without any.
        let is_foreign = matches!(command, Command::Discard { .. })
            && completer.is_some()
            && self.sequencer.logs().is_shared();
        let decision = match room {
            Ok(()) if is_foreign => Decision::Refused(shared_group()),
            Ok(())
                if planted!(187)
                    && self.raw.raft.term > 2
                    && matches!(command, Command::OpenSession { .. }) =>
            {
                Decision::Refused(Error::new(ErrorKind::Busy, "planted"))
            }
            Ok(()) => self.sequencer.command(command, time),
            Err(refusal) => Decision::Refused(refusal),
        };
        let outcome = match decision {
            Decision::Write(block, first) => {
                self.has_taken(block.header.stride());
                self.order(block)?;
                Outcome::Placed { first }
            }
            Decision::Done(first) => Outcome::Placed { first },
            Decision::Refused(error) => {
                if let Some(completer) = completer {
                    completer.answer(Outcome::Failed(error));
                }
                return Ok(());
            }
        };
        if let Some(completer) = completer {
            let follows = matches!(command, Command::Log(command) if command.follows_catalogue());
            if follows && self.sequencer.end().raft <= self.sequencer.committed().raft {
                // It changes nothing, and what it finds is committed and published: no later commit would answer it.
                completer.answer(outcome);
            } else {
                self.wait(completer, outcome, 1, true);
                self.waiting.back_mut().into_iter().for_each(|waiting| waiting.awaits_commit_alone = follows);
            }
        }
        self.process(now, plan)
    }

    /// Makes room for a proposal of `bytes` bytes. If there is none, asks the others for room.
    ///
    /// # Errors
    /// The reason why nothing is proposed now, or why there is no room.
    pub(crate) fn make_room(
        &mut self,
        bytes: usize,
        purpose: Purpose,
        now: Moment,
        plan: &mut Plan,
    ) -> Result<()> {
        let room = match self.refusal() {
            Some(refusal) => Err(refusal),
            None => plan.make_room(bytes, purpose, &mut self.sequencer).map(drop),
        };
        if let Err(why) = &room
            && !(planted!(169) && bytes <= COMMAND_BODY_BYTES + block_bytes(COMMAND_BODY_BYTES))
            && !planted!(186)
        {
            self.has_refused(bytes, why, now);
        }
        room
    }

    /// The timestamp of an entry that is proposed now.
    fn look_at_clock(&mut self, now: Moment) -> Timestamp {
        self.clock.look(now, self.options.clock.now())
    }

    /// The reason why this replica proposes nothing now. A leader whose ready waits for room refuses discards as well:
    /// entries that raft has accepted are written before them.
    pub(crate) fn refusal(&self) -> Option<Error> {
        if let Some(why) = self.exclusion() {
            return Some(why.clone());
        }
        if let Some(why) = self.is_held().filter(|_| self.is_leader()) {
            let what = "this replica has no room for raft's entries; the append is not in the log";
            return Some(why.cloned().unwrap_or_else(|| Error::new(ErrorKind::Full, what)));
        }
        if self.is_leader() {
            let to = self.raw.raft.lead_transferee?;
            let what = format!(
                "node {} is transferring leadership to node {to}; the append is not in the log; try again",
                self.node()
            );
            return Some(Error::new(ErrorKind::NotLeader, what));
        }
        let who = match self.leader().filter(|l| *l != self.node()) {
            Some(leader) => match self.membership.get(leader) {
                Some(member) if !member.address.is_empty() => {
                    format!("node {leader} at {} leads", member.address)
                }
                _ => format!("node {leader} leads"),
            },
            None => "no leader is known here".to_owned(),
        };
        let what = format!("node {} is not the leader: {who}; the append is not in the log", self.node());
        Some(Error::new(ErrorKind::NotLeader, what))
    }

    /// Gives the sequencer all entries that raft added by itself. Required before the sequencer orders anything.
    pub(super) fn lockstep(&mut self, now: Moment, plan: &mut Plan) -> Result<()> {
        if self.raw.raft.raft_log.last_index() != self.sequencer.end().raft.0 {
            self.process(now, plan)?;
        }
        Ok(())
    }

    /// Whether entries were ordered that are not planned: their ready waits for room. The sequencer's end is behind them.
    pub(crate) fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Whether raft and the sequencer both end with entry `written`, and raft has nothing to be written.
    pub(crate) fn is_in_lockstep(&self, written: EntryIndex) -> bool {
        let log = &self.raw.raft.raft_log;
        let has_more = !log.unstable.entries.is_empty() || log.unstable.snapshot.is_some();
        let is_last = log.last_index() == written.0 && self.sequencer.end().raft == written;
        !self.has_staged() && self.short.is_none() && !has_more && is_last
    }

    pub(super) fn order(&mut self, block: NewBlock) -> Result<()> {
        let entry = raft_message::entry(&block.header, Bytes::new);
        self.staged.push_back(block);
        self.propose_entry(entry)
    }

    pub(super) fn propose_entry(&mut self, entry: Entry) -> Result<()> {
        let mut message = Message { from: self.node().0, ..Message::default() };
        message.set_msg_type(MessageType::MsgPropose);
        message.set_entries(vec![entry].into());
        self.raw.raft.step(message).map_err(|e| {
            // A leader with room and without a transfer never refuses. If it does, the sequencer is out of step.
            Error::new(ErrorKind::Poisoned, format!("raft refused a proposal at its leader: {e}"))
        })
    }

    fn wait(&mut self, completer: Completer, outcome: Outcome, appends: usize, is_command: bool) {
        let raft = self.sequencer.end().raft;
        self.waiting_appends += appends;
        let awaits_commit_alone = false;
        self.waiting.push_back(Waiting {
            raft,
            completer,
            outcome,
            appends,
            is_command,
            awaits_commit_alone,
        });
    }

    /// Entries up to `raft` are committed and written: applies them. Returns the answers of their callers, to be given
    /// after the positions have moved, as far as appends and commands up to `answerable` may be answered. `durability`:
    /// that of an append whose entry this is.
    pub(crate) fn commit_to(
        &mut self,
        raft: EntryIndex,
        answerable: EntryIndex,
        durability: impl Fn(EntryIndex) -> Durability,
    ) -> Vec<(Completer, Outcome)> {
        let before = self.sequencer.committed().raft;
        self.sequencer.commit_to(raft);
        let committed = self.sequencer.committed();
        let mut due = Vec::new();
        let upto = committed.raft.min(answerable);
        while let Some(w) = self.waiting.pop_front_if(|w| w.raft <= upto || planted!(9)) {
            self.waiting_appends -= w.appends;
            due.push((w.completer.durable(durability(w.raft)), w.outcome));
        }
        let new = |raft: EntryIndex| self.waiting.partition_point(|w| w.raft <= raft);
        for n in (new(before)..new(committed.raft)).rev() {
            if self.waiting.get(n).is_some_and(|w| w.awaits_commit_alone)
                && let Some(w) = self.waiting.remove(n)
            {
                self.waiting_appends -= w.appends;
                due.push((w.completer, w.outcome));
            }
        }
        self.requests.committed(committed.raft, committed.next, &mut due);
        if self.waiting.is_empty() {
            self.lost_lead = None;
        }
        due
    }

    /// The first entry for which an append or a command waits.
    pub(crate) fn first_awaited(&self) -> Option<EntryIndex> {
        self.waiting.front().map(|waiting| waiting.raft)
    }

    /// How many appends wait for these entries and will be confirmed, and not refused.
    pub(crate) fn awaited_confirmations(&self, entries: RangeInclusive<EntryIndex>) -> u64 {
        let waiting = self.waiting.iter().take_while(|waiting| waiting.raft <= *entries.end());
        let waiting = waiting.filter(|waiting| waiting.raft >= *entries.start() && !waiting.is_command);
        let confirmed = waiting.map(|waiting| match &waiting.outcome {
            Outcome::Placed { .. } => waiting.appends,
            Outcome::Each(each) => each.iter().filter(|one| one.is_ok()).count(),
            Outcome::Failed(_) => 0,
        });
        confirmed.sum::<usize>() as u64
    }

    /// How many appends and commands were proposed, and are not answered.
    pub(crate) fn waiting_appends(&self) -> usize {
        self.waiting_appends
    }

    /// Whether any caller waits for an entry to be committed.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Fails all appends and commands that wait for their commit.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        self.waiting_appends = 0;
        for w in self.waiting.drain(..) {
            w.completer.answer(Outcome::Failed(error.clone()));
        }
    }

    /// Fails all pending requests of the program.
    pub(crate) fn fail_requests(&mut self, error: &Error) {
        self.requests.fail_all(error);
        self.refuse_options(error);
    }

    /// Fails the waiting appends of a replica that lost leadership and hears no other leader, so that no caller waits
    /// forever.
    pub(super) fn give_up_waiting(&mut self) {
        self.lost_lead = None;
        self.waiting_appends = 0;
        for w in self.waiting.drain(..) {
            if planted!(27) {
                w.completer.answer(Outcome::Failed(Error::new(ErrorKind::NotLeader, "refused")));
                continue;
            }
            w.completer.answer(Outcome::Failed(unknown_outcome()));
        }
    }
}

/// Whether a change of options can make room: other retention can, and so can objects with what is in files.
fn may_make_room(set: &LogOptions, before: &LogOptions) -> bool {
    use LogOption::{CapacityBytes, ObjectBytes, RetentionAge, RetentionBytes};
    let differs = |option: &LogOption| set.get(*option) != before.get(*option);
    [RetentionBytes, RetentionAge, CapacityBytes, ObjectBytes].iter().any(differs)
}

/// The error of an append whose leader was lost before its outcome was known.
pub(super) fn unknown_outcome() -> Error {
    let what = "outcome unknown: this replica lost leadership; the append may or may not be in the log. Within a session \
                it can safely be sent again";
    Error::new(ErrorKind::Unavailable, what)
}
