//! Repairing: a replica whose log does not open for damage. It takes no part: no vote, no lead, no acknowledgement, for
//! raft knows no such thing as an entry that was acknowledged and is not there. It asks the other members for what is
//! missing, puts it back in place, and asks recovery again, until that has nothing to say against the log.
//!
//! ```text
//!   recovery: Corrupt at (file, offset) ──> probe: wound ──> fetch from members ──> fill, mend, sync ──┐
//!       ^                                                                                              │
//!       └──────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Recovery alone decides what is damage; [`diagnose`] finds out what is missing there.
//!
//! # A lost hard state
//!
//! The hole can have held a hard state block: the last term this replica lived in, and whom it voted for. If a later
//! one stands in the log it says all. If not, the replica must not vote again in a term in which it may have voted. So
//! the wound stays open, durably, until enough was heard: a leader's message, and whatever terms the others use and
//! remember of this replica, for two election time-outs at least. The highest of these terms is then written into the
//! hole, with a vote for its leader if that is the leader's term, else for this replica itself: which refuses
//! everybody else in that term, and is nowhere counted.
//!
//! Of two voters none can lead while the other repairs its log, so no leader is heard. The other one is then the only
//! candidate that can have got this replica's vote, and it got it in a term that it has on its disk. So its own term, which
//! its questions before an election tell, is enough, if it too knows these two voters alone ([`Repairing::other_of_two`]).
//! A vote that this replica gave itself in a later term elected nobody: the other one would know that term.
//!
//! What remains: a candidate that got this replica's vote in a still higher term, and of whom nothing is heard in all
//! that time, can come to lead that term by it, and another one be elected in it with a second vote of this replica.
//! That needs a lost hard state block *and* a candidate that is cut off from this replica and from all who answer it,
//! but for the moment in which it asked for the vote and the moments in which it leads.
//!
//! # A superseded end
//!
//! The damaged entries need never have been committed: another leader followed the one that sent them, and its entries are
//! the committed ones. Then nobody has the lost entries, and those of the others do not fit. So they are asked for the
//! committed entries from the one before the hole through the one at its end ([`Wound::rivals`]), as far as the cluster has
//! committed any. Question and answer are of kinds of their own: an answer to another question can hold entries that are not
//! committed, and only raises the doubt. Terms never decrease along a log. So a committed entry of a later term, at the end of the hole or before
//! it, says that the entry at the end was superseded, and all behind it ([`Wound::is_contradicted_by`]). Each leader commits
//! an entry of its own term first: an idle cluster has such an entry as well.
//!
//! The log then goes on in a new segment, as at a conflict: its opening stands where the hole begins, and all behind that
//! place in older segments is dead. So no segment behind the hole may hold what was acknowledged. A hole that spans an
//! earlier cut ends where the next live segment begins, not at a dead block behind it (`Probe`). And
//! nothing is replaced while a segment behind it need not go with its end ([`Wound::goes_with`]). The committed entries that the hole may have held come with it: this replica can have
//! acknowledged them. The others remember how far this replica was in the old term, so it goes on in a newer one, which is
//! learnt as above.
//!
//! Must not know: threads, raft's state.

use crate::batch::{Malformed, u64_at};
use crate::cluster::{Role, Status};
use crate::config::SEGMENT_BYTES_MAX;
use crate::diagnosis::{
    Diagnosis, Finding, all_behind_goes, diagnose, last_membership, newest_state, numbers, state_before,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fetch::{parse_blocks, parse_gone};
use crate::membership::{MEMBERS_MAX, Membership};
use crate::mender::Mender;
use crate::moment::Moment;
use crate::open::{Damaged, Opened};
use crate::raft_codec::{self, HeadKind, header_of};
use crate::replica::Extent;
use crate::store::PROOF_BYTES_MAX;
use crate::store::block::{BlockHeader, Kind};
use crate::store::layout::{HardState, Opening, SEGMENT_HEADER_BYTES, data_limit, digest_of_bytes};
use crate::store::restore::begin_segment;
use crate::store::wound::{Spare, Wound};
use crate::transport::Envelope;
use crate::types::{DirectoryId, Index, NodeId, RaftIndex, Term};
use bytes::Bytes;
use raft::eraftpb::MessageType;
use std::collections::{BTreeMap, BTreeSet};

/// A replica that waits for what it has lost.
pub(crate) struct Repairing {
    damaged: Damaged,
    /// The last one that any sound block tells of, and the entry that it is of.
    membership: Membership,
    membership_at: RaftIndex,
    /// Who was heard, where the membership is not known.
    talkers: BTreeSet<NodeId>,
    treatment: Box<Treatment>,
    heard: Heard,
    /// Up to where others have discarded their logs.
    gone: BTreeMap<NodeId, RaftIndex>,
    /// Until when it listens before it believes to have heard the highest term; from the first turn on.
    listen_until: Option<Moment>,
    greet_at: Option<Moment>,
    pub(crate) repaired: u64,
    outgoing: Vec<Envelope>,
}

/// What is being repaired.
struct Treatment {
    mender: Mender,
    /// The segment's opening block, if that is gone.
    opening: Option<Spare>,
    /// Whether a hard state can have stood here that nothing later supersedes, if there is room for one.
    state_lost: bool,
    /// An answer, perhaps to an earlier question, holds an entry that contradicts what stood here. It need not be committed.
    is_suspected: bool,
    /// Perhaps other entries were committed here.
    doubt: Option<Doubt>,
}

impl Treatment {
    fn of(finding: Finding, damaged: &Damaged) -> Box<Self> {
        let Finding { wound, opening, state_lost } = finding;
        let mender = Mender::new(wound, damaged.cluster.heartbeat * 4, damaged.cluster.message_bytes_max);
        Box::new(Self { mender, opening, state_lost, is_suspected: false, doubt: None })
    }

    /// Takes entries that came for the hole. They need not be committed.
    fn take(&mut self, blocks: Vec<Spare>) {
        if self.doubt.is_none() {
            self.is_suspected |=
                blocks.iter().any(|(header, _)| self.mender.wound.is_contradicted_by(header));
            self.mender.take(blocks);
        }
    }

    /// Takes committed entries, until one contradicts what stood here. All before that one are there then: they can have
    /// stood in the hole.
    fn take_committed(&mut self, blocks: Vec<Spare>) {
        let Some(doubt) = self.doubt.as_mut().filter(|doubt| doubt.contradiction.is_none()) else { return };
        let headers: Vec<BlockHeader> = blocks.iter().map(|(header, _)| *header).collect();
        doubt.rivals.take(blocks);
        let lacks = doubt.rivals.missing();
        let is_taken = |header: &BlockHeader| lacks.is_none_or(|lacks| header.raft_index < lacks);
        let wound = &self.mender.wound;
        doubt.contradiction = headers.into_iter().find(|h| is_taken(h) && wound.is_contradicted_by(h));
    }
}

/// The question whether what stood in a hole was superseded.
struct Doubt {
    /// Gathers committed entries alone.
    rivals: Mender,
    /// Why what came does not fit, if all of it came.
    why: Option<Malformed>,
    /// A committed entry says that what stood in the hole was superseded.
    contradiction: Option<BlockHeader>,
}

impl Doubt {
    /// Whether the answer is known.
    fn is_settled(&self) -> bool {
        self.contradiction.is_some() || self.rivals.missing().is_none()
    }
}

/// The outcome of a doubt.
enum Settled {
    NotYet,
    /// Nothing contradicts what stood in the hole.
    Unfounded,
    /// The log goes on without it.
    Replaced,
}

/// What was heard of terms.
#[derive(Debug, Default)]
struct Heard {
    term: Term,
    leader: Option<(Term, NodeId)>,
    /// The term that each of the others is in itself.
    own: BTreeMap<NodeId, Term>,
    /// The voters that each of the others knows.
    voters: BTreeMap<NodeId, BTreeSet<u64>>,
}

/// All whose votes count.
fn voters_of(membership: &Membership) -> BTreeSet<u64> {
    membership.voters().into_iter().chain(membership.voters_outgoing()).collect()
}

/// What became of a damaged log.
pub(crate) enum Begun {
    /// It could be repaired without the others.
    Opened(Box<Opened>),
    Repairing(Box<Repairing>),
}

impl Repairing {
    /// What is to be done for a log that does not open.
    ///
    /// # Errors
    /// What recovery said, when it cannot be repaired: nobody to ask, or it is not known what is missing.
    pub(crate) fn begin(mut damaged: Damaged) -> Result<Begun> {
        let (membership, membership_at) = last_membership(&damaged)?;
        if membership.is_alone(damaged.cluster.node) {
            return Err(damaged.why);
        }
        let treatment = match diagnose(&mut damaged)? {
            Diagnosis::Opened(opened) => return Ok(Begun::Opened(opened)),
            Diagnosis::Found(finding) => Treatment::of(*finding, &damaged),
        };
        tracing::error!(
            why = %damaged.why, node = %damaged.cluster.node,
            "the log is damaged; this replica takes no part before it has fetched what is missing from others"
        );
        damaged.cluster.transport.members(&membership.members().cloned().collect::<Vec<_>>());
        Ok(Begun::Repairing(Box::new(Self {
            damaged,
            membership,
            membership_at,
            talkers: BTreeSet::new(),
            treatment,
            heard: Heard::default(),
            gone: BTreeMap::new(),
            listen_until: None,
            greet_at: None,
            repaired: 0,
            outgoing: Vec::new(),
        })))
    }

    /// What appends and reads get meanwhile.
    pub(crate) fn refusal(&self) -> Error {
        let why = &self.damaged.why;
        let waits = match (&self.treatment.doubt, self.treatment.mender.missing()) {
            (None, Some(entry)) => format!("it asks the other members for raft entry {entry}"),
            _ => "it waits to hear from a leader".to_owned(),
        };
        let what = format!(
            "this replica is repairing its log and takes no part until it has what is missing: {why}; {waits}. If no member has it any more, remove this node from the cluster, and add a new one with an empty directory"
        );
        Error::new(ErrorKind::Unavailable, what)
    }

    pub(crate) fn damaged(&self) -> &Damaged {
        &self.damaged
    }

    /// Messages to be sent.
    pub(crate) fn take_outgoing(&mut self) -> Vec<Envelope> {
        std::mem::take(&mut self.outgoing)
    }

    /// How it stands.
    pub(crate) fn status(&self) -> Status {
        let Damaged { identity, cluster, .. } = &self.damaged;
        Status {
            log_id: identity.log,
            node: cluster.node,
            directory: identity.directory,
            role: Role::Repairing,
            term: self.heard.term,
            leader: self.heard.leader.map(|(_, leader)| leader),
            committed: Index(0),
            committed_raft: RaftIndex(0),
            last_raft: RaftIndex(0),
            members: self.membership.members().cloned().collect(),
            peers: Vec::new(),
        }
    }

    /// The entry that it lacks, if it asks for one.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn missing(&self) -> Option<RaftIndex> {
        self.treatment.mender.missing()
    }

    /// When [`Self::turn`] has to be called at the latest.
    pub(crate) fn deadline(&self, now: Moment) -> Moment {
        match &self.treatment.doubt {
            Some(doubt) if !doubt.is_settled() => return doubt.rivals.deadline(now),
            None if self.treatment.mender.missing().is_some() => {
                return self.treatment.mender.deadline(now);
            }
            _ => {}
        }
        [self.listen_until, self.greet_at].into_iter().flatten().filter(|at| *at > now).min().unwrap_or(now)
    }

    /// Takes what came and does what there is to do. The log, once it opens.
    ///
    /// # Errors
    /// It cannot be repaired.
    pub(crate) fn turn(
        &mut self,
        now: Moment,
        mail: impl IntoIterator<Item = Envelope>,
    ) -> Result<Option<Opened>> {
        let listening = self.damaged.cluster.election_timeout * 2;
        self.listen_until.get_or_insert(now.plus(listening));
        for envelope in mail {
            if let Err(why) = self.receive(envelope) {
                tracing::debug!(why, "dropped a message");
            }
        }
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
            let others = self.others();
            if let Some((peer, fetch)) = self.treatment.mender.ask(now, &others) {
                self.post(peer, fetch.encode());
            }
            if let Some(entry) = self.treatment.mender.missing() {
                return if self.is_gone_everywhere(entry, &others) {
                    Err(self.is_lost(entry))
                } else {
                    Ok(None)
                };
            }
            let Treatment { mender, opening, state_lost, .. } = &*self.treatment;
            let mut state = None;
            if *state_lost && mender.wound.may_hide_state(mender.spares()) {
                state = self.learnt_state(now);
                if state.is_none() {
                    self.greet(now);
                    return Ok(None);
                }
            }
            let opening = opening.clone().map(|opening| with_state(opening, state)).transpose();
            let bytes = match opening.and_then(|o| mender.wound.fill(o.as_ref(), mender.spares(), state)) {
                Ok(bytes) => bytes,
                Err(why) => {
                    self.doubt(Some(why));
                    continue;
                }
            };
            if !planted!(69) {
                mender.wound.mend(&*self.damaged.disk, &bytes)?;
            }
            self.repaired += 1;
            tracing::warn!(
                file = %mender.wound.path(&*self.damaged.disk).display(), offset = mender.wound.from,
                records = ?mender.wound.records(), "damage was repaired with what another replica has"
            );
            let place = (mender.wound.place.number, mender.wound.from);
            if let Some(opened) = self.look_again(Some(place))? {
                return Ok(Some(opened));
            }
        }
    }

    /// Asks recovery again; what it says now is treated next.
    ///
    /// # Errors
    /// It cannot be repaired, or the damage at `place` (segment, offset), which was repaired, is still there.
    fn look_again(&mut self, place: Option<(u64, usize)>) -> Result<Option<Opened>> {
        if let Some(opened) = self.damaged.open_again()? {
            return Ok(Some(opened));
        }
        (self.membership, self.membership_at) = last_membership(&self.damaged)?;
        match diagnose(&mut self.damaged)? {
            Diagnosis::Opened(opened) => return Ok(Some(*opened)),
            Diagnosis::Found(finding) => self.treatment = Treatment::of(*finding, &self.damaged),
        }
        let wound = &self.treatment.mender.wound;
        if place == Some((wound.place.number, wound.from)) {
            return Err(self.damaged.why.clone());
        }
        Ok(None)
    }

    /// Asks whether other entries were committed where the hole is.
    fn doubt(&mut self, why: Option<Malformed>) {
        let Damaged { cluster, .. } = &self.damaged;
        let rivals = self.treatment.mender.wound.rivals();
        let rivals = Mender::new(rivals, cluster.heartbeat * 4, cluster.message_bytes_max);
        self.treatment.doubt = Some(Doubt { rivals, why, contradiction: None });
    }

    /// Finds out whether what stood in the hole was superseded. If so, the log goes on with what is committed in its place.
    ///
    /// # Errors
    /// It was not superseded, so what came should fit; `Corrupt`: a segment behind it can hold what was acknowledged; `Io`.
    fn settle_doubt(&mut self, now: Moment) -> Result<Settled> {
        let others = self.others();
        let Some(doubt) = &mut self.treatment.doubt else { return Ok(Settled::Unfounded) };
        if !doubt.is_settled() {
            let (question, lacks) = (doubt.rivals.ask(now, &others), doubt.rivals.missing());
            if let Some((peer, fetch)) = question {
                self.post(peer, fetch.encode_committed());
            }
            return match lacks {
                Some(entry) if self.is_gone_everywhere(entry, &others) => Err(self.is_lost(entry)),
                _ => Ok(Settled::NotYet),
            };
        }
        let wound = &self.treatment.mender.wound;
        let Some(contradiction) = doubt.contradiction else {
            if let Some(why) = doubt.why {
                return Err(Error::corrupt(&wound.path(&*self.damaged.disk), wound.from as u64, why));
            }
            self.treatment.doubt = None;
            return Ok(Settled::Unfounded);
        };
        let Some(doubt) = &self.treatment.doubt else { return Ok(Settled::Unfounded) };
        let committed: Vec<_> =
            doubt.rivals.spares().iter().map(|(header, _)| *header).chain([contradiction]).collect();
        let committed_in = committed.iter().map(|header| header.term).max().unwrap_or_default();
        let is_later = |state: &HardState| state.term > wound.anchor.1 && state.term >= committed_in;
        let Some(learnt) = self.learnt_state(now).filter(is_later) else {
            self.greet(now);
            return Ok(Settled::NotYet);
        };
        // The one of the newer term; of the same one, its own vote.
        let own = newest_state(&self.damaged, wound.place.number)?;
        let state = own.filter(|own| own.term >= learnt.term).unwrap_or(learnt);
        if !all_behind_goes(&self.damaged, wound, &committed)? {
            let what = "other entries were committed than stood here, but a later segment can hold acknowledged ones: \
                        remove this node from the cluster, and add a new one with an empty directory";
            return Err(Error::corrupt(&wound.path(&*self.damaged.disk), wound.from as u64, what));
        }
        go_on_before(&self.damaged, wound, wound.following(doubt.rivals.spares()), state)?;
        self.repaired += 1;
        tracing::warn!(
            file = %wound.path(&*self.damaged.disk).display(), offset = wound.from,
            "damage in entries that were never committed: what is committed took their place"
        );
        Ok(Settled::Replaced)
    }

    /// The term and vote to go on with, once enough was heard.
    fn learnt_state(&self, now: Moment) -> Option<HardState> {
        if self.listen_until.is_none_or(|until| now < until) {
            return None;
        }
        let node = self.damaged.cluster.node;
        let (term, vote) = match self.heard.leader {
            Some((term, leader)) if term == self.heard.term => (term, leader),
            Some(_) => (self.heard.term, node),
            None => {
                let own = self.heard.own.get(&self.other_of_two()?)?;
                (self.heard.term.max(*own), node)
            }
        };
        Some(HardState { term, vote: vote.0, commit: RaftIndex(0) })
    }

    /// The other one of two voters, if it knows no others either, nor does the last change of membership in the hole.
    fn other_of_two(&self) -> Option<NodeId> {
        let voters = voters_of(&self.membership);
        let node = self.damaged.cluster.node;
        let other = voters.iter().map(|n| NodeId(*n)).find(|n| *n != node)?;
        let mut changes = self.treatment.mender.spares().iter().rev().filter(|(header, body)| {
            let is_later = header.raft_index > self.membership_at;
            header.kind == Kind::Configuration && is_later && !body.is_empty()
        });
        let last = changes.next().map(|(_, body)| raft_codec::membership_of_change(&body.concat()));
        let agrees = voters.len() == 2
            && voters.contains(&node.0)
            && self.heard.voters.get(&other) == Some(&voters)
            && last.is_none_or(|last| last.is_ok_and(|last| voters_of(&last) == voters));
        agrees.then_some(other)
    }

    /// Asks the others what they remember of this replica.
    fn greet(&mut self, now: Moment) {
        if self.greet_at.is_some_and(|at| now < at) {
            return;
        }
        self.greet_at = Some(now.plus(self.damaged.cluster.heartbeat * 4));
        let head = raft_codec::head(HeadKind::Hello, &[0; 16]);
        for to in self.others() {
            self.post(to, head.clone());
        }
    }

    /// Whether all others have discarded this entry, by their own word.
    fn is_gone_everywhere(&self, entry: RaftIndex, others: &[NodeId]) -> bool {
        let has_not = |node| self.gone.get(node).is_some_and(|upto| *upto >= entry);
        !others.is_empty() && others.iter().all(has_not)
    }

    fn is_lost(&self, entry: RaftIndex) -> Error {
        let Damaged { why, cluster, .. } = &self.damaged;
        let what = format!(
            "{why}; entry {entry}, which is damaged here, was discarded by all other replicas, so it cannot be repaired: \
             remove node {node} from the cluster and add a new one",
            node = cluster.node
        );
        Error::caused(ErrorKind::Corrupt, what, why)
    }

    /// Whom to ask.
    fn others(&self) -> Vec<NodeId> {
        let node = self.damaged.cluster.node;
        let members = self.membership.members().map(|m| m.node);
        members.chain(self.talkers.iter().copied()).filter(|n| *n != node).collect()
    }

    fn post(&mut self, to: NodeId, head: Bytes) {
        let Damaged { identity, cluster, .. } = &self.damaged;
        self.outgoing.push(Envelope {
            log: identity.log,
            from: cluster.node,
            from_directory: identity.directory,
            to,
            to_directory: self.membership.get(to).map_or(DirectoryId(0), |m| m.directory),
            head,
            bodies: Vec::new(),
            urgent: true,
        });
    }

    /// The same checks as raft's messages go through.
    fn receive(&mut self, envelope: Envelope) -> Result<(), Malformed> {
        let Envelope { log, from, from_directory, to, to_directory, head, bodies, urgent: _ } = envelope;
        let Damaged { identity, cluster, .. } = &self.damaged;
        if log != identity.log || to != cluster.node || from == cluster.node || from.is_none() {
            return Err("it is of another log or for another node");
        }
        if to_directory.0 != 0 && to_directory != identity.directory {
            return Err("it is for another directory: this node's disk was emptied or replaced");
        }
        match self.membership.get(from) {
            Some(member) if member.directory.0 != 0 && member.directory != from_directory => {
                return Err("its sender's directory is not the one the cluster knows");
            }
            Some(_) => {}
            // All members that this replica remembers may be gone: one that it never heard of can speak first.
            None if self.talkers.len() < MEMBERS_MAX => {
                self.talkers.insert(from);
            }
            None => return Err("its sender is no member"),
        }
        let (kind, body) = raft_codec::parse_head(&head)?;
        match kind {
            // It remembers nothing of the others, as one that has just started. One that waits for its answer would send it
            // nothing, and it would hear of no leader.
            HeadKind::Hello => {
                let mut known = vec![0; Extent::BYTES + 8];
                known.extend_from_slice(&self.membership.encode());
                self.post(from, raft_codec::head(HeadKind::Known, &known));
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
                let upto = parse_gone(&body)?;
                let known = self.gone.entry(from).or_default();
                *known = upto.max(*known);
            }
            HeadKind::Known if body.len() >= Extent::BYTES => {
                self.heard.term = self.heard.term.max(Term(u64_at(&body, 0)));
                if let Some(Ok(membership)) = body.get(Extent::BYTES + 8..).map(Membership::decode) {
                    self.heard.voters.insert(from, voters_of(&membership));
                }
            }
            HeadKind::Raft => {
                let (message, _) = raft_codec::decode_message(&body, bodies)?;
                if message.from == from.0 && message.to == to.0 {
                    self.hear(from, message.get_msg_type(), Term(message.term));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn hear(&mut self, from: NodeId, kind: MessageType, term: Term) {
        match kind {
            // In the name of the term behind its own, which has not begun.
            MessageType::MsgRequestPreVote => {
                let own = self.heard.own.entry(from).or_default();
                *own = (*own).max(Term(term.0.saturating_sub(1)));
                return;
            }
            MessageType::MsgRequestPreVoteResponse => return,
            MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot
                if self.heard.leader.is_none_or(|(t, _)| t < term) =>
            {
                self.heard.leader = Some((term, from));
            }
            _ => {}
        }
        self.heard.term = self.heard.term.max(term);
    }
}

/// An opening block with another hard state.
fn with_state((header, body): Spare, state: Option<HardState>) -> Result<Spare, Malformed> {
    let Some(state) = state else { return Ok((header, body)) };
    let mut opening = Opening::parse(&body.concat())?;
    opening.hard_state = HardState { commit: opening.hard_state.commit, ..state };
    let body = opening.encode();
    let body_digest = digest_of_bytes(&[&body]);
    Ok((BlockHeader { body_digest, ..header }, vec![Bytes::from(body)]))
}

/// Has the log go on where a hole begins, in a new segment that holds `state` and the committed entries that follow. All
/// behind that place in older segments is dead from the moment on in which the new file has its name: a crash before it
/// changes nothing.
///
/// The hole may have held committed entries that this replica acknowledged. So at least as many bytes of entries as it had
/// are put back, and more as far as there is room.
///
/// # Errors
/// `Io`; `Corrupt`: the state before the hole cannot be told, or the committed entries do not follow each other.
fn go_on_before(damaged: &Damaged, wound: &Wound, committed: &[Spare], state: HardState) -> Result<()> {
    let wrong = |why: &str| Error::corrupt(&wound.path(&*damaged.disk), wound.from as u64, why.to_owned());
    let sequencer =
        state_before(damaged, wound)?.ok_or_else(|| wrong("nothing tells the state before the damage"))?;
    let block = sequencer.opening();
    let mut blocks = vec![with_state((header_of(&block), block.body), Some(state)).map_err(wrong)?];
    let fixed = SEGMENT_HEADER_BYTES + blocks[0].0.stride() + PROOF_BYTES_MAX;
    let mut bytes = wound.place.bytes.max(damaged.options.segment_bytes);
    if data_limit(bytes as usize) < fixed + wound.bytes() {
        bytes = bytes.saturating_mul(2).min(SEGMENT_BYTES_MAX.max(bytes));
    }
    let room = data_limit(bytes as usize).saturating_sub(fixed);
    let mut taken = 0;
    for (header, body) in committed {
        let follows = blocks.last().is_some_and(|(before, _)| {
            header.raft_index == before.raft_index.next() && header.term >= before.term
        });
        if !follows {
            return Err(wrong("committed entries do not follow each other"));
        }
        taken += header.stride();
        if taken > room {
            if taken <= wound.bytes() {
                return Err(wrong("no room for committed entries in place of a superseded end"));
            }
            break;
        }
        blocks.push((*header, body.clone()));
    }
    let number = numbers(damaged)?.last().map_or(1, |last| last + 1);
    begin_segment(&*damaged.disk, damaged.identity.log, number, bytes, &blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn no_op(raft: u64, term: u64) -> Spare {
        let header = BlockHeader {
            length: crate::store::block::BLOCK_HEADER_BYTES as u32,
            batch_count: 0,
            raft_index: RaftIndex(raft),
            term: Term(term),
            first: Index(7),
            timestamp: crate::types::Timestamp(5),
            record_count: 0,
            durable_upto: 0,
            body_digest: digest_of_bytes(&[]),
            kind: Kind::NoOp,
        };
        (header, Vec::new())
    }

    /// Entries 10 to 12 are missing, and entry 13, of term 3, follows; whether they were superseded is in doubt.
    fn in_doubt() -> Treatment {
        let wound = Wound::of_entries((RaftIndex(9), Term(2)), (RaftIndex(13), Term(3)));
        let mender = |wound| Mender::new(wound, Duration::from_secs(1), 1 << 20);
        let doubt = Doubt { rivals: mender(wound.rivals()), why: None, contradiction: None };
        let (opening, state_lost, is_suspected) = (None, false, false);
        Treatment { mender: mender(wound), opening, state_lost, is_suspected, doubt: Some(doubt) }
    }

    fn rivals(treatment: &Treatment) -> (usize, bool) {
        let doubt = treatment.doubt.as_ref().unwrap();
        (doubt.rivals.spares().len(), doubt.is_settled())
    }

    #[test]
    fn entries_that_need_not_be_committed_settle_no_doubt() {
        let mut treatment = in_doubt();
        let blocks = || vec![no_op(9, 2), no_op(10, 4), no_op(11, 4)];
        treatment.take(blocks());
        assert_eq!(rivals(&treatment), (0, false));
        treatment.take_committed(blocks());
        assert_eq!(rivals(&treatment), (3, true));
        treatment.take_committed(vec![no_op(12, 4)]);
        assert_eq!(rivals(&treatment), (3, true), "nothing more is taken");
    }

    /// Entries before it can have stood in the hole, and be acknowledged.
    #[test]
    fn contradiction_counts_once_all_before_it_is_there() {
        let mut treatment = in_doubt();
        treatment.take_committed(vec![no_op(12, 4)]);
        assert_eq!(rivals(&treatment), (0, false));
        treatment.take_committed(vec![no_op(9, 2), no_op(10, 2), no_op(11, 2), no_op(12, 4)]);
        assert_eq!(rivals(&treatment), (4, true));
    }

    #[test]
    fn segment_that_can_be_acknowledged_stays() {
        let wound = Wound::of_entries((RaftIndex(9), Term(2)), (RaftIndex(13), Term(3)));
        let goes = |raft, term, committed: &[Spare]| {
            let base =
                crate::store::segment::Base { raft: RaftIndex(raft), term: Term(term), next: Index(7) };
            let committed: Vec<_> = committed.iter().map(|(header, _)| *header).collect();
            wound.goes_with(base, &committed)
        };
        let committed = [no_op(9, 2), no_op(10, 2), no_op(11, 5)];
        assert!(goes(13, 3, &committed) && goes(20, 4, &committed));
        assert!(!goes(10, 2, &committed), "it begins in the hole, behind a committed entry");
        assert!(goes(11, 3, &committed), "another entry is committed where it begins");
        assert!(!goes(20, 5, &committed), "it begins in the term of the committed entries");
    }
}
