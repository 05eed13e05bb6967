//! A calm run: from a state on, some nodes communicate without loss and nothing else happens. It ends with a leader
//! that has committed an entry of its own term, or it shows that there never will be one.
//!
//! The run uses one order of steps. Messages that arrive change nothing that later ones could not, and each node that
//! can start an election does so, in a term that is newer than all others.
//!
//! A node that has restarted first forgets all answers to its greetings. It must return even if it had none of them,
//! and [`crate::merge`] gives it answers as early as possible.

use crate::protocol::{Protocol, Send};
use crate::state::{Introduction, Node, Phase, Role, Set, State, each, has};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

/// The limit of message rounds. Each round advances a node; no run takes this many.
const ROUNDS_MAX: usize = 64;

/// The number of states whose verdicts a thread remembers.
const SHOWN_MAX: usize = 4 << 20;

/// The outcome of a calm run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// There is a leader at the end.
    pub(crate) leader: bool,
    /// All members follow it with the same log, and all voters may vote.
    pub(crate) back: bool,
}

impl Protocol {
    /// Lets `nodes` run alone. With `cut` they all lose power first, and keep only what was synced.
    pub(crate) fn calm(&self, s: &State, nodes: Set, cut: bool) -> Verdict {
        let mut s = s.clone();
        s.held = None;
        for n in 0..s.nodes.len() {
            let disk = s.nodes[n].disk;
            if !has(nodes, n) {
                s.nodes[n] = Node::default();
            } else if cut || s.nodes[n].phase == Phase::Off {
                s.nodes[n].stop(disk);
                self.restart(&mut s, n);
            } else if s.nodes[n].introduction.on {
                s.nodes[n].introduction = Introduction { on: true, ..Introduction::default() };
            }
        }
        // The run from a state does not depend on the path to it: states on the way share the verdict.
        let mut way = Vec::new();
        if let Some(verdict) = self.talk(&mut s, nodes, &mut way) {
            return remember(&way, verdict);
        }
        let before_elections = way.len();
        for _ in 0..3 {
            if let Some(verdict) = Self::judge(&s, nodes) {
                return remember(&way, verdict);
            }
            for n in each(nodes) {
                let newest = s.nodes.iter().map(|n| n.term).max().unwrap_or_default();
                if newest < u8::MAX && self.stand(&mut s, n, newest + 1) {
                    if let Some(verdict) = self.talk(&mut s, nodes, &mut way).filter(|v| v.leader) {
                        return remember(&way, verdict);
                    }
                    if let Some(verdict) = Self::judge(&s, nodes) {
                        return remember(&way, verdict);
                    }
                }
            }
        }
        // States after the first election have had fewer attempts than a run that begins there.
        way.truncate(before_elections);
        remember(&way, Verdict { leader: false, back: true })
    }

    /// The verdict on a state in which no more messages are sent: none unless a leader of the newest term has committed
    /// an entry of its own.
    fn judge(s: &State, nodes: Set) -> Option<Verdict> {
        let newest = each(nodes).map(|n| s.nodes[n].term).max()?;
        let leader = each(nodes).find(|n| {
            let node = &s.nodes[*n];
            let own = node.log.get(node.commit).is_some_and(|e| e.term() == node.term);
            node.is_leader() && node.term == newest && own
        })?;
        let at = &s.nodes[leader];
        let follows = |n: usize| {
            let node = &s.nodes[n];
            let votes = node.may_vote() || !has(at.config().all_voters(), n);
            node.phase == Phase::Up && node.log == at.log && node.commit == at.commit && votes
        };
        Some(Verdict { leader: true, back: each(at.config().members()).all(follows) })
    }

    /// All nodes send all messages they can, until nothing changes or the verdict of the state is known.
    fn talk(&self, s: &mut State, nodes: Set, way: &mut Vec<u64>) -> Option<Verdict> {
        for _ in 0..ROUNDS_MAX {
            let sum = self.sum(s, nodes);
            if let Some(verdict) = SHOWN.with_borrow(|shown| shown.get(&sum).copied()) {
                return Some(verdict);
            }
            way.push(sum);
            let before = s.nodes.clone();
            let leaderless = each(nodes).all(|n| !s.nodes[n].is_leader());
            for a in each(nodes) {
                for b in each(nodes) {
                    let quiet = |n: usize| !s.nodes[n].introduction.on;
                    let leads = s.nodes[a].is_leader() || s.nodes[b].is_leader();
                    let stands = s.nodes[a].role == Role::Candidate || s.nodes[b].role == Role::Candidate;
                    if a == b || !(leaderless || leads || stands || !quiet(a) || !quiet(b)) {
                        continue;
                    }
                    for send in Send::ALL {
                        if send != (Send::Ack { word: false })
                            && let Some(message) = self.send(s, send, a, b)
                        {
                            self.arrive(s, &message);
                        }
                    }
                }
            }
            for n in each(nodes) {
                self.be_patient(s, n);
                self.sync(s, n);
            }
            if s.nodes == before {
                return None;
            }
        }
        None
    }

    fn sum(&self, s: &State, nodes: Set) -> u64 {
        let mut sum = SUM.with(|sum| sum.build_hasher());
        (nodes, self.rules, &s.nodes).hash(&mut sum);
        sum.finish()
    }
}

thread_local! {
    static SHOWN: RefCell<HashMap<u64, Verdict>> = RefCell::new(HashMap::new());
    static SUM: ahash::RandomState = ahash::RandomState::with_seed(7);
}

fn remember(way: &[u64], verdict: Verdict) -> Verdict {
    SHOWN.with_borrow_mut(|shown| {
        if shown.len() >= SHOWN_MAX {
            shown.clear();
        }
        shown.extend(way.iter().map(|sum| (*sum, verdict)));
    });
    verdict
}
