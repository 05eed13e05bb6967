//! The state of a cluster: the disk and the memory of each node, and the facts that the checks remember.
//!
//! Everything is small and fixed: a state is copied and hashed for every step. Nodes are numbered from 0 here and from 1 in
//! stories.
//!
//! A node changes its memory first and writes the changes to its disk in the same order. Before it sends a message, it
//! syncs everything that the message depends on ([`Node::sync`]). A crash keeps all synced writes. Of the writes after
//! them it keeps the first few: none, some, or all ([`Node::survivals`]).

use crate::rules::{Bounds, NODES_MAX, Rules};
use std::hash::{Hash, Hasher};

/// The longest log: the first configuration, an entry a term, one or two a change, and those of a calm run.
pub(crate) const LOG_MAX: usize = 24;

/// A set of nodes.
pub(crate) type Set = u8;

pub(crate) fn has(set: Set, node: usize) -> bool {
    set >> node & 1 == 1
}

pub(crate) fn one(node: usize) -> Set {
    1 << node
}

pub(crate) fn each(set: Set) -> impl Iterator<Item = usize> {
    (0..NODES_MAX).filter(move |n| has(set, *n))
}

/// A membership, as in `core/src/cluster/membership.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Config {
    pub(crate) voters: Set,
    /// The outgoing half of a joint configuration.
    pub(crate) outgoing: Set,
    pub(crate) learners: Set,
}

impl Config {
    pub(crate) fn members(self) -> Set {
        self.voters | self.outgoing | self.learners
    }

    pub(crate) fn all_voters(self) -> Set {
        self.voters | self.outgoing
    }

    pub(crate) fn is_joint(self) -> bool {
        self.outgoing != 0
    }

    pub(crate) fn is_alone(self, node: usize) -> bool {
        self.all_voters() == one(node)
    }

    pub(crate) fn is_majority(self, nodes: Set) -> bool {
        let of = |half: Set| (nodes & half).count_ones() * 2 > half.count_ones();
        of(self.voters) && (self.outgoing == 0 || of(self.outgoing))
    }
}

/// An entry: a term, and a membership if it is a change. Packed, so that logs are compared and hashed at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry(u32);

impl Entry {
    const CHANGE: u32 = 1 << 15;

    pub(crate) fn no_op(term: u8) -> Self {
        Self(u32::from(term) << 16)
    }

    pub(crate) fn change(term: u8, to: Config) -> Self {
        let bits = u32::from(to.voters) | u32::from(to.outgoing) << 5 | u32::from(to.learners) << 10;
        Self(u32::from(term) << 16 | Self::CHANGE | bits)
    }

    pub(crate) fn term(self) -> u8 {
        (self.0 >> 16) as u8
    }

    pub(crate) fn config(self) -> Option<Config> {
        let part = |at: u32| (self.0 >> at & 31) as Set;
        (self.0 & Self::CHANGE != 0).then(|| Config {
            voters: part(0),
            outgoing: part(5),
            learners: part(10),
        })
    }
}

/// Entries from index 1 on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Log {
    len: u8,
    entries: [Entry; LOG_MAX],
}

impl Default for Log {
    fn default() -> Self {
        Self { len: 0, entries: [Entry::default(); LOG_MAX] }
    }
}

impl Hash for Log {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(self.len);
        for two in self.all().chunks(2) {
            state.write_u64(two.iter().fold(0, |sum, entry| sum << 32 | u64::from(entry.0)));
        }
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.all().iter().map(|e| (e.term(), e.config()))).finish()
    }
}

impl Log {
    pub(crate) fn all(&self) -> &[Entry] {
        &self.entries[..usize::from(self.len)]
    }

    pub(crate) fn len(&self) -> u8 {
        self.len
    }

    pub(crate) fn get(&self, index: u8) -> Option<Entry> {
        (1..=self.len).contains(&index).then(|| self.entries[usize::from(index) - 1])
    }

    pub(crate) fn last_term(&self) -> u8 {
        self.get(self.len).map_or(0, Entry::term)
    }

    /// False if it is full: only a calm run that elects one leader after the other can reach that.
    pub(crate) fn push(&mut self, entry: Entry) -> bool {
        let Some(place) = self.entries.get_mut(usize::from(self.len)) else { return false };
        *place = entry;
        self.len += 1;
        true
    }

    pub(crate) fn cut(&self, len: u8) -> Self {
        let mut log = Self { len: len.min(self.len), ..Self::default() };
        let kept = usize::from(log.len);
        log.entries[..kept].copy_from_slice(&self.entries[..kept]);
        log
    }

    /// The number of entries that two logs share.
    pub(crate) fn common(&self, other: &Self) -> u8 {
        self.all().iter().zip(other.all()).take_while(|(a, b)| a == b).count() as u8
    }

    /// How far two logs have entries of the same terms: as far as raft considers them the same.
    pub(crate) fn alike(&self, other: &Self) -> u8 {
        self.all().iter().zip(other.all()).take_while(|(a, b)| a.term() == b.term()).count() as u8
    }

    /// The newest change at or below `index`.
    pub(crate) fn change_at(&self, index: u8) -> Option<(u8, Config)> {
        (1..=index.min(self.len)).rev().find_map(|i| Some((i, self.get(i)?.config()?)))
    }

    /// The oldest change above `index`.
    pub(crate) fn change_after(&self, index: u8) -> Option<(u8, Config)> {
        (index + 1..=self.len).find_map(|i| Some((i, self.get(i)?.config()?)))
    }

    pub(crate) fn config_at(&self, index: u8) -> Config {
        self.change_at(index).map_or(Config::default(), |(_, config)| config)
    }

    pub(crate) fn config_at_end(&self) -> Config {
        self.config_at(self.len)
    }
}

/// A vote for a node that can no longer be a candidate in that term.
pub(crate) const GONE: u8 = u8::MAX;

/// The contents of a disk that are synced: every power cut leaves at least these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Disk {
    pub(crate) term: u8,
    /// The node that has the vote, from 1; 0: none.
    pub(crate) vote: u8,
    /// How far the log is known to be committed.
    pub(crate) commit: u8,
    pub(crate) log: Log,
}

/// Whether a node runs and takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    #[default]
    Off,
    Up,
    /// Its own removal is in force: it answers candidates and greetings only.
    Removed,
    /// It believes a notice of removal, and takes no part.
    BelievesRemoved,
    /// It considers its disk set back, or its leader one of another history, and takes no part.
    SetBack,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    #[default]
    Follower,
    Candidate,
    Leader,
}

/// How far a replica is known to be: a term, and an entry.
pub(crate) type Extent = (u8, u8);

/// The answers to a replica that has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Introduction {
    /// Whether it waits for any.
    pub(crate) on: bool,
    pub(crate) found: Extent,
    pub(crate) answered: Set,
    /// The newest membership that the others reported, as of which entry; 0: none.
    pub(crate) newer_at: u8,
    pub(crate) newer: Config,
    pub(crate) votes: bool,
    pub(crate) voted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node {
    pub(crate) disk: Disk,
    pub(crate) phase: Phase,
    // The fields from here on are memory: empty while the node is off.
    pub(crate) term: u8,
    pub(crate) vote: u8,
    pub(crate) commit: u8,
    pub(crate) log: Log,
    /// The newest change that is in force here.
    pub(crate) force: u8,
    pub(crate) role: Role,
    /// Of a candidate: its voters.
    pub(crate) votes: Set,
    /// Of a follower: how far it has the log of this term's leader.
    pub(crate) accepted: u8,
    /// Of a leader: the entry up to which all must be applied before another change is proposed.
    pub(crate) pending: u8,
    /// Of a leader: how far the others have its log, and know that it is committed.
    pub(crate) matched: [u8; NODES_MAX],
    pub(crate) word: [u8; NODES_MAX],
    /// How far it knows the other nodes to be. Kept only if disks can be set back.
    pub(crate) heard: [Extent; NODES_MAX],
    pub(crate) introduction: Introduction,
}

/// Hashes a few words instead of many bytes: hashing is a large part of each step.
impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { disk, phase, term, vote, commit, log, force, role, votes, accepted, .. } = *self;
        let Self { pending, matched, word, heard, introduction, .. } = *self;
        disk.hash(state);
        log.hash(state);
        let of_all = |of: [u8; NODES_MAX]| of.into_iter().fold(0, |sum, one| sum << 8 | u64::from(one));
        state.write_u64(u64::from_be_bytes([
            phase as u8,
            term,
            vote,
            commit,
            force,
            role as u8,
            votes,
            accepted,
        ]));
        state.write_u64(of_all(matched) | u64::from(pending) << 40);
        state.write_u64(of_all(word));
        if introduction != Introduction::default() {
            introduction.hash(state);
        }
        if heard != <[Extent; NODES_MAX]>::default() {
            heard.hash(state);
        }
    }
}

impl Node {
    /// The membership in force here.
    pub(crate) fn config(&self) -> Config {
        self.log.config_at(self.force)
    }

    /// How many of the entries are on the disk.
    pub(crate) fn persisted(&self) -> u8 {
        self.log.common(&self.disk.log)
    }

    /// The last entry that is applied: the one before a change that is not in force.
    pub(crate) fn applied(&self) -> u8 {
        let settled = self.commit.min(self.persisted());
        self.log.change_after(self.force).map_or(settled, |(change, _)| settled.min(change - 1))
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.phase == Phase::Up && self.role == Role::Leader
    }

    pub(crate) fn is_introduced_to(&self, node: usize) -> bool {
        !self.introduction.on || has(self.introduction.answered, node)
    }

    pub(crate) fn may_vote(&self) -> bool {
        !self.introduction.on || self.introduction.votes
    }

    /// All members that it knows of.
    pub(crate) fn all_members(&self) -> Set {
        self.config().members() | self.log.config_at_end().members() | self.introduction.newer.members()
    }

    /// A member's role, in the newest membership that contains it.
    pub(crate) fn known_voters(&self) -> Set {
        let (told, here, end) = (self.introduction.newer, self.config(), self.log.config_at_end());
        let mut voters = told.all_voters();
        voters |= here.all_voters() & !told.members();
        voters | end.all_voters() & !(told.members() | here.members())
    }

    /// Syncs the term, the vote and the log; the commit only if `word`.
    pub(crate) fn sync(&mut self, word: bool, rules: &Rules) {
        let kept = self.log.common(&self.disk.log);
        let noted = if self.log.len() > kept { self.note(self.log.len(), rules) } else { 0 };
        let commit = self.disk.commit.max(if word { self.commit } else { noted });
        self.disk = Disk { term: self.term, vote: self.vote, commit, log: self.log };
    }

    pub(crate) fn sync_term(&mut self) {
        self.disk.term = self.term;
        self.disk.vote = self.vote;
    }

    /// The commit that is written together with the newest change up to `len`: it covers the change before.
    fn note(&self, len: u8, rules: &Rules) -> u8 {
        let newest = self.log.change_at(len).filter(|_| rules.keep_commit_before);
        newest.and_then(|(change, _)| self.log.change_at(change - 1)).map_or(0, |(before, _)| before)
    }

    /// The disks that a crash can leave. Writes after the last sync reach the disk in order: the term and the vote,
    /// then the entries one by one, then the commit. A crash keeps any number of them from the front.
    pub(crate) fn survivals(&self, rules: &Rules) -> Vec<Disk> {
        let mut all = vec![self.disk];
        if self.phase == Phase::Off {
            return all;
        }
        let mut add = |disk: Disk| {
            if !all.contains(&disk) {
                all.push(disk);
            }
        };
        let turned = Disk { term: self.term, vote: self.vote, ..self.disk };
        add(turned);
        for len in self.persisted() + 1..=self.log.len() {
            let commit = self.disk.commit.max(self.note(len, rules)).min(len);
            add(Disk { log: self.log.cut(len), commit, ..turned });
        }
        add(Disk { log: self.log, commit: self.commit.max(self.disk.commit), ..turned });
        all
    }

    /// The node is off, with this on its disk.
    pub(crate) fn stop(&mut self, disk: Disk) {
        *self = Self { disk, ..Self::default() };
    }
}

/// A failure that a later state might no longer show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Broken {
    #[default]
    Nothing,
    /// Two nodes have led one term.
    TwoLeaders,
    /// Another node has a different entry in place of a committed one, or it was lost.
    TwoEntries,
}

/// A held-back message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) from: u8,
    pub(crate) to: u8,
    pub(crate) term: u8,
    pub(crate) body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Body {
    /// A candidate asks for a vote.
    Ask {
        last: Extent,
    },
    Vote,
    /// A leader's log, how far it is committed, and how far the leader has it durably.
    Append {
        log: Log,
        commit: u8,
        durable: u8,
    },
    Ack {
        matched: u8,
        commit: u8,
    },
    /// A leader learns of a newer term.
    Behind,
    /// The sender's commit and the term of that entry: sent with a request for votes, or with its refusal.
    Committed {
        at: u8,
        of: u8,
    },
    /// How far the sender knows the receiver to be, and the sender's membership.
    Known {
        known: Extent,
        at: u8,
        config: Config,
    },
    /// A notice of removal.
    Removed {
        committed: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct State {
    pub(crate) nodes: Vec<Node>,
    pub(crate) held: Option<Message>,
    /// An earlier state of a disk.
    pub(crate) image: Option<(u8, Disk)>,
    /// The number of events so far, for the bounds.
    pub(crate) changes: u8,
    pub(crate) crashes: u8,
    pub(crate) late: u8,
    pub(crate) set_backs: u8,
    /// All entries that any node ever knew to be committed.
    pub(crate) chosen: Log,
    /// The newest change that was answered.
    pub(crate) answered: u8,
    /// The nodes that have led, by term.
    pub(crate) leaders: [Set; 16],
    pub(crate) broken: Broken,
}

impl State {
    /// Node 0 leads the voters in term 1, and everything is durable everywhere.
    pub(crate) fn start(bounds: &Bounds) -> Self {
        let voters = (1 << bounds.voters) - 1;
        let learners = ((1 << bounds.learners) - 1) << bounds.voters;
        let mut log = Log::default();
        log.push(Entry::change(1, Config { voters, outgoing: 0, learners }));
        let member = |n: usize| {
            let disk = Disk { term: 1, vote: u8::from(n < bounds.voters), commit: 1, log };
            let mut node =
                Node { disk, phase: Phase::Up, term: 1, vote: disk.vote, commit: 1, log, ..Node::default() };
            node.force = 1;
            if n == 0 {
                node.role = Role::Leader;
                node.pending = 1;
                for other in 1..bounds.voters + bounds.learners {
                    (node.matched[other], node.word[other], node.heard[other]) = (1, 1, (1, 1));
                }
            } else {
                node.accepted = 1;
                node.heard[0] = (1, 0);
            }
            node
        };
        let members = bounds.voters + bounds.learners;
        let fresh = Node { phase: Phase::Up, ..Node::default() };
        let mut nodes: Vec<Node> =
            (0..bounds.nodes()).map(|n| if n < members { member(n) } else { fresh }).collect();
        if bounds.set_backs == 0 {
            nodes.iter_mut().for_each(|node| node.heard = Default::default());
        }
        let mut leaders = [0; 16];
        leaders[1] = 1;
        Self {
            nodes,
            held: None,
            image: None,
            changes: 0,
            crashes: 0,
            late: 0,
            set_backs: 0,
            chosen: log,
            answered: 1,
            leaders,
            broken: Broken::Nothing,
        }
    }
}
