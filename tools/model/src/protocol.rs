//! The protocol: the messages that a node may send, and the effects of a message that arrives.
//!
//! A message is made from the state of its sender at the moment it is sent, so it can be lost (it is not sent) or
//! doubled (it is sent again) without being stored. Each function names the function of the log that it represents;
//! those in `core/src/replica/raft/` are named by their file alone.

use crate::rules::{Bounds, Kind, Rules};
use crate::state::{Body, Broken, Config, Entry, Extent, Introduction, Message, Node, Phase, Role, State};
use crate::state::{each, has, one};

/// A message that a node may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Send {
    Ask,
    Vote,
    Append,
    /// An acknowledgement; whether the commit is synced with what it acknowledges.
    Ack {
        word: bool,
    },
    Behind,
    /// The sender's commit, in a pre-vote request that is refused, or in its refusal.
    Committed,
    Known,
    Removed,
}

impl Send {
    pub(crate) const ALL: [Self; 9] = [
        Self::Ask,
        Self::Vote,
        Self::Append,
        Self::Ack { word: true },
        Self::Ack { word: false },
        Self::Behind,
        Self::Committed,
        Self::Known,
        Self::Removed,
    ];
}

/// A change of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Add(usize),
    Promote(usize),
    Demote(usize),
    Remove(usize),
    Swap { promote: usize, remove: usize },
}

/// The rules and the bounds, which determine all steps.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) rules: Rules,
    pub(crate) bounds: Bounds,
}

impl Protocol {
    // ---- sending ----

    /// The message that a node would send now.
    pub(crate) fn body(&self, s: &State, send: Send, from: usize, to: usize) -> Option<Body> {
        if from == to {
            return None;
        }
        let (me, other) = (&s.nodes[from], &s.nodes[to]);
        let speaks = me.phase == Phase::Up || me.phase == Phase::Removed;
        if !speaks
            || (me.phase == Phase::Removed && !matches!(send, Send::Vote | Send::Known | Send::Committed))
        {
            return None;
        }
        let introduced = me.is_introduced_to(to);
        Some(match send {
            Send::Ask => {
                let may = me.role == Role::Candidate && has(me.config().all_voters(), to) && introduced;
                let last = (me.log.last_term(), me.log.len());
                may.then_some(Body::Ask { last })?
            }
            // It has the request: only a candidate gets a vote.
            Send::Vote => {
                // A replica whose disk was set back asks with a shorter log.
                let has_all = (other.log.last_term(), other.log.len()) >= (me.log.last_term(), me.log.len());
                let asked = other.role == Role::Candidate && other.term == me.term && has_all;
                let gave = me.vote == to as u8 + 1 && me.role == Role::Follower;
                (asked && gave && me.may_vote() && introduced).then_some(Body::Vote)?
            }
            Send::Append => {
                let may = me.is_leader() && has(me.config().members(), to) && introduced;
                may.then_some(Body::Append { log: me.log, commit: me.commit, durable: me.persisted() })?
            }
            Send::Ack { word } => {
                let leads = other.is_leader() && other.term == me.term;
                let more = word || me.commit > me.disk.commit;
                let may = me.role == Role::Follower && me.accepted > 0 && leads && introduced && more;
                may.then_some(Body::Ack { matched: me.accepted, commit: 0 })?
            }
            Send::Behind => {
                let behind = other.is_leader() && other.term < me.term && has(other.config().members(), from);
                (behind && introduced).then_some(Body::Behind)?
            }
            Send::Committed => {
                let both = introduced && other.is_introduced_to(from) && me.role != Role::Leader;
                let newer =
                    |a: &Node, b: &Node| (a.log.last_term(), a.log.len()) > (b.log.last_term(), b.log.len());
                let asked = self.is_voter_that_asks(other) && has(other.config().all_voters(), from);
                let asks = self.is_voter_that_asks(me) && has(me.config().all_voters(), to);
                let removed = me.phase == Phase::Removed && self.rules.send_commit;
                let refuses = asked && (removed || me.may_vote() && newer(me, other));
                let is_refused = asks && other.may_vote() && other.phase == Phase::Up && newer(other, me);
                let of = me.log.get(me.commit).map_or(0, Entry::term);
                (both && (refuses || is_refused)).then_some(Body::Committed { at: me.commit, of })?
            }
            Send::Known => {
                let asks = other.introduction.on && self.greets(s, to, from);
                let answers = has(me.all_members(), to) || !me.is_leader();
                let config = me.log.config_at(me.commit);
                (asks && answers).then_some(Body::Known { known: me.heard[to], at: me.commit, config })?
            }
            Send::Removed => {
                let asked = (other.introduction.on && has(other.all_members(), from))
                    || (self.is_voter_that_asks(other) && has(other.config().all_voters(), from))
                        && other.is_introduced_to(from)
                        && introduced
                    || (has(other.config().learners, to) && has(other.config().members(), from));
                let may = me.is_leader() && !has(me.all_members(), to) && asked && other.phase == Phase::Up;
                may.then_some(Body::Removed { committed: me.commit })?
            }
        })
    }

    /// Sends a message, and first syncs everything that must be on the disk before.
    pub(crate) fn send(&self, s: &mut State, send: Send, from: usize, to: usize) -> Option<Message> {
        let body = self.body(s, send, from, to)?;
        // A message depends only on durable facts.
        let rules = &self.rules;
        let me = &mut s.nodes[from];
        let mut message = Message { from: from as u8, to: to as u8, term: me.term, body };
        match send {
            Send::Append if rules.send_gate => me.sync_term(),
            Send::Append | Send::Committed | Send::Known | Send::Removed => {}
            Send::Ack { word } => {
                me.sync(word, rules);
                let commit = if rules.durable_word { me.disk.commit } else { me.commit };
                message.body = Body::Ack { matched: me.accepted, commit };
                self.settle(s, from);
            }
            Send::Ask | Send::Vote | Send::Behind => {
                me.sync(true, rules);
                self.settle(s, from);
            }
        }
        if send == Send::Append {
            Self::note_leader(s, from);
        }
        Some(message)
    }

    /// Whether a node that has started greets another: `handshake.rs`, `greet_all`, `greeted`; `peers/mod.rs`,
    /// `open_envelope`.
    fn greets(&self, s: &State, node: usize, other: usize) -> bool {
        let (me, it) = (&s.nodes[node], &s.nodes[other]);
        if !self.rules.greet_all {
            let asks_me = it.role == Role::Candidate && has(it.config().all_voters(), node);
            return has(me.known_voters(), other) || asks_me && it.is_introduced_to(node);
        }
        has(me.all_members(), other) || self.contacts(it, node)
    }

    /// Whether a node sends messages to another one by itself.
    fn contacts(&self, it: &Node, to: usize) -> bool {
        if it.phase != Phase::Up {
            return false;
        }
        let config = it.config();
        let raft = it.is_leader() && has(config.members(), to)
            || self.is_voter_that_asks(it) && has(config.all_voters(), to);
        raft && it.is_introduced_to(to)
            || it.introduction.on && !it.is_introduced_to(to) && has(it.all_members(), to)
    }

    /// A voter without a leader asks whether others would vote for it.
    fn is_voter_that_asks(&self, it: &Node) -> bool {
        it.phase == Phase::Up && it.role != Role::Leader && it.may_vote()
    }

    // ---- arriving messages ----

    pub(crate) fn arrive(&self, s: &mut State, message: &Message) {
        let (from, to) = (usize::from(message.from), usize::from(message.to));
        let me = &mut s.nodes[to];
        match message.body {
            Body::Known { known, at, config } => return self.introduced(s, to, from, (known, at, config)),
            Body::Removed { committed } => return Self::on_removed(me, to, from, message.term, committed),
            _ => {}
        }
        // `Replica::receive`, `hears`.
        let asks = matches!(message.body, Body::Ask { .. });
        if !(me.phase == Phase::Up || me.phase == Phase::Removed && asks) {
            return;
        }
        // `handshake.rs`, `hear`.
        let is_aside = matches!(message.body, Body::Committed { .. });
        if self.bounds.set_backs > 0 && !is_aside && has(me.config().members(), from) {
            let last = match message.body {
                Body::Ack { matched: last, .. } | Body::Append { durable: last, .. } => last,
                _ => 0,
            };
            me.heard[from] = me.heard[from].max((message.term, last));
        }
        if !me.is_introduced_to(from) {
            return;
        }
        if let Body::Committed { at, of } = message.body {
            // Raft's `maybe_commit_by_vote`.
            if me.role != Role::Leader && at > me.commit && me.log.get(at).is_some_and(|e| e.term() == of) {
                let changes = me.log.change_after(me.commit).is_some_and(|(change, _)| change <= at);
                me.commit = at;
                if changes {
                    Self::step_down(me);
                }
                self.note_chosen(s, to);
                self.settle(s, to);
            }
            return;
        }
        if asks {
            if me.phase == Phase::Removed && self.rules.send_commit {
                return;
            }
            let stranger = !has(me.all_members(), from) && has(me.config().members(), to);
            if !me.may_vote() || stranger && me.is_leader() {
                return;
            }
        }
        if let Body::Append { log, commit, .. } = &message.body {
            // `checks.rs`, `check_history`.
            let both = me.commit.min(log.len());
            if message.term >= me.term && log.alike(&me.log) < both {
                me.phase = Phase::SetBack;
                me.role = Role::Follower;
                return;
            }
            if message.term >= me.term {
                self.follow(s, to, message.term, log, *commit);
            }
            return;
        }
        if message.term > me.term {
            Self::turn(me, message.term);
            self.settle(s, to);
        }
        let me = &mut s.nodes[to];
        if message.term < me.term {
            return;
        }
        match message.body {
            Body::Ask { last } => {
                let free = me.vote == from as u8 + 1 || me.vote == 0 && me.accepted == 0;
                if me.role == Role::Follower && free && last >= (me.log.last_term(), me.log.len()) {
                    me.vote = from as u8 + 1;
                    me.introduction.voted = me.introduction.on && self.bounds.set_backs > 0;
                }
            }
            Body::Vote if me.role == Role::Candidate => {
                me.votes |= one(from);
                self.count_votes(s, to);
            }
            Body::Ack { matched, commit } if me.is_leader() => {
                if has(me.config().members(), from) {
                    me.matched[from] = me.matched[from].max(matched);
                    me.word[from] = me.word[from].max(commit);
                }
                self.settle(s, to);
            }
            _ => {}
        }
    }

    /// A newer term.
    fn turn(me: &mut Node, term: u8) {
        me.term = term;
        me.vote = 0;
        me.accepted = 0;
        Self::step_down(me);
    }

    fn step_down(me: &mut Node) {
        me.role = Role::Follower;
        me.votes = 0;
        me.pending = 0;
        me.matched = Default::default();
        me.word = Default::default();
    }

    /// A leader's entries: raft's `handle_append_entries`, `ready.rs`, `rollback`.
    fn follow(&self, s: &mut State, node: usize, term: u8, log: &crate::state::Log, commit: u8) {
        let me = &mut s.nodes[node];
        if term > me.term {
            Self::turn(me, term);
        }
        if me.is_leader() {
            s.broken = s.broken.max(Broken::TwoLeaders);
            return;
        }
        Self::step_down(me);
        let alike = log.alike(&me.log);
        if alike < log.len() {
            me.log = me.log.cut(alike);
            for entry in &log.all()[usize::from(alike)..] {
                me.log.push(*entry);
            }
        }
        me.accepted = me.accepted.max(log.len());
        me.commit = me.commit.max(commit.min(log.len()));
        self.note_chosen(s, node);
        self.settle(s, node);
    }

    /// `handshake.rs`, `introduced`.
    fn introduced(&self, s: &mut State, node: usize, from: usize, news: (Extent, u8, Config)) {
        let (known, at, config) = news;
        let me = &mut s.nodes[node];
        if !me.introduction.on || !matches!(me.phase, Phase::Up | Phase::Removed) {
            return;
        }
        let is_first = !has(me.introduction.answered, from);
        me.introduction.answered |= one(from);
        let less = known > me.introduction.found;
        if is_first && less && self.rules.set_back_check && !me.introduction.voted {
            me.phase = Phase::SetBack;
            me.role = Role::Follower;
            return;
        }
        if at > me.introduction.newer_at.max(me.commit) {
            me.introduction.newer_at = at;
            me.introduction.newer = config;
        }
        self.weigh(me, node);
    }

    /// `handshake.rs`, `weigh_answers`, except for what passes with time: [`Self::be_patient`].
    fn weigh(&self, me: &mut Node, node: usize) {
        if me.introduction.on && !me.introduction.votes && Self::has_majority(me, node) {
            let others = me.known_voters() & !one(node);
            me.introduction.votes = others & !me.introduction.answered == 0 || !self.rules.hear_all;
        }
    }

    fn has_majority(me: &Node, node: usize) -> bool {
        let there = me.introduction.answered | one(node);
        me.introduction.newer_at > 0 && me.introduction.newer.is_majority(there)
            || me.config().is_majority(there) && me.config().voters != 0
    }

    /// `peers/mod.rs`, `on_removed`.
    fn on_removed(me: &mut Node, node: usize, from: usize, term: u8, committed: u8) {
        if me.phase != Phase::Up && me.phase != Phase::Removed {
            return;
        }
        let is_in = |config: Config| has(config.members(), node);
        let in_force = is_in(me.config()).then_some(me.commit);
        let pending = me.log.change_at(me.log.len()).filter(|(at, config)| *at > me.commit && is_in(*config));
        let pending = pending.map(|(at, _)| at);
        let told = is_in(me.introduction.newer).then_some(me.introduction.newer_at);
        let least = match [in_force, pending, told].into_iter().flatten().max() {
            Some(newest) => newest.max(me.commit),
            None if me.log.len() > 0 && term >= me.term => me.commit,
            None => return,
        };
        let stranger = !has(me.all_members(), from) && is_in(me.config());
        if stranger || term < me.term || committed < least || me.is_leader() {
            return;
        }
        me.phase = Phase::BelievesRemoved;
        Self::step_down(me);
    }

    // ---- consequences ----

    /// `ready.rs`, `persisted`; `membership_change.rs`, `apply`: what is committed and durable comes into force.
    pub(crate) fn settle(&self, s: &mut State, node: usize) {
        loop {
            self.commit(s, node);
            let me = &mut s.nodes[node];
            if me.phase != Phase::Up && me.phase != Phase::Removed {
                return;
            }
            let there = me.commit.min(me.persisted());
            let Some((at, config)) = me.log.change_after(me.force).filter(|(at, _)| *at <= there) else {
                break;
            };
            if me.is_leader() && self.rules.await_known && !self.is_known(me, node, at, config) {
                break;
            }
            let was_member = has(me.config().members(), node);
            me.force = at;
            if me.is_leader() && !config.is_joint() {
                s.answered = s.answered.max(at);
            }
            // `membership_change.rs`, `bring_into_force`, `members_changed`.
            let told = &mut me.introduction;
            if told.newer_at > 0 && told.newer_at <= me.commit {
                told.newer_at = 0;
                told.newer = Config::default();
            }
            self.weigh(me, node);
            if !has(config.all_voters(), node) && me.role != Role::Follower {
                Self::step_down(me);
            }
            if was_member && !has(config.members(), node) {
                me.phase = if self.rules.answer_on { Phase::Removed } else { Phase::BelievesRemoved };
                Self::step_down(me);
                me.accepted = 0;
            }
        }
        // Raft leaves a joint configuration by itself.
        let me = &mut s.nodes[node];
        let config = me.config();
        let newest = me.log.change_at(me.log.len()).map_or(0, |(at, _)| at);
        if me.is_leader() && config.is_joint() && newest == me.force && me.applied() >= me.pending {
            me.log.push(Entry::change(me.term, Config { outgoing: 0, ..config }));
            me.pending = me.log.len();
        }
    }

    /// `membership_change.rs`, `is_known`.
    fn is_known(&self, me: &Node, node: usize, at: u8, config: Config) -> bool {
        let knows = |n: usize| {
            let own = n == node && (me.disk.commit >= at || !self.rules.durable_word);
            own || n != node && me.word[n] >= at
        };
        let knowing = each(config.all_voters()).filter(|n| knows(*n)).fold(0, |set, n| set | one(n));
        config.is_majority(knowing)
    }

    /// A leader commits the entries that a majority has on disk, up to an entry of its own term.
    fn commit(&self, s: &mut State, node: usize) {
        let me = &mut s.nodes[node];
        if !me.is_leader() {
            return;
        }
        let (config, persisted) = (me.config(), me.persisted());
        let has_it = |n: usize, at: u8| if n == node { persisted >= at } else { me.matched[n] >= at };
        let there =
            |at: u8| each(config.all_voters()).filter(|n| has_it(*n, at)).fold(0, |set, n| set | one(n));
        let own = |at: &u8| me.log.get(*at).is_some_and(|e| e.term() == me.term);
        let newest =
            (me.commit + 1..=me.log.len()).rev().filter(own).find(|at| config.is_majority(there(*at)));
        if let Some(newest) = newest {
            me.commit = newest;
            Self::note_leader(s, node);
            self.note_chosen(s, node);
        }
    }

    /// All nodes know the same entries committed.
    fn note_chosen(&self, s: &mut State, node: usize) {
        let me = &s.nodes[node];
        let known = me.log.cut(me.commit);
        if known.common(&s.chosen) < known.len().min(s.chosen.len()) || me.commit > me.log.len() {
            s.broken = Broken::TwoEntries;
        } else if known.len() > s.chosen.len() {
            s.chosen = known;
        }
    }

    fn count_votes(&self, s: &mut State, node: usize) {
        let me = &mut s.nodes[node];
        if !me.config().is_majority(me.votes) {
            return;
        }
        me.role = Role::Leader;
        me.votes = 0;
        me.pending = me.log.len();
        me.log.push(Entry::no_op(me.term));
        // A node with a term newer than all chosen entries has all of them.
        let lacks = me.log.common(&s.chosen) < s.chosen.len();
        if lacks && me.term > s.chosen.last_term() {
            s.broken = Broken::TwoEntries;
        }
        self.settle(s, node);
    }

    /// A leader acts as one: it sends entries or commits. A leader that did neither can lose its term in a power cut.
    fn note_leader(s: &mut State, node: usize) {
        if let Some(led) = s.leaders.get_mut(usize::from(s.nodes[node].term)) {
            *led |= one(node);
            if *led != one(node) {
                s.broken = s.broken.max(Broken::TwoLeaders);
            }
        }
    }

    // ---- spontaneous steps ----

    /// `election.rs`, `tick`; raft's `hup`. A leader that hears no majority steps down first.
    pub(crate) fn stand(&self, s: &mut State, node: usize, term: u8) -> bool {
        let rules = &self.rules;
        let me = &mut s.nodes[node];
        if me.phase != Phase::Up || !me.may_vote() || term <= me.term {
            return false;
        }
        me.sync(true, rules);
        if me.role == Role::Leader {
            Self::step_down(me);
        }
        self.settle(s, node);
        let me = &mut s.nodes[node];
        let voter = me.phase == Phase::Up && has(me.config().all_voters(), node);
        let unapplied = me.log.change_after(me.force).is_some_and(|(at, _)| at <= me.commit);
        if !voter || unapplied {
            return false;
        }
        Self::turn(me, term);
        me.role = Role::Candidate;
        me.vote = node as u8 + 1;
        me.votes = one(node);
        me.introduction.voted = me.introduction.on && self.bounds.set_backs > 0;
        self.count_votes(s, node);
        true
    }

    /// A node syncs its writes without sending anything.
    pub(crate) fn sync(&self, s: &mut State, node: usize) -> bool {
        let me = &mut s.nodes[node];
        let before = me.disk;
        if me.phase == Phase::Off || me.phase == Phase::BelievesRemoved || me.phase == Phase::SetBack {
            return false;
        }
        me.sync(true, &self.rules);
        let changed = me.disk != before;
        self.settle(s, node);
        changed
    }

    /// `requests/membership.rs`, `change_when_caught_up`, `propose_change`; raft's `has_pending_conf`.
    pub(crate) fn propose(&self, s: &mut State, node: usize, change: Change) -> bool {
        let fresh = |n: usize| s.nodes[n].phase == Phase::Up && s.nodes[n].log.len() == 0;
        let me = &s.nodes[node];
        let config = me.config();
        let newest = me.log.change_at(me.log.len()).map_or(0, |(at, _)| at);
        if !me.is_leader() || newest != me.force || me.pending > me.applied() || config.is_joint() {
            return false;
        }
        let ever = me.log.all().iter().filter_map(|e| e.config()).fold(0, |all, c| all | c.members());
        let learner = |n: usize| has(config.learners, n);
        let may = match change {
            Change::Add(n) => !has(ever, n) && fresh(n),
            Change::Promote(n) => learner(n) && me.matched[n] > 0,
            Change::Demote(n) => has(config.voters, n) && config.voters != one(n),
            Change::Remove(n) => has(config.members(), n) && config.voters != one(n),
            Change::Swap { promote, remove } => {
                learner(promote) && me.matched[promote] > 0 && has(config.voters, remove)
            }
        };
        if !may {
            return false;
        }
        let Config { voters, learners, .. } = config;
        let next = match change {
            Change::Add(n) => Config { learners: learners | one(n), ..config },
            Change::Promote(n) => {
                Config { voters: voters | one(n), learners: learners & !one(n), outgoing: 0 }
            }
            Change::Demote(n) => {
                Config { voters: voters & !one(n), learners: learners | one(n), outgoing: 0 }
            }
            Change::Remove(n) => {
                Config { voters: voters & !one(n), learners: learners & !one(n), outgoing: 0 }
            }
            Change::Swap { promote, remove } => Config {
                voters: (voters | one(promote)) & !one(remove),
                learners: learners & !one(promote),
                outgoing: voters,
            },
        };
        let me = &mut s.nodes[node];
        me.log.push(Entry::change(me.term, next));
        me.pending = me.log.len();
        s.changes += 1;
        true
    }

    pub(crate) fn changes(&self) -> Vec<Change> {
        let nodes = 0..self.bounds.nodes();
        let mut all = Vec::new();
        for kind in &self.bounds.kinds {
            match kind {
                Kind::Add => all.extend(nodes.clone().map(Change::Add)),
                Kind::Promote => all.extend(nodes.clone().map(Change::Promote)),
                Kind::Demote => all.extend(nodes.clone().map(Change::Demote)),
                Kind::Remove => all.extend(nodes.clone().map(Change::Remove)),
                Kind::Swap => {
                    for promote in nodes.clone() {
                        let swap = |remove| Change::Swap { promote, remove };
                        all.extend(nodes.clone().filter(|n| *n != promote).map(swap));
                    }
                }
            }
        }
        all
    }

    /// `Replica::new`; `handshake.rs`, `await_introduction`.
    pub(crate) fn restart(&self, s: &mut State, node: usize) {
        let disk = s.nodes[node].disk;
        let log = disk.log;
        let mut me =
            Node { disk, phase: Phase::Up, term: disk.term, vote: disk.vote, log, ..Node::default() };
        me.commit = disk.commit;
        me.force = log.change_at(disk.commit).map_or(0, |(at, _)| at);
        let alone = me.config().is_alone(node) && log.config_at_end().is_alone(node);
        if !alone && self.rules.introduce {
            let found = if self.bounds.set_backs > 0 { (disk.term, log.len()) } else { (0, 0) };
            me.introduction = Introduction { on: true, found, ..Introduction::default() };
        }
        s.nodes[node] = me;
    }

    /// `handshake.rs`, `weigh_answers`: an election time-out has passed since a majority answered. If disks are set
    /// back, all voters that run can be reached in that time: otherwise it is best effort.
    pub(crate) fn be_patient(&self, s: &mut State, node: usize) -> bool {
        let me = &s.nodes[node];
        let waits = me.phase == Phase::Up || me.phase == Phase::Removed;
        if !waits || !me.introduction.on || me.introduction.votes || !Self::has_majority(me, node) {
            return false;
        }
        let missing = me.known_voters() & !one(node) & !me.introduction.answered;
        let answers = |n: usize| matches!(s.nodes[n].phase, Phase::Up | Phase::Removed);
        if self.bounds.set_backs > 0 && each(missing).any(answers) {
            return false;
        }
        s.nodes[node].introduction.votes = true;
        true
    }
}
