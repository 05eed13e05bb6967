//! Replica: raft-rs, the sequencer and the program's requests as one state machine. Inputs: the time, messages,
//! proposals, requests, and how far the log is durable. Outputs: a plan of what to write, messages to send, and
//! answers. No clock, no thread, and no randomness except from its seed.
//!
//! ```text
//!  messages ──> receive ──┐                        ┌──> plan: blocks, rolls, readies
//!  appends  ──> propose ──┤ RawNode, in lockstep   ├──> outgoing: messages that may leave now
//!  time     ──> advance ──┤ with the Sequencer     ├──> answers to appends, once committed and written
//!  synced   ──> persisted ┘                        └──> changes of membership and leader
//! ```
//!
//! Invariants:
//! - the sequencer's end is raft's last entry after every step: every entry that raft makes or accepts goes through the
//!   sequencer, in order;
//! - a message that promises state of this replica is sent only once that state is durable. A follower's message waits
//!   until its ready and all earlier ones are synced. A leader's message waits until its term is durable: a sole voter
//!   becomes leader before its term is durable, and could otherwise lead twice in the same term;
//! - an append is answered when its entry is committed. If its leader is lost after it was proposed, its outcome is
//!   unknown;
//! - no input from a peer panics: everything that raft asserts is checked before.
//!
//! It writes nothing but the plan. It reads the log's files: old entries for peers, and in a rollback the state before
//! the truncated entries.

mod admission;
mod election;
#[cfg(any(test, feature = "testing"))]
mod fixtures;
mod leader_transfer;
mod membership_change;
pub(crate) mod object_service;
mod openings;
mod options;
mod peers;
mod propose;
mod ready;
mod repair_service;
mod requests;
mod skipping;
mod storage;

use crate::cluster::membership::{Member, Membership};
use crate::cluster::options::{ClusterOptions, Role};
use crate::cluster::transport::Envelope;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::random::SplitMix;
use crate::replica::state::log_clock::LogClock;
use crate::replica::state::sequencer::Sequencer;
use crate::replica::wire::raft_message;
use crate::replica::writer::plan::Plan;
use crate::store::NewBlock;
use crate::store::format::identity::Identity;
use crate::store::segment::Base;
use crate::sync::clock::Moment;
use crate::types::{EntryIndex, NodeId, Term, Timestamp};
use admission::Admission;
use bytes::Bytes;
use election::Ticks;
#[cfg(any(test, feature = "testing"))]
pub(crate) use fixtures::snapshot_of;
use leader_transfer::RoomRequests;
use options::{Newcomers, OptionChanges};
use peers::Peers;
pub(crate) use peers::handshake::Extent;
use peers::handshake::Introduction;
use propose::Waiting;
pub(crate) use propose::{Proposed, body_bytes_of};
use raft::eraftpb::Entry;
use raft::{RawNode, StateRole};
use ready::Durability;
use requests::Requests;
use skipping::Skipping;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
pub(crate) use storage::Entries;

/// The replica's state.
pub(crate) struct Replica {
    raw: RawNode<Entries>,
    pub(crate) sequencer: Sequencer,
    options: Options,
    cluster: ClusterOptions,
    me: Identity,
    /// The last entry when this run began.
    copied: EntryIndex,
    /// The membership in force: the result of the applied entries.
    membership: Membership,
    ticks: Ticks,
    /// The clock of the entries that it proposes.
    clock: LogClock,
    durability: Durability,
    /// Appends and commands whose entries are not committed, in the order of the log.
    waiting: VecDeque<Waiting>,
    /// How many appends they answer.
    waiting_appends: usize,
    /// Blocks that this leader proposed and that raft has not returned in a ready yet.
    staged: VecDeque<NewBlock>,
    /// Membership changes that are committed and durable here, and not in force yet.
    unapplied: VecDeque<Entry>,
    /// The last entry that is committed and durable here.
    settled: EntryIndex,
    /// Bodies that arrived with the messages of this step.
    arrived: BTreeMap<(EntryIndex, Term), Vec<Bytes>>,
    outgoing: Vec<Envelope>,
    requests: Requests,
    option_changes: OptionChanges,
    newcomers: Newcomers,
    peers: Peers,
    /// In a replica that has started on an existing directory: the answers of the other replicas.
    introduction: Option<Introduction>,
    admission: Admission,
    /// The reason why raft's next ready waits for room. The inner None: a file is being prepared.
    short: Option<Option<Error>>,
    room_requests: RoomRequests,
    /// The number of heartbeat answers, of followers that lag behind, after which they were sent nothing.
    paced: u64,
    /// Whether entries were truncated, or skipped by a snapshot, since the last [`Self::take_log_changed`].
    log_changed: bool,
    /// Records truncated because of conflicts since the last [`Self::take_truncated_records`].
    truncated_records: u64,
    /// The newest term of which the log here has the first entry, and that entry.
    begun: Option<(Term, EntryIndex)>,
    /// The term that it was leader in when this was last noted.
    led: Option<Term>,
    repair_service: repair_service::RepairService,
    object_service: object_service::ObjectService,
    skipping: Skipping,
    /// When this replica lost leadership while appends waited.
    lost_lead: Option<Moment>,
    /// The reason why it takes no part any more.
    out: Option<Error>,
    /// It was removed, and still answers vote requests of members that may not know this.
    answers_on: bool,
    /// The reason why it takes no part while the cluster knows this node with another directory.
    misplaced: Option<Error>,
}

impl Replica {
    /// A replica in the state of its log's blocks.
    ///
    /// # Errors
    /// `Corrupt`: raft finds that the state contradicts itself.
    pub(crate) fn new(
        me: Identity,
        cluster: ClusterOptions,
        options: Options,
        sequencer: Sequencer,
        archive: crate::store::read::entry_lookup::Archive,
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
            max_uncommitted_size: raft::NO_LIMIT, // the node stops taking appends earlier
            max_committed_size_per_ready: 4096 * raft_message::DESCRIPTOR_BYTES as u64,
            ..raft::Config::default()
        };
        let raw = RawNode::new(&config, entries, &logger()).map_err(|e| {
            Error::new(ErrorKind::Corrupt, format!("raft refuses the state of this log: {e}"))
        })?;
        let ticks = Ticks::new(now, &cluster, election, seed);
        let wall = options.clock.now();
        // If the clock began behind the newest entry, the log's time would stop until the clock has reached that entry.
        let clock = LogClock::new(now, wall.max(sequencer.last_timestamp()));
        let ahead = Duration::from_millis(sequencer.last_timestamp().0.saturating_sub(wall.0));
        if ahead > Duration::from_secs(60) {
            tracing::warn!(
                newest_ms = sequencer.last_timestamp().0,
                wall_ms = wall.0,
                "the newest entry's time is ahead of the wall clock: new entries get that time until the clock has reached it"
            );
        }
        let first_attempt = SplitMix(seed ^ wall.0.rotate_left(32)).next();
        let copied = sequencer.end().raft;
        let mut replica = Self {
            raw,
            sequencer,
            options,
            me,
            copied,
            membership,
            ticks,
            durability: Durability { term: state.term, commit: state.commit, ..Durability::default() },
            clock,
            waiting: VecDeque::new(),
            waiting_appends: 0,
            staged: VecDeque::new(),
            unapplied: VecDeque::new(),
            settled: state.commit,
            arrived: BTreeMap::new(),
            outgoing: Vec::new(),
            requests: Requests::new(cluster.election_timeout, first_attempt),
            option_changes: OptionChanges::default(),
            newcomers: Newcomers::default(),
            peers: Peers::default(),
            introduction: None,
            admission: Admission::default(),
            short: None,
            paced: 0,
            room_requests: RoomRequests::default(),
            log_changed: false,
            truncated_records: 0,
            begun: None,
            led: None,
            repair_service: repair_service::RepairService::default(),
            object_service: object_service::ObjectService::default(),
            skipping: Skipping::default(),
            lost_lead: None,
            out: None,
            answers_on: false,
            misplaced: None,
            cluster,
        };
        replica.members_changed();
        replica.steady();
        Ok(replica)
    }

    // ---- state ----

    pub(crate) fn node(&self) -> NodeId {
        self.cluster.node
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// The log's time: the timestamp of an entry that is proposed now.
    pub(crate) fn time(&self, now: Moment) -> Timestamp {
        let shown = self.clock.peek(now, self.options.clock.now());
        shown.max(self.sequencer.last_timestamp())
    }

    /// Whether this replica leads, and an entry of its term is committed: then every later leader has all entries of earlier terms that
    /// can still be committed.
    pub(crate) fn has_committed_in_its_term(&self) -> bool {
        self.is_leader() && self.raw.raft.commit_to_current_term()
    }

    /// The first entry of the term in which this replica leads, once it is in its log.
    pub(crate) fn first_of_its_term(&self) -> Option<EntryIndex> {
        let (term, first) = self.begun?;
        (self.is_leader() && term == self.term()).then_some(first)
    }

    pub(crate) fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    pub(crate) fn leader(&self) -> Option<NodeId> {
        (self.raw.raft.leader_id != 0).then_some(NodeId(self.raw.raft.leader_id))
    }

    pub(crate) fn role(&self) -> Role {
        match self.raw.raft.state {
            _ if self.exclusion().is_some() => Role::Removed,
            StateRole::Leader => Role::Leader,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            StateRole::Follower if self.membership.get(self.node()).is_some_and(Member::is_voter) => {
                Role::Follower
            }
            StateRole::Follower => Role::Learner,
        }
    }

    /// The reason why it takes no part.
    fn exclusion(&self) -> Option<&Error> {
        self.out.as_ref().or(self.misplaced.as_ref())
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Whether no other replica has a part in this log.
    pub(crate) fn is_alone(&self) -> bool {
        self.membership.is_alone(self.node()) && self.membership.members().nth(1).is_none()
    }

    /// The last entry known to be committed, written here or not.
    pub(crate) fn committed(&self) -> EntryIndex {
        EntryIndex(self.raw.raft.raft_log.committed)
    }

    /// The part of an entry that is in memory, for checks.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn in_memory(
        &self,
        raft: EntryIndex,
    ) -> Option<(crate::store::format::block::BlockHeader, Option<Vec<Bytes>>)> {
        self.raw.store().in_memory(raft)
    }

    /// The number of committed entries that are not in force yet.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn changes_not_in_force(&self) -> usize {
        self.unapplied.len()
    }

    /// The node that raft has voted for in its term; 0: none.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn vote(&self) -> u64 {
        self.raw.raft.vote
    }

    /// The body of an entry as it is sent to another replica.
    ///
    /// # Errors
    /// The log has no such entry of this term, or it cannot be read.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn body_of(&self, raft: EntryIndex, term: Term) -> Result<Vec<Bytes>> {
        self.raw.store().body(raft, term)
    }

    /// Takes the messages that may be sent now.
    pub(crate) fn take_outgoing(&mut self) -> Vec<Envelope> {
        std::mem::take(&mut self.outgoing)
    }

    /// When [`Self::advance`] has to be called at the latest. None: a log on its own needs no clock.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        let is_idle =
            self.is_alone() && self.is_leader() && !self.requests.has_changes() && self.short.is_none();
        let asks = [self.requests.deadline(), self.options_deadline()].into_iter().flatten().min();
        if self.needs_no_clock() || is_idle {
            return asks;
        }
        Some(asks.map_or(self.ticks.next, |d| d.min(self.ticks.next)))
    }

    /// Whether it takes no part, and does not wait for an introduction to peers whose pre-votes it still answers.
    fn needs_no_clock(&self) -> bool {
        self.out.is_some() && !(self.answers_on && self.introduction.is_some())
    }

    /// Whether entries were truncated, or skipped by a snapshot, since the last call.
    pub(crate) fn take_log_changed(&mut self) -> bool {
        std::mem::take(&mut self.log_changed)
    }

    /// Records truncated because of conflicts since the last call.
    pub(crate) fn take_truncated_records(&mut self) -> u64 {
        std::mem::take(&mut self.truncated_records)
    }

    /// The first error of a read of the log since the last call.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.raw.store().take_failure()
    }

    // ---- inputs ----

    /// Advances the time.
    pub(crate) fn advance(&mut self, now: Moment, plan: &mut Plan) -> Result<()> {
        if now >= self.ticks.next {
            // Keeps the clock corrected, so that it agrees with the wall clock when this replica becomes leader.
            self.clock.look(now, self.options.clock.now());
        }
        self.step_held(now, plan)?;
        self.answer_room(now, plan)?;
        let alone = self.is_alone() && self.is_leader();
        if self.needs_no_clock() || alone || now >= self.ticks.next.plus(self.ticks.interval * 8) {
            // Without peers there is nothing to tick for. After a sleep of this process, the inbox is newer than the
            // clock.
            if !alone && !self.needs_no_clock() && now >= self.ticks.next {
                self.tick();
            }
            self.ticks.next = now.plus(self.ticks.interval);
        }
        while now >= self.ticks.next {
            self.ticks.next = self.ticks.next.plus(self.ticks.interval);
            self.tick();
        }
        self.report_snapshots(now);
        self.retry_barriers(now);
        self.poll_learners(now);
        self.change_when_caught_up(now, plan);
        self.set_options_once_known(now, plan)?;
        if self.lost_lead.is_some_and(|at| now >= at.plus(self.cluster.election_timeout * 2)) {
            self.give_up_waiting();
        }
        self.process(now, plan)
    }

    /// Receives a message of another replica, or drops it.
    ///
    /// # Errors
    /// A fatal error of this replica. The message is not its cause.
    pub(crate) fn receive(&mut self, envelope: Envelope, now: Moment, plan: &mut Plan) -> Result<()> {
        if self.out.is_some() && !self.answers_on {
            return Ok(());
        }
        match self.open_envelope(envelope, now) {
            Ok(Some((message, _))) if self.out.is_some() || self.refuses_unheard(&message) => {
                self.send_commit(&message);
            }
            Ok(Some(checked)) => self.step(checked, now, plan)?,
            Ok(None) => {}
            Err(why) => tracing::debug!(node = %self.node(), why, "dropped a message"),
        }
        self.steady();
        Ok(())
    }

    /// Entries up to `raft` are in the files.
    pub(crate) fn written(&mut self, raft: EntryIndex) {
        self.raw.mut_store().written(raft);
    }

    /// The store's oldest files were removed.
    pub(crate) fn dropped_to(&mut self, base: Base) {
        self.raw.mut_store().dropped_to(base);
    }
}

/// Sends raft's own log lines to the program's log, at debug level.
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

#[cfg(all(test, feature = "testing", not(loom)))]
pub(crate) mod tests;
