//! Readiness: which groups new logs may be created in. A new group begins with one replica, and a record in it would be lost
//! with one disk until others have been added. A group without a leader could not open the log. A server that is down does
//! not keep a group from being used.
//!
//! Invariant: a log is created only in a group that has a leader, and in which most of the servers vote that are to run it;
//! the first log only if most of the servers vote in the system log.

use super::Groups;
use chiplog::cluster::Role;
use chiplog::{Log, Logs, NodeId};
use chiplog_net::served::elsewhere::GroupView;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// How long a group that was found ready counts as that.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl Groups {
    /// Looks which groups are ready, on the leader of the system log. Blocks while it asks other servers about groups.
    pub(super) fn look_ready(&self, logs: &Logs, default: &Log) {
        if logs.system().role() == Role::Leader {
            logs.set_ready_groups(self.ready(logs, &default.status().replica.voters()));
        }
    }

    /// The groups that are ready, with the most logs of each. `servers`: the voters of the default log.
    fn ready(&self, logs: &Logs, servers: &[NodeId]) -> BTreeMap<u32, usize> {
        let is_new = logs.list_after("", "", 1).is_ok_and(|first| first.is_empty());
        if is_new && !has_most(&GroupView::of(logs.system()).voters, servers) {
            return BTreeMap::new();
        }
        let mut seen = self.inner.ready.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|_, (at, _)| at.elapsed() < LOOK_AGAIN);
        let room = |group: u32| {
            if let Some((_, room)) = seen.get(&group) {
                return Some((group, *room));
            }
            let place = logs.group_place(group).unwrap_or_default();
            let wanted = if place.is_empty() { servers } else { &place };
            let view = self.view(logs, group, &[]).ok().filter(|view| view.leads)?;
            let is_ready = has_most(&view.voters, wanted);
            is_ready.then(|| seen.insert(group, (Instant::now(), view.logs_max)));
            is_ready.then_some((group, view.logs_max))
        };
        logs.known_groups().unwrap_or_default().into_iter().filter_map(room).collect()
    }
}

/// Whether most of the servers that are to vote do.
fn has_most(voters: &[NodeId], wanted: &[NodeId]) -> bool {
    2 * wanted.iter().filter(|node| voters.contains(node)).count() > wanted.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_the_wanted_servers_have_to_vote() {
        let nodes = |numbers: &[u64]| numbers.iter().map(|node| NodeId(*node)).collect::<Vec<_>>();
        for (voters, wanted, has) in [
            (&[1][..], &[1][..], true),
            (&[1], &[1, 2], false),
            (&[1], &[1, 2, 3], false),
            (&[1, 2], &[1, 2, 3], true),
            (&[1, 4, 5], &[1, 2, 3], false),
            (&[1, 2, 3], &[1, 2, 3, 4, 5], true),
            (&[1], &[], false),
        ] {
            assert_eq!(has_most(&nodes(voters), &nodes(wanted)), has, "{voters:?} of {wanted:?}");
        }
    }
}
