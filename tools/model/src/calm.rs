//! A calm run: from a state on, some nodes talk without a loss and nothing else happens. It ends in a leader that has
//! committed an entry of its own term, or it shows that there never will be one.
//!
//! The run takes one order of steps. Messages that arrive change nothing that later ones could not, and each node that may
//! stand for election does so, in a term that is newer than all others.

use crate::protocol::{Protocol, Send};
use crate::state::{Phase, Role, Set, State, each, has};

/// Rounds of messages. Each brings a node a step further; none takes so many.
const ROUNDS_MAX: usize = 64;

impl Protocol {
    /// The state that `nodes` alone come to, and their leader. Those that are off start again; `cut`: all lose their power
    /// before, with all that is not synced.
    pub(crate) fn calm(&self, s: &State, nodes: Set, cut: bool) -> Option<(State, usize)> {
        let mut s = s.clone();
        s.held = None;
        for n in 0..s.nodes.len() {
            let disk = s.nodes[n].disk;
            if !has(nodes, n) {
                s.nodes[n].stop(disk);
            } else if cut || s.nodes[n].phase == Phase::Off {
                s.nodes[n].stop(disk);
                self.restart(&mut s, n);
            }
        }
        self.talk(&mut s, nodes);
        for _ in 0..3 {
            if let Some(leader) = Self::leader(&s, nodes) {
                return Some((s, leader));
            }
            for n in each(nodes) {
                let newest = s.nodes.iter().map(|n| n.term).max().unwrap_or_default();
                if newest < u8::MAX && self.stand(&mut s, n, newest + 1) {
                    self.talk(&mut s, nodes);
                    if let Some(leader) = Self::leader(&s, nodes) {
                        return Some((s, leader));
                    }
                }
            }
        }
        None
    }

    /// A leader of the newest term, with an entry of its own committed.
    fn leader(s: &State, nodes: Set) -> Option<usize> {
        let newest = each(nodes).map(|n| s.nodes[n].term).max()?;
        each(nodes).find(|n| {
            let node = &s.nodes[*n];
            let own = node.log.get(node.commit).is_some_and(|e| e.term() == node.term);
            node.is_leader() && node.term == newest && own
        })
    }

    /// All send all that they have to say until nothing changes.
    fn talk(&self, s: &mut State, nodes: Set) {
        for _ in 0..ROUNDS_MAX {
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
                return;
            }
        }
    }
}
