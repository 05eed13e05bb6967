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
//! A segment file that is missing or too short is first given its length again ([`make_whole`]), where a later segment says
//! what it held.
//!
//! Recovery alone decides what is damage; this only acts on what it says.
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
//! What remains: a candidate that got this replica's vote in a still higher term, and of whom nothing is heard in all
//! that time, can come to lead that term by it, and another one be elected in it with a second vote of this replica.
//! That needs a lost hard state block *and* a candidate that is cut off from this replica and from all who answer it,
//! but for the moment in which it asked for the vote and the moments in which it leads.
//!
//! # A superseded end
//!
//! What was damaged need never have been committed: the leader that sent it was followed by another one, whose entries are
//! the committed ones. Then nobody has what stood there, and what others have does not fit. So they are asked for the
//! committed entries from the one before the hole through the one at its end ([`Wound::rivals`]). If the one at the end is
//! not what stands here, all from there on was superseded: the committed entries take the place of the hole and of what is
//! behind it. The others remember how far this replica was in the old term, so it goes on in a newer one, which is learnt as
//! above.
//!
//! Must not know: threads, raft's state.

use crate::batch::{Malformed, u64_at};
use crate::cluster::{Role, Status};
use crate::error::{Error, ErrorKind, Result};
use crate::fetch::{parse_blocks, parse_gone};
use crate::membership::{MEMBERS_MAX, Membership};
use crate::mender::Mender;
use crate::moment::Moment;
use crate::open::{Damaged, Opened};
use crate::raft_codec::{self, HeadKind, header_of};
use crate::replica::Extent;
use crate::sequence::{Me, Replayed, Sequencer};
use crate::store::PROOF_BYTES_MAX;
use crate::store::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::files::{self, Files};
use crate::store::layout::{HardState, Opening, SEGMENT_HEADER_BYTES, digest_of_bytes};
use crate::store::scan::{Found, Scanner};
use crate::store::segment::{Base, file_name, file_number};
use crate::store::walk::{Learn, Walk};
use crate::store::wound::{Look, Place, Probe, Spare, Wound, make_whole, mend_header};
use crate::transport::Envelope;
use crate::types::{DirectoryId, Index, NodeId, RaftIndex, SegmentId, Term};
use bytes::Bytes;
use raft::eraftpb::MessageType;
use std::collections::{BTreeMap, BTreeSet};

/// Read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// A replica that waits for what it has lost.
pub(crate) struct Repairing {
    damaged: Damaged,
    membership: Membership,
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
    /// What came does not fit: perhaps other entries were committed here.
    doubt: Option<Doubt>,
}

/// The question whether what stood in a hole was superseded.
struct Doubt {
    rivals: Mender,
    /// Answers to earlier questions are let pass before it is asked.
    ask_at: Moment,
    /// Why what came does not fit.
    why: Malformed,
}

/// What was heard of terms.
#[derive(Debug, Default)]
struct Heard {
    term: Term,
    leader: Option<(Term, NodeId)>,
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
        let membership = last_membership(&damaged)?;
        if membership.is_alone(damaged.cluster.node) {
            return Err(damaged.why);
        }
        let treatment = match diagnose(&mut damaged)? {
            Diagnosis::Opened(opened) => return Ok(Begun::Opened(opened)),
            Diagnosis::Treat(treatment) => treatment,
        };
        tracing::error!(
            why = %damaged.why, node = %damaged.cluster.node,
            "the log is damaged; this replica takes no part before it has fetched what is missing from others"
        );
        damaged.cluster.transport.members(&membership.members().cloned().collect::<Vec<_>>());
        Ok(Begun::Repairing(Box::new(Self {
            damaged,
            membership,
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
        let what = format!(
            "this replica is repairing its log and takes no part until it has what is missing: {}",
            self.damaged.why
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
        if let Some(doubt) = self.treatment.doubt.as_ref().filter(|d| d.rivals.missing().is_some()) {
            return doubt.ask_at.max(doubt.rivals.deadline(now));
        }
        if self.treatment.mender.missing().is_some() {
            return self.treatment.mender.deadline(now);
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
            if self.treatment.doubt.is_some() {
                if !self.settle_doubt(now)? {
                    return Ok(None);
                }
                if let Some(opened) = self.look_again(None)? {
                    return Ok(Some(opened));
                }
                continue;
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
            let wrong =
                |why| Error::corrupt(&mender.wound.path(&*self.damaged.disk), mender.wound.from as u64, why);
            let bytes = match opening.and_then(|o| mender.wound.fill(o.as_ref(), mender.spares(), state)) {
                Ok(bytes) => bytes,
                Err(why) if mender.wound.can_be_superseded() => {
                    let Damaged { cluster, .. } = &self.damaged;
                    let rivals = mender.wound.rivals();
                    let rivals = Mender::new(rivals, cluster.heartbeat * 4, cluster.message_bytes_max);
                    let ask_at = now.plus(cluster.election_timeout);
                    self.treatment.doubt = Some(Doubt { rivals, ask_at, why });
                    continue;
                }
                Err(why) => return Err(wrong(why)),
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
        match diagnose(&mut self.damaged)? {
            Diagnosis::Opened(opened) => return Ok(Some(*opened)),
            Diagnosis::Treat(treatment) => self.treatment = treatment,
        }
        let wound = &self.treatment.mender.wound;
        if place == Some((wound.place.number, wound.from)) {
            return Err(self.damaged.why.clone());
        }
        Ok(None)
    }

    /// Finds out whether what stood in the hole was superseded, and puts what is committed in its place. False: not yet.
    ///
    /// # Errors
    /// It was not superseded, so what came should fit; or `Io`.
    fn settle_doubt(&mut self, now: Moment) -> Result<bool> {
        let others = self.others();
        let Some(doubt) = &mut self.treatment.doubt else { return Ok(false) };
        if now < doubt.ask_at {
            return Ok(false);
        }
        let question = doubt.rivals.ask(now, &others);
        let lacks = doubt.rivals.missing();
        if let Some((peer, fetch)) = question {
            self.post(peer, fetch.encode());
        }
        if let Some(entry) = lacks {
            return if self.is_gone_everywhere(entry, &others) {
                Err(self.is_lost(entry))
            } else {
                Ok(false)
            };
        }
        let learnt = self.learnt_state(now);
        let wound = &self.treatment.mender.wound;
        let Some(doubt) = &self.treatment.doubt else { return Ok(false) };
        let Some(entries) = wound.superseded_by(doubt.rivals.spares()) else {
            return Err(Error::corrupt(&wound.path(&*self.damaged.disk), wound.from as u64, doubt.why));
        };
        let committed_in = entries.last().map_or(Term(0), |(header, _)| header.term);
        let is_later = |state: &HardState| state.term > wound.anchor.1 && state.term >= committed_in;
        let Some(learnt) = learnt.filter(is_later) else {
            self.greet(now);
            return Ok(false);
        };
        // The one of the newer term; of the same one, its own vote.
        let mut probe = Probe::new(&*self.damaged.disk, wound.place.clone(), PIECE_BYTES)?;
        let own = probe.states(SEGMENT_HEADER_BYTES)?.max_by_key(|state| state.term);
        let state = own.filter(|own| own.term >= learnt.term).unwrap_or(learnt);
        wound.supersede(&*self.damaged.disk, entries, state, PROOF_BYTES_MAX)?;
        self.repaired += 1;
        tracing::warn!(
            file = %wound.path(&*self.damaged.disk).display(), offset = wound.from,
            "damage in entries that were never committed: what is committed took their place"
        );
        Ok(true)
    }

    /// The term and vote to go on with, once enough was heard.
    fn learnt_state(&self, now: Moment) -> Option<HardState> {
        let (term, leader) =
            self.heard.leader.filter(|_| self.listen_until.is_some_and(|until| now >= until))?;
        let vote = if term == self.heard.term { leader } else { self.damaged.cluster.node };
        Some(HardState { term: self.heard.term, vote: vote.0, commit: RaftIndex(0) })
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
                match &mut self.treatment.doubt {
                    Some(doubt) if doubt.rivals.has_asked() => doubt.rivals.take(blocks),
                    Some(_) => {}
                    None => self.treatment.mender.take(blocks),
                }
            }
            HeadKind::Gone => {
                let upto = parse_gone(&body)?;
                let known = self.gone.entry(from).or_default();
                *known = upto.max(*known);
            }
            HeadKind::Known if body.len() >= 16 => {
                self.heard.term = self.heard.term.max(Term(u64_at(&body, 0)));
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
            // In the name of a term that has not begun.
            MessageType::MsgRequestPreVote | MessageType::MsgRequestPreVoteResponse => return,
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

/// What is to be done next.
enum Diagnosis {
    /// Nothing: the log is open.
    Opened(Box<Opened>),
    Treat(Box<Treatment>),
}

/// Finds what is wrong where recovery says that something is. What needs nobody else is repaired at once.
fn diagnose(damaged: &mut Damaged) -> Result<Diagnosis> {
    loop {
        let why = damaged.why.clone();
        let place = why.place().and_then(|(path, at)| Some((file_number(path.file_name()?.to_str()?)?, at)));
        let Some((number, at)) = place else { return Err(why) };
        let Some(opened) = open_file(damaged, number) else {
            let is_mended = at < SEGMENT_HEADER_BYTES as u64
                && mend_header(&*damaged.disk, damaged.identity.log, number).is_ok();
            if !is_mended {
                restore(damaged, number)?;
            }
            match damaged.open_again()? {
                Some(opened) => return Ok(Diagnosis::Opened(Box::new(opened))),
                None => continue,
            }
        };
        let end = open_file(damaged, number + 1).and_then(|next| base_of(&next)).map(|base| (None, base));
        let mut place = Place { number, id: opened.header.id, bytes: opened.header.bytes, base: None, end };
        let Some((mut wound, mut probe)) = examine(damaged, &place)? else { return Err(why) };
        let mut last = end.is_none();
        if wound.is_opening()
            && let Some((before, base)) = sealed_before(damaged, number)
        {
            // The opening is made of what stands before it, so that has to be sound first.
            match examine(damaged, &before)? {
                Some(found) => {
                    (wound, probe) = found;
                    last = false;
                }
                None => {
                    place.base = Some(base);
                    let Some(found) = examine(damaged, &place)? else { return Err(why) };
                    (wound, probe) = found;
                }
            }
        }
        let state_lost = last && !probe.state_follows(wound.to.unwrap_or(wound.from))?;
        let opening = match wound.is_opening() {
            true => Some(made_again(damaged, &wound)?.ok_or(why)?),
            false => None,
        };
        let cluster = &damaged.cluster;
        let mender = Mender::new(wound, cluster.heartbeat * 4, cluster.message_bytes_max);
        return Ok(Diagnosis::Treat(Box::new(Treatment { mender, opening, state_lost, doubt: None })));
    }
}

/// Gives a segment file that is missing or too short its length again: what it lacks is fetched then. Only of one that
/// another segment follows: that one begins where this one ended, and holds a later hard state. Of the last one nothing
/// tells what this replica had acknowledged there, nor for whom it had voted.
///
/// # Errors
/// `Corrupt`: it is the last one, or something else is wrong with the file; `Io`.
fn restore(damaged: &Damaged, number: u64) -> Result<()> {
    let why = &damaged.why;
    let refuse = |what: &str| {
        let what = format!(
            "{why}; {what}: remove this node from the cluster, and add a new one with an empty directory"
        );
        Err(Error::caused(ErrorKind::Corrupt, what, why))
    };
    let Some(next) = open_file(damaged, number + 1).filter(|next| base_of(next).is_some()) else {
        return refuse(
            "no segment follows it, so nothing tells what this replica acknowledged and voted there",
        );
    };
    let before = sealed_before(damaged, number).map(|(place, _)| place);
    let is_gone = matches!(damaged.disk.list(), Ok(names) if !names.contains(&file_name(number)));
    if is_gone && before.is_none() {
        return refuse("the segment before it does not tell where it began");
    }
    let bytes = next.header.bytes.max(before.map_or(0, |before| before.bytes));
    if !make_whole(&*damaged.disk, damaged.identity.log, number, bytes)? {
        return refuse("nothing tells what stood there");
    }
    tracing::warn!(
        segment = number,
        "a segment file was missing or too short: it is filled with what others have"
    );
    Ok(())
}

/// The first wound of a segment, if there is any about which something can be told.
fn examine(damaged: &Damaged, place: &Place) -> Result<Option<(Wound, Probe)>> {
    let mut probe = Probe::new(&*damaged.disk, place.clone(), PIECE_BYTES)?;
    let wound = match probe.look_on()? {
        Look::Broken(cause) => probe.wound(cause)?,
        Look::More | Look::Sound => None,
    };
    Ok(wound.map(|wound| (wound, probe)))
}

/// The segment before `number`, if its footer tells where it ends; and what comes after it.
fn sealed_before(damaged: &Damaged, number: u64) -> Option<(Place, Base)> {
    let before = file_before(damaged, number)?;
    let footer = before.footer?;
    let base = Base { raft: footer.last_raft, term: footer.last_term, next: footer.next };
    let end = Some((Some(footer.data_end as usize), base));
    let (id, bytes) = (before.header.id, before.header.bytes);
    Some((Place { number: before.header.number, id, bytes, base: None, end }, base))
}

/// The nearest segment before `number` that holds something of the log. Numbers between them can have belonged to segments
/// that a conflict cut off: those are gone, or begin where a later segment does.
fn file_before(damaged: &Damaged, number: u64) -> Option<files::Opened> {
    let names = damaged.disk.list().ok()?;
    let next = open_file(damaged, number + 1).and_then(|next| base_of(&next));
    let is_dead = |file: &files::Opened| {
        let begins = file.footer.as_ref().map(|footer| footer.base_raft);
        next.is_some_and(|next| begins.is_some_and(|begins| begins >= next.raft))
    };
    let numbers: BTreeSet<u64> =
        names.iter().filter_map(|n| file_number(n)).filter(|n| *n < number).collect();
    for before in numbers.into_iter().rev() {
        let file = open_file(damaged, before)?;
        if !is_dead(&file) {
            return Some(file);
        }
    }
    None
}

/// A segment file whose fixed parts are sound.
fn open_file(damaged: &Damaged, number: u64) -> Option<files::Opened> {
    let files = Files { disk: &*damaged.disk, identity: damaged.identity, names: BTreeMap::new() };
    files.open(number, false).ok().flatten()
}

/// Where a segment begins, if its opening block is sound.
fn base_of(file: &files::Opened) -> Option<Base> {
    match file.scanner().block(SEGMENT_HEADER_BYTES) {
        Ok(Found::Block(h, _)) if h.kind == Kind::Opening => {
            Some(Base { raft: h.raft_index, term: h.term, next: h.first })
        }
        _ => None,
    }
}

/// The opening block that is gone, from what the segment before it leads to.
fn made_again(damaged: &Damaged, wound: &Wound) -> Result<Option<Spare>> {
    let Some(before) = file_before(damaged, wound.place.number) else { return Ok(None) };
    let sequencer = Sequencer::new(Me::Node(damaged.cluster.node), Membership::default(), &damaged.options);
    let to = RaftIndex(wound.first().0 - 1);
    let mut until = Until { replayed: Replayed { sequencer, options: &damaged.options }, to };
    Walk::new(&before).run(&mut before.scanner(), &mut until)?;
    let sequencer = until.replayed.sequencer;
    let block = sequencer.opening();
    Ok((sequencer.end().raft == to).then(|| (header_of(&block), block.body)))
}

/// Learns no further than an entry.
struct Until<'a> {
    replayed: Replayed<'a>,
    to: RaftIndex,
}

impl Learn for Until<'_> {
    fn learn(&mut self, header: &BlockHeader, body: &[u8]) -> std::result::Result<Base, Malformed> {
        if header.raft_index > self.to {
            return Err("the log goes on in the next segment from before this block");
        }
        self.replayed.learn(header, body)
    }

    fn first(&self) -> Index {
        self.replayed.first()
    }

    fn commit_to(&mut self, raft: RaftIndex) {
        self.replayed.commit_to(raft);
    }

    fn commit(&self) -> RaftIndex {
        self.replayed.commit()
    }

    fn anew(&self) -> Box<dyn Learn + '_> {
        self.replayed.anew()
    }
}

/// The last membership that any sound block tells of; empty when none does.
fn last_membership(damaged: &Damaged) -> Result<Membership> {
    let names = damaged.disk.list().map_err(|e| Error::io("list", damaged.disk.path(), e))?;
    let numbers: BTreeSet<u64> = names.iter().filter_map(|n| file_number(n)).collect();
    let mut later = Vec::new();
    for file in numbers.into_iter().rev().filter_map(|number| open_file(damaged, number)) {
        let mut scanner = file.scanner();
        let opening = match scanner.block(SEGMENT_HEADER_BYTES)? {
            Found::Block(h, body) if h.kind == Kind::Opening => Opening::parse(body).ok(),
            _ => None,
        };
        later.push(file);
        let Some(opening) = opening else { continue };
        let mut membership = Membership::decode(&opening.configuration).unwrap_or_default();
        for file in later.iter().rev() {
            configurations(&mut file.scanner(), file.header.id, &mut membership)?;
        }
        return Ok(membership);
    }
    Ok(Membership::default())
}

/// Follows the sound configuration blocks of a segment.
fn configurations(scanner: &mut Scanner, id: SegmentId, membership: &mut Membership) -> Result<()> {
    let mut at = SEGMENT_HEADER_BYTES;
    while at + BLOCK_HEADER_BYTES <= scanner.limit() {
        let header = BlockHeader::parse(scanner.bytes(at, BLOCK_HEADER_BYTES)?, id);
        if header.is_ok_and(|h| h.kind == Kind::Configuration)
            && let Found::Block(_, body) = scanner.block(at)?
        {
            *membership = match body.is_empty() {
                true => membership.left(),
                false => raft_codec::membership_of_change(body).unwrap_or_else(|_| membership.clone()),
            };
        }
        at += BLOCK_HEADER_BYTES;
    }
    Ok(())
}
