//! Placement: which servers run each group, if `group_replicas` is set and the cluster has more servers. The leader of the
//! system log decides, and notes each decision in the catalogue; the leader of each group follows it (`members.rs`).
//!
//! - A group keeps the servers that it has. One that left the cluster is replaced by the server with the fewest groups.
//! - Once every group has its servers, groups move from the server with the most to the one with the fewest, one at a time.
//! - A server that is silent, or has failed lately to host a group, gets one only if no other one is left, and keeps its own.
//! - A server that fails for long to make or to fill its replica of a group, although it is heard, is replaced in that group if another
//!   one is left.
//! - The groups' leaders are spread in the same way: each server leads about as many as the others.
//!
//! Invariants:
//! - A majority confirms the servers of the cluster and the catalogue before a decision is noted.
//! - The decision depends on these alone, except that servers which are silent or fail get no groups if others can: a new leader of the
//!   system log continues where the old one stopped. Which servers have failed lately, and which group was moved last, one process knows: a
//!   new leader can give a group to a server that fails, and replaces it there once the group's leader has told it.

use super::votes::JOIN_PATIENCE;
use super::{CHANGES_MAX, Groups, HOST_TIMEOUT, label};
use chiplog::cluster::Role;
use chiplog::{Log, Logs, NodeId};
use chiplog_net::served::elsewhere::GroupView;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// How long a server that failed to host a group gets others only if no other server is left.
const FAILED_FOR: Duration = Duration::from_secs(600);

/// How long that which a group's leader told of servers counts without being told again. It is asked more often: a leader that is gone
/// says nothing.
const TOLD_FOR: Duration = Duration::from_secs(30);

/// How long a server that was heard may be silent, and still counts as up without a break: one lost heartbeat is no restart.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// The servers that are to run each group. None: all are.
type Places = BTreeMap<u32, Vec<NodeId>>;

/// A decision: the servers that are to run a group.
#[derive(Debug, PartialEq, Eq)]
struct Decision {
    group: u32,
    nodes: Vec<NodeId>,
    /// Whether it only makes the servers more even.
    evens: bool,
}

/// The servers that should get no groups.
#[derive(Debug, Default)]
struct Unfit {
    /// Those that are not heard.
    silent: Vec<NodeId>,
    /// Those that have failed lately to host a group.
    failed: Vec<NodeId>,
    /// Those that fail now, for each group.
    unhosted: Places,
}

impl Unfit {
    fn has(&self, node: NodeId) -> bool {
        self.silent.contains(&node) || self.failed.contains(&node)
    }

    /// Whether a server fails to host this group.
    fn fails(&self, group: u32, node: NodeId) -> bool {
        self.unhosted.get(&group).is_some_and(|nodes| nodes.contains(&node))
    }

    /// Whether a group cannot have its new voters now. A server that failed to host other groups can be a voter of this one.
    fn keeps_from_moving(&self, group: u32, place: &[NodeId]) -> bool {
        place.iter().any(|node| self.silent.contains(node) || self.fails(group, *node))
    }
}

/// Since when a server has been up, as far as it was heard.
#[derive(Debug)]
struct Up {
    since: Instant,
    /// Since when it is not heard.
    silent: Option<Instant>,
}

impl Up {
    /// Whether it was silent for so long that it can have been down.
    fn was_down(&self, now: Instant) -> bool {
        self.silent.is_some_and(|at| now.saturating_duration_since(at) >= SILENT_FOR)
    }
}

/// The servers that failed to host groups, as the leaders of those told the leader of the system log.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// Those that each group's leader told last, and when.
    unhosted: BTreeMap<u32, (Vec<NodeId>, Instant)>,
    /// When a server was last told to fail to host a group.
    failed: BTreeMap<NodeId, Instant>,
    /// The servers that are up, this one included.
    up: BTreeMap<NodeId, Up>,
}

impl Failures {
    /// Notes which servers are heard.
    fn hear(&mut self, heard: &[NodeId], now: Instant) {
        for (_, up) in self.up.iter_mut().filter(|(node, _)| !heard.contains(node)) {
            up.silent.get_or_insert(now);
        }
        self.up.retain(|_, up| !up.was_down(now));
        for node in heard {
            self.up.entry(*node).or_insert(Up { since: now, silent: None }).silent = None;
        }
    }

    /// Notes which servers a group's leader tells to fail. One that was down until a moment ago has not had its time yet.
    fn note(&mut self, group: u32, unhosted: &[NodeId], now: Instant) {
        let is_up = |up: &Up| now.saturating_duration_since(up.since) >= JOIN_PATIENCE;
        let fails = |node: &NodeId| self.up.get(node).is_some_and(is_up);
        let failing: Vec<NodeId> = unhosted.iter().copied().filter(fails).collect();
        self.failed.extend(failing.iter().map(|node| (*node, now)));
        self.unhosted.insert(group, (failing, now));
    }

    /// Forgets all but which servers failed lately.
    fn forget(&mut self) {
        self.unhosted.clear();
        self.up.clear();
    }

    fn unfit(&self, silent: Vec<NodeId>, now: Instant) -> Unfit {
        let is_late = |at: &Instant| now.saturating_duration_since(*at) < FAILED_FOR;
        let failed = self.failed.iter().filter(|(_, at)| is_late(at)).map(|(node, _)| *node).collect();
        let counts = |at: &Instant| now.saturating_duration_since(*at) < TOLD_FOR;
        let told = self.unhosted.iter().filter(|(_, (_, at))| counts(at));
        Unfit { silent, failed, unhosted: told.map(|(group, (nodes, _))| (*group, nodes.clone())).collect() }
    }
}

impl Groups {
    /// Decides where groups run, on the leader of the system log.
    ///
    /// # Errors
    /// Those of [`Log::barrier`] and of the system log.
    pub(super) fn place_groups(&self, logs: &Logs, default: &Log) -> chiplog::Result<()> {
        for _ in 0..CHANGES_MAX {
            if logs.system().role() != Role::Leader || self.next_place(logs, default)?.is_none() {
                return Ok(());
            }
            // The servers and the catalogue can be those of some time ago.
            default.barrier(HOST_TIMEOUT)?;
            logs.system().barrier(HOST_TIMEOUT)?;
            let Some(Decision { group, nodes, evens }) = self.next_place(logs, default)? else {
                return Ok(());
            };
            logs.place_group(group, &nodes)?;
            tracing::info!(group = %label(group), ?nodes, "decided which servers run a group of named logs");
            if evens {
                *self.inner.moving.lock().unwrap_or_else(PoisonError::into_inner) = Some(group);
                return Ok(());
            }
        }
        Ok(())
    }

    fn next_place(&self, logs: &Logs, default: &Log) -> chiplog::Result<Option<Decision>> {
        let servers = default.status().replica.voters();
        let replicas = self.inner.config.group_replicas as usize;
        let places = places(logs)?;
        let unfit = self.unfit(logs.system());
        let decided = next(&places, &servers, &unfit, replicas);
        let may_move = || self.has_moved(logs, &places, &unfit);
        Ok(decided.filter(|decided| !decided.evens || may_move()))
    }

    /// Whether the group that was moved last has its new voters, or cannot have them now.
    fn has_moved(&self, logs: &Logs, places: &Places, unfit: &Unfit) -> bool {
        let Some(group) = *self.inner.moving.lock().unwrap_or_else(PoisonError::into_inner) else {
            return true;
        };
        if places.get(&group).is_some_and(|place| unfit.keeps_from_moving(group, place)) {
            return true;
        }
        let view = self.views(logs, [group]).remove(&group);
        view.is_some_and(|view| places.get(&group).is_none_or(|place| *place == view.voters))
    }

    /// Notes which servers fail to host groups, as the groups' leaders tell the leader of the system log.
    pub(super) fn note_unhosted(&self, system: &Log, views: &BTreeMap<u32, GroupView>) {
        let have = system.status().replica;
        let others = have.peers.iter().filter(|peer| peer.active).map(|peer| peer.node);
        let heard: Vec<NodeId> = others.chain([have.node]).collect();
        let mut failures = self.inner.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.hear(&heard, Instant::now());
        for (group, view) in views {
            failures.note(*group, &view.unhosted, Instant::now());
        }
    }

    /// Forgets what the groups' leaders told, on a server that does not lead the system log: it would be old once this one leads again.
    pub(super) fn forget_unhosted(&self) {
        self.inner.failures.lock().unwrap_or_else(PoisonError::into_inner).forget();
    }

    /// The servers that should get no groups, as the leader of the system log sees it: it hears all servers.
    fn unfit(&self, system: &Log) -> Unfit {
        let failures = self.inner.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.unfit(silent(system), Instant::now())
    }

    /// The server that should lead a group, if the catalogue places the groups.
    pub(super) fn placed_leader(&self, group: u32) -> Option<NodeId> {
        let logs = self.inner.slot.named()?;
        leaders(&places(logs).ok()?).get(&group).copied()
    }
}

/// Where the catalogue places the groups.
fn places(logs: &Logs) -> chiplog::Result<Places> {
    logs.known_groups()?.into_iter().map(|group| Ok((group, logs.group_place(group)?))).collect()
}

/// The servers from which the leader of the system log, which all servers run, hears nothing.
fn silent(system: &Log) -> Vec<NodeId> {
    system.status().replica.peers.iter().filter(|peer| !peer.active).map(|peer| peer.node).collect()
}

/// How many groups each of these servers is to run.
fn loads(places: &Places, servers: &[NodeId]) -> BTreeMap<NodeId, usize> {
    let load =
        |node: &NodeId| places.values().filter(|place| place.is_empty() || place.contains(node)).count();
    servers.iter().map(|node| (*node, load(node))).collect()
}

/// The next decision. None: each group has its servers, and they are even. `servers`: the voters of the cluster; `unfit`: those
/// of them that should get no groups. `replicas`: how many run each group; 0: all.
fn next(places: &Places, servers: &[NodeId], unfit: &Unfit, replicas: usize) -> Option<Decision> {
    if replicas == 0 {
        let (group, _) = places.iter().find(|(_, place)| !place.is_empty())?;
        return Some(Decision { group: *group, nodes: Vec::new(), evens: false });
    }
    if servers.is_empty() {
        return None; // the members of the cluster are not known yet
    }
    let loads = loads(places, servers);
    let load = |node: &NodeId| loads.get(node).copied().unwrap_or_default();
    for (group, place) in places {
        let stays = |node: &&NodeId| place.is_empty() || place.contains(node);
        let mut nodes: Vec<NodeId> = servers.iter().filter(stays).copied().collect();
        let fails = |node: NodeId| unfit.fails(*group, node) && !unfit.silent.contains(&node);
        let is_fit = |node: &&NodeId| !unfit.has(**node) && !unfit.fails(*group, **node);
        let others = servers.iter().filter(|node| !nodes.contains(node)).filter(is_fit).count();
        let failing: Vec<NodeId> = nodes.iter().copied().filter(|node| fails(*node)).take(others).collect();
        nodes.retain(|node| !failing.contains(node));
        while nodes.len() > replicas {
            let most = nodes.iter().copied().max_by_key(|node| (unfit.has(*node), load(node), *node));
            nodes.retain(|node| Some(*node) != most);
        }
        while nodes.len() < replicas {
            let others = servers.iter().filter(|node| !nodes.contains(node));
            let Some(fewest) = others.min_by_key(|node| (!is_fit(node), load(node), **node)) else {
                break;
            };
            nodes.push(*fewest);
        }
        nodes.sort_unstable();
        if nodes != *place {
            return Some(Decision { group: *group, nodes, evens: false });
        }
    }
    let heard = || servers.iter().copied().filter(|node| !unfit.has(*node));
    let most = heard().max_by_key(|node| (load(node), std::cmp::Reverse(*node)))?;
    let fewest = heard().min_by_key(|node| (load(node), *node))?;
    if load(&most) < load(&fewest) + 2 {
        return None;
    }
    let (group, place) =
        places.iter().find(|(_, place)| place.contains(&most) && !place.contains(&fewest))?;
    let mut nodes: Vec<NodeId> = place.iter().copied().filter(|node| *node != most).chain([fewest]).collect();
    nodes.sort_unstable();
    Some(Decision { group: *group, nodes, evens: true })
}

/// The server that should lead each group that is placed: of its servers the one that leads the fewest.
fn leaders(places: &Places) -> BTreeMap<u32, NodeId> {
    let mut leads: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut leaders = BTreeMap::new();
    for (group, place) in places {
        let least = place.iter().min_by_key(|node| (leads.get(node).copied().unwrap_or_default(), **node));
        if let Some(node) = least {
            *leads.entry(*node).or_default() += 1;
            leaders.insert(*group, *node);
        }
    }
    leaders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(numbers: &[u64]) -> Vec<NodeId> {
        numbers.iter().map(|node| NodeId(*node)).collect()
    }

    /// Makes all decisions, and returns how many only made the servers more even.
    fn settle(places: &mut Places, servers: &[NodeId], replicas: usize) -> usize {
        let mut evening = 0;
        for _ in 0..1000 {
            let Some(Decision { group, nodes, evens }) = next(places, servers, &Unfit::default(), replicas)
            else {
                return evening;
            };
            assert!(nodes.is_sorted() && nodes.iter().all(|node| servers.contains(node)), "{nodes:?}");
            let place = places.insert(group, nodes).unwrap();
            assert_ne!(place, places[&group]);
            evening += usize::from(evens);
        }
        panic!("the decisions do not end: {places:?}");
    }

    #[test]
    fn each_group_gets_its_servers_and_all_servers_about_as_many_groups() {
        for (groups, servers, replicas) in
            [(16, 7, 3), (2, 4, 3), (5, 10, 5), (16, 3, 3), (4, 2, 3), (9, 5, 1)]
        {
            let all: Vec<NodeId> = (1..=servers).map(NodeId).collect();
            let mut places: Places = (1..=groups).map(|group| (group, Vec::new())).collect();
            settle(&mut places, &all, replicas);
            let each = replicas.min(all.len());
            assert!(places.values().all(|place| place.len() == each), "{places:?}");
            let loads = loads(&places, &all);
            let (most, fewest) = (loads.values().max().unwrap(), loads.values().min().unwrap());
            assert!(most - fewest <= 1, "{loads:?}");
            let leaders = leaders(&places);
            let led = |node: &NodeId| leaders.values().filter(|leader| *leader == node).count();
            let (most, fewest) = (all.iter().map(led).max().unwrap(), all.iter().map(led).min().unwrap());
            assert!(most - fewest <= 2, "{leaders:?}");
        }
    }

    #[test]
    fn added_server_takes_over_only_what_makes_it_even() {
        let mut places: Places = (1..=12).map(|group| (group, nodes(&[1, 2, 3]))).collect();
        let all = nodes(&[1, 2, 3, 4]);
        assert_eq!(settle(&mut places, &all, 3), 9);
        assert!(loads(&places, &all).values().all(|load| *load == 9));
    }

    #[test]
    fn server_that_left_is_replaced_and_no_other_moves() {
        let before: Places =
            [(1, nodes(&[1, 2, 3])), (2, nodes(&[2, 3, 4])), (3, nodes(&[1, 3, 4])), (4, nodes(&[1, 2, 4]))]
                .into();
        let mut places = before.clone();
        assert_eq!(settle(&mut places, &nodes(&[1, 2, 3, 5]), 3), 0);
        for (group, place) in &places {
            let kept = |node: &&NodeId| node.0 != 4;
            assert!(before[group].iter().filter(kept).all(|node| place.contains(node)), "{group}: {place:?}");
            assert_eq!(place.contains(&NodeId(5)), before[group].contains(&NodeId(4)));
        }
    }

    #[test]
    fn groups_run_on_all_servers_again_without_the_option() {
        let mut places: Places = [(1, nodes(&[1, 2, 3])), (2, Vec::new())].into();
        settle(&mut places, &nodes(&[1, 2, 3, 4]), 0);
        assert!(places.values().all(Vec::is_empty));
        assert_eq!(next(&[(1, nodes(&[1]))].into(), &[], &Unfit::default(), 3), None, "no server is known");
    }

    #[test]
    fn silent_server_gets_no_group_and_keeps_its_own() {
        let all = nodes(&[1, 2, 3, 4, 5]);
        let silent = Unfit { silent: nodes(&[4]), ..Unfit::default() };
        // Server 6 has left. Server 4 has no group, and is silent.
        let places: Places = [(1, nodes(&[1, 2, 6])), (2, nodes(&[1, 3, 5])), (3, nodes(&[2, 3, 5]))].into();
        let decided = next(&places, &all, &silent, 3).unwrap();
        assert_eq!((decided.group, decided.nodes), (1, nodes(&[1, 2, 3])));
        // Server 4 has more than the others, and then fewer.
        let places: Places = [(1, nodes(&[4])), (2, nodes(&[4])), (3, nodes(&[4])), (4, nodes(&[1]))].into();
        assert_eq!(next(&places, &nodes(&[1, 2, 4]), &silent, 1), None);
        let places: Places = [(1, nodes(&[1])), (2, nodes(&[1])), (3, nodes(&[2]))].into();
        assert_eq!(next(&places, &nodes(&[1, 2, 4]), &silent, 1), None);
        assert!(next(&places, &nodes(&[1, 2, 4]), &Unfit::default(), 1).is_some());
        // No other one is left.
        let places: Places = [(1, nodes(&[1, 2]))].into();
        assert_eq!(next(&places, &nodes(&[1, 2, 4]), &silent, 3).unwrap().nodes, nodes(&[1, 2, 4]));
    }

    /// A server whose disk was full was the target of a group for ever, and other servers had room.
    #[test]
    fn server_that_fails_to_host_a_group_is_replaced_there() {
        let all = nodes(&[1, 2, 3, 4, 5]);
        let unfit = |silent: &[u64], failed: &[u64]| Unfit {
            silent: nodes(silent),
            failed: nodes(failed),
            unhosted: [(1, nodes(failed))].into(),
        };
        let mut places: Places =
            [(1, nodes(&[1, 2, 4])), (2, nodes(&[1, 3, 5])), (3, nodes(&[2, 3, 5]))].into();
        assert_eq!(next(&places, &all, &unfit(&[], &[]), 3), None);
        let decided = next(&places, &all, &unfit(&[], &[4]), 3).unwrap();
        assert_eq!((decided.group, decided.nodes, decided.evens), (1, nodes(&[1, 2, 3]), false));
        // It does not get that or another one back soon, although it has none.
        places.insert(1, nodes(&[1, 2, 3]));
        let lately = Unfit { unhosted: Places::new(), ..unfit(&[], &[4]) };
        assert_eq!(next(&places, &all, &lately, 3), None);
        // A silent one stays, and so does one that no other server can replace.
        places.insert(1, nodes(&[1, 2, 4]));
        assert_eq!(next(&places, &all, &unfit(&[4], &[4]), 3), None);
        assert_eq!(next(&places, &all, &unfit(&[3, 5], &[4]), 3), None);
        places.retain(|group, _| *group == 1);
        assert_eq!(next(&places, &nodes(&[1, 2, 4, 5]), &unfit(&[], &[4, 5]), 3), None);
    }

    /// A server that returned lost the groups that it had not hosted yet; and what a server knew when it led last moved groups later.
    #[test]
    fn only_a_server_that_has_been_up_for_long_fails() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut failures = Failures::default();
        let unfit = |failures: &Failures, seconds| {
            let unfit = failures.unfit(Vec::new(), at(seconds));
            (unfit.fails(1, NodeId(4)), unfit.has(NodeId(4)))
        };
        let told = |failures: &mut Failures, heard: &[u64], seconds| {
            failures.hear(&nodes(heard), at(seconds));
            failures.note(1, &nodes(&[4]), at(seconds));
            unfit(failures, seconds)
        };
        assert_eq!(told(&mut failures, &[1, 4], 0), (false, false));
        assert_eq!(told(&mut failures, &[1], 20), (false, false));
        assert_eq!(told(&mut failures, &[1, 4], 40), (false, false));
        assert_eq!(told(&mut failures, &[1, 4], 69), (false, false));
        assert_eq!(told(&mut failures, &[1, 4], 70), (true, true));
        failures.forget(); // another server leads the system log, and then this one again
        assert_eq!(unfit(&failures, 71), (false, true));
        assert_eq!(told(&mut failures, &[1, 4], 71), (false, true));
        assert_eq!(told(&mut failures, &[1, 4], 101), (true, true));
        assert_eq!(unfit(&failures, 130), (true, true));
        assert_eq!(unfit(&failures, 131), (false, true), "the group's leader says nothing any more");
        assert_eq!(told(&mut failures, &[1, 4], 132), (true, true));
        failures.note(1, &[], at(133));
        assert_eq!(unfit(&failures, 133), (false, true));
        assert_eq!(unfit(&failures, 732), (false, false), "ten minutes later");
    }

    /// A server whose heartbeats were late for a moment now and then never counted as one that fails.
    #[test]
    fn server_that_is_silent_for_a_moment_was_not_down() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut failures = Failures::default();
        let mut fails = |heard: &[u64], seconds| {
            failures.hear(&nodes(heard), at(seconds));
            failures.note(1, &nodes(&[4]), at(seconds));
            failures.unfit(Vec::new(), at(seconds)).fails(1, NodeId(4))
        };
        for seconds in (0..30).step_by(5) {
            assert!(!fails(&[1, 4], seconds) && !fails(&[1], seconds + 1) && !fails(&[1], seconds + 4));
        }
        assert!(fails(&[1, 4], 30));
        assert!(fails(&[1], 31), "it may be down, and that is not known yet");
        assert!(!fails(&[1], 36));
        assert!(!fails(&[1, 4], 37) && !fails(&[1, 4], 66));
        assert!(fails(&[1, 4], 67));
        // It was not heard twice, and nobody looked in between.
        assert!(fails(&[1], 70) && !fails(&[1, 4], 90));
    }

    /// After any failure groups moved all at once.
    #[test]
    fn failure_in_another_group_ends_no_move() {
        let unfit = Unfit {
            failed: nodes(&[4, 5]),
            unhosted: [(1, nodes(&[4])), (7, nodes(&[5]))].into(),
            ..Unfit::default()
        };
        assert!(!unfit.keeps_from_moving(7, &nodes(&[2, 3, 4])));
        assert!(unfit.keeps_from_moving(7, &nodes(&[2, 3, 5])));
        assert!(Unfit { silent: nodes(&[4]), ..unfit }.keeps_from_moving(7, &nodes(&[2, 3, 4])));
    }
}
