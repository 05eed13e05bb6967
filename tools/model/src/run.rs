//! One check: from rules and bounds to its result.

use crate::checks::Action;
use crate::protocol::Protocol;
use crate::rules::{Bounds, Kind, Rules};
use crate::state::State;
use crate::story;
use serde::Serialize;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};
use std::collections::HashMap;
use std::time::Instant;

/// The result of a check.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) rules: Rules,
    pub(crate) bounds: Bounds,
    /// Different states; most states that differ only in the numbers of nodes count as one.
    pub(crate) states: usize,
    pub(crate) seconds: f64,
    /// The properties that hold in every state.
    pub(crate) holds: Vec<&'static str>,
    /// Events that a useful check must reach, and that did not happen within the bounds.
    pub(crate) not_reached: Vec<&'static str>,
    /// The property that does not hold, and the story that leads there.
    pub(crate) broken: Option<(&'static str, Vec<String>)>,
}

/// Checks all states within the bounds.
///
/// The search goes in depth: few states wait to be explored, and memory holds little more than a hash of each state. A
/// failure is searched for again in breadth, for the shortest story.
pub(crate) fn check(rules: Rules, bounds: &Bounds, threads: usize) -> Outcome {
    let outcome = check_by(Search::Depth, rules, bounds, threads, None);
    match outcome.broken {
        Some(_) => check_by(Search::Breadth, rules, bounds, threads, None),
        None => outcome,
    }
}

/// Checks one property, independent of the others.
#[cfg(test)]
pub(crate) fn check_one(rules: Rules, bounds: &Bounds, threads: usize, property: &'static str) -> Outcome {
    check_by(Search::Breadth, rules, bounds, threads, Some(property))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    Depth,
    Breadth,
}

fn check_by(
    search: Search,
    rules: Rules,
    bounds: &Bounds,
    threads: usize,
    only: Option<&'static str>,
) -> Outcome {
    let until = only.map_or(HasDiscoveries::AnyFailures, |property| HasDiscoveries::AnyOf([property].into()));
    let protocol = Protocol { rules, bounds: bounds.clone() };
    let began = Instant::now();
    let checker = protocol.clone().checker().threads(threads).finish_when(until);
    let (found, states) = match search {
        Search::Depth => explored(&checker.spawn_dfs().join()),
        Search::Breadth => explored(&checker.spawn_bfs().join()),
    };
    let mut outcome = Outcome {
        rules,
        bounds: bounds.clone(),
        states,
        seconds: began.elapsed().as_secs_f64(),
        holds: Vec::new(),
        not_reached: Vec::new(),
        broken: None,
    };
    for property in protocol.properties().into_iter().filter(|p| only.is_none_or(|name| name == p.name)) {
        let path = found.get(property.name).cloned();
        match (&property.expectation, path) {
            (Expectation::Always, Some(path)) if outcome.broken.is_none() => {
                outcome.broken = Some((property.name, story::lines(&protocol, &path.into_vec())));
            }
            (Expectation::Always, None) => outcome.holds.push(property.name),
            (Expectation::Sometimes, None) => outcome.not_reached.push(property.name),
            _ => {}
        }
    }
    if outcome.broken.is_some() {
        outcome.holds.clear(); // the check ended before all states were seen
        outcome.not_reached.clear();
    }
    outcome
}

impl Outcome {
    pub(crate) fn exit_code(&self) -> u8 {
        match (&self.broken, self.not_reached.is_empty()) {
            (Some(_), _) => 1,
            (None, false) => 2,
            (None, true) => 0,
        }
    }

    pub(crate) fn text(&self) -> String {
        let b = &self.bounds;
        let mut text = format!(
            "{} nodes ({} voters, {} learners, {} fresh), terms to {}, {} changes of {:?}, {} crashes, {} late messages, \
             {} disks set back: {} states, {:.1} s\n",
            b.nodes(),
            b.voters,
            b.learners,
            b.fresh,
            b.terms,
            b.changes,
            b.kinds,
            b.crashes,
            b.late,
            b.set_backs,
            self.states,
            self.seconds
        );
        for property in &self.holds {
            text.push_str(&format!("  holds: {property}\n"));
        }
        for property in &self.not_reached {
            text.push_str(&format!("  NOT REACHED within these bounds: {property}\n"));
        }
        if let Some((property, story)) = &self.broken {
            text.push_str(&format!("  DOES NOT HOLD: {property}\n"));
            for (n, line) in story.iter().enumerate() {
                text.push_str(&format!("  {n:>3} {line}\n"));
            }
        }
        text
    }
}

type Found = HashMap<&'static str, Path<State, Action>>;

fn explored(checker: &impl Checker<Protocol>) -> (Found, usize) {
    (checker.discoveries(), checker.unique_state_count())
}

/// The bounds that `make model` checks for a size.
pub(crate) fn sized(size: &str) -> Result<Vec<Bounds>, String> {
    let sizes: Vec<usize> = match size {
        "all" => vec![3, 4, 5],
        one => vec![one.parse().ok().filter(|n| (3..=5).contains(n)).ok_or("--size takes 3, 4, 5 or all")?],
    };
    let base = |voters, changes, kinds: &[Kind], crashes| Bounds {
        voters,
        learners: 0,
        fresh: 0,
        terms: 2,
        changes,
        kinds: kinds.to_vec(),
        crashes,
        late: 0,
        set_backs: 0,
        leaders_set_back: false,
        set_back_beside: false,
    };
    let both = [Kind::Remove, Kind::Promote];
    let remove = [Kind::Remove];
    let all = [
        base(3, 1, &remove, 1),
        base(3, 2, &[Kind::Demote], 1),
        Bounds { learners: 2, ..base(1, 2, &both, 1) },
        Bounds { learners: 1, ..base(2, 1, &[Kind::Swap], 1) },
        Bounds { fresh: 1, ..base(2, 2, &[Kind::Add, Kind::Promote], 1) },
        Bounds { late: 1, ..base(3, 1, &remove, 0) },
        Bounds { set_backs: 1, ..base(3, 0, &[], 0) },
        base(4, 1, &remove, 1),
        Bounds { learners: 1, ..base(3, 1, &[Kind::Promote], 1) },
        base(5, 1, &remove, 0),
        Bounds { terms: 1, ..base(5, 1, &remove, 1) },
        Bounds { learners: 3, ..base(2, 1, &remove, 1) },
    ];
    Ok(all.into_iter().filter(|b| sizes.contains(&b.nodes())).collect())
}
