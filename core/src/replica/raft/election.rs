//! Election timer: raft's clock, and when a voter starts an election.
//!
//! Raft draws an election timeout at random, from one to two times the shortest. Here each voter has a rank of its own,
//! so that two voters rarely start at the same time and the first one starts soon. If two do, one withdraws before any
//! vote is cast. A voter that gets no majority soon retries. None of this disturbs the cluster, because it happens
//! during pre-vote, when no vote is cast. The election itself waits for disks, and has a whole timeout.

use super::Replica;
use crate::cluster::options::ClusterOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::random::SplitMix;
use crate::replica::writer::plan::Plan;
use crate::sync::clock::Moment;
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};
use std::time::Duration;

/// Raft's clock.
pub(super) struct Ticks {
    /// When the next tick is due. `interval` is the time between two.
    pub(super) next: Moment,
    pub(super) interval: Duration,
    /// The shortest election timeout, in ticks.
    pub(super) election: usize,
    chance: SplitMix,
    /// This voter's position among the voters, and the number of voters; 0 of 0 for a replica that is no voter.
    place: (usize, usize),
    timeout: usize,
    /// The term, role and position for which the timeout was drawn.
    drawn_for: (u64, StateRole, (usize, usize)),
    /// Ticks since this voter sent pre-vote requests.
    asking: usize,
}

impl Ticks {
    pub(super) fn new(now: Moment, cluster: &ClusterOptions, election: usize, seed: u64) -> Self {
        Self {
            next: now.plus(cluster.heartbeat),
            interval: cluster.heartbeat,
            election,
            chance: SplitMix(seed),
            place: (0, 0),
            timeout: election,
            drawn_for: (u64::MAX, StateRole::Follower, (0, 0)),
            asking: 0,
        }
    }
}

impl Replica {
    pub(super) fn tick(&mut self) {
        self.await_answers();
        self.query_membership();
        let log = &self.raw.raft.raft_log;
        // While its ready waits for room, a leader of several voters processes no messages, so raft makes it step down.
        // A sole voter is its own majority and stays leader; its heartbeats would pile up in memory.
        let steps_down = self.is_leader() && !self.raw.raft.prs().is_singleton();
        if self.out.is_some() || (self.is_held().is_some() && !steps_down) {
            return;
        }
        // A replica starts no election while its log is not durable, or while it may have lost entries that it once
        // had.
        if self.is_leader() || (log.persisted == log.last_index() && self.may_vote()) {
            self.give_up_openings();
            self.let_laggards_skip(self.ticks.next);
            self.raw.tick();
            self.retry_pre_vote();
            self.steady();
        }
    }

    /// Repeats a pre-vote that found neither a majority nor a leader, before a second timeout has passed. The others
    /// may have heard the leader a little later, and so have refused.
    fn retry_pre_vote(&mut self) {
        if self.raw.raft.state != StateRole::PreCandidate {
            self.ticks.asking = 0;
            return;
        }
        self.ticks.asking += 1;
        let (place, voters) = self.ticks.place;
        let again = (self.ticks.election / 3).max(2) + self.rank(place, voters);
        if self.ticks.asking >= again {
            self.ticks.asking = 0;
            // Fails only while a membership change has to be applied first.
            let _ = self.raw.campaign();
        }
    }

    /// Withdraws in favor of another voter that requests pre-votes at the same time, if that voter has a lower rank and
    /// this one would vote for it. Otherwise each could get half of the votes.
    pub(super) fn withdraw_for(&mut self, question: &Message) {
        let raft = &mut self.raw.raft;
        let asks = question.get_msg_type() == MessageType::MsgRequestPreVote;
        let is_new = question.term > raft.term;
        if !(asks && is_new)
            || raft.state != StateRole::PreCandidate
            || !raft.raft_log.is_up_to_date(question.index, question.log_term)
        {
            return;
        }
        let term = raft.term;
        let voters = self.membership.voters();
        let rank = |node| voters.iter().position(|v| *v == node).map(|p| self.rank(p, voters.len()));
        if rank(question.from) < rank(self.node().0) && rank(question.from).is_some() {
            self.raw.raft.become_follower(term, raft::INVALID_ID);
        }
    }

    /// Starts an election at once, in the only voter.
    pub(crate) fn campaign(&mut self, now: Moment, plan: &mut Plan) -> Result<()> {
        self.raw.campaign().map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))?;
        self.steady();
        self.process(now, plan)
    }

    /// Updates this voter's position after a change of the voters.
    pub(super) fn find_place(&mut self) {
        let voters = self.membership.voters();
        let place = voters.iter().position(|v| *v == self.node().0);
        self.ticks.place = place.map_or((0, 0), |place| (place, voters.len()));
    }

    /// The voter's rank: 0 for the voter that starts an election first, 1 for the next. The ranks rotate with each
    /// term.
    fn rank(&self, place: usize, voters: usize) -> usize {
        (place + self.raw.raft.term as usize) % voters.max(1)
    }

    /// The ticks that this voter waits after the shortest timeout. One tick, so that the others have given up the
    /// leader as well; and the ticks of its rank. All voters heard the leader at the same moment, but their ticks
    /// differ, and a voter that has not given up the leader does not answer. A replica without a rank waits for a
    /// random number of ticks.
    fn wait_limit(&mut self, (place, voters): (usize, usize)) -> usize {
        if voters == 0 {
            return self.ticks.chance.below(self.ticks.election);
        }
        let apart = (self.ticks.election * 3 / 5).div_ceil(voters).max(1);
        (1 + self.rank(place, voters) * apart).min(self.ticks.election - 1)
    }

    /// Sets this replica's own election timeout: raft draws another one on every change.
    pub(super) fn steady(&mut self) {
        let place = self.ticks.place;
        let now_for = (self.raw.raft.term, self.raw.raft.state, place);
        if self.ticks.drawn_for != now_for {
            self.ticks.drawn_for = now_for;
            self.ticks.timeout = self.ticks.election + self.wait_limit(place);
        }
        self.raw.raft.set_randomized_election_timeout(self.ticks.timeout);
    }
}
