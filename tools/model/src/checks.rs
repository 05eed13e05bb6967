//! The model that the checker explores: the steps that are possible in a state, and the properties of every state.

use crate::calm::Verdict;
use crate::protocol::{Change, Protocol, Send};
use crate::rules::Kind;
use crate::state::{Broken, Config, Node, Phase, Role, Set, State, each, has};
use crate::symmetry::same;
use stateright::{Model, Property};
use std::cell::RefCell;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    /// A message is sent, and arrives immediately or is held back.
    Send {
        send: Send,
        from: usize,
        to: usize,
        held: bool,
    },
    /// The held-back message arrives.
    Late,
    StartElection(usize),
    Sync(usize),
    Propose {
        node: usize,
        change: Change,
    },
    /// A node loses power; `keep` selects one of the disks that this can leave.
    Crash {
        node: usize,
        keep: usize,
    },
    Restart(usize),
    Patience(usize),
    /// An image is taken of a disk.
    Image(usize),
    /// The disk is set back to it.
    SetBack,
}

pub(crate) const ONE_LEADER: &str = "one leader a term";
pub(crate) const ONE_LOG: &str = "committed entries stay and are the same everywhere";
pub(crate) const LEADER: &str = "the members of the answered membership can elect a leader";
pub(crate) const BACK: &str = "all members that come back follow and vote again";
pub(crate) const OUT: &str = "no member takes itself for removed, or its disk for set back";

impl Protocol {
    pub(crate) fn start(&self) -> State {
        let mut s = State::start(&self.bounds);
        self.merge(&mut s);
        s
    }

    /// The state after an action, with its nodes in the order of the state before.
    pub(crate) fn step(&self, before: &State, action: Action) -> State {
        let mut s = before.clone();
        match action {
            Action::Send { send, from, to, held } => {
                if let Some(message) = self.send(&mut s, send, from, to) {
                    if held {
                        s.late += 1;
                        s.held = Some(message);
                    } else {
                        self.arrive(&mut s, &message);
                    }
                }
            }
            Action::Late => {
                if let Some(message) = s.held {
                    self.arrive(&mut s, &message);
                }
            }
            Action::StartElection(n) => {
                let term = s.nodes[n].term + 1;
                self.stand(&mut s, n, term);
            }
            Action::Sync(n) => {
                self.sync(&mut s, n);
            }
            Action::Propose { node, change } => {
                self.propose(&mut s, node, change);
            }
            Action::Crash { node, keep } => {
                if let Some(disk) = s.nodes[node].survivals(&self.rules).get(keep) {
                    s.nodes[node].stop(*disk);
                    s.crashes += 1;
                }
            }
            Action::Restart(n) => self.restart(&mut s, n),
            Action::Patience(n) => {
                self.be_patient(&mut s, n);
            }
            Action::Image(n) => s.image = Some((n as u8, s.nodes[n].disk)),
            Action::SetBack => {
                if let Some((n, disk)) = s.image.take() {
                    s.nodes[usize::from(n)].stop(disk);
                    s.set_backs += 1;
                }
            }
        }
        self.merge(&mut s);
        s
    }

    /// Whether the disk of the image may be set back to it. The log promises nothing for the disk of a replica that has
    /// led since, because no replica remembers what a leader has written since its last heartbeat. It promises nothing
    /// while a deposed leader still leads either, because a replica follows a leader that has answered, whatever the
    /// others will answer.
    fn may_be_set_back(&self, s: &State) -> bool {
        let Some((n, disk)) = s.image else { return false };
        let n = usize::from(n);
        let has_led = s.leaders[usize::from(disk.term)..].iter().any(|led| has(*led, n));
        let term = s.nodes[n].term.max(s.nodes[n].disk.term);
        let deposed = s.nodes.iter().any(|node| node.is_leader() && node.term < term);
        let (leaders, beside) = (self.bounds.leaders_set_back, self.bounds.set_back_beside);
        s.nodes[n].disk != disk && (!has_led || leaders) && (!deposed || beside)
    }

    pub(crate) fn verdict(&self, s: &State) -> Verdict {
        if self.bounds.set_backs > 0 {
            return Verdict { leader: true, back: true }; // best effort
        }
        let answered = s.chosen.config_at(s.answered);
        let takes_part = |n: &&Node| n.phase != Phase::BelievesRemoved && n.phase != Phase::SetBack;
        let mut later = false;
        let mut all = answered.members();
        for node in s.nodes.iter().filter(takes_part) {
            for log in [&node.log, &node.disk.log] {
                for at in s.answered + 1..=log.len() {
                    if let Some(config) = log.get(at).and_then(|e| e.config()) {
                        later = true;
                        all |= config.members();
                    }
                }
            }
        }
        let together = self.calm(s, all, false);
        // For larger clusters only the power cut is judged for each majority: it leaves the least.
        let ways: &[bool] = if s.nodes.len() > 3 { &[true] } else { &[false, true] };
        let least = |q: Set| ways.iter().all(|cut| self.calm(s, q, *cut).leader);
        let leader = together.leader && (later || smallest_majorities(answered).all(least));
        Verdict { leader, ..together }
    }

    /// Keeps the verdict on the last state of this thread: several properties need it.
    fn judged(&self, s: &State) -> Verdict {
        thread_local! {
            static LAST: RefCell<Option<(State, Verdict)>> = const { RefCell::new(None) };
        }
        LAST.with_borrow_mut(|last| match last {
            Some((of, verdict)) if of == s => *verdict,
            _ => last.insert((s.clone(), self.verdict(s))).1,
        })
    }

    /// A node that takes no part was removed, or its disk was set back.
    pub(crate) fn is_rightly_out(&self, s: &State, node: usize) -> bool {
        let is_in = |config: Config| has(config.members(), node);
        let configs = || s.chosen.all().iter().filter_map(|e| e.config());
        let removed = configs().any(is_in) && configs().next_back().is_some_and(|c| !is_in(c));
        match s.nodes[node].phase {
            Phase::BelievesRemoved | Phase::Removed => removed,
            Phase::SetBack => s.set_backs > 0,
            Phase::Off | Phase::Up => true,
        }
    }
}

fn smallest_majorities(config: Config) -> impl Iterator<Item = Set> {
    let voters = config.voters;
    let size = voters.count_ones() / 2 + 1;
    (0..=voters).filter(move |q| q & !voters == 0 && q.count_ones() == size)
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![same(&self.start()).0]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.broken == Broken::TwoEntries {
            return;
        }
        let nodes = s.nodes.len();
        let speaks = |n: usize| matches!(s.nodes[n].phase, Phase::Up | Phase::Removed);
        for from in (0..nodes).filter(|n| speaks(*n)) {
            for to in (0..nodes).filter(|n| *n != from) {
                for send in Send::ALL {
                    if self.body(s, send, from, to).is_none() {
                        continue;
                    }
                    if speaks(to) {
                        actions.push(Action::Send { send, from, to, held: false });
                    }
                    if s.late < self.bounds.late && send != (Send::Ack { word: false }) {
                        actions.push(Action::Send { send, from, to, held: true });
                    }
                }
            }
        }
        if s.held.is_some() {
            actions.push(Action::Late);
        }
        for (n, node) in s.nodes.iter().enumerate() {
            if node.phase == Phase::Off {
                actions.push(Action::Restart(n));
                continue;
            }
            if s.crashes < self.bounds.crashes {
                let disks = node.survivals(&self.rules).len();
                actions.extend((0..disks).map(|keep| Action::Crash { node: n, keep }));
            }
            if node.phase == Phase::Up && node.term < self.bounds.terms && node.role != Role::Candidate {
                actions.push(Action::StartElection(n));
            }
            let waits = node.log.change_after(node.force).is_some_and(|(at, _)| at <= node.commit);
            if node.is_leader() || waits {
                actions.push(Action::Sync(n));
            }
            if node.introduction.on && !node.introduction.votes {
                actions.push(Action::Patience(n));
            }
            if node.is_leader() && s.changes < self.bounds.changes {
                let changes = self.changes().into_iter();
                actions.extend(changes.map(|change| Action::Propose { node: n, change }));
            }
            if self.bounds.set_backs > s.set_backs && s.image.is_none() {
                actions.push(Action::Image(n));
            }
        }
        if self.may_be_set_back(s) {
            actions.push(Action::SetBack);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let after = self.step(before, action);
        (after != *before).then(|| same(&after).0)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::<Self>::always(ONE_LEADER, |_, s| s.broken != Broken::TwoLeaders),
            Property::<Self>::always(ONE_LOG, |_, s| s.broken != Broken::TwoEntries),
            Property::<Self>::always(OUT, |m, s| (0..s.nodes.len()).all(|n| m.is_rightly_out(s, n))),
            Property::<Self>::always(LEADER, |m, s| m.judged(s).leader),
            Property::<Self>::always(BACK, |m, s| m.judged(s).back),
            Property::<Self>::sometimes("the leader of the last term commits", |m, s| {
                let last = m.bounds.terms;
                s.nodes.iter().any(|n| {
                    n.term == last && n.is_leader() && n.log.get(n.commit).is_some_and(|e| e.term() == last)
                })
            }),
        ];
        if self.bounds.changes > 0 {
            all.push(Property::<Self>::sometimes("the last change is answered", |m, s| {
                let newest = s.chosen.config_at_end();
                s.changes == m.bounds.changes && s.chosen.config_at(s.answered) == newest && s.answered > 1
            }));
        }
        if self.bounds.crashes > 0 && self.bounds.terms > 1 {
            all.push(Property::<Self>::sometimes("a replica that started again votes", |_, s| {
                s.nodes.iter().any(|n| n.introduction.on && n.introduction.votes && n.vote != 0 && n.term > 1)
            }));
        }
        let removes = self.bounds.changes > 0 && self.bounds.kinds.contains(&Kind::Remove);
        if self.bounds.crashes > 0 && removes {
            all.push(Property::<Self>::sometimes("a removed replica that was away is told", |_, s| {
                let told = |n: &Node| n.phase == Phase::BelievesRemoved;
                s.nodes.iter().any(told)
            }));
        }
        if self.bounds.set_backs > 0 {
            all.push(Property::<Self>::sometimes("a disk that was set back is noticed", |m, s| {
                !m.rules.set_back_check || s.nodes.iter().any(|n| n.phase == Phase::SetBack)
            }));
        }
        all
    }
}

/// The nodes of a set, by their names in stories.
pub(crate) fn names(set: Set, name: impl Fn(usize) -> usize) -> String {
    let mut all: Vec<usize> = each(set).map(name).collect();
    all.sort_unstable();
    let all: Vec<String> = all.iter().map(usize::to_string).collect();
    format!("{{{}}}", all.join(", "))
}
