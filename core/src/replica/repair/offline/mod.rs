//! Offline repair: a replica whose log does not open because of damage. It takes no part: it does not vote, lead or
//! acknowledge, because raft has no concept of an acknowledged entry that is missing. It requests the missing entries
//! from the other members, writes them in place, and runs recovery again, until recovery accepts the log.
//!
//! ```text
//!   recovery: Corrupt at (file, offset) ──> probe: gap ──> fetch from members ──> fill, write, sync ──┐
//!       ^                                                                                             │
//!       └─────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Only recovery decides what is damage; [`diagnose`] determines which entries are missing.
//!
//! [`terms`]: the term and vote of a replica that has lost its own. [`superseded`]: damage in entries that were never
//! committed. [`jumped`]: lost openings behind a jump. [`members`]: the replicas to ask. [`treatment`]: the repair of one gap.
//!
//! Must not know: threads, raft's state.

mod jumped;
mod members;
mod superseded;
mod terms;
mod treatment;

use crate::cluster::membership::Membership;
use crate::cluster::options::{ReplicaStatus, Role};
use crate::cluster::transport::Envelope;
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::{Malformed, u64_at};
use crate::replica::open::{DamagedLog, RecoveredLog};
use crate::replica::raft::Extent;
use crate::replica::repair::diagnosis::{
    Diagnosis, all_behind_goes, committed_by_changes, diagnose, membership_on, newest_state, state_before,
};
use crate::replica::wire::raft_message;
use crate::replica::wire::raft_message::HeadKind;
use crate::replica::wire::repair_message::{parse_blocks, parse_gone};
use crate::store::format::segment::HardState;
use crate::sync::clock::Moment;
use crate::types::{DirectoryId, EntryIndex, Index, NodeId, Term};
use bytes::Bytes;
use jumped::fill_behind_jump;
use members::Members;
use superseded::{Doubt, replace_from_gap};
use terms::{Terms, binding, with_state};
use treatment::Treatment;

/// A replica that waits for the entries that it has lost.
pub(crate) struct Repairing {
    damaged: DamagedLog,
    members: Members,
    treatment: Box<Treatment>,
    terms: Terms,
    /// The highest term on this disk, once it was determined.
    disk_term: Option<Term>,
    greet_at: Option<Moment>,
    /// The reason why it takes no part any more, repaired or not.
    out: Option<Error>,
    pub(crate) repaired: u64,
    outgoing: Vec<Envelope>,
}

/// The outcome of the question whether a gap was superseded.
enum Settled {
    NotYet,
    /// No committed entry contradicts the entries of the gap.
    Unfounded,
    /// The log continues with the committed entries instead.
    Replaced,
}

/// The start of a repair.
pub(crate) enum Begun {
    /// The log was repaired without the others.
    Repaired(Box<RecoveredLog>),
    Repairing(Box<Repairing>),
}

impl Repairing {
    /// Starts the repair of a log that does not open.
    ///
    /// # Errors
    /// The error of recovery, if the damage cannot be repaired: there is no replica to ask, or it is not known what is
    /// missing.
    pub(crate) fn begin(mut damaged: DamagedLog) -> Result<Begun> {
        let members = Members::new(damaged.cluster.node, membership_on(&damaged)?);
        if members.in_log.0.is_alone(damaged.cluster.node) {
            return Err(damaged.why);
        }
        let treatment = match diagnose(&mut damaged)? {
            Diagnosis::Repaired(opened) => return Ok(Begun::Repaired(opened)),
            Diagnosis::Found(finding) => Treatment::of(*finding, &damaged),
        };
        tracing::error!(
            why = %damaged.why, node = %damaged.cluster.node,
            "the log is damaged; this replica takes no part until it has fetched the missing entries from others"
        );
        damaged.cluster.transport.members(&members.possible().cloned().collect::<Vec<_>>());
        let terms = Terms::new(damaged.cluster.election_timeout);
        Ok(Begun::Repairing(Box::new(Self {
            damaged,
            members,
            treatment,
            terms,
            disk_term: None,
            greet_at: None,
            out: None,
            repaired: 0,
            outgoing: Vec::new(),
        })))
    }

    /// The error of appends and reads during the repair.
    pub(crate) fn refusal(&self) -> Error {
        if let Some(out) = &self.out {
            return out.clone();
        }
        let why = &self.damaged.why;
        let waits = match (&self.treatment.doubt, self.treatment.fetcher.missing()) {
            (None, Some(entry)) => format!("it asks the other members for raft entry {entry}"),
            _ => {
                "it waits to hear a leader, which the other voters elect once they are a majority without it"
                    .to_owned()
            }
        };
        let what = format!(
            "this replica is repairing its log and takes no part until it has the missing entries: {why}; {waits}. If no member has them any more, remove this node from the cluster, and add a new one with an empty directory"
        );
        Error::new(ErrorKind::Unavailable, what)
    }

    pub(crate) fn damaged(&self) -> &DamagedLog {
        &self.damaged
    }

    /// Takes the messages to be sent.
    pub(crate) fn take_outgoing(&mut self) -> Vec<Envelope> {
        std::mem::take(&mut self.outgoing)
    }

    /// The status of the replica.
    pub(crate) fn status(&self) -> ReplicaStatus {
        ReplicaStatus {
            node: self.damaged.cluster.node,
            role: if self.out.is_some() { Role::Removed } else { Role::Repairing },
            term: self.terms.highest(),
            leader: self.terms.leader(),
            committed_index: Index(0),
            committed_entry: EntryIndex(0),
            last_entry: EntryIndex(0),
            members: self.members.newest().0.members().cloned().collect(),
            peers: Vec::new(),
        }
    }

    /// The next missing entry, if it requests one.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn missing(&self) -> Option<EntryIndex> {
        let Treatment { fetcher, doubt, .. } = &*self.treatment;
        doubt.as_ref().map_or(fetcher, |doubt| &doubt.rivals).missing()
    }

    /// When [`Self::step`] has to be called at the latest. None: there is nothing left to do.
    pub(crate) fn deadline(&self, now: Moment) -> Option<Moment> {
        if self.out.is_some() {
            return None;
        }
        let fetcher = &self.treatment.fetcher;
        let next = match &self.treatment.doubt {
            Some(doubt) if !doubt.is_settled() => Some(doubt.rivals.deadline(now)),
            None if fetcher.missing().is_some() => Some(fetcher.deadline(now)),
            _ => self.terms.listens_until().filter(|at| *at > now),
        };
        Some(next.into_iter().chain(self.greet_at).min().unwrap_or(now))
    }

    /// Processes messages and makes one step. Returns the log once it opens.
    ///
    /// # Errors
    /// The log cannot be repaired.
    pub(crate) fn step(
        &mut self,
        now: Moment,
        events: impl IntoIterator<Item = Envelope>,
    ) -> Result<Option<RecoveredLog>> {
        self.terms.listen(now);
        for envelope in events {
            if let Err(why) = self.receive(envelope, now) {
                tracing::debug!(why, "dropped a message");
            }
        }
        if self.out.is_some() {
            return Ok(None);
        }
        self.greet(now);
        loop {
            if self.treatment.doubt.is_some() {
                match self.settle_doubt(now)? {
                    Settled::NotYet => return Ok(None),
                    Settled::Unfounded => {}
                    Settled::Replaced => {
                        if let Some(opened) = self.look_again(None)? {
                            return Ok(Some(opened));
                        }
                    }
                }
                continue;
            }
            if std::mem::take(&mut self.treatment.is_suspected) {
                self.doubt(None);
                continue;
            }
            let others = self.members.others();
            if let Some((peer, fetch)) = self.treatment.fetcher.next_request(now, &others) {
                self.post(peer, fetch.encode());
            }
            if let Some(entry) = self.treatment.fetcher.missing() {
                return if self.members.is_gone_everywhere(entry) {
                    Err(self.is_lost(entry))
                } else {
                    Ok(None)
                };
            }
            let Treatment { fetcher, opening, state_lost, .. } = &*self.treatment;
            let mut state = None;
            if *state_lost && fetcher.gap.may_hide_state(fetcher.spares()) {
                let Some(learnt) = self.learnt_state(now)? else { return Ok(None) };
                state = Some(self.bound_by_disk(learnt)?);
            }
            let opening = opening.clone().map(|opening| with_state(opening, state)).transpose();
            let (gap, spares) = (&fetcher.gap, fetcher.spares());
            let filled = match opening.and_then(|o| gap.fill(o.as_ref(), spares, state)) {
                Ok(bytes) => Ok(bytes),
                Err(why) => fill_behind_jump(&self.damaged, gap, spares, state)?.ok_or(why),
            };
            let bytes = match filled {
                Ok(bytes) => bytes,
                Err(why) => {
                    self.doubt(Some(why));
                    continue;
                }
            };
            if !planted!(69) {
                fetcher.gap.rewrite(&*self.damaged.disk, &bytes)?;
            }
            self.repaired += 1;
            tracing::warn!(
                file = %fetcher.gap.path(&*self.damaged.disk).display(), offset = fetcher.gap.from,
                records = ?fetcher.gap.records(), "damage was repaired with entries of another replica"
            );
            let place = (fetcher.gap.place.number, fetcher.gap.from);
            if let Some(opened) = self.look_again(Some(place))? {
                return Ok(Some(opened));
            }
        }
    }

    /// Runs recovery again. The next step treats what it reports.
    ///
    /// # Errors
    /// The log cannot be repaired, or the damage at `place` (segment, offset), which was repaired, is still there.
    fn look_again(&mut self, place: Option<(u64, usize)>) -> Result<Option<RecoveredLog>> {
        if let Some(opened) = self.damaged.open_again()? {
            return Ok(Some(opened));
        }
        self.members.in_log = membership_on(&self.damaged)?;
        match diagnose(&mut self.damaged)? {
            Diagnosis::Repaired(opened) => return Ok(Some(*opened)),
            Diagnosis::Found(finding) => self.treatment = Treatment::of(*finding, &self.damaged),
        }
        let gap = &self.treatment.fetcher.gap;
        if place == Some((gap.place.number, gap.from)) {
            return Err(self.damaged.why.clone());
        }
        Ok(None)
    }

    /// Starts to ask whether other entries were committed in the gap.
    fn doubt(&mut self, why: Option<Malformed>) {
        let gap = &self.treatment.fetcher.gap;
        self.treatment.doubt = Some(Doubt::of(gap, why, &self.damaged.cluster));
    }

    /// Determines whether the entries of the gap were superseded. If so, the log continues with the committed entries
    /// instead.
    ///
    /// # Errors
    /// The entries were not superseded, so the received ones should fit but do not; `Corrupt`: a segment after the gap
    /// may hold acknowledged entries; `Io`.
    fn settle_doubt(&mut self, now: Moment) -> Result<Settled> {
        let others = self.members.others();
        let Some(doubt) = &mut self.treatment.doubt else { return Ok(Settled::Unfounded) };
        if !doubt.is_settled() {
            let (question, lacks) = (doubt.rivals.next_request(now, &others), doubt.rivals.missing());
            if let Some((peer, fetch)) = question {
                self.post(peer, fetch.encode_committed());
            }
            return match lacks {
                Some(entry) if self.members.is_gone_everywhere(entry) => Err(self.is_lost(entry)),
                _ => Ok(Settled::NotYet),
            };
        }
        let gap = &self.treatment.fetcher.gap;
        let Some(contradiction) = doubt.contradiction else {
            if let Some(why) = doubt.why {
                return Err(Error::corrupt(&gap.path(&*self.damaged.disk), gap.from as u64, why));
            }
            self.treatment.doubt = None;
            return Ok(Settled::Unfounded);
        };
        let Some(doubt) = &self.treatment.doubt else { return Ok(Settled::Unfounded) };
        let committed: Vec<_> =
            doubt.rivals.spares().iter().map(|(header, _)| *header).chain([contradiction]).collect();
        let committed_in = committed.iter().map(|header| header.term).max().unwrap_or_default();
        // The learnt term has to be later than the superseded entry's, and no earlier than those of the committed
        // entries. It may be earlier than a term on this disk: possibly no other replica has reached a term in which
        // this one voted.
        let is_later = |state: &HardState| state.term > gap.anchor.1 && state.term >= committed_in;
        let Some(learnt) = self.learnt_state(now)?.filter(is_later) else { return Ok(Settled::NotYet) };
        let state = self.bound_by_disk(learnt)?;
        if !all_behind_goes(&self.damaged, gap, &committed)? {
            let what = "other entries were committed in place of the damaged ones, but a later segment may hold acknowledged ones: \
                        remove this node from the cluster, and add a new one with an empty directory";
            return Err(Error::corrupt(&gap.path(&*self.damaged.disk), gap.from as u64, what));
        }
        replace_from_gap(&self.damaged, gap, gap.entries_after_gap(doubt.rivals.spares()), state)?;
        self.repaired += 1;
        tracing::warn!(
            file = %gap.path(&*self.damaged.disk).display(), offset = gap.from,
            "damage in entries that were never committed: the committed entries have replaced them"
        );
        Ok(Settled::Replaced)
    }

    /// The term and vote to continue with, once enough was heard.
    fn learnt_state(&self, now: Moment) -> Result<Option<HardState>> {
        self.terms.learnt(now, self.damaged.cluster.node, || self.other_of_two())
    }

    /// The learnt state, unless this disk binds the replica to a later one; with the commit index that its log shows.
    fn bound_by_disk(&self, learnt: HardState) -> Result<HardState> {
        if planted!(72) {
            return Ok(learnt);
        }
        let Treatment { fetcher, doubt, .. } = &*self.treatment;
        let entries = doubt.as_ref().map_or(fetcher, |doubt| &doubt.rivals).spares();
        let commit = committed_by_changes(&self.damaged, &fetcher.gap, entries)?;
        let learnt = HardState { commit, ..learnt };
        let own = newest_state(&self.damaged, &fetcher.gap)?;
        Ok(own.map_or(learnt, |own| binding(own, learnt, self.damaged.cluster.node)))
    }

    /// The other one of two voters. While a superseded end is replaced, the committed entries apply to the membership
    /// before the gap, not to the last one in the log.
    fn other_of_two(&self) -> Result<Option<NodeId>> {
        let Treatment { fetcher, doubt, .. } = &*self.treatment;
        self.members.other_of_two(|| {
            let Some(doubt) = doubt else { return Ok(self.members.after(fetcher.spares(), None)) };
            let before = state_before(&self.damaged, &fetcher.gap)?;
            Ok(before.and_then(|before| {
                self.members.after(doubt.rivals.spares(), Some(before.membership_at_end().clone()))
            }))
        })
    }

    /// Asks the others what they remember of this replica, and for the membership.
    fn greet(&mut self, now: Moment) {
        if self.greet_at.is_some_and(|at| now < at) {
            return;
        }
        self.greet_at = Some(now.plus(self.damaged.cluster.heartbeat * 4));
        let head = raft_message::head(HeadKind::Hello, &[0; 16]);
        for to in self.members.others() {
            self.post(to, head.clone());
        }
    }

    fn is_lost(&self, entry: EntryIndex) -> Error {
        let DamagedLog { why, cluster, .. } = &self.damaged;
        let what = format!(
            "{why}; all other replicas have discarded entry {entry}, or have it in the object store alone, and the repair needs it: remove node {node} from the cluster and add a new one",
            node = cluster.node
        );
        Error::with_source(ErrorKind::Corrupt, what, why)
    }

    fn post(&mut self, to: NodeId, head: Bytes) {
        let DamagedLog { identity, cluster, .. } = &self.damaged;
        self.outgoing.push(Envelope {
            log: identity.log,
            from: cluster.node,
            from_directory: identity.directory,
            to,
            to_directory: self.members.get(to).map_or(DirectoryId(0), |m| m.directory),
            head,
            bodies: Vec::new(),
            urgent: true,
        });
    }

    /// Receives a message, after the same checks as for raft messages.
    fn receive(&mut self, envelope: Envelope, now: Moment) -> Result<(), Malformed> {
        let Envelope { log, from, from_directory, to, to_directory, head, bodies, urgent: _ } = envelope;
        let DamagedLog { identity, cluster, .. } = &self.damaged;
        if log != identity.log || to != cluster.node || from == cluster.node || from.is_none() {
            return Err("message is of another log or for another node");
        }
        if to_directory.0 != 0 && to_directory != identity.directory {
            return Err("message is for another directory: this node's disk was emptied or replaced");
        }
        self.members.record_sender(from, from_directory)?;
        let (kind, body) = raft_message::parse_head(&head)?;
        match kind {
            // It answers that it remembers nothing of the others, like a replica that has just started. A sender that
            // waits for this answer would otherwise send nothing, and this replica would hear no leader. A restarted
            // candidate may report its term only here.
            HeadKind::Hello => {
                self.terms.name(Extent::parse(&body)?.term);
                let mut known = vec![0; Extent::BYTES + 8];
                known.extend_from_slice(&self.members.in_log.0.encode());
                self.post(from, raft_message::head(HeadKind::Known, &known));
            }
            HeadKind::Blocks => {
                let blocks = parse_blocks(&body, bodies)?;
                self.treatment.take(blocks);
            }
            HeadKind::Committed => {
                let blocks = parse_blocks(&body, bodies)?;
                self.treatment.take_committed(blocks);
            }
            HeadKind::Gone => {
                self.members.has_discarded(from, parse_gone(&body)?);
            }
            HeadKind::Known if body.len() >= Extent::BYTES => {
                self.terms.remember(Extent::parse(&body[..Extent::BYTES])?.term);
                if let Some(Ok(membership)) = body.get(Extent::BYTES + 8..).map(Membership::decode)
                    && self.members.record_membership(
                        from,
                        EntryIndex(u64_at(&body, Extent::BYTES)),
                        membership,
                    )
                {
                    let all: Vec<_> = self.members.possible().cloned().collect();
                    self.damaged.cluster.transport.members(&all);
                }
            }
            HeadKind::Removed => self.on_removed(from, &body)?,
            HeadKind::Version if body.is_empty() => {
                self.post(from, raft_message::reads_version(self.damaged.options.segment_bytes));
            }
            HeadKind::Raft => {
                let (message, _) = raft_message::decode_message(&body, bodies)?;
                if message.from == from.0 && message.to == to.0 {
                    self.terms.on_message(from, message.get_msg_type(), Term(message.term), now);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Receives a leader's notice that this replica is no member any more. As in a running replica, a sender that knows
    /// less of the log cannot know this. Neither can a leader that was deposed before the last term of this replica.
    fn on_removed(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let notice = body.first_chunk::<16>().ok_or("removal notice is cut off")?;
        let (committed, term) = (EntryIndex(u64_at(notice, 0)), Term(u64_at(notice, 8)));
        let node = self.damaged.cluster.node;
        let (newest, at) = self.members.newest();
        let is_stranger = newest.get(from).is_none() && newest.get(node).is_some();
        if is_stranger || committed < *at || self.terms.is_deposed(term) || term < self.disk_term()? {
            return Err("removal notice from a node that cannot know");
        }
        let what = format!(
            "node {node} takes no part any more: the leader reports that it was removed from the cluster; its log is damaged, \
             and will not be repaired: {}",
            self.damaged.why
        );
        tracing::warn!("{what}");
        self.out = Some(Error::new(ErrorKind::Removed, what));
        Ok(())
    }

    /// The highest term on this disk. The first call reads all blocks after the damage.
    fn disk_term(&mut self) -> Result<Term, Malformed> {
        if self.disk_term.is_none() {
            let gap = &self.treatment.fetcher.gap;
            let newest =
                newest_state(&self.damaged, gap).map_err(|_| "this disk's term could not be read")?;
            self.disk_term = Some(newest.map_or(gap.anchor.1, |state| state.term.max(gap.anchor.1)));
        }
        Ok(self.disk_term.unwrap_or_default())
    }
}

#[cfg(all(test, feature = "testing", not(loom)))]
mod tests;
