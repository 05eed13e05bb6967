//! Skipping: a replica that is new, or was away, is not sent what is stored. It begins behind that, and reads it from the object store.
//!
//! ```text
//! leader                                     replica, new or far behind
//! ------                                     --------------------------
//! entries, or MaySkip ---------------------> can I read the object store?
//!                                  <-------- yes: ReadsStored, with its last entry
//! the opening of the newest segment
//! that begins behind stored entries -------> jumps there
//! ```
//!
//! A replica without any entry asks itself when entries arrive, and takes none meanwhile. Another one is told by MaySkip, once it lacks
//! all entries of a segment, and they are stored; it takes entries meanwhile. It jumps only if it would skip as many bytes as it keeps at
//! most, `local_bytes`: the files that it has would go in any case. A replica says that it reads what is stored only if it has
//! reached the object store, and does not keep all records in its own files. An opening that is lost, or refused, is sent up to three
//! times; then the replica gets all entries, as it does if there is no such opening. The leader forgets what a replica has said when that
//! greets it: then it has started, perhaps without a store.
//!
//! Invariants:
//! - what is skipped is in objects that a committed entry says to be stored. So the replica has all entries of each object that is not
//!   stored, as all others that skipped none of these;
//! - no entry of an object is skipped that may have to be made again, nor a later one: the files of that replica could be the last copy.
//!   A jump also removes the files of the replica that jumps: it says nothing while they have such entries.

use super::Replica;
use crate::options::Options;
use crate::record::batch::Malformed;
use crate::replica::wire::object_message::{
    encode_may_skip, encode_reads_stored, parse_may_skip, parse_reads_stored,
};
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, NodeId, Term};
use raft::eraftpb::{Message, MessageType};
use raft::{Progress, ProgressState};
use std::time::Duration;

/// How long a new replica takes no entries because the object store does not answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a leader sends none because it does not know which objects are damaged.
const DECIDE_TIMEOUT: Duration = Duration::from_secs(2);
/// How soon what may be lost is said again.
const SAY_AGAIN: Duration = Duration::from_secs(5);

/// The state of skipping.
#[derive(Debug, Default)]
pub(super) struct Skipping {
    /// At a new replica: whether it can read the object store. None: it is not known.
    reads_store: Option<bool>,
    /// Until when the answer is awaited. None: it is not asked.
    asked_until: Option<Moment>,
    /// The leader, and its term, that know it, and when it is said again.
    told: Option<(u64, u64, Moment)>,
    /// At a replica that is far behind: the leader, and its term, that let it skip entries.
    let_by: Option<(NodeId, Term)>,
    /// At a leader: when it next tells replicas that are far behind that they may skip entries.
    tell_at: Moment,
}

/// Whether a replica with these options begins behind what is stored.
fn skips_stored(options: &Options) -> bool {
    let keeps_all =
        options.local_bytes.is_none() && options.local_age.is_none() && options.fill_bytes.is_none();
    options.vault.is_some() && !keeps_all
}

impl Replica {
    /// Whether this replica waits to know whether it can read the object store instead of entries.
    pub(crate) fn asks_for_store(&self) -> bool {
        let is_asked = self.skipping.asked_until.is_some() && self.skipping.reads_store.is_none();
        self.is_new() && is_asked || self.skipping.let_by.is_some()
    }

    /// Says whether it can, and whether other replicas can do without its files. None: that is not known; a new replica asks again.
    pub(crate) fn found_store(&mut self, can_skip: Option<bool>) {
        if self.is_new() {
            self.skipping.reads_store = can_skip;
        }
        if let Some((leader, term)) = self.skipping.let_by.take()
            && can_skip == Some(true)
        {
            self.post(leader, encode_reads_stored(term, self.last_entry()));
        }
    }

    fn last_entry(&self) -> EntryIndex {
        EntryIndex(self.raw.raft.raft_log.last_index())
    }

    /// Whether this replica has no entry.
    pub(crate) fn is_new(&self) -> bool {
        self.last_entry().0 == 0
    }

    /// At a leader: tells replicas that lack all entries of a segment that is stored that they may skip them.
    pub(super) fn let_laggards_skip(&mut self, now: Moment) {
        let stored = self.sequencer.committed().objects.stored_upto();
        let Some(stored) = stored.filter(|_| self.is_leader() && self.skipping.tell_at <= now) else {
            return;
        };
        let lacks_segment = |progress: &Progress| {
            let matched = EntryIndex(progress.matched);
            let is_sent =
                matched.0 > 0 && progress.state != ProgressState::Snapshot && progress.recent_active;
            self.raw.store().can_skip(stored, matched).filter(|_| is_sent)
        };
        let all = self.raw.raft.prs().iter().map(|(node, progress)| (NodeId(*node), progress));
        let sent_all = |node: NodeId| node == self.node() || self.raw.store().openings.gave_up(node);
        let laggards = all.filter(|(node, _)| !sent_all(*node));
        let laggards: Vec<_> =
            laggards.filter_map(|(node, progress)| Some((node, lacks_segment(progress)?))).collect();
        if !laggards.is_empty() {
            self.skipping.tell_at = now.plus(SAY_AGAIN);
        }
        for (node, bytes) in laggards {
            self.post(node, encode_may_skip(self.term(), bytes));
        }
    }

    pub(super) fn on_may_skip(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let (term, bytes) = parse_may_skip(body)?;
        let keeps_less =
            self.options.vault.is_some() && self.options.local_bytes.is_some_and(|max| max <= bytes);
        if term == self.term() && !self.is_leader() && keeps_less {
            self.skipping.let_by = Some((from, term));
        }
        Ok(())
    }

    /// At a leader: whether a replica waits to know how far it can skip entries. If so, whether it has waited for long.
    pub(crate) fn skip_is_wanted(&mut self, now: Moment) -> Option<bool> {
        let openings = &mut self.raw.mut_store().openings;
        openings.renew(now, now.plus(DECIDE_TIMEOUT));
        openings.decide_until().map(|until| until <= now)
    }

    /// Forgets which replicas skip entries: the next leader decides again.
    pub(crate) fn end_skips(&mut self) {
        self.raw.mut_store().openings.end_all_but(|_| false);
    }

    /// Decides how far replicas skip entries. None: not at all.
    pub(crate) fn decide_skip(&mut self, stored: Option<EntryIndex>, now: Moment) {
        let stored = if planted!(155) { Some(self.sequencer.committed().raft) } else { stored };
        for node in self.raw.store().openings.undecided() {
            let progress = self.raw.raft.prs().get(node.0);
            let (Some(stored), Some(progress)) = (stored, progress) else {
                self.send_all(node);
                continue;
            };
            let matched = EntryIndex(progress.matched);
            let openings = &mut self.raw.mut_store().openings;
            let last = openings.last_of(node).unwrap_or_default().max(matched);
            openings.decide(node, last, stored, now.plus(DECIDE_TIMEOUT));
            match self.raw.store().has_opening_for(node) {
                true => self.have_opening_sent(node),
                false => self.send_all(node),
            }
        }
    }

    /// Has raft send an opening instead of entries.
    fn have_opening_sent(&mut self, to: NodeId) {
        if let Some(progress) = self.raw.raft.mut_prs().get_mut(to.0)
            && progress.state != ProgressState::Snapshot
        {
            progress.pending_request_snapshot = 1;
        }
    }

    /// Whether raft does not get a message: this replica has no entry, and its leader is to leave out what is stored. It sends entries
    /// again.
    pub(super) fn awaits_opening(&mut self, message: &Message, now: Moment) -> bool {
        let is_append = message.get_msg_type() == MessageType::MsgAppend;
        if !is_append || !self.is_new() || !skips_stored(&self.options) {
            return false;
        }
        match self.skipping.reads_store {
            None => now < *self.skipping.asked_until.get_or_insert(now.plus(ASK_TIMEOUT)),
            Some(false) => false,
            Some(true) => {
                let is_told =
                    |(leader, term, again)| (leader, term) == (message.from, message.term) && now < again;
                if self.skipping.told.is_some_and(is_told) {
                    return false;
                }
                self.skipping.told = Some((message.from, message.term, now.plus(SAY_AGAIN)));
                self.post(NodeId(message.from), encode_reads_stored(Term(message.term), EntryIndex(0)));
                message.index == 0 // raft rejects entries behind others
            }
        }
    }

    /// A leader that was greeted has forgotten what this replica said.
    pub(super) fn say_again(&mut self) {
        self.skipping.told = None;
    }

    pub(super) fn on_reads_stored(
        &mut self,
        from: NodeId,
        body: &[u8],
        now: Moment,
    ) -> Result<(), Malformed> {
        let (term, last) = parse_reads_stored(body)?;
        if term == self.term() && self.is_leader() {
            self.request_opening(from, last, now);
        }
        Ok(())
    }

    /// Has raft send an opening to a replica whose last entry is `last`. Until it is decided which one, a replica without any entry is
    /// sent nothing.
    fn request_opening(&mut self, to: NodeId, last: EntryIndex, now: Moment) {
        let Some(progress) = self.raw.raft.prs().get(to.0) else { return };
        let is_new = last.0 == 0;
        if progress.state == ProgressState::Snapshot
            || is_new && progress.matched > 0
            || self.raw.store().openings.gave_up(to)
        {
            return;
        }
        self.raw.mut_store().openings.request(to, last, now.plus(DECIDE_TIMEOUT));
        if is_new {
            self.have_opening_sent(to);
        }
    }

    /// An opening is under way.
    pub(super) fn sent_opening(&mut self, to: NodeId, at: EntryIndex) {
        self.raw.mut_store().openings.has_sent(to, at);
        self.forget_opening(to);
    }

    /// An opening was lost, or refused.
    pub(super) fn lost_opening(&mut self, to: NodeId, now: Moment) {
        match self.raw.mut_store().openings.lost(to) {
            Some(last) => self.request_opening(to, last, now),
            None => self.forget_opening(to),
        }
    }

    /// A replica has entries up to `last`: perhaps it needs no opening any more.
    pub(super) fn acknowledged(&mut self, from: NodeId, last: EntryIndex) {
        if self.raw.mut_store().openings.acknowledged(from, last) {
            self.forget_opening(from);
        }
    }

    /// Has raft send entries after all where there is no opening.
    pub(super) fn give_up_openings(&mut self) {
        for node in self.raw.store().openings.take_missing() {
            self.send_all(NodeId(node));
        }
    }

    /// A replica has started, perhaps without an object store: it is sent all entries, until it says otherwise.
    pub(super) fn has_started(&mut self, node: NodeId) {
        self.send_all(node);
        self.skipping.tell_at = Moment::default();
    }

    /// A replica is sent all entries.
    fn send_all(&mut self, to: NodeId) {
        self.forget_opening(to);
        self.raw.mut_store().openings.end(to);
    }

    /// Nodes that are no members skip nothing: another one may get the number.
    pub(super) fn end_skips_of_others(&mut self) {
        let members = self.membership.clone();
        self.raw.mut_store().openings.end_all_but(|node| members.get(node).is_some());
    }

    fn forget_opening(&mut self, to: NodeId) {
        if let Some(progress) = self.raw.raft.mut_prs().get_mut(to.0) {
            progress.pending_request_snapshot = 0;
        }
    }
}
