//! Groups: the groups of named logs as the servers of a cluster see them, and whether each is well. Pure functions.
//!
//! The members of groups follow those of the default log, or those of them on which the catalogue places a group. So voters
//! that differ for long are a problem.
//!
//! Must not know: how servers are queried, how anything is shown.

use crate::common::exit::Exit;
use crate::connect::cluster_status::Found;
use chiplog_net::wire::proto::v1::{GroupStatus, Role};
use std::collections::{BTreeMap, BTreeSet};

/// The number of the system log, which is listed with the groups.
pub(crate) const SYSTEM: u32 = 0;

/// The state of a group. If several apply, the last one in this order is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GroupState {
    /// Nothing is wrong.
    #[default]
    Ok,
    /// Its voters are not those of the default log, or those on which it is placed.
    OtherVoters,
    /// A server that is to run it does not, or it is not made yet.
    Missing,
    /// No server that answers knows its leader.
    NoLeader,
    /// A replica has no room for what the leader sends, or may send.
    Short,
    /// Its leader refuses appends for lack of room.
    Full,
    /// A replica takes no appends until its server is started again.
    Poisoned,
}

impl GroupState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::OtherVoters => "other_voters",
            Self::Missing => "missing",
            Self::NoLeader => "no_leader",
            Self::Short => "short",
            Self::Full => "full",
            Self::Poisoned => "poisoned",
        }
    }

    /// The exit code of a command that found this state.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Ok => Exit::Ok,
            // An operator has to act.
            Self::Short | Self::Full | Self::Poisoned => Exit::Failure,
            // It can pass by itself.
            Self::OtherVoters | Self::Missing | Self::NoLeader => Exit::Retry,
        }
    }
}

/// A group as its leader sees it, or else the replica with the latest term.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) number: u32,
    pub(crate) state: GroupState,
    /// The explanation. None: nothing is wrong.
    pub(crate) why: Option<String>,
    pub(crate) leader: Option<u64>,
    pub(crate) term: u64,
    pub(crate) voters: Vec<u64>,
    /// The servers that are to run it. Empty: all.
    pub(crate) placed: Vec<u64>,
    /// The servers that answer, are to run it and do not.
    pub(crate) missing: Vec<u64>,
    pub(crate) logs: u64,
    pub(crate) bytes_used: u64,
}

/// The answers about one group: each with the number of its server.
type Answers<'a> = Vec<(u64, &'a GroupStatus)>;

/// The groups of a cluster: those that any server reports, by number, and then those that are not made yet.
pub(crate) fn with_unmade(found: &Found) -> Vec<Group> {
    let mut groups = groups(found);
    groups.extend(unmade(found, &groups));
    groups
}

/// The groups that any server reports, by number.
pub(crate) fn groups(found: &Found) -> Vec<Group> {
    let mut reported: BTreeMap<u32, Answers<'_>> = BTreeMap::new();
    for (_, status) in &found.answers {
        for group in &status.groups {
            reported.entry(group.number).or_default().push((status.node, group));
        }
    }
    reported.into_iter().filter_map(|(number, answers)| group(found, number, &answers)).collect()
}

/// The groups that the leader of the system log is to make, and has not made; or the system log, if no server has it.
fn unmade(found: &Found, groups: &[Group]) -> Vec<Group> {
    let Some(system) = groups.iter().find(|group| group.number == SYSTEM) else {
        return unmade_system(found).into_iter().collect();
    };
    let Some(node) = system.leader else { return Vec::new() };
    let answer = found.answers.iter().find(|(_, status)| status.node == node);
    let wanted = answer.map_or(0, |(_, status)| status.groups_wanted);
    let why = format!(
        "it is not made, and node {node}, which makes groups, is configured with {wanted}: the log of that server says what fails"
    );
    let unmade = (1..=wanted).filter(|number| !groups.iter().any(|group| group.number == *number));
    unmade
        .map(|number| Group {
            number,
            state: GroupState::Missing,
            why: Some(why.clone()),
            ..Group::default()
        })
        .collect()
}

/// The system log that servers with `groups` are to have, and that none reports.
fn unmade_system(found: &Found) -> Option<Group> {
    let wanting = found.answers.iter().map(|(_, status)| status).filter(|status| status.groups_wanted > 0);
    let nodes: Vec<u64> = wanting.map(|status| status.node).collect();
    let wants = match &nodes[..] {
        [] => return None,
        [node] => format!("node {node} is configured with `groups`"),
        all => format!("nodes {} are configured with `groups`", numbers(all)),
    };
    let makes = match found.leader() {
        Some(leader) if leader.groups_wanted == 0 => format!(
            "node {}, which leads the default log and would make it, is not: set `groups` there as well",
            leader.node
        ),
        Some(leader) => format!(
            "node {} makes it, which leads the default log: the log of that server says what fails",
            leader.node
        ),
        None => "the leader of the default log makes it, and there is none".to_owned(),
    };
    let why = format!("there is no system log, so no named logs: {wants}, and {makes}");
    Some(Group { number: SYSTEM, state: GroupState::Missing, why: Some(why), ..Group::default() })
}

/// None: there are no answers.
fn group(found: &Found, number: u32, all: &Answers<'_>) -> Option<Group> {
    let runs = |(_, group): &&(u64, &GroupStatus)| group.role() != Role::Unspecified;
    let answers: Answers<'_> = all.iter().filter(runs).copied().collect();
    let leads = |group: &GroupStatus| group.role() == Role::Leader && group.poison.is_empty();
    // Without an answer of a server that runs it, another one at least knows where it should run.
    let (node, best) = answers.iter().max_by_key(|(_, group)| (leads(group), group.term)).or(all.first())?;
    let leader = if leads(best) { *node } else { best.leader_node };
    let voters: BTreeSet<u64> = best.voters.iter().copied().collect();
    let wanted = match best.placed.is_empty() {
        true => voters_of(found),
        false => best.placed.iter().copied().collect(),
    };
    let missing = missing(found, &answers, &wanted);
    let states = [
        poisoned(&answers),
        full(number, &answers),
        short(&answers),
        (leader == 0).then(|| (GroupState::NoLeader, "no server that answers knows its leader".into())),
        is_missing(&missing),
        other_voters(&voters, &wanted, !best.placed.is_empty()),
    ];
    let worst = states.into_iter().flatten().max_by_key(|(state, _)| *state);
    let (state, why) = worst.map_or((GroupState::Ok, None), |(state, why)| (state, Some(why)));
    Some(Group {
        number,
        state,
        why,
        leader: (leader != 0).then_some(leader),
        term: best.term,
        voters: voters.into_iter().collect(),
        placed: best.placed.clone(),
        missing,
        logs: best.logs,
        bytes_used: best.bytes_used,
    })
}

fn poisoned(answers: &Answers<'_>) -> Option<(GroupState, String)> {
    let (node, group) = answers.iter().find(|(_, group)| !group.poison.is_empty())?;
    Some((GroupState::Poisoned, format!("node {node} takes no more appends to it: {}", group.poison)))
}

fn full(number: u32, answers: &Answers<'_>) -> Option<(GroupState, String)> {
    let (node, group) = answers.iter().find(|(_, group)| !group.full.is_empty())?;
    let advice = match number {
        SYSTEM => {
            "so that no named log can be created or deleted; if its disk is full, free space on its disk"
                .to_owned()
        }
        _ => format!(
            "`chiplog discard HOST:PORT/NAME` of its logs makes room (`chiplog logs list` shows them, with GROUP {number}), and \
             `chiplog options HOST:PORT/_group-{number}` has its limits"
        ),
    };
    let what = format!("node {node}, which leads it, refuses appends: {}; {advice}", group.full);
    Some((GroupState::Full, what))
}

fn short(answers: &Answers<'_>) -> Option<(GroupState, String)> {
    let (node, group) = answers.iter().find(|(_, group)| !group.shortage.is_empty())?;
    let what = format!("node {node} has no room for what the group holds or may hold: {}", group.shortage);
    Some((GroupState::Short, what))
}

/// The servers that are to run the group, answer and do not report it.
fn missing(found: &Found, answers: &Answers<'_>, wanted: &BTreeSet<u64>) -> Vec<u64> {
    let asked = found.answers.iter().map(|(_, status)| status.node).filter(|node| wanted.contains(node));
    asked.filter(|node| !answers.iter().any(|(runs, _)| runs == node)).collect()
}

fn is_missing(without: &[u64]) -> Option<(GroupState, String)> {
    (!without.is_empty()).then(|| {
        let what = format!(
            "{} it; the log of that server, or of the group's leader, says what fails",
            do_not_run(without)
        );
        (GroupState::Missing, what)
    })
}

fn do_not_run(nodes: &[u64]) -> String {
    let verb = if nodes.len() == 1 { "node" } else { "nodes" };
    let does = if nodes.len() == 1 { "does not run" } else { "do not run" };
    format!("{verb} {} {does}", numbers(nodes))
}

fn other_voters(
    voters: &BTreeSet<u64>,
    wanted: &BTreeSet<u64>,
    is_placed: bool,
) -> Option<(GroupState, String)> {
    let differs = !wanted.is_empty() && voters != wanted;
    differs.then(|| {
        let [own, all] = [voters, wanted].map(numbers);
        let what = match is_placed {
            true => format!("its voters are {own}, and it is placed on {all}: the group follows by itself"),
            false => {
                format!("its voters are {own}, those of the default log {all}: the group follows by itself")
            }
        };
        (GroupState::OtherVoters, what)
    })
}

/// The voters of the default log.
fn voters_of(found: &Found) -> BTreeSet<u64> {
    found.members.iter().filter(|m| m.voter && !m.leaving).map(|m| m.node).collect()
}

/// Numbers as text: `1, 2, 3`; `none`.
pub(crate) fn numbers<'a>(nodes: impl IntoIterator<Item = &'a u64>) -> String {
    let all: Vec<String> = nodes.into_iter().map(u64::to_string).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog_net::wire::proto::v1::{Member, StatusResponse};

    const ALL: [GroupState; 7] = [
        GroupState::Ok,
        GroupState::OtherVoters,
        GroupState::Missing,
        GroupState::NoLeader,
        GroupState::Short,
        GroupState::Full,
        GroupState::Poisoned,
    ];

    /// Three servers with group 1, which node 2 leads, and a change to what node `n` reports of it.
    fn found(n: usize, change: impl FnOnce(&mut StatusResponse)) -> Found {
        let member = |node| Member { node, voter: true, ..Member::default() };
        let answer = |node: u64| {
            let role = if node == 2 { Role::Leader } else { Role::Follower };
            let group = GroupStatus {
                number: 1,
                role: role.into(),
                leader_node: 2,
                term: 7,
                logs: node, // the replicas differ, to tell whose view is shown
                bytes_used: 100,
                voters: vec![3, 1, 2],
                ..GroupStatus::default()
            };
            (format!("a:{node}"), StatusResponse { node, groups: vec![group], ..StatusResponse::default() })
        };
        let mut answers: Vec<_> = (1..=3).map(answer).collect();
        change(&mut answers[n - 1].1);
        Found { answers, members: (1..=3).map(member).collect(), ..Found::default() }
    }

    fn one(found: &Found) -> Group {
        let mut all = groups(found);
        assert_eq!(all.len(), 1);
        let group = all.pop().unwrap();
        assert_eq!(group.why.is_none(), group.state == GroupState::Ok, "{group:?}");
        group
    }

    #[test]
    fn leader_describes_its_group() {
        let group = one(&found(1, |_| {}));
        assert_eq!((group.number, group.state, group.leader, group.term), (1, GroupState::Ok, Some(2), 7));
        assert_eq!((group.logs, group.bytes_used, &group.voters[..]), (2, 100, &[1, 2, 3][..]));
        assert!(groups(&Found::default()).is_empty());
        // An earlier leader that does not know yet.
        let group = one(&found(3, |status| {
            (status.groups[0].role, status.groups[0].term) = (Role::Leader.into(), 6);
        }));
        assert_eq!(group.leader, Some(2));
    }

    #[test]
    fn each_problem_of_a_group_has_a_state_and_an_exit_code() {
        type Change = fn(&mut StatusResponse);
        let cases: [(usize, Change, GroupState, Exit, &str); 6] = [
            (2, |s| s.groups[0].voters = vec![1, 2], GroupState::OtherVoters, Exit::Retry, "are 1, 2, those"),
            (3, |s| s.groups.clear(), GroupState::Missing, Exit::Retry, "node 3 does not run it"),
            (
                2,
                |s| {
                    s.groups[0].role = Role::Candidate.into();
                    (s.groups[0].term, s.groups[0].leader_node) = (8, 0);
                },
                GroupState::NoLeader,
                Exit::Retry,
                "leader",
            ),
            (
                3,
                |s| s.groups[0].shortage = "disk".into(),
                GroupState::Short,
                Exit::Failure,
                "node 3 has no room",
            ),
            (
                2,
                |s| s.groups[0].full = "disk".into(),
                GroupState::Full,
                Exit::Failure,
                "refuses appends: disk",
            ),
            (
                3,
                |s| s.groups[0].poison = "disk".into(),
                GroupState::Poisoned,
                Exit::Failure,
                "node 3 takes no",
            ),
        ];
        for (node, change, state, exit, words) in cases {
            let group = one(&found(node, change));
            assert_eq!((group.state, group.state.exit()), (state, exit));
            assert!(group.why.as_ref().is_some_and(|why| why.contains(words)), "{group:?}");
        }
    }

    /// Node 3 is not to run the group.
    #[test]
    fn placed_group_is_compared_with_its_servers() {
        let placed = |status: &mut StatusResponse| {
            (status.groups[0].placed, status.groups[0].voters) = (vec![1, 2], vec![1, 2]);
        };
        let mut well = found(2, placed);
        well.answers[2].1.groups[0] = GroupStatus { number: 1, placed: vec![1, 2], ..GroupStatus::default() };
        assert_eq!(one(&well).state, GroupState::Ok);
        let group = one(&found(2, |status| status.groups[0].placed = vec![1, 2]));
        assert_eq!(group.state, GroupState::OtherVoters);
        assert!(group.why.is_some_and(|why| why.contains("placed on 1, 2")));
        well.answers.drain(..2);
        assert_eq!((one(&well).state, one(&well).leader), (GroupState::NoLeader, None));
    }

    /// `groups` was set, no server had a system log, and the status was `ok`.
    #[test]
    fn system_log_that_no_server_has_is_missing() {
        let bare = |wanted: [u32; 2]| {
            let status = |node: u64| StatusResponse {
                node,
                log_id: "1f".into(),
                role: if node == 1 { Role::Leader } else { Role::Follower }.into(),
                leader_node: 1,
                groups_wanted: wanted[node as usize - 1],
                ..StatusResponse::default()
            };
            let answers = (1..=2).map(|node| (format!("a:{node}"), status(node))).collect();
            with_unmade(&Found { answers, ..Found::default() })
        };
        assert!(bare([0, 0]).is_empty(), "it is not wanted");
        for (wanted, words) in [
            ([2, 2], "nodes 1, 2 are configured with `groups`, and node 1 makes it"),
            ([0, 2], "node 2 is configured with `groups`, and node 1, which leads the default log and would"),
        ] {
            let all = bare(wanted);
            assert_eq!((all.len(), all[0].number, all[0].state), (1, SYSTEM, GroupState::Missing));
            assert!(all[0].why.as_ref().is_some_and(|why| why.contains(words)), "{all:?}");
        }
    }

    /// The disk had no room for group 2, and the status did not mention it.
    #[test]
    fn group_that_is_not_made_is_missing() {
        let system = |wanted: u32| {
            found(2, |status| {
                let system = GroupStatus { number: SYSTEM, ..status.groups[0].clone() };
                status.groups.push(system);
                status.groups_wanted = wanted;
            })
        };
        assert_eq!(with_unmade(&system(1)).len(), 2);
        let all = with_unmade(&system(2));
        let last = all.last().unwrap();
        assert_eq!((all.len(), last.number, last.state), (3, 2, GroupState::Missing));
        assert!(last.why.as_ref().is_some_and(|why| why.contains("node 2, which makes groups")), "{last:?}");
    }

    #[test]
    fn help_lists_every_state_of_a_group() {
        let mut help = crate::commands::cli::command();
        let status = help.find_subcommand_mut("status").unwrap().render_long_help().to_string();
        for state in ALL {
            assert!(status.contains(state.name()), "{}", state.name());
        }
        assert!(ALL.is_sorted());
    }
}
