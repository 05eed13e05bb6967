//! Symmetry: states that differ only in the numbers of nodes are one. The rules depend on no number, so the
//! consequences of such states are the same.

use crate::rules::NODES_MAX as NODES;
use crate::state::{Body, Config, Disk, Entry, GONE, Log, Node, Set, State, has};

/// The new position of each node.
pub(crate) type Order = [usize; NODES];

/// The state with its nodes in an order that does not depend on their numbers, as far as they differ otherwise.
pub(crate) fn same(s: &State) -> (State, Order) {
    let nodes = s.nodes.len();
    let mut by: Vec<usize> = (0..nodes).collect();
    let keys: Vec<_> = (0..nodes).map(|n| key(s, n)).collect();
    by.sort_by(|a, b| keys[*a].cmp(&keys[*b]));
    let mut order = [0, 1, 2, 3, 4];
    for (to, from) in by.iter().enumerate() {
        order[*from] = to;
    }
    if by.iter().enumerate().all(|(to, from)| to == *from) {
        return (s.clone(), order);
    }
    (renamed(s, order, &by), order)
}

/// The values that distinguish a node from others, without any number of a node.
fn key(s: &State, n: usize) -> [u32; 8] {
    let me = &s.nodes[n];
    let parts = |log: &Log| {
        log.all().iter().filter_map(|e| e.config()).fold(0u32, |bits, c| {
            let part = |set: Set| u32::from(has(set, n));
            bits << 3 | part(c.voters) << 2 | part(c.outgoing) << 1 | part(c.learners)
        })
    };
    let four = |a: u8, b: u8, c: u8, d: u8| u32::from_be_bytes([a, b, c, d]);
    let flags = u8::from(me.introduction.on) | u8::from(me.introduction.votes) << 1;
    let of_me =
        |what: fn(&Node) -> &[u8; NODES]| s.nodes.iter().map(|o| what(o)[n]).max().unwrap_or_default();
    let heard: u32 = s.nodes.iter().map(|o| u32::from(o.heard[n].0) << 8 | u32::from(o.heard[n].1)).sum();
    let voters = s.nodes.iter().filter(|o| usize::from(o.vote) == n + 1).count() as u8;
    let held =
        s.held.map_or(0, |m| u8::from(usize::from(m.from) == n) | u8::from(usize::from(m.to) == n) << 1);
    [
        four(me.phase as u8, me.role as u8, me.term, me.disk.term),
        parts(&s.chosen),
        parts(&me.log),
        parts(&me.disk.log),
        four(me.log.len(), me.disk.log.len(), me.commit, me.disk.commit),
        four(me.force, me.accepted, flags, me.introduction.answered.count_ones() as u8),
        four(of_me(|o| &o.matched), of_me(|o| &o.word), voters, held),
        heard,
    ]
}

/// The state with node `n` as node `order[n]`; `by` is the inverse.
fn renamed(s: &State, order: Order, by: &[usize]) -> State {
    let mut sets = [0; 32];
    for (set, to) in sets.iter_mut().enumerate() {
        *to = (0..NODES).filter(|n| has(set as Set, *n)).fold(0, |all, n| all | 1 << order[n]);
    }
    let set = |of: Set| sets[usize::from(of)];
    let config =
        |c: Config| Config { voters: set(c.voters), outgoing: set(c.outgoing), learners: set(c.learners) };
    let entry = |e: Entry| e.config().map_or(e, |c| Entry::change(e.term(), config(c)));
    let log = |l: &Log| {
        let mut there = Log::default();
        for e in l.all() {
            there.push(entry(*e));
        }
        there
    };
    let vote = |v: u8| if v == 0 || v == GONE { v } else { order[usize::from(v) - 1] as u8 + 1 };
    let disk = |d: &Disk| Disk { vote: vote(d.vote), log: log(&d.log), ..*d };
    let node = |n: u8| order[usize::from(n)] as u8;
    let mut there = s.clone();
    for (to, from) in by.iter().enumerate() {
        let (old, new) = (&s.nodes[*from], &mut there.nodes[to]);
        *new = *old;
        new.disk = disk(&old.disk);
        new.vote = vote(old.vote);
        new.log = if old.log == old.disk.log { new.disk.log } else { log(&old.log) };
        new.votes = set(old.votes);
        for (a, b) in order.iter().enumerate() {
            new.matched[*b] = old.matched[a];
            new.word[*b] = old.word[a];
            new.heard[*b] = old.heard[a];
        }
        new.introduction.answered = set(old.introduction.answered);
        new.introduction.newer = config(old.introduction.newer);
    }
    if let Some(m) = &mut there.held {
        (m.from, m.to) = (node(m.from), node(m.to));
        match &mut m.body {
            Body::Append { log: l, .. } => *l = log(l),
            Body::Known { config: c, .. } => *c = config(*c),
            _ => {}
        }
    }
    there.image = s.image.map(|(n, d)| (node(n), disk(&d)));
    there.chosen = log(&s.chosen);
    for led in &mut there.leaders {
        *led = set(*led);
    }
    there
}
