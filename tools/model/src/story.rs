//! A counterexample in words. The checker's states have their nodes in an order of their own; a story keeps each node's
//! name.

use crate::checks::{Action, names};
use crate::protocol::{Change, Protocol, Send};
use crate::rules::NODES_MAX;
use crate::state::{Body, Config, Node, Phase, Role, State};
use crate::symmetry::same;

/// The steps of a path, each with its consequences.
pub(crate) fn lines(protocol: &Protocol, path: &[(State, Option<Action>)]) -> Vec<String> {
    // The name of each node of a state: the start is sorted as well.
    let first = same(&protocol.start()).1;
    let mut name = [0; NODES_MAX];
    for (from, to) in first.iter().enumerate() {
        name[*to] = from + 1;
    }
    let start = State::start(&protocol.bounds).chosen.config_at(1);
    let mut lines = vec![format!("node 1 leads term 1; {}", membership(start, |n| n + 1))];
    for (state, action) in path {
        let Some(action) = action else { break };
        let after = protocol.step(state, *action);
        let called = |n: usize| name[n];
        let mut line = describe(protocol, state, *action, called);
        for (n, (before, now)) in state.nodes.iter().zip(&after.nodes).enumerate() {
            for what in changes(before, now, called) {
                line.push_str(&format!("; node {} {what}", called(n)));
            }
        }
        if after.answered > state.answered {
            line.push_str("; THE CHANGE IS ANSWERED");
        }
        lines.push(line);
        let order = same(&after).1;
        let mut next = name;
        for (from, to) in order.iter().enumerate() {
            next[*to] = name[from];
        }
        name = next;
    }
    if let Some((last, _)) = path.last() {
        let mut nodes: Vec<(usize, &Node)> =
            last.nodes.iter().enumerate().map(|(n, node)| (name[n], node)).collect();
        nodes.sort_by_key(|(name, _)| *name);
        for (n, node) in nodes {
            lines.push(format!("in the end node {n}: {}", shape(node, |n| name[n])));
        }
    }
    lines
}

fn describe(protocol: &Protocol, s: &State, action: Action, name: impl Fn(usize) -> usize) -> String {
    match action {
        Action::Send { send, from, to, held } => {
            let (from, to) = (name(from), name(to));
            let what = match send {
                Send::Ask => format!("node {from} asks node {to} for its vote"),
                Send::Vote => format!("node {from} tells node {to} that it has its vote"),
                Send::Append => format!("node {from} sends node {to} its entries and its commit"),
                Send::Ack { word: true } => format!("node {from} syncs and acknowledges to node {to}"),
                Send::Ack { word: false } => {
                    format!("node {from} syncs the entries alone and acknowledges to node {to}")
                }
                Send::Behind => format!("node {from} tells node {to} of a newer term"),
                Send::Committed => format!(
                    "node {from} tells node {to} what is committed, in a question before an election or its refusal"
                ),
                Send::Known => format!("node {to} greets node {from}, which answers what it remembers of it"),
                Send::Removed => format!("node {from} tells node {to} that it is no member"),
            };
            if held { format!("{what}, and that message is held back") } else { what }
        }
        Action::Late => match &s.held {
            Some(m) => {
                let kind = match m.body {
                    Body::Ask { .. } => "question for a vote",
                    Body::Vote => "vote",
                    Body::Append { .. } => "entries",
                    Body::Ack { .. } => "acknowledgement",
                    Body::Behind => "word of a newer term",
                    Body::Committed { .. } => "word of a commit",
                    Body::Known { .. } => "answer to a greeting",
                    Body::Removed { .. } => "notice of removal",
                };
                let (from, to) = (name(usize::from(m.from)), name(usize::from(m.to)));
                format!("what was held back arrives: node {from}'s {kind} of term {} at node {to}", m.term)
            }
            None => "nothing arrives".to_owned(),
        },
        Action::StartElection(n) => format!("node {} stands for election", name(n)),
        Action::Sync(n) => format!("node {} syncs", name(n)),
        Action::Propose { node, change } => {
            let what = match change {
                Change::Add(n) => format!("add node {} as a learner", name(n)),
                Change::Promote(n) => format!("promote node {}", name(n)),
                Change::Demote(n) => format!("demote node {}", name(n)),
                Change::Remove(n) => format!("remove node {}", name(n)),
                Change::Swap { promote, remove } => {
                    format!("promote node {} and remove node {}", name(promote), name(remove))
                }
            };
            format!("node {} is asked to {what}", name(node))
        }
        Action::Crash { node, keep } => {
            let kept = s.nodes[node].survivals(&protocol.rules);
            let all = kept
                .get(keep)
                .is_some_and(|d| d.log == s.nodes[node].log && d.commit == s.nodes[node].commit);
            let what = if all { "and keeps all its writes" } else { "and loses writes that were not synced" };
            let disk = kept.get(keep).copied().unwrap_or_default();
            format!(
                "node {} loses power {what}; its disk has {} entries, commit {}, term {}",
                name(node),
                disk.log.len(),
                disk.commit,
                disk.term
            )
        }
        Action::Restart(n) => format!("node {} starts again", name(n)),
        Action::Patience(n) => format!("node {} has waited for an election time-out", name(n)),
        Action::Image(n) => format!("an image is taken of node {}'s disk", name(n)),
        Action::SetBack => {
            let n = s.image.map_or(0, |(n, _)| name(usize::from(n)));
            format!("node {n} stops, and its disk is set back to the image")
        }
    }
}

/// The changes that a step made in a node.
fn changes(before: &Node, after: &Node, name: impl Fn(usize) -> usize + Copy) -> Vec<String> {
    let mut all = Vec::new();
    if before.phase != after.phase {
        match after.phase {
            Phase::Removed => all.push("has its removal in force".to_owned()),
            Phase::BelievesRemoved => all.push("takes itself for removed".to_owned()),
            Phase::SetBack => all.push("takes its disk for set back".to_owned()),
            Phase::Off | Phase::Up => return all,
        }
    }
    if before.role != after.role {
        all.push(match after.role {
            Role::Leader => format!("leads term {}", after.term),
            Role::Candidate => format!("is a candidate of term {}", after.term),
            Role::Follower => "leads or stands no more".to_owned(),
        });
    }
    if before.log != after.log {
        all.push(format!("has {} entries", after.log.len()));
    }
    if before.commit != after.commit {
        all.push(format!("knows {} committed", after.commit));
    }
    if before.force != after.force {
        all.push(format!("has in force {}", membership(after.config(), name)));
    }
    if !before.may_vote() && after.may_vote() {
        all.push("may vote".to_owned());
    }
    all
}

fn membership(config: Config, name: impl Fn(usize) -> usize + Copy) -> String {
    let mut text = format!("voters {}", names(config.voters, name));
    if config.outgoing != 0 {
        text.push_str(&format!(" leaving {}", names(config.outgoing, name)));
    }
    if config.learners != 0 {
        text.push_str(&format!(" learners {}", names(config.learners, name)));
    }
    text
}

fn shape(node: &Node, name: impl Fn(usize) -> usize + Copy) -> String {
    let disk = &node.disk;
    let on_disk = format!(
        "disk: term {}, {} entries, commit {}, {}",
        disk.term,
        disk.log.len(),
        disk.commit,
        membership(disk.log.config_at(disk.commit), name)
    );
    let doing = match node.phase {
        Phase::Off => return format!("off; {on_disk}"),
        Phase::Up => match node.role {
            Role::Leader => format!("leads term {}", node.term),
            Role::Candidate => format!("candidate of term {}", node.term),
            Role::Follower if node.introduction.on => {
                format!("term {}, answered by {}", node.term, names(node.introduction.answered, name))
            }
            Role::Follower => format!("follower in term {}", node.term),
        },
        Phase::Removed => "removed, answers candidates".to_owned(),
        Phase::BelievesRemoved => "takes itself for removed".to_owned(),
        Phase::SetBack => "takes its disk for set back".to_owned(),
    };
    format!(
        "{doing}; {} entries, commit {}, {}; {on_disk}",
        node.log.len(),
        node.commit,
        membership(node.config(), name)
    )
}
