//! Ticking: raft's clock, and when a voter stands for election.
//!
//! Raft draws an election time-out at random, from one to two times the shortest. Here each voter has a place of its own,
//! so that two rarely stand at once and the first one does soon; if they do, one gives way before any vote is given; and
//! who asked in vain asks again soon. All this costs nobody anything, for it is before the election, when the others are only
//! asked whether they would vote (pre-vote). The election itself waits for disks, and has a whole time-out.

use super::Replica;
use crate::cluster::options::Cluster;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::writer::Writer;
use crate::sync::clock::Moment;
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};
use std::time::Duration;

/// Raft's clock.
pub(super) struct Ticks {
    /// When the next tick is due, and how far they are apart.
    pub(super) next: Moment,
    pub(super) interval: Duration,
    /// The shortest election time-out, in ticks.
    pub(super) election: usize,
    chance: SplitMix,
    /// This voter's place among the voters, and how many there are; 0 of 0 for everybody else.
    place: (usize, usize),
    timeout: usize,
    /// For which term, role and place among the voters the time-out was drawn.
    drawn_for: (u64, StateRole, (usize, usize)),
    /// Ticks since this voter asked whether it would be voted for.
    asking: usize,
}

impl Ticks {
    pub(super) fn new(now: Moment, cluster: &Cluster, election: usize, seed: u64) -> Self {
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

/// A sequence of numbers from a seed. Sebastiano Vigna's SplitMix64.
pub(super) struct SplitMix(pub(super) u64);

impl SplitMix {
    pub(super) fn next(&mut self) -> u64 {
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
    pub(super) fn tick(&mut self) {
        self.await_answers();
        self.ask_whether_removed();
        let log = &self.raw.raft.raft_log;
        // While its ready waits for room, a leader of several voters steps down by itself: it hears nobody. A sole voter is
        // its own majority and leads on; its heartbeats would stay in memory.
        let steps_down = self.is_leader() && !self.raw.raft.prs().is_singleton();
        if self.out.is_some() || (self.is_held().is_some() && !steps_down) {
            return;
        }
        // Who has not got its log on the disk, or may not know what it once had, does not stand for election.
        if self.is_leader() || (log.persisted == log.last_index() && self.may_vote()) {
            self.raw.tick();
            self.ask_again_for_votes();
            self.steady();
        }
    }

    /// Who asked whether it would be voted for, and found neither enough nor a leader, asks again before its time-out has
    /// passed a second time: the others may have waited for a leader that they had heard a little later.
    fn ask_again_for_votes(&mut self) {
        if self.raw.raft.state != StateRole::PreCandidate {
            self.ticks.asking = 0;
            return;
        }
        self.ticks.asking += 1;
        let (place, voters) = self.ticks.place;
        let again = (self.ticks.election / 3).max(2) + self.turn(place, voters);
        if self.ticks.asking >= again {
            self.ticks.asking = 0;
            // Refused only while a change of membership has to be applied first.
            let _ = self.raw.campaign();
        }
    }

    /// Gives way to another voter that asks for votes at the same time, if that one comes first and this one would vote
    /// for it: else each could get half of the votes.
    pub(super) fn give_way(&mut self, question: &Message) {
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
        let turn = |node| voters.iter().position(|v| *v == node).map(|p| self.turn(p, voters.len()));
        if turn(question.from) < turn(self.node().0) && turn(question.from).is_some() {
            self.raw.raft.become_follower(term, raft::INVALID_ID);
        }
    }

    /// Stands for election at once: the only voter.
    pub(crate) fn campaign(&mut self, now: Moment, writer: &mut Writer) -> Result<()> {
        self.raw.campaign().map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))?;
        self.steady();
        self.process(now, writer)
    }

    /// The voters have changed.
    pub(super) fn find_place(&mut self) {
        let voters = self.membership.voters();
        let place = voters.iter().position(|v| *v == self.node().0);
        self.ticks.place = place.map_or((0, 0), |place| (place, voters.len()));
    }

    /// Whose turn it is to stand for election first: 0 for that voter, 1 for the next. Another one each term.
    fn turn(&self, place: usize, voters: usize) -> usize {
        (place + self.raw.raft.term as usize) % voters.max(1)
    }

    /// How many ticks this voter waits behind the shortest time-out: one, for the others to have given the leader up as
    /// well, and those in which it lets others go first. The others heard the leader at the same moment but tick at moments
    /// of their own, and who has not given it up yet does not answer. Who has no place waits for as long as chance says.
    fn wait_limit(&mut self, (place, voters): (usize, usize)) -> usize {
        if voters == 0 {
            return self.ticks.chance.below(self.ticks.election);
        }
        let apart = (self.ticks.election * 3 / 5).div_ceil(voters).max(1);
        (1 + self.turn(place, voters) * apart).min(self.ticks.election - 1)
    }

    /// Keeps the election time-out of our own: raft draws another one on every change.
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
