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
//! the wound stays open, durably, until enough was heard: a leader that was heard within the last election time-out, and
//! whatever terms the others are in, use, greet with and remember of this replica, for two election time-outs at least. A
//! question before an election tells the term that its candidate is in: one behind it. The highest of these terms is then
//! written into the hole, with a vote for its leader if that is the leader's term, else for this replica itself: which
//! refuses everybody else in that term, and is nowhere counted.
//!
//! Invariant: what this replica writes never takes back what its disk still says ([`binding`]). Every sound block counts
//! for that, one that a conflict cut off too: this replica was in its term, and gave the vote that it tells of.
//!
//! Of two voters none can lead while the other repairs its log: a leader from before steps down after an election
//! time-out, and then none is heard. Of today's voters the other one is then the only candidate that can have got this
//! replica's vote, and it asked only once its term was on its disk. So its own term, which its questions before an election
//! tell, is enough, if it too knows these two voters alone ([`Repairing::other_of_two`]). A vote that this replica gave itself
//! in a later term elected nobody: the other one would have had to vote as well, and would know that term. If both have lost
//! their hard states, both wait, for neither tells a term of its own.
//!
//! One risk remains: a candidate that got this replica's vote in a still higher term, and of which nothing is heard in all
//! that time, can come to lead that term by it, and another one be elected in it with a second vote of this replica.
//! That needs a lost hard state block *and* a candidate that is cut off from this replica and from all that answer it,
//! except in the moment in which it asked for the vote and the moments in which it leads. Where two voters are left, this
//! candidate is one that was a voter before, and has not heard of its removal.
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
//! # Members
//!
//! The membership can have changed while this replica was away, and the change that made it a member can be in the hole:
//! then no sound block names any member. So it greets those that it knows of, and everybody that sends it anything, again and
//! again. A member answers with the newest membership that it knows, and those members are asked from then on. A leader
//! answers a replica that was removed with that word, and the replica ends its repair there. A removal of all other voters that is
//! not known to be committed leaves them members: they cannot lead without this replica.
//!
//! Must not know: threads, raft's state.

use crate::batch::{Malformed, u64_at};
use crate::cluster::{Cluster, Role, Status};
use crate::config::SEGMENT_BYTES_MAX;
use crate::diagnosis::{
    Diagnosis, Finding, all_behind_goes, diagnose, membership_on, newest_state, numbers, state_before,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fetch::{parse_blocks, parse_gone};
use crate::membership::{MEMBERS_MAX, Member, Membership};
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
    /// The last one that sound blocks tell of ([`membership_on`]), and the entry that it is of. Empty: no block tells of one.
    membership: Membership,
    membership_at: RaftIndex,
    /// The newest one that others have told of since, and as of which committed entry.
    told: Option<(RaftIndex, Membership)>,
    /// Nodes that were heard and are in neither.
    talkers: BTreeSet<NodeId>,
    treatment: Box<Treatment>,
    heard: Heard,
    /// The highest term that this disk tells of, once that was looked for.
    disk_term: Option<Term>,
    /// Up to where others have discarded their logs.
    gone: BTreeMap<NodeId, RaftIndex>,
    /// Until when it listens before it believes to have heard the highest term; from the first turn on.
    listen_until: Option<Moment>,
    greet_at: Option<Moment>,
    /// Why it takes no part any more, repaired or not.
    out: Option<Error>,
    pub(crate) repaired: u64,
    outgoing: Vec<Envelope>,
}

/// The repair of one wound.
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

/// All that others have said of terms.
#[derive(Debug, Default)]
struct Heard {
    /// The highest one. Whatever names a term raises it: a term that is too high takes no promise back.
    term: Term,
    leader: Option<Leader>,
    /// The highest one that the others have from this replica: it was on its disk.
    remembered: Term,
    /// Those that have told the term that they are in themselves.
    own: BTreeSet<NodeId>,
    /// The newest voters that each of the others has told of, and as of which committed entry.
    voters: BTreeMap<NodeId, (RaftIndex, BTreeSet<u64>)>,
}

/// The leader of the highest term that one was heard in.
#[derive(Debug, Clone, Copy)]
struct Leader {
    term: Term,
    node: NodeId,
    /// When it was heard last.
    at: Moment,
}

/// All whose votes count.
fn voters_of(membership: &Membership) -> BTreeSet<u64> {
    membership.voters().into_iter().chain(membership.voters_outgoing()).collect()
}

/// The beginning of a repair.
pub(crate) enum Begun {
    /// It could be repaired without the others.
    Opened(Box<Opened>),
    Repairing(Box<Repairing>),
}

impl Repairing {
    /// Begins with what is to be done for a log that does not open.
    ///
    /// # Errors
    /// What recovery said, when it cannot be repaired: nobody to ask, or it is not known what is missing.
    pub(crate) fn begin(mut damaged: Damaged) -> Result<Begun> {
        let (membership, membership_at) = membership_on(&damaged)?;
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
            told: None,
            talkers: BTreeSet::new(),
            treatment,
            heard: Heard::default(),
            disk_term: None,
            gone: BTreeMap::new(),
            listen_until: None,
            greet_at: None,
            out: None,
            repaired: 0,
            outgoing: Vec::new(),
        })))
    }

    /// The error that appends and reads get meanwhile.
    pub(crate) fn refusal(&self) -> Error {
        if let Some(out) = &self.out {
            return out.clone();
        }
        let why = &self.damaged.why;
        let waits = match (&self.treatment.doubt, self.treatment.mender.missing()) {
            (None, Some(entry)) => format!("it asks the other members for raft entry {entry}"),
            _ => "it waits to hear from a leader, whom the other voters elect once they are a majority without it".to_owned(),
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
            role: if self.out.is_some() { Role::Removed } else { Role::Repairing },
            term: self.heard.term,
            leader: self.heard.leader.map(|leader| leader.node),
            committed: Index(0),
            committed_raft: RaftIndex(0),
            last_raft: RaftIndex(0),
            members: self.newest_membership().0.members().cloned().collect(),
            peers: Vec::new(),
        }
    }

    /// The entry that it lacks, if it asks for one.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn missing(&self) -> Option<RaftIndex> {
        self.treatment.mender.missing()
    }

    /// When [`Self::turn`] has to be called at the latest. None: nothing is left to do.
    pub(crate) fn deadline(&self, now: Moment) -> Option<Moment> {
        if self.out.is_some() {
            return None;
        }
        let mender = &self.treatment.mender;
        let next = match &self.treatment.doubt {
            Some(doubt) if !doubt.is_settled() => Some(doubt.rivals.deadline(now)),
            None if mender.missing().is_some() => Some(mender.deadline(now)),
            _ => self.listen_until.filter(|at| *at > now),
        };
        Some(next.into_iter().chain(self.greet_at).min().unwrap_or(now))
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
            let others = self.others();
            if let Some((peer, fetch)) = self.treatment.mender.ask(now, &others) {
                self.post(peer, fetch.encode());
            }
            if let Some(entry) = self.treatment.mender.missing() {
                return if self.is_gone_everywhere(entry) { Err(self.is_lost(entry)) } else { Ok(None) };
            }
            let Treatment { mender, opening, state_lost, .. } = &*self.treatment;
            let mut state = None;
            if *state_lost && mender.wound.may_hide_state(mender.spares()) {
                let Some(learnt) = self.learnt_state(now) else { return Ok(None) };
                state = Some(self.bound_by_disk(learnt)?);
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
        (self.membership, self.membership_at) = membership_on(&self.damaged)?;
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
                Some(entry) if self.is_gone_everywhere(entry) => Err(self.is_lost(entry)),
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
        // The state that was learnt is from after the entry that was superseded, and from no earlier term than the entries that
        // come. It need not be later than all that this disk tells of: nobody else may have come to a term that this replica voted in.
        let is_later = |state: &HardState| state.term > wound.anchor.1 && state.term >= committed_in;
        let Some(learnt) = self.learnt_state(now).filter(is_later) else { return Ok(Settled::NotYet) };
        let state = self.bound_by_disk(learnt)?;
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

    /// The term and vote to go on with, once enough was heard. A leader that is silent by then may be none any more.
    fn learnt_state(&self, now: Moment) -> Option<HardState> {
        if self.listen_until.is_none_or(|until| now < until) {
            return None;
        }
        let Cluster { node, election_timeout, .. } = self.damaged.cluster;
        let vote = match self.heard.leader.filter(|leader| now.since(leader.at) <= election_timeout) {
            Some(leader) if leader.term == self.heard.term => leader.node,
            Some(_) => node,
            None => self.heard.own.contains(&self.other_of_two()?).then_some(node)?,
        };
        Some(HardState { term: self.heard.term, vote: vote.0, commit: RaftIndex(0) })
    }

    /// The state that was learnt, as far as this disk does not bind the replica to more.
    fn bound_by_disk(&self, learnt: HardState) -> Result<HardState> {
        let own = newest_state(&self.damaged, &self.treatment.mender.wound)?;
        Ok(own.map_or(learnt, |own| binding(own, learnt, self.damaged.cluster.node)))
    }

    /// The other one of two voters, if it knows no others either, and nobody tells of others since.
    fn other_of_two(&self) -> Option<NodeId> {
        let node = self.damaged.cluster.node;
        let (other, voters) = self.heard.voters.iter().find_map(|(other, (_, voters))| {
            (*voters == BTreeSet::from([other.0, node.0])).then_some((*other, voters))
        })?;
        let told = self.told.as_ref().is_none_or(|(_, told)| voters_of(told) == *voters);
        (told && voters_of(&self.membership_in_log()?) == *voters).then_some(other)
    }

    /// The membership that the log leads to with what came for the hole: the last change in the hole counts, if it is later than
    /// those that sound blocks tell of. While a superseded end is replaced, all behind the hole can be superseded too: so it
    /// is that of before the hole, with the changes among the committed entries.
    fn membership_in_log(&self) -> Option<Membership> {
        let Treatment { mender, doubt, .. } = &*self.treatment;
        let (entries, mut membership) = match doubt {
            None => (mender.spares(), self.membership.clone()),
            Some(doubt) => {
                let before = state_before(&self.damaged, &mender.wound).ok()??;
                (doubt.rivals.spares(), before.membership_at_end().clone())
            }
        };
        let counts = |header: &BlockHeader| doubt.is_some() || header.raft_index > self.membership_at;
        for (_, body) in entries.iter().filter(|(h, _)| h.kind == Kind::Configuration && counts(h)) {
            membership = match body.is_empty() {
                true => membership.left(),
                false => raft_codec::membership_of_change(&body.concat()).ok()?,
            };
        }
        Some(membership)
    }

    /// Asks the others what they remember of this replica, and who belongs to the cluster.
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

    /// Whether all other members have discarded this entry, by their own word. Each has also told as of which committed entry it
    /// knows which members, so that none is left out; one that repairs its own log tells as of none. Talkers that nobody names
    /// do not count: one that was removed says no more.
    fn is_gone_everywhere(&self, entry: RaftIndex) -> bool {
        let node = self.damaged.cluster.node;
        let others: Vec<_> = self.newest_membership().0.members().filter(|m| m.node != node).collect();
        let has_told = |m: &Member| self.heard.voters.get(&m.node).is_some_and(|(at, _)| at.0 > 0);
        let has_not = |m: &&Member| has_told(m) && self.gone.get(&m.node).is_some_and(|upto| *upto >= entry);
        !others.is_empty() && others.iter().all(has_not)
    }

    fn is_lost(&self, entry: RaftIndex) -> Error {
        let Damaged { why, cluster, .. } = &self.damaged;
        let what = format!(
            "{why}; all other replicas have discarded entry {entry}, without which this cannot be repaired: remove node {node} from the cluster and add a new one",
            node = cluster.node
        );
        Error::caused(ErrorKind::Corrupt, what, why)
    }

    /// The newest membership that is known, and the entry that it is of; empty if none is.
    fn newest_membership(&self) -> (&Membership, RaftIndex) {
        let told = self.told.as_ref().filter(|(at, _)| *at > self.membership_at);
        told.map_or((&self.membership, self.membership_at), |(at, told)| (told, *at))
    }

    /// A member as the newest membership that names it has it.
    fn member(&self, node: NodeId) -> Option<&Member> {
        self.newest_membership().0.get(node).or_else(|| self.membership.get(node))
    }

    /// The replicas to ask.
    fn others(&self) -> Vec<NodeId> {
        let node = self.damaged.cluster.node;
        let members = self.newest_membership().0.members().map(|m| m.node);
        let others: BTreeSet<NodeId> = members.chain(self.talkers.iter().copied()).collect();
        others.into_iter().filter(|n| *n != node).collect()
    }

    fn post(&mut self, to: NodeId, head: Bytes) {
        let Damaged { identity, cluster, .. } = &self.damaged;
        self.outgoing.push(Envelope {
            log: identity.log,
            from: cluster.node,
            from_directory: identity.directory,
            to,
            to_directory: self.member(to).map_or(DirectoryId(0), |m| m.directory),
            head,
            bodies: Vec::new(),
            urgent: true,
        });
    }

    /// The same checks as raft's messages go through.
    fn receive(&mut self, envelope: Envelope, now: Moment) -> Result<(), Malformed> {
        let Envelope { log, from, from_directory, to, to_directory, head, bodies, urgent: _ } = envelope;
        let Damaged { identity, cluster, .. } = &self.damaged;
        if log != identity.log || to != cluster.node || from == cluster.node || from.is_none() {
            return Err("it is of another log or for another node");
        }
        if to_directory.0 != 0 && to_directory != identity.directory {
            return Err("it is for another directory: this node's disk was emptied or replaced");
        }
        match self.member(from) {
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
            // nothing, and it would hear of no leader. A candidate that has started again may say no more of its term than this.
            HeadKind::Hello => {
                self.heard.term = self.heard.term.max(Extent::parse(&body)?.term);
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
                let remembered = Extent::parse(&body[..Extent::BYTES])?.term;
                self.heard.remembered = self.heard.remembered.max(remembered);
                self.heard.term = self.heard.term.max(remembered);
                if let Some(Ok(membership)) = body.get(Extent::BYTES + 8..).map(Membership::decode) {
                    let at = RaftIndex(u64_at(&body, Extent::BYTES));
                    if self.heard.voters.get(&from).is_none_or(|(before, _)| *before <= at) {
                        self.heard.voters.insert(from, (at, voters_of(&membership)));
                    }
                    self.hear_of_members(at, membership);
                }
            }
            HeadKind::Removed => self.told_removed(from, &body)?,
            HeadKind::Raft => {
                let (message, _) = raft_codec::decode_message(&body, bodies)?;
                if message.from == from.0 && message.to == to.0 {
                    self.hear(from, message.get_msg_type(), Term(message.term), now);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Another replica has told who belongs to the cluster as of this committed entry.
    fn hear_of_members(&mut self, at: RaftIndex, membership: Membership) {
        if at > self.newest_membership().1 && membership.members().next().is_some() {
            self.damaged.cluster.transport.members(&membership.members().cloned().collect::<Vec<_>>());
            self.told = Some((at, membership));
        }
    }

    /// A leader says that this replica is no member any more. As in a replica that takes part: one that knows less of the
    /// log cannot know that, nor can one that was deposed before the last term that this replica was in.
    fn told_removed(&mut self, from: NodeId, body: &[u8]) -> Result<(), Malformed> {
        let notice = body.first_chunk::<16>().ok_or("notice is cut off")?;
        let (committed, term) = (RaftIndex(u64_at(notice, 0)), Term(u64_at(notice, 8)));
        let node = self.damaged.cluster.node;
        let (newest, at) = self.newest_membership();
        let is_stranger = newest.get(from).is_none() && newest.get(node).is_some();
        let leads_in = self.heard.leader.map_or(Term(0), |leader| leader.term);
        let is_deposed = term < leads_in.max(self.heard.remembered);
        if is_stranger || committed < at || is_deposed || term < self.disk_term()? {
            return Err("a notice of removal from a node that cannot know");
        }
        let what = format!(
            "node {node} takes no part any more: the leader says that it was removed from the cluster; its log is damaged, \
             and nobody repairs it: {}",
            self.damaged.why
        );
        tracing::warn!("{what}");
        self.out = Some(Error::new(ErrorKind::Removed, what));
        Ok(())
    }

    /// The highest term that this disk tells of. The first call reads all behind the damage.
    fn disk_term(&mut self) -> Result<Term, Malformed> {
        if self.disk_term.is_none() {
            let wound = &self.treatment.mender.wound;
            let newest =
                newest_state(&self.damaged, wound).map_err(|_| "this disk's term could not be read")?;
            self.disk_term = Some(newest.map_or(wound.anchor.1, |state| state.term.max(wound.anchor.1)));
        }
        Ok(self.disk_term.unwrap_or_default())
    }

    fn hear(&mut self, from: NodeId, kind: MessageType, term: Term, now: Moment) {
        let term = match kind {
            // In the name of the term behind its own, which has not begun.
            MessageType::MsgRequestPreVote => {
                self.heard.own.insert(from);
                Term(term.0.saturating_sub(1))
            }
            MessageType::MsgRequestPreVoteResponse => return,
            _ => term,
        };
        let is_leaders =
            matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot);
        if is_leaders && self.heard.leader.is_none_or(|leader| leader.term <= term) {
            self.heard.leader = Some(Leader { term, node: from, at: now });
        }
        self.heard.term = self.heard.term.max(term);
    }
}

/// Term and vote that hold both what was learnt and what this replica's disk says. If that is of a later term, or of the same
/// one with a vote, it stands. A vote in that term can have been lost all the same, so this replica votes for nobody else in it.
fn binding(own: HardState, learnt: HardState, node: NodeId) -> HardState {
    let holds = own.term > learnt.term || own.term == learnt.term && own.vote != 0;
    let vote = if own.vote == 0 { node.0 } else { own.vote };
    if holds { HardState { term: own.term, vote, ..learnt } } else { learnt }
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

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;
