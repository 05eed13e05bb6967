//! Ordering: appends and commands become entries of the log, or are refused; and who waits for them is answered once they
//! are committed, or nobody can tell any more.
//!
//! Invariant: what is refused is not in the log; of what was ordered, that it is not there is never said.

use super::Replica;
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::{LOG_OPTION_BYTES, LogOption};
use crate::replica::queue::proposals::{BlockBuilder, Command};
use crate::replica::state::sequencer::{Decision, SET_OPTIONS_BYTES, SequencedBlock};
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::header_of;
use crate::replica::writer::Writer;
use crate::store::allocator::Purpose;
use crate::store::format::segment::HARD_STATE_BYTES;
use crate::store::{NewBlock, block_bytes};
use crate::sync::clock::Moment;
use crate::sync::completer::Completer;
use crate::sync::completion::Outcome;
use crate::types::{EntryIndex, Timestamp};
use bytes::Bytes;
use raft::eraftpb::{Entry, Message, MessageType};

/// Room that a command's block needs, generously.
const COMMAND_BODY_BYTES: usize = 64;
/// As much for the options of the log, all of them.
const OPTIONS_BODY_BYTES: usize = SET_OPTIONS_BYTES + LogOption::ALL.len() * LOG_OPTION_BYTES;

/// Bytes that must fit before a command is ordered: its block; for a session's also that of the one that may have to go; for a
/// discard also the word that it is committed, without which its files stay.
pub(crate) fn body_bytes_of(command: &Command) -> usize {
    match command {
        Command::OpenSession { .. } => COMMAND_BODY_BYTES + block_bytes(COMMAND_BODY_BYTES),
        Command::Discard { .. } => COMMAND_BODY_BYTES + block_bytes(HARD_STATE_BYTES),
        Command::CloseSession { .. } => COMMAND_BODY_BYTES,
        Command::SetOptions(_) => OPTIONS_BODY_BYTES,
    }
}

/// An append that waits for its entry's commit.
pub(super) struct Waiting {
    pub(super) raft: EntryIndex,
    pub(super) completer: Completer,
    pub(super) outcome: Outcome,
}

impl Replica {
    /// Orders an appended block, or refuses it. Nothing of a refused one is in the log.
    pub(crate) fn propose(
        &mut self,
        gathered: BlockBuilder,
        now: Moment,
        writer: &mut Writer,
    ) -> Result<bool> {
        self.lockstep(now, writer)?;
        let room = match self.refusal() {
            Some(refusal) => Err(refusal),
            None => writer.plan.make_room(gathered.bytes, Purpose::Data, &mut self.sequencer),
        };
        if let Err(refusal) = room {
            self.has_refused(gathered.bytes, &refusal, now);
            gathered.into_pieces(None).1.answer(Outcome::Failed(refusal));
            return Ok(false);
        }
        self.has_taken();
        let time = self.look_at_clock(now);
        let SequencedBlock { block, completer, outcome } = self.sequencer.data(gathered, time);
        if let Some(block) = block {
            self.order(block)?;
        }
        self.wait(completer, outcome);
        self.process(now, writer)?;
        Ok(true)
    }

    /// The purpose of the room for a command: the reserve is for commands that can make room. Other options leave it alone,
    /// for without it nothing could be discarded from a full log.
    pub(crate) fn purpose_of(&self, command: &Command) -> Purpose {
        use LogOption::{CapacityBytes, RetentionAge, RetentionBytes};
        match command {
            Command::Discard { .. } => Purpose::Metadata,
            Command::SetOptions(set) => {
                let before = self.sequencer.options_at_end();
                let differs = |option: &LogOption| set.get(*option) != before.get(*option);
                let makes_room = [RetentionBytes, RetentionAge, CapacityBytes].iter().any(differs);
                if makes_room { Purpose::Metadata } else { Purpose::Data }
            }
            Command::OpenSession { .. } | Command::CloseSession { .. } => Purpose::Data,
        }
    }

    /// Orders a command, or answers it. When a session is to be opened and there is no room, one that never appended goes:
    /// whoever opens sessions and does nothing with them keeps nobody out. That is a command in the log as any other, so
    /// that every replica, whatever its options, has the same sessions.
    pub(crate) fn command(
        &mut self,
        command: Command,
        completer: Option<Completer>,
        now: Moment,
        writer: &mut Writer,
    ) -> Result<()> {
        self.lockstep(now, writer)?;
        let time = self.look_at_clock(now);
        if let Command::OpenSession { .. } = command
            && self.refusal().is_none()
            && let Some(id) = self.sequencer.session_to_go(time)
            // Room for both, or none goes for nothing.
            && writer.plan.make_room(body_bytes_of(&command), self.purpose_of(&command), &mut self.sequencer).is_ok()
        {
            self.command(Command::CloseSession { id }, None, now, writer)?;
            self.lockstep(now, writer)?;
        }
        let room = match command {
            Command::Discard { .. } | Command::SetOptions(_) => body_bytes_of(&command),
            _ => COMMAND_BODY_BYTES, // there was room for the one that had to go
        };
        let room = match self.refusal() {
            Some(refusal) => Err(refusal),
            None => writer.plan.make_room(room, self.purpose_of(&command), &mut self.sequencer),
        };
        let decision = match room {
            Ok(_) => self.sequencer.command(command, time),
            Err(refusal) => Decision::Refused(refusal),
        };
        let outcome = match decision {
            Decision::Write(block, first) => {
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
            self.wait(completer, outcome);
        }
        self.process(now, writer)
    }

    /// The time of what is ordered now.
    fn look_at_clock(&mut self, now: Moment) -> Timestamp {
        self.clock.look(now, self.options.clock.now())
    }

    /// Why this replica orders nothing now. A leader whose ready waits for room refuses discards as well: what raft has already
    /// taken comes before them.
    pub(crate) fn refusal(&self) -> Option<Error> {
        if let Some(why) = self.exclusion() {
            return Some(why.clone());
        }
        if let Some(why) = self.is_held().filter(|_| self.is_leader()) {
            let what = "the replica has no room for what raft writes; the append is not in the log";
            return Some(why.cloned().unwrap_or_else(|| Error::new(ErrorKind::Full, what)));
        }
        if self.is_leader() {
            let to = self.raw.raft.lead_transferee?;
            let what = format!(
                "node {} hands over the lead to node {to}; try again; the append is not in the log",
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
            None => "nobody leads just now".to_owned(),
        };
        let what = format!("node {} is not the leader: {who}; the append is not in the log", self.node());
        Some(Error::new(ErrorKind::NotLeader, what))
    }

    /// Before the sequencer orders anything it has to know what raft put into the log by itself.
    pub(super) fn lockstep(&mut self, now: Moment, writer: &mut Writer) -> Result<()> {
        if self.raw.raft.raft_log.last_index() != self.sequencer.end().raft.0 {
            self.process(now, writer)?;
        }
        Ok(())
    }

    fn order(&mut self, block: NewBlock) -> Result<()> {
        let header = header_of(&block);
        let entry = raft_message::entry(&header, Bytes::new);
        self.staged.push_back(block);
        self.propose_entry(entry)
    }

    pub(super) fn propose_entry(&mut self, entry: Entry) -> Result<()> {
        let mut message = Message { from: self.node().0, ..Message::default() };
        message.set_msg_type(MessageType::MsgPropose);
        message.set_entries(vec![entry].into());
        self.raw.raft.step(message).map_err(|e| {
            // The leader, with nothing under way, has no reason to: the sequencer would be out of step.
            Error::new(ErrorKind::Poisoned, format!("raft refused a proposal of its leader: {e}"))
        })
    }

    fn wait(&mut self, completer: Completer, outcome: Outcome) {
        let raft = self.sequencer.end().raft;
        self.waiting.push_back(Waiting { raft, completer, outcome });
    }

    /// Entries up to `raft` are committed and written: they take effect, and who waits for them is answered by
    /// the caller, after the positions have moved.
    pub(crate) fn commit_to(&mut self, raft: EntryIndex) -> Vec<(Completer, Outcome)> {
        self.sequencer.commit_to(raft);
        let committed = self.sequencer.committed();
        let mut due = Vec::new();
        while let Some(w) = self.waiting.pop_front_if(|w| w.raft <= committed.raft || planted!(9)) {
            due.push((w.completer, w.outcome));
        }
        self.asks.committed(committed.raft, committed.next, &mut due);
        if self.waiting.is_empty() {
            self.lost_lead = None;
        }
        due
    }

    /// Whether anybody waits for an entry to be committed.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Nothing more will come of what is under way.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        for w in self.waiting.drain(..) {
            w.completer.answer(Outcome::Failed(error.clone()));
        }
    }

    /// Nobody will answer what the program asks.
    pub(crate) fn fail_asks(&mut self, error: &Error) {
        self.asks.fail_all(error);
        self.refuse_options(error);
    }

    /// Ceasing to lead, and hearing of no other leader: nobody waits for ever.
    pub(super) fn give_up_waiting(&mut self) {
        self.lost_lead = None;
        for w in self.waiting.drain(..) {
            if planted!(27) {
                w.completer.answer(Outcome::Failed(Error::new(ErrorKind::NotLeader, "refused")));
                continue;
            }
            w.completer.answer(Outcome::Failed(unknown_outcome()));
        }
    }
}

/// A leader was lost before it was known what became of an append.
pub(super) fn unknown_outcome() -> Error {
    let what = "outcome unknown: this replica ceased to lead; the append may or may not be in the log. In a session it \
                can be sent again without harm";
    Error::new(ErrorKind::Unavailable, what)
}
