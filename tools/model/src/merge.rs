//! Merges: one state replaces several and represents all of them, so that larger clusters can be checked.
//!
//! Each merge is sound for one of two reasons:
//! - *Equal*: the states differ only in values that no rule and no check reads again.
//! - *More*: one state permits all steps of the other, and more. The run from the lesser state is also a run from the greater
//!   one, with some messages lost. A failure of safety is therefore found from the greater state as well. For the question
//!   whether replicas can come back the lesser state is the harder case: calm runs forget all answers ([`crate::calm`]).

use crate::protocol::{Protocol, Send};
use crate::state::{Body, Config, GONE, Node, Phase, Role, Set, State, has};

impl Protocol {
    /// Replaces a state by its representative. Every step ends with this.
    pub(crate) fn merge(&self, s: &mut State) {
        // If disks are set back, it matters which nodes are off and which have answered.
        if self.bounds.set_backs == 0 {
            for n in 0..s.nodes.len() {
                self.start_again(s, n);
                self.introduce(s, n);
            }
        }
        let last = s.crashes == self.bounds.crashes;
        for node in &mut s.nodes {
            forget(node, last);
        }
        if self.bounds.set_backs == 0 {
            if last {
                s.nodes.iter_mut().for_each(forget_disk);
            }
            forget_elections(s, last);
        }
    }

    /// More: a node that is off starts immediately. Until others have answered its greeting it sends nothing, like a
    /// node that is off; unlike that one it can receive messages.
    fn start_again(&self, s: &mut State, n: usize) {
        if s.nodes[n].phase == Phase::Off {
            self.restart(s, n);
        }
    }

    /// More: answers to a greeting arrive immediately if they bring no newer membership. Such an answer only adds
    /// permissions: messages pass, and the node may vote. The same member can still answer later, with a newer
    /// membership. The election time-out of [`Protocol::be_patient`] passes immediately too, because it adds a
    /// permission as well.
    ///
    /// Between two nodes that have both restarted the answer stays a step of its own: an answered node stops greeting,
    /// and the other node may need that greeting.
    fn introduce(&self, s: &mut State, n: usize) {
        if !s.nodes[n].introduction.on {
            return;
        }
        for from in 0..s.nodes.len() {
            let other = &s.nodes[from];
            if s.nodes[n].is_introduced_to(from) || !other.is_introduced_to(n) {
                continue;
            }
            let known = s.nodes[n].commit.max(s.nodes[n].introduction.newer_at);
            if other.commit <= known
                && matches!(s.nodes[n].phase, Phase::Up | Phase::Removed)
                && let Some(Body::Known { .. }) = self.body(s, Send::Known, from, n)
                && let Some(answer) = self.send(s, Send::Known, from, n)
            {
                self.arrive(s, &answer);
            }
        }
        self.be_patient(s, n);
    }
}

/// Equal: values of one node that it does not read again.
fn forget(node: &mut Node, no_more_crashes: bool) {
    if node.is_leader() {
        let (config, commit, force) = (node.config(), node.commit, node.force);
        for n in 0..node.matched.len() {
            // A leader ignores acknowledgements of nodes that are no members, and a removed node is never added again.
            if !has(config.members(), n) {
                (node.matched[n], node.word[n]) = (0, 0);
            }
            // Only entries above the commit are counted. Of lower ones, a promotion checks whether there was any.
            node.matched[n] =
                if node.matched[n] <= commit { node.matched[n].min(1) } else { node.matched[n] };
            // Reports of a commit count for changes that are not in force yet. Later changes are behind every index
            // reported so far.
            let at = node.log.change_at(node.word[n]).map_or(0, |(at, _)| at);
            node.word[n] = if at > force { at } else { 0 };
        }
        // Used only as "has this been applied", and applied entries stay applied.
        if node.pending <= node.applied() {
            node.pending = 0;
        }
    }
    // The membership that others reported is in force here: it names the same nodes, at an entry that is committed.
    let told = &node.introduction;
    if told.newer_at > 0 && told.newer_at <= node.commit && told.newer == node.config() {
        (node.introduction.newer_at, node.introduction.newer) = (0, Config::default());
    }
    // A node that takes no part sends and receives nothing. Only its disk matters, for power cuts of all nodes.
    if matches!(node.phase, Phase::BelievesRemoved | Phase::SetBack) && no_more_crashes {
        *node = Node { disk: node.disk, phase: node.phase, ..Node::default() };
    }
}

/// Equal, once the bound of crashes is used up: from then on only calm runs after a power cut read disks. Their
/// elections have terms above all of these, so the term on a disk may be any lower one, and its vote is not used. The
/// commit on a disk decides which changes are in force; entries without a change behind the last of these make no
/// difference.
fn forget_disk(node: &mut Node) {
    let disk = &mut node.disk;
    (disk.term, disk.vote) = (node.term.max(disk.term), 0);
    disk.commit = disk.log.change_at(disk.commit).map_or(0, |(at, _)| at);
}

/// Equal: traces of elections that are over. A term is *open* while some node is a candidate in it or can still become
/// one. In a term that is not open no node asks for votes, no other node becomes leader, and acknowledgements go to its
/// leader alone. In an open term, votes for nodes that can no longer be candidates in it all have the same effect: they
/// are not given again.
fn forget_elections(s: &mut State, no_more_crashes: bool) {
    // The lowest term in which a node can become a candidate, and the one in which it is one. A crash can take a node
    // back to the term on its disk. A node that takes no part can be a candidate only after a restart.
    let lowest = |n: &Node| match n.phase {
        Phase::Off | Phase::Up => n.term.min(n.disk.term) + 1,
        _ if no_more_crashes => u8::MAX,
        _ => n.disk.term + 1,
    };
    let stands = |n: &Node| (n.role == Role::Candidate).then_some(n.term);
    let standing: Vec<(u8, Option<u8>)> = s.nodes.iter().map(|n| (lowest(n), stands(n))).collect();
    let may_stand = |(lowest, stands): &(u8, Option<u8>), term: u8| *lowest <= term || *stands == Some(term);
    let is_open = |term: u8| standing.iter().any(|n| may_stand(n, term));
    let vote = |vote: u8, term: u8| {
        let to = usize::from(vote).checked_sub(1).and_then(|n| standing.get(n));
        match to {
            _ if !is_open(term) => 0,
            Some(to) if !may_stand(to, term) => GONE,
            _ => vote,
        }
    };
    let led: Set = s.nodes.iter().filter(|n| n.is_leader()).fold(0, |terms, n| terms | 1 << n.term);
    for node in &mut s.nodes {
        node.vote = vote(node.vote, node.term);
        node.disk.vote = vote(node.disk.vote, node.disk.term);
        // There is no leader to acknowledge entries to, and no candidate to refuse.
        if !is_open(node.term) && !has(led, node.term.into()) {
            node.accepted = 0;
        }
    }
    for (term, all) in (0u8..).zip(&mut s.leaders) {
        let is_new = |(n, node): (usize, &Node)| node.is_leader() && node.term == term && !has(*all, n);
        if !is_open(term) && !s.nodes.iter().enumerate().any(is_new) {
            *all = 0;
        }
    }
}
