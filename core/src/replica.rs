//! Replica: raft-rs, the sequencer and the questions of the program as one state machine. What goes in: the time,
//! messages, proposals, questions, and the news that something is durable. What comes out: a plan of what is to be
//! written, messages to send, and answers. No clock, no thread, no chance but what its seed gives.
//!
//! ```text
//!  messages ──> receive ──┐                        ┌──> plan: blocks, rolls, readies
//!  appends  ──> propose ──┤ RawNode, in lockstep   ├──> outgoing: messages that may leave now
//!  time     ──> advance ──┤ with the Sequencer     ├──> answers to appends, once committed and written
//!  synced   ──> persisted ┘                        └──> news: membership, leader
//! ```
//!
//! Invariants:
//! - the sequencer's end is raft's last entry whenever a step is over: every entry that raft makes or takes goes
//!   through the sequencer, in order;
//! - a message that speaks for what this replica has leaves only once that is durable: a follower's after its ready
//!   and all before are synced, a leader's once its term is (a sole voter leads before its term is durable, and could
//!   otherwise lead the same term twice);
//! - an append is answered when its entry is committed; of one that was ordered and lost its leader the outcome is unknown;
//! - nothing that a peer sends can panic: what raft asserts is checked before.
//!
//! The one thing it does to the disk is in `rollback`: what is planned has to be in the files before the state is
//! replayed from them.

mod asks;
mod lend;
mod peers;
mod storage;

use crate::cluster::{Cluster, Role};
use crate::completion::Outcome;
use crate::config::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::gather::{Command, Gathered};
use crate::membership::{Member, Membership};
use crate::moment::Moment;
use crate::plan::Room;
use crate::promise::Promise;
use crate::raft_codec::{self, EntryKind, header_of};
use crate::sequence::{Decision, Me, Replayed, Sequenced, Sequencer};
use crate::store::NewBlock;
use crate::store::block::Kind;
use crate::store::identity::Identity;
use crate::store::layout::HARD_STATE_BYTES;
use crate::store::prepared::Purpose;
use crate::store::segment::Base;
use crate::transport::Envelope;
use crate::types::{NodeId, RaftIndex, Term};
use crate::writing::Writing;
use asks::Asks;
use bytes::Bytes;
use peers::Peers;
use protobuf::Message as _;
use raft::eraftpb::{ConfChangeV2, Entry, EntryType, Message, MessageType};
use raft::{RawNode, Ready, StateRole};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
pub(crate) use storage::Entries;

/// Room that a command's block needs, generously.
pub(crate) const COMMAND_BODY_BYTES: usize = 64;

/// The replica's state.
pub(crate) struct Replica {
    raw: RawNode<Entries>,
    pub(crate) sequencer: Sequencer,
    options: Options,
    cluster: Cluster,
    me: Identity,
    /// What raft's applied entries lead to.
    membership: Membership,
    ticks: Ticks,
    durability: Durability,
    /// Appends and commands whose entries are not committed, in the order of the log.
    waiting: VecDeque<Waiting>,
    /// Blocks that this leader ordered and raft has not handed back yet.
    staged: VecDeque<NewBlock>,
    /// Committed and durable here; from the first configuration on that is not in force.
    unapplied: VecDeque<Entry>,
    /// Bodies that came with messages of this step.
    arrived: BTreeMap<(RaftIndex, Term), Vec<Bytes>>,
    outgoing: Vec<Envelope>,
    asks: Asks,
    peers: Peers,
    /// Whether entries were cut off, or jumped over, since it was last asked.
    turned: bool,
    /// The term that it leads, as far as it was noted.
    led: Option<Term>,
    lending: lend::Lending,
    /// When this replica ceased to lead while appends waited.
    lost_lead: Option<Moment>,
    /// Why it takes no part any more.
    out: Option<Error>,
}

/// Raft's clock.
struct Ticks {
    next: Moment,
    interval: Duration,
    election: usize,
    chance: SplitMix,
    timeout: usize,
    /// For which term, role and place among the voters the time-out was drawn.
    drawn_for: (u64, StateRole, (usize, usize)),
}

/// What is durable of what raft wanted so.
#[derive(Default)]
struct Durability {
    /// The last ready with anything to write, and the last one that is durable.
    planned: u64,
    persisted: u64,
    /// The last ready of all.
    last: u64,
    /// A jump on its way to the disk: its ready, and the entry that it leads to.
    jump: Option<(u64, RaftIndex)>,
    /// Terms on their way to the disk, by ready; and the last that is there.
    terms: VecDeque<(u64, Term)>,
    term: Term,
    /// Messages that wait for a ready.
    held: VecDeque<(u64, Vec<Message>)>,
    /// A leader's messages that wait for its term.
    gated: Vec<Message>,
}

/// An append that waits for its entry's commit.
struct Waiting {
    raft: RaftIndex,
    promise: Promise,
    outcome: Outcome,
}

/// A sequence of numbers from a seed. Sebastiano Vigna's SplitMix64.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

impl Replica {
    /// A replica as its log's blocks leave it.
    ///
    /// # Errors
    /// `Corrupt`: raft finds that the state contradicts itself.
    pub(crate) fn new(
        me: Identity,
        cluster: Cluster,
        options: Options,
        sequencer: Sequencer,
        archive: crate::store::archive::Archive,
        seed: u64,
        now: Moment,
    ) -> Result<Self> {
        let membership = sequencer.committed().membership.clone();
        let mut state = sequencer.hard_state();
        state.commit = sequencer.committed().raft;
        let end = sequencer.end();
        let entries = Entries::new(archive, end, state, membership.clone());
        let election =
            (cluster.election_timeout.as_nanos() / cluster.heartbeat.as_nanos().max(1)).max(3) as usize;
        let config = raft::Config {
            id: cluster.node.0,
            election_tick: election,
            heartbeat_tick: 1,
            applied: state.commit.0,
            max_size_per_msg: cluster.message_bytes_max.into(),
            max_inflight_msgs: cluster.messages_inflight_max.into(),
            check_quorum: true,
            pre_vote: true,
            max_uncommitted_size: raft::NO_LIMIT, // the node stops taking appends before
            max_committed_size_per_ready: 4096 * raft_codec::DESCRIPTOR_BYTES as u64,
            ..raft::Config::default()
        };
        let raw = RawNode::new(&config, entries, &logger())
            .map_err(|e| Error::new(ErrorKind::Corrupt, format!("raft cannot go on from this log: {e}")))?;
        let ticks = Ticks {
            next: now.plus(cluster.heartbeat),
            interval: cluster.heartbeat,
            election,
            chance: SplitMix(seed),
            timeout: election,
            drawn_for: (u64::MAX, StateRole::Follower, (0, 0)),
        };
        let first_attempt = SplitMix(seed ^ options.clock.now().0.rotate_left(32)).next();
        let mut replica = Self {
            raw,
            sequencer,
            options,
            me,
            membership,
            ticks,
            durability: Durability { term: state.term, ..Durability::default() },
            waiting: VecDeque::new(),
            staged: VecDeque::new(),
            unapplied: VecDeque::new(),
            arrived: BTreeMap::new(),
            outgoing: Vec::new(),
            asks: Asks::new(cluster.election_timeout, first_attempt),
            peers: Peers::default(),
            turned: false,
            led: None,
            lending: lend::Lending::default(),
            lost_lead: None,
            out: None,
            cluster,
        };
        replica.members_changed();
        replica.await_introduction();
        replica.steady();
        Ok(replica)
    }

    // ---- what it is ----

    pub(crate) fn node(&self) -> NodeId {
        self.cluster.node
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    pub(crate) fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    pub(crate) fn leader(&self) -> Option<NodeId> {
        (self.raw.raft.leader_id != 0).then_some(NodeId(self.raw.raft.leader_id))
    }

    pub(crate) fn role(&self) -> Role {
        match self.raw.raft.state {
            _ if self.out.is_some() => Role::Removed,
            StateRole::Leader => Role::Leader,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            StateRole::Follower if self.membership.get(self.node()).is_some_and(Member::is_voter) => {
                Role::Follower
            }
            StateRole::Follower => Role::Learner,
        }
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Whether nobody else has a part in this log.
    pub(crate) fn is_alone(&self) -> bool {
        self.membership.is_alone(self.node()) && self.membership.members().nth(1).is_none()
    }

    /// The last entry known committed, written here or not.
    pub(crate) fn committed(&self) -> RaftIndex {
        RaftIndex(self.raw.raft.raft_log.committed)
    }

    /// What is in memory of an entry, for whoever watches.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn in_memory(
        &self,
        raft: RaftIndex,
    ) -> Option<(crate::store::block::BlockHeader, Option<Vec<Bytes>>)> {
        self.raw.store().in_memory(raft)
    }

    /// Messages that may leave now.
    pub(crate) fn take_outgoing(&mut self) -> Vec<Envelope> {
        std::mem::take(&mut self.outgoing)
    }

    /// When [`Self::advance`] has to be called at the latest. None: a log on its own needs no clock.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        if self.out.is_some() || (self.is_alone() && self.is_leader() && !self.asks.has_changes()) {
            return self.asks.deadline();
        }
        Some(self.asks.deadline().map_or(self.ticks.next, |d| d.min(self.ticks.next)))
    }

    /// Whether entries were cut off, or jumped over, since the last time.
    pub(crate) fn take_turned(&mut self) -> bool {
        std::mem::take(&mut self.turned)
    }

    /// What could not be read for a peer since the last time.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.raw.store().take_failure()
    }

    // ---- what goes in ----

    /// Lets the time come.
    pub(crate) fn advance(&mut self, now: Moment, writing: &mut Writing) -> Result<()> {
        let alone = self.is_alone() && self.is_leader();
        if self.out.is_some() || alone || now >= self.ticks.next.plus(self.ticks.interval * 8) {
            // Nobody to hear, or this process slept: what is in the inbox tells more than the clock.
            if !alone && self.out.is_none() && now >= self.ticks.next {
                self.tick();
            }
            self.ticks.next = now.plus(self.ticks.interval);
        }
        while now >= self.ticks.next {
            self.ticks.next = self.ticks.next.plus(self.ticks.interval);
            self.tick();
        }
        self.report_snapshots(now);
        self.ask_again(now);
        self.change_when_caught_up(now);
        if self.lost_lead.is_some_and(|at| now >= at.plus(self.cluster.election_timeout * 2)) {
            self.give_up_waiting();
        }
        self.process(now, writing)
    }

    fn tick(&mut self) {
        self.greet();
        let log = &self.raw.raft.raft_log;
        // Who has not got its log on the disk, or may not know what it once had, does not stand for election.
        if self.is_leader() || (log.persisted == log.last_index() && self.is_introduced()) {
            self.raw.tick();
            self.steady();
        }
    }

    /// Stands for election at once: the only voter.
    pub(crate) fn campaign(&mut self, now: Moment, writing: &mut Writing) -> Result<()> {
        self.raw.campaign().map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))?;
        self.steady();
        self.process(now, writing)
    }

    /// This voter's place among the voters, and how many there are; 0 of 0 for everybody else.
    fn place(&self) -> (usize, usize) {
        let voters = self.membership.voters();
        let place = voters.iter().position(|v| *v == self.node().0);
        place.map_or((0, 0), |place| (place, voters.len()))
    }

    /// How many ticks this voter lets others go first. Each has a place of its own, another one each term, so that two
    /// rarely stand for election at once, and the first one does soon. Who has no place waits for as long as chance says.
    fn patience(&mut self, (place, voters): (usize, usize)) -> usize {
        if voters == 0 {
            return self.ticks.chance.below(self.ticks.election);
        }
        let apart = (self.ticks.election * 3 / 5).div_ceil(voters).max(1);
        let turn = (place as u64 + self.raw.raft.term) % voters as u64;
        (turn as usize * apart).min(self.ticks.election - 1)
    }

    /// Keeps the election time-out of our own: raft draws another one on every change.
    fn steady(&mut self) {
        let place = self.place();
        let now_for = (self.raw.raft.term, self.raw.raft.state, place);
        if self.ticks.drawn_for != now_for {
            self.ticks.drawn_for = now_for;
            self.ticks.timeout = self.ticks.election + self.patience(place);
        }
        self.raw.raft.set_randomized_election_timeout(self.ticks.timeout);
    }

    /// Orders an appended block, or refuses it. Nothing of a refused one is in the log.
    pub(crate) fn propose(&mut self, gathered: Gathered, now: Moment, writing: &mut Writing) -> Result<bool> {
        self.lockstep(now, writing)?;
        let room = match self.refusal() {
            Some(refusal) => Err(refusal),
            None => writing.plan.make_room(gathered.bytes, Purpose::Data, &mut self.sequencer),
        };
        if let Err(refusal) = room {
            gathered.into_pieces(None).1.answer(Outcome::Failed(refusal));
            return Ok(false);
        }
        let Sequenced { block, promise, outcome } = self.sequencer.data(gathered, &self.options);
        if let Some(block) = block {
            self.order(block)?;
        }
        self.wait(promise, outcome);
        self.process(now, writing)?;
        Ok(true)
    }

    /// Orders a command, or answers it.
    pub(crate) fn command(
        &mut self,
        command: Command,
        promise: Option<Promise>,
        now: Moment,
        writing: &mut Writing,
    ) -> Result<()> {
        self.lockstep(now, writing)?;
        // The reserve is for what makes room.
        let purpose = if let Command::Discard { .. } = command { Purpose::Metadata } else { Purpose::Data };
        let room = match self.refusal() {
            Some(refusal) => Err(refusal),
            None => writing.plan.make_room(COMMAND_BODY_BYTES, purpose, &mut self.sequencer),
        };
        let decision = match room {
            Ok(_) => self.sequencer.command(command, &self.options),
            Err(refusal) => Decision::Refused(refusal),
        };
        let outcome = match decision {
            Decision::Write(block, first) => {
                self.order(block)?;
                Outcome::Placed { first }
            }
            Decision::Done(first) => Outcome::Placed { first },
            Decision::Refused(error) => {
                if let Some(promise) = promise {
                    promise.answer(Outcome::Failed(error));
                }
                return Ok(());
            }
        };
        if let Some(promise) = promise {
            self.wait(promise, outcome);
        }
        self.process(now, writing)
    }

    /// Why this replica orders nothing now.
    pub(crate) fn refusal(&self) -> Option<Error> {
        if let Some(out) = &self.out {
            return Some(out.clone());
        }
        if self.is_leader() && self.raw.raft.lead_transferee.is_none() {
            return None;
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
    fn lockstep(&mut self, now: Moment, writing: &mut Writing) -> Result<()> {
        if self.raw.raft.raft_log.last_index() != self.sequencer.end().raft.0 {
            self.process(now, writing)?;
        }
        Ok(())
    }

    fn order(&mut self, block: NewBlock) -> Result<()> {
        let header = header_of(&block);
        let entry = raft_codec::entry(&header, Bytes::new);
        self.staged.push_back(block);
        self.propose_entry(entry)
    }

    fn propose_entry(&mut self, entry: Entry) -> Result<()> {
        let mut message = Message { from: self.node().0, ..Message::default() };
        message.set_msg_type(MessageType::MsgPropose);
        message.set_entries(vec![entry].into());
        self.raw.raft.step(message).map_err(|e| {
            // The leader, with nothing under way, has no reason to: the sequencer would be out of step.
            Error::new(ErrorKind::Poisoned, format!("raft refused a proposal of its leader: {e}"))
        })
    }

    fn wait(&mut self, promise: Promise, outcome: Outcome) {
        let raft = self.sequencer.end().raft;
        self.waiting.push_back(Waiting { raft, promise, outcome });
    }

    /// Takes a message from another replica, or drops it.
    pub(crate) fn receive(&mut self, envelope: Envelope, now: Moment) {
        if self.out.is_some() {
            return;
        }
        if let Err(why) = self.open_envelope(envelope, now) {
            tracing::debug!(node = %self.node(), why, "dropped a message");
        }
        self.steady();
    }

    /// Ready `number` and all before are durable.
    pub(crate) fn persisted(&mut self, number: u64, now: Moment, writing: &mut Writing) -> Result<()> {
        // Those that came after the last one with anything to write are then as well.
        let number = if number >= self.durability.planned { self.durability.last } else { number };
        self.on_persisted(number);
        self.process(now, writing)
    }

    fn on_persisted(&mut self, number: u64) {
        let durability = &mut self.durability;
        durability.persisted = durability.persisted.max(number);
        while let Some((_, term)) = durability.terms.pop_front_if(|(n, _)| *n <= number) {
            durability.term = term;
        }
        self.raw.on_persist_ready(number);
        if let Some((_, to)) = self.durability.jump.take_if(|(n, _)| *n <= number)
            && self.raw.raft.raft_log.applied < to.0
        {
            self.raw.advance_apply_to(to.0); // what a jump leads to is all in force
        }
        let mut free = Vec::new();
        while let Some((_, messages)) = self.durability.held.pop_front_if(|(n, _)| *n <= number) {
            free.extend(messages);
        }
        self.send(peers::one_acknowledgement(free));
        if self.durability.term == self.term() {
            let gated = std::mem::take(&mut self.durability.gated);
            self.send(gated);
        }
    }

    /// Entries up to `raft` are in the files.
    pub(crate) fn written(&mut self, raft: RaftIndex) {
        self.raw.mut_store().written(raft);
    }

    /// The store's oldest files were dropped.
    pub(crate) fn dropped_to(&mut self, base: Base) {
        self.raw.mut_store().dropped_to(base);
    }

    /// Entries up to `raft` are committed and written: they take effect, and who waits for them is answered by
    /// the caller, after the positions have moved.
    pub(crate) fn commit_to(&mut self, raft: RaftIndex) -> Vec<(Promise, Outcome)> {
        self.sequencer.commit_to(raft);
        let committed = self.sequencer.committed();
        let mut due = Vec::new();
        while let Some(w) = self.waiting.pop_front_if(|w| w.raft <= committed.raft || planted!(9)) {
            due.push((w.promise, w.outcome));
        }
        self.asks.committed(committed.raft, committed.next, &mut due);
        if self.waiting.is_empty() {
            self.lost_lead = None;
        }
        due
    }

    // ---- raft's readies ----

    /// Carries out what raft has ready, until there is nothing more.
    fn process(&mut self, now: Moment, writing: &mut Writing) -> Result<()> {
        self.note_lead();
        loop {
            while self.raw.has_ready() {
                let ready = self.raw.ready();
                self.take_ready(ready, writing)?;
                self.steady();
                self.note_lead();
            }
            if !self.apply()? {
                break;
            }
        }
        if !self.is_leader() && !self.waiting.is_empty() && self.lost_lead.is_none() {
            self.lost_lead = Some(now);
        } else if self.is_leader() {
            self.lost_lead = None;
        }
        self.arrived.clear();
        self.confirm_self(now, writing)
    }

    /// What was asked of the leader of a term that it leads no more will not be answered by what the next one does.
    fn note_lead(&mut self) {
        let leads = self.is_leader().then(|| self.term());
        if self.led.is_some() && self.led != leads {
            self.asks.lead_lost();
        }
        self.led = leads;
    }

    fn take_ready(&mut self, mut ready: Ready, writing: &mut Writing) -> Result<()> {
        let number = ready.number();
        self.durability.last = number;
        let mut writes = false;
        let mut rolled = false;
        let state = self.sequencer.hard_state();
        let turned = ready
            .hs()
            .map(|hs| (Term(hs.term), hs.vote))
            .filter(|(term, vote)| (*term, *vote) != (state.term, state.vote));
        if !ready.snapshot().is_empty() {
            let snapshot = ready.snapshot().clone();
            self.jump(&snapshot, writing)?;
            self.durability.jump = Some((number, RaftIndex(snapshot.get_metadata().index)));
            rolled = true;
        }
        let entries = ready.take_entries();
        // What this leader ordered itself, the sequencer knows already.
        let ordered = self.staged.front().map_or(self.sequencer.end().raft.next(), |b| b.raft_index);
        if let Some(first) = entries.first().filter(|e| e.index < ordered.0) {
            self.rollback(RaftIndex(first.index - 1), writing)?;
            rolled = true;
        }
        if let Some((term, vote)) = turned {
            self.durability.terms.push_back((number, term));
            let block = self.sequencer.hard_state_block(term, if planted!(3) { 0 } else { vote });
            writes = true;
            // An opening says it too.
            if !rolled {
                let room =
                    writing.plan.make_room(HARD_STATE_BYTES, Purpose::Metadata, &mut self.sequencer)?;
                if room == Room::Here {
                    writing.plan.push(block);
                }
            }
        }
        if rolled {
            let opening = self.sequencer.opening();
            writing.plan.roll(opening, 0, Purpose::Metadata)?;
            writes = true;
        }
        for entry in entries {
            self.take_entry(entry, writing)?;
            writes = true;
        }
        if writes {
            self.durability.planned = number;
            writing.plan.ready(number);
        }
        let free = ready.take_messages();
        // Questions before an election, and the answers, promise nothing but the term that they are asked in.
        let is_told = self.durability.term == self.term();
        let (asides, held): (Vec<Message>, Vec<Message>) =
            ready.take_persisted_messages().into_iter().partition(|m| is_told && peers::is_aside(m));
        self.send(asides);
        for state in ready.take_read_states() {
            self.asks.read_state(&state);
        }
        let committed = ready.take_committed_entries();
        self.raw.advance_append_async(ready);
        if self.durability.planned <= self.durability.persisted {
            self.on_persisted(number);
        }
        if self.durability.term == self.term() || planted!(1) {
            self.send(free);
        } else {
            self.durability.gated.extend(free);
        }
        if !held.is_empty() {
            if self.durability.persisted >= number || planted!(2) {
                self.send(held);
            } else {
                self.durability.held.push_back((number, held));
            }
        }
        self.unapplied.extend(committed);
        Ok(())
    }

    /// An entry that raft has taken into the log: its block is planned.
    fn take_entry(&mut self, entry: Entry, writing: &mut Writing) -> Result<()> {
        let malformed =
            |why| Error::new(ErrorKind::Corrupt, format!("entry {} of raft's: {why}", entry.index));
        let at = (RaftIndex(entry.index), Term(entry.term));
        let own = self.staged.pop_front_if(|b| (b.raft_index, b.term) == at);
        let block = match own {
            // Its room was made before it was ordered.
            Some(block) => block,
            None => {
                self.staged.clear();
                let kind = raft_codec::kind_of(&entry).map_err(malformed)?;
                let bytes = match &kind {
                    EntryKind::Block(header) => raft_codec::body_bytes(header),
                    _ => entry.data.len(),
                };
                writing.plan.make_room(bytes, Purpose::Metadata, &mut self.sequencer)?;
                let block = match kind {
                    EntryKind::NoOp => self.sequencer.raft_entry(Kind::NoOp, at.1, Bytes::new()),
                    EntryKind::Configuration => {
                        self.sequencer.raft_entry(Kind::Configuration, at.1, entry.data.clone())
                    }
                    EntryKind::Block(header) => match self.arrived.remove(&at) {
                        Some(body) => self.sequencer.follow(&header, body),
                        None => Err("its body did not come with it"),
                    },
                };
                block.map_err(malformed)?
            }
        };
        assert_eq!((block.raft_index, block.term), at, "sequencer and raft are in lockstep");
        self.raw.mut_store().push(header_of(&block), &block.body);
        writing.plan.push(block);
        Ok(())
    }

    /// Entries beyond `to` are void: another leader put others there.
    fn rollback(&mut self, to: RaftIndex, writing: &mut Writing) -> Result<()> {
        let committed = self.sequencer.committed().raft;
        assert!(to >= committed, "a committed entry is never cut off");
        writing.settle()?;
        let state = self.sequencer.hard_state();
        let mut replayed = Replayed {
            sequencer: Sequencer::new(Me::Node(self.node()), Membership::default(), &self.options),
            options: &self.options,
        };
        if !writing.archive.replay(committed, to, &mut replayed)? {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("entry {committed} or {to} is not in the files"),
            ));
        }
        self.sequencer = replayed.sequencer;
        self.sequencer.keep_hard_state(state, committed);
        let end = self.sequencer.end();
        assert_eq!(end.raft, to, "the log was replayed to where it is cut");
        self.raw.mut_store().truncate(end);
        self.turned = true;
        self.staged.clear();
        // That they were cut off here says nothing: another replica can have them, lead next, and commit them after all.
        while let Some(w) = self.waiting.pop_back_if(|w| w.raft > to) {
            if planted!(25) {
                w.promise.answer(w.outcome);
                continue;
            }
            w.promise.answer(Outcome::Failed(unknown_outcome()));
        }
        Ok(())
    }

    /// The leader has discarded what this replica lacks: it goes on behind.
    fn jump(&mut self, snapshot: &raft::eraftpb::Snapshot, writing: &mut Writing) -> Result<()> {
        // So that the new segment begins with the next write: what is committed must not run ahead of what is there.
        if !planted!(19) {
            writing.settle()?;
        }
        let malformed = |why: &str| Error::new(ErrorKind::Corrupt, format!("the leader's snapshot: {why}"));
        let (header, opening) = peers::parse_snapshot(snapshot).map_err(malformed)?;
        self.sequencer.jump(&header, &opening, &self.options).map_err(malformed)?;
        self.membership = self.sequencer.committed().membership.clone();
        self.raw.mut_store().jump(self.sequencer.end());
        self.unapplied.clear();
        self.turned = true;
        self.staged.clear();
        for w in self.waiting.drain(..) {
            w.promise.answer(Outcome::Failed(unknown_outcome()));
        }
        self.members_changed();
        Ok(())
    }

    /// Entries that are committed and durable here: changes of membership come into force.
    ///
    /// A leader brings one into force only when a majority of the voters that it leads to knows that it is committed:
    /// who is told that a voter has left may take it away, and the others must not wait for its vote then. True if
    /// anything was applied.
    fn apply(&mut self) -> Result<bool> {
        let mut applied = None;
        while let Some(entry) = self.unapplied.front() {
            let index = RaftIndex(entry.index);
            if entry.get_entry_type() != EntryType::EntryConfChangeV2 {
                self.asks.applied_other(index);
                applied = Some(index);
                self.unapplied.pop_front();
                continue;
            }
            let wrong = |why: String| Error::new(ErrorKind::Corrupt, format!("configuration {index}: {why}"));
            let change = ConfChangeV2::parse_from_bytes(&entry.data).map_err(|e| wrong(e.to_string()))?;
            let membership = if entry.data.is_empty() {
                self.membership.left()
            } else {
                raft_codec::membership_of_change(&entry.data).map_err(|e| wrong(e.to_owned()))?
            };
            if self.is_leader() && !self.is_known(index, &membership) {
                break;
            }
            self.unapplied.pop_front();
            applied = Some(index);
            let state = self.raw.apply_conf_change(&change).map_err(|e| wrong(e.to_string()))?;
            let wanted = raft_codec::conf_state(&membership);
            let sorted = |mut v: Vec<u64>| {
                v.sort_unstable();
                v
            };
            if sorted(state.voters) != wanted.voters
                || sorted(state.voters_outgoing) != wanted.voters_outgoing
            {
                return Err(wrong("raft and the log disagree about the voters".to_owned()));
            }
            tracing::info!(node = %self.node(), at = %index, ?membership, "the membership has changed");
            let was_member = self.membership.get(self.node()).is_some();
            self.membership = membership;
            self.members_changed();
            self.weigh_introductions();
            self.asks.applied_change(index, self.membership.is_joint());
            if !self.membership.get(self.node()).is_some_and(Member::is_voter) {
                self.stop_leading();
            }
            if was_member && self.membership.get(self.node()).is_none() {
                self.leave("it was removed from the cluster");
            }
        }
        if let Some(last) = applied {
            self.raw.advance_apply_to(last.0);
        }
        Ok(applied.is_some())
    }

    /// Whether a majority of the voters of `membership`, of each half of a joint one, knows that `index` is committed.
    fn is_known(&self, index: RaftIndex, membership: &Membership) -> bool {
        let knows = |node: &&u64| {
            let progress = || self.raw.raft.prs().get(**node).is_some_and(|p| p.committed_index >= index.0);
            **node == self.node().0 || progress()
        };
        let majority = |voters: Vec<u64>| voters.iter().filter(knows).count() > voters.len() / 2;
        let outgoing = membership.voters_outgoing();
        majority(membership.voters()) && (outgoing.is_empty() || majority(outgoing))
    }

    fn members_changed(&mut self) {
        let keep = !self.is_alone();
        self.raw.mut_store().keep_bodies(keep);
        let members: Vec<Member> = self.membership.members().cloned().collect();
        self.cluster.transport.members(&members);
    }

    /// A leader that has left the voters lets another lead; raft itself would go on, and asserts that it is among
    /// the members.
    fn stop_leading(&mut self) {
        if self.is_leader() && !planted!(26) {
            self.abdicate();
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, raft::INVALID_ID);
            self.steady();
        }
    }

    /// Takes no part any more.
    fn leave(&mut self, why: &str) {
        let what = format!("node {} takes no part any more: {why}; its data can still be read", self.node());
        tracing::warn!("{what}");
        self.out = Some(Error::new(ErrorKind::Removed, what));
        for w in self.waiting.drain(..) {
            w.promise.answer(Outcome::Failed(unknown_outcome()));
        }
    }

    /// Whether anybody waits for an entry to be committed.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Nothing more will come of what is under way.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        for w in self.waiting.drain(..) {
            w.promise.answer(Outcome::Failed(error.clone()));
        }
    }

    /// Nobody will answer what the program asks.
    pub(crate) fn fail_asks(&mut self, error: &Error) {
        self.asks.fail_all(error);
    }

    /// Ceasing to lead, and hearing of no other leader: nobody waits for ever.
    fn give_up_waiting(&mut self) {
        self.lost_lead = None;
        for w in self.waiting.drain(..) {
            if planted!(27) {
                w.promise.answer(Outcome::Failed(Error::new(ErrorKind::NotLeader, "refused")));
                continue;
            }
            w.promise.answer(Outcome::Failed(unknown_outcome()));
        }
    }
}

/// A leader was lost before it was known what became of an append.
fn unknown_outcome() -> Error {
    let what = "outcome unknown: this replica ceased to lead; the append may or may not be in the log. In a session it \
                can be sent again without harm";
    Error::new(ErrorKind::Unavailable, what)
}

/// Raft's own log lines, for whoever listens at debug level.
fn logger() -> slog::Logger {
    slog::Logger::root(ToTracing, slog::o!())
}

struct ToTracing;

impl slog::Drain for ToTracing {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &slog::Record<'_>, _: &slog::OwnedKVList) -> Result<(), slog::Never> {
        if record.level().is_at_least(slog::Level::Warning) {
            tracing::debug!(target: "chiplog::raft", "{}", record.msg());
        }
        Ok(())
    }
}
