//! Health: the state of each replica of a cluster as a name, an explanation and an exit code. Pure functions.
//!
//! Must not know: how servers are queried, how anything is shown.

use crate::common::exit::Exit;
use crate::common::format::{many, time};
use crate::connect::cluster_status::{Found, Silent};
use crate::connect::groups::{Group, GroupState};
use chiplog::Timestamp;
use chiplog_net::wire::proto::v1::{Member, Role, StatusResponse};

/// The state of a replica. If several apply, the last one in this order is reported: what an operator has to look at first, whether or not
/// it can pass by itself. A store that fails fills disks and stops appends of the class `object`; another version alone does no harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// Nothing is wrong.
    #[default]
    Ok,
    /// It is shutting down.
    Draining,
    /// Its version differs from the leader's.
    OtherVersion,
    /// Its requests to the object store fail, or the store is not the one with its objects.
    StoreFails,
    /// It has no object store, and the log has objects in one.
    NoStore,
    /// It lacks more entries than allowed.
    Lagging,
    /// It knows no leader.
    NoLeader,
    /// It belongs to no cluster, and no cluster that was queried lists it.
    Waiting,
    /// It answers, but the leader hears nothing from it.
    CutOff,
    /// It fetches what it lacks, and takes no part until it has it.
    Repairing,
    /// It does not answer.
    Unreachable,
    /// It refuses the token, or it and the command do not trust each other's certificates.
    LockedOut,
    /// It was removed and still runs.
    Removed,
    /// It has no room for what the leader sends, or may send.
    Short,
    /// It leads, and refuses appends for lack of room.
    Full,
    /// It takes no appends until it is started again.
    Poisoned,
    /// It knows that objects in the object store are lost or damaged, and could not store them again.
    DamagedObjects,
    /// Some of its blocks are damaged and not repaired.
    Damaged,
    /// It returned with an empty or a different directory.
    Wiped,
    /// It is a server of another log.
    OtherLog,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Draining => "draining",
            Self::OtherVersion => "other_version",
            Self::StoreFails => "store_fails",
            Self::NoStore => "no_store",
            Self::Lagging => "lagging",
            Self::NoLeader => "no_leader",
            Self::Waiting => "waiting",
            Self::CutOff => "cut_off",
            Self::Repairing => "repairing",
            Self::Unreachable => "unreachable",
            Self::LockedOut => "locked_out",
            Self::Removed => "removed",
            Self::Short => "short",
            Self::Full => "full",
            Self::Poisoned => "poisoned",
            Self::DamagedObjects => "damaged_objects",
            Self::Damaged => "damaged",
            Self::Wiped => "wiped",
            Self::OtherLog => "other_log",
        }
    }

    /// The exit code of a command that found this state.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Ok => Exit::Ok,
            Self::DamagedObjects | Self::Damaged => Exit::Corrupt,
            // An operator has to act.
            Self::OtherVersion
            | Self::NoStore
            | Self::LockedOut
            | Self::Removed
            | Self::Short
            | Self::Full
            | Self::Poisoned
            | Self::Wiped
            | Self::OtherLog => Exit::Failure,
            // It can pass by itself.
            Self::Draining
            | Self::StoreFails
            | Self::Lagging
            | Self::NoLeader
            | Self::Waiting
            | Self::CutOff
            | Self::Repairing
            | Self::Unreachable => Exit::Retry,
        }
    }

    /// Whether the state may well have passed a moment later.
    fn is_fleeting(self) -> bool {
        matches!(self, Self::Lagging | Self::CutOff | Self::NoLeader | Self::StoreFails)
    }
}

/// Where a state was found.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// A replica that answered.
    Answer(&'a StatusResponse),
    Silent(&'a Silent),
    /// A member that cannot be queried, because it has announced no address for clients.
    Unasked(&'a Member),
}

/// A replica and its state.
pub(crate) struct Judged<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) state: State,
    /// The explanation. None: nothing is wrong.
    pub(crate) why: Option<String>,
}

/// Judges all replicas. `lag_max`: the number of entries that a replica may lack.
pub(crate) fn judge(found: &Found, lag_max: u64) -> Vec<Judged<'_>> {
    let judged = |place, (state, why): (State, String)| {
        let why = (state != State::Ok).then_some(why);
        Judged { place, state, why }
    };
    let answer = |(server, status): &'_ (String, StatusResponse)| of_answer(found, server, status, lag_max);
    let answers = found.answers.iter().map(|a| judged(Place::Answer(&a.1), answer(a)));
    let others = found.others.iter().map(|(server, status)| {
        judged(Place::Answer(status), (State::OtherLog, found.strangeness(server, status)))
    });
    let silent = found.silent.iter().map(|silent| {
        let state =
            if silent.refuses || silent.mistrusts.is_some() { State::LockedOut } else { State::Unreachable };
        judged(Place::Silent(silent), (state, silent.why.clone()))
    });
    let unasked = found.members.iter().filter(|m| !is_shown(found, m));
    let unasked = unasked.map(|m| judged(Place::Unasked(m), of_unasked(found, m)));
    answers.chain(others).chain(silent).chain(unasked).collect()
}

/// Whether the findings may well have passed a moment later, so that another round is worthwhile.
pub(crate) fn may_pass(found: &Found, judged: &[Judged<'_>], groups: &[Group]) -> bool {
    let is_fleeting = |state: GroupState| state.exit() == Exit::Retry;
    found.leader().is_some()
        && (judged.iter().any(|j| j.state.is_fleeting()) || groups.iter().any(|g| is_fleeting(g.state)))
}

/// The exit code of these findings: damage first, then states that need an operator, then states that can
/// pass.
pub(crate) fn exit(found: &Found, judged: &[Judged<'_>], groups: &[Group]) -> Exit {
    if found.leader().is_none() {
        return found.mistrusted().unwrap_or(Exit::Retry);
    }
    let exits = || judged.iter().map(|j| j.state.exit()).chain(groups.iter().map(|g| g.state.exit()));
    let worst = |exit: Exit| exits().any(|found| found == exit).then_some(exit);
    [Exit::Corrupt, Exit::Failure, Exit::Retry].into_iter().find_map(worst).unwrap_or(Exit::Ok)
}

/// Whether a member is among the servers that answered or the silent ones.
fn is_shown(found: &Found, member: &Member) -> bool {
    found.answers.iter().any(|(_, s)| s.node == member.node)
        || found.silent.iter().any(|s| s.member.as_ref().is_some_and(|m| m.node == member.node))
        || found
            .others
            .iter()
            .any(|(server, s)| found.member_at(server, s).is_some_and(|m| m.node == member.node))
}

/// The worst of several states, in the order of [`State`].
fn of_answer(found: &Found, server: &str, s: &StatusResponse, lag_max: u64) -> (State, String) {
    let states = [
        wiped(found, server, s),
        damaged(s),
        damaged_objects(s),
        (!s.shortage.is_empty()).then(|| {
            (State::Short, format!("it has no room for what the log holds or may hold: {}", s.shortage))
        }),
        (!s.full.is_empty()).then(|| (State::Full, format!("it refuses appends: {}; `chiplog discard` makes room", s.full))),
        (!s.poison.is_empty()).then(|| (State::Poisoned, format!("it takes no more appends: {}", s.poison))),
        (s.role() == Role::Removed).then(|| {
            (State::Removed, "it was removed from the cluster, or its disk was set back or exchanged: stop it, its log says which".into())
        }),
        (s.role() == Role::Repairing)
            .then(|| (State::Repairing, "it takes no part until it has fetched what its log lacks".into())),
        cut_off(found, s),
        s.log_id.is_empty().then(|| (State::Waiting, waiting(found, server, s))),
        (s.leader_node == 0 && !s.log_id.is_empty()).then(|| (State::NoLeader, "it knows no leader".into())),
        found.lag(s.node).filter(|lag| !s.log_id.is_empty() && *lag > lag_max).map(|lag| {
            let what = many(lag, "entry", "entries");
            (State::Lagging, format!("it lacks {what} of raft's log, more than {lag_max} (--lag-max)"))
        }),
        found.leader().filter(|l| l.version != s.version).map(|leader| {
            let what = format!("it runs version {}, the leader runs {}", s.version, leader.version);
            (State::OtherVersion, what)
        }),
        (!s.no_store.is_empty()).then(|| {
            let what = format!("it stores no objects, and reads only what is on its disk: {}", s.no_store);
            (State::NoStore, what)
        }),
        store_failing_since(s).map(|since| {
            (State::StoreFails, format!("its requests to the object store have failed since {since}: {}", s.store_failure))
        }),
        s.draining.then(|| (State::Draining, "it is shutting down".into())),
    ];
    let worst = states.into_iter().flatten().max_by_key(|(state, _)| *state);
    worst.unwrap_or((State::Ok, String::new()))
}

/// Since when the requests of a server to its object store fail, as text. None: they do not.
pub(crate) fn store_failing_since(s: &StatusResponse) -> Option<String> {
    (!s.store_failure.is_empty()).then(|| time(Timestamp(s.store_failing_since_nanos / 1_000_000)))
}

/// The state of a replica whose directory is not the one that the cluster has for it.
fn wiped(found: &Found, server: &str, s: &StatusResponse) -> Option<(State, String)> {
    let advice = "give a server that lost its disk a new number: `chiplog member add` it, then `chiplog member remove` this one";
    if s.log_id.is_empty() {
        let is_listed = found.member_at(server, s).is_some_and(|member| member.node == s.node);
        let what = format!("it returned with an empty directory, as node {}; {advice}", s.node);
        return (is_listed || s.called_as == s.node).then_some((State::Wiped, what));
    }
    let member = found.members.iter().find(|m| m.node == s.node && !m.directory.is_empty())?;
    (member.directory != s.directory).then(|| {
        let what = format!(
            "its directory is {}, but the cluster knows it with {}; {advice}",
            s.directory, member.directory
        );
        (State::Wiped, what)
    })
}

/// Explains what a server that belongs to no cluster is waiting for.
fn waiting(found: &Found, server: &str, s: &StatusResponse) -> String {
    let listed = found.member_at(server, s).map(|member| member.node);
    match listed.or((s.called_as != 0).then_some(s.called_as)) {
        Some(lost) => format!(
            "it does not belong to the cluster yet, and is at the address of node {lost}: to replace that node, `chiplog member add` this server, then `chiplog member remove {lost}`"
        ),
        None => "it is not part of a cluster yet: `chiplog member init` makes a new one, `chiplog member add` adds it to one".into(),
    }
}

fn damaged(s: &StatusResponse) -> Option<(State, String)> {
    (s.damaged_places > 0).then(|| {
        let what = format!(
            "{} of its files damaged and not repaired (since it was started, damage was found {} and repaired {}): `chiplog verify` shows where",
            many(s.damaged_places, "place is", "places are"),
            many(s.damaged, "time", "times"),
            many(s.repaired, "time", "times")
        );
        (State::Damaged, what)
    })
}

/// Records that no server has in its files any more are lost, unless a copy or a backup has them.
fn damaged_objects(s: &StatusResponse) -> Option<(State, String)> {
    (s.damaged_objects > 0).then(|| {
        let what = format!(
            "{} lost or damaged in the object store, and it has not all of their entries on its disk: reads of these records fail. Another replica that has them stores the objects again, and this one looks again after an hour at most; else a copy or a backup alone has them. `chiplog tier verify` of the object store names the objects",
            many(s.damaged_objects, "object is", "objects are")
        );
        (State::DamagedObjects, what)
    })
}

fn cut_off(found: &Found, s: &StatusResponse) -> Option<(State, String)> {
    let leader = found.leader()?;
    if s.log_id.is_empty() || s.node == leader.node {
        return None;
    }
    if s.role() == Role::Leader {
        let what = format!("it believes that it leads, but node {} was elected later", leader.node);
        return Some((State::CutOff, what));
    }
    let progress = leader.peers.iter().find(|p| p.node == s.node)?;
    (!progress.active).then(|| {
        let what = format!(
            "the leader, node {}, hears nothing from it: check the network between their peer addresses, and `tls.peer_*` of both",
            leader.node
        );
        (State::CutOff, what)
    })
}

/// The state of a member that cannot be queried, according to the leader.
fn of_unasked(found: &Found, member: &Member) -> (State, String) {
    let is_active = found.leader().is_some_and(|leader| {
        leader.node == member.node || leader.peers.iter().any(|p| p.node == member.node && p.active)
    });
    let in_its_place = found.answers.iter().find(|(server, s)| {
        s.log_id.is_empty() && found.member_at(server, s).is_some_and(|m| m.node == member.node)
    });
    match (in_its_place, is_active) {
        (Some((server, status)), _) => {
            (State::Unreachable, format!("node {} is at its address, {server}", status.node))
        }
        (None, true) => (State::Ok, String::new()),
        (None, false) => (
            State::Unreachable,
            "it has announced no address for clients, and the leader hears nothing from it".into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog_net::wire::proto::v1::PeerProgress;

    const ALL: [State; 20] = [
        State::Ok,
        State::Draining,
        State::OtherVersion,
        State::StoreFails,
        State::NoStore,
        State::Lagging,
        State::NoLeader,
        State::Waiting,
        State::CutOff,
        State::Repairing,
        State::Unreachable,
        State::LockedOut,
        State::Removed,
        State::Short,
        State::Full,
        State::Poisoned,
        State::DamagedObjects,
        State::Damaged,
        State::Wiped,
        State::OtherLog,
    ];

    const LOG: &str = "1f";

    fn member(node: u64) -> Member {
        let at = |what: &str| format!("{what}{node}:1");
        Member {
            node,
            directory: format!("d{node}"),
            voter: true,
            client_address: at("c"),
            peer_address: at("p"),
            ..Member::default()
        }
    }

    /// The status of node `node` of a cluster of three that node 1 leads.
    fn told(node: u64) -> (String, StatusResponse) {
        let role = if node == 1 { Role::Leader } else { Role::Follower };
        let peer = |node| PeerProgress { node, active: true, ..PeerProgress::default() };
        let status = StatusResponse {
            log_id: LOG.into(),
            node,
            directory: format!("d{node}"),
            role: role.into(),
            leader_node: 1,
            version: "1".into(),
            client_address: format!("c{node}:1"),
            peer_address: format!("p{node}:1"),
            members: (1..=3).map(member).collect(),
            peers: if node == 1 { vec![peer(2), peer(3)] } else { Vec::new() },
            ..StatusResponse::default()
        };
        (format!("c{node}:1"), status)
    }

    /// The cluster, with a change to the answers of its leader and its third node.
    fn found(change: impl FnOnce(&mut StatusResponse, &mut StatusResponse)) -> Found {
        let mut answers: Vec<_> = (1..=3).map(told).collect();
        let [leader, _, third] = &mut answers[..] else { unreachable!() };
        change(&mut leader.1, &mut third.1);
        Found { members: answers[0].1.members.clone(), answers, ..Found::default() }
    }

    fn state(found: &Found) -> (State, Exit) {
        let judged = judge(found, 1000);
        let of_third = judged.iter().find(|j| matches!(j.place, Place::Answer(s) if s.node == 3)).unwrap();
        assert_eq!(of_third.why.is_none(), of_third.state == State::Ok);
        assert!(judged.iter().filter(|j| j.state == State::Ok).count() >= 2);
        (of_third.state, exit(found, &judged, &[]))
    }

    #[test]
    fn each_problem_has_a_state_and_an_exit_code() {
        type Change = fn(&mut StatusResponse, &mut StatusResponse);
        let cases: [(Change, State, Exit); 18] = [
            (|_, _| {}, State::Ok, Exit::Ok),
            (|leader, _| leader.peers[1].lag = 1000, State::Ok, Exit::Ok),
            (|leader, _| leader.peers[1].lag = 1001, State::Lagging, Exit::Retry),
            (|leader, _| leader.peers[1].active = false, State::CutOff, Exit::Retry),
            (|_, third| third.leader_node = 0, State::NoLeader, Exit::Retry),
            (|_, third| third.directory = "d9".into(), State::Wiped, Exit::Failure),
            (|_, third| (third.log_id, third.directory) = Default::default(), State::Wiped, Exit::Failure),
            (|_, third| third.damaged_places = 1, State::Damaged, Exit::Corrupt),
            (|_, third| (third.damaged, third.repaired) = (2, 1), State::Ok, Exit::Ok),
            (|_, third| third.shortage = "too small".into(), State::Short, Exit::Failure),
            (|_, third| third.store_failure = "no answer".into(), State::StoreFails, Exit::Retry),
            (|_, third| third.damaged_objects = 1, State::DamagedObjects, Exit::Corrupt),
            (|_, third| third.no_store = "none".into(), State::NoStore, Exit::Failure),
            (|_, third| third.full = "no room".into(), State::Full, Exit::Failure),
            (|_, third| third.poison = "no".into(), State::Poisoned, Exit::Failure),
            (|_, third| third.role = Role::Repairing.into(), State::Repairing, Exit::Retry),
            (|_, third| third.version = "2".into(), State::OtherVersion, Exit::Failure),
            (|_, third| third.role = Role::Removed.into(), State::Removed, Exit::Failure),
        ];
        for (change, name, code) in cases {
            assert_eq!(state(&found(change)), (name, code));
        }
    }

    #[test]
    fn worst_of_several_states_is_reported() {
        let found = found(|leader, third| {
            leader.peers[1].active = false;
            third.version = "2".into();
            third.poison = "no".into();
        });
        assert_eq!(state(&found).0, State::Poisoned);
    }

    /// The lag of a dead voter was shown as 0.
    #[test]
    fn lag_of_a_silent_replica_is_unknown() {
        let found = found(|leader, _| leader.peers[1].active = false);
        assert_eq!((found.lag(1), found.lag(2), found.lag(3)), (Some(0), Some(0), None));
    }

    /// A wiped voter was shown as a replica without a vote.
    #[test]
    fn wiped_voter_counts_for_the_majority() {
        type Change = fn(&mut StatusResponse, &mut StatusResponse);
        let changes: [Change; 3] = [
            |_, third| (third.log_id, third.directory) = Default::default(),
            |_, third| (third.log_id, third.members) = Default::default(),
            |_, third| third.directory = "d9".into(),
        ];
        for change in changes {
            let found = found(change);
            assert!(found.seat_of(&found.answers[2].1).is_some_and(|m| m.voter));
        }
        let learner = found(|leader, _| leader.members[2].voter = false);
        assert!(learner.seat_of(&learner.answers[2].1).is_some_and(|m| !m.voter));
        let stranger = StatusResponse { log_id: "2f".into(), node: 3, ..StatusResponse::default() };
        assert_eq!(learner.seat_of(&stranger), None);
    }

    /// A new server at the address of the lost one was reported as `wiped` and a voter, with the advice to
    /// remove it.
    #[test]
    fn new_server_at_the_address_of_a_lost_one_waits() {
        let found = found(|leader, third| {
            leader.peers[1].active = false;
            (third.log_id, third.directory, third.members) = Default::default();
            third.node = 6;
        });
        let judged = judge(&found, 1000);
        let told = |is: fn(&Place<'_>) -> bool| {
            let judged = judged.iter().find(|j| is(&j.place)).unwrap();
            (judged.state, judged.why.clone().unwrap())
        };
        let (state, why) = told(|place| matches!(place, Place::Answer(s) if s.node == 6));
        assert!(state == State::Waiting && why.contains("address of node 3"), "{why}");
        assert!(why.contains("`chiplog member remove 3`"), "{why}");
        let (state, why) = told(|place| matches!(place, Place::Unasked(member) if member.node == 3));
        assert_eq!((state, &*why), (State::Unreachable, "node 6 is at its address, c3:1"));
        assert_eq!(found.seat_of(&found.answers[2].1), None, "it does not vote");
    }

    /// If a server that lost its disk is queried alone, the replicas that call it reveal its state.
    #[test]
    fn emptied_server_asked_alone_is_wiped() {
        for (called_as, state) in [(0, State::Waiting), (3, State::Wiped), (1, State::Waiting)] {
            let alone = StatusResponse { node: 3, called_as, ..StatusResponse::default() };
            let found = Found { answers: vec![("c3:1".into(), alone)], ..Found::default() };
            let judged = judge(&found, 1000);
            assert_eq!(judged[0].state, state);
            let why = judged[0].why.as_deref().unwrap();
            assert_eq!(why.contains("member init"), called_as == 0, "{why}");
        }
    }

    #[test]
    fn help_lists_every_state() {
        let mut help = crate::commands::cli::command();
        let status = help.find_subcommand_mut("status").unwrap().render_long_help().to_string();
        for state in ALL {
            assert!(status.contains(state.name()), "{}", state.name());
        }
        assert!(ALL.is_sorted());
    }
}
