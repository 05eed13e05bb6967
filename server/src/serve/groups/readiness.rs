//! Readiness: which groups new logs may be created in. A new group begins with one replica, and a record in it would be lost
//! with one disk until others have been added. A group without a leader could not open the log. A server that is down does
//! not keep a group from being used.
//!
//! Invariant: a log is created only in a group that has a leader which knows the newest catalogue, and in which more than half as many
//! servers of the cluster vote as are to run it, whichever these are: a group that moves stays ready. The first log is created only if
//! that is so in the system log.

use super::Groups;
use chiplog::cluster::{ReplicaStatus, Role};
use chiplog::{Log, Logs, NodeId};
use chiplog_net::served::elsewhere::GroupView;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// How long a group that was found ready counts as that.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long a group of which no leader answered is not asked again.
const ABSENT: Duration = Duration::from_secs(2);

impl Groups {
    /// Looks which groups are ready, on the leader of the system log. Blocks while it asks other servers about groups.
    pub(super) fn look_ready(&self, logs: &Logs, default: &Log) {
        match logs.system().role() {
            Role::Leader => logs.set_ready_groups(self.ready(logs, &default.status().replica)),
            _ => self.forget_unhosted(),
        }
    }

    /// The groups that are ready, with the most logs of each. `cluster`: the default log.
    fn ready(&self, logs: &Logs, cluster: &ReplicaStatus) -> BTreeMap<u32, usize> {
        let members: Vec<NodeId> = cluster.members.iter().map(|server| server.node).collect();
        let servers = cluster.voters();
        let is_new = logs.list_after("", "", 1).is_ok_and(|first| first.is_empty());
        if is_new && !has_enough(&GroupView::of(logs.system()).voters, servers.len(), &members) {
            return BTreeMap::new();
        }
        let mut seen = self.inner.ready.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|_, (at, room)| at.elapsed() < room.map_or(ABSENT, |_| LOOK_AGAIN));
        let known = logs.known_groups().unwrap_or_default();
        let unseen: Vec<u32> = known.iter().copied().filter(|group| !seen.contains_key(group)).collect();
        let views = self.views(logs, unseen.iter().copied());
        self.note_unhosted(logs.system(), &views);
        let follows = !self.lacks_catalogue(logs); // else the catalogue refuses new logs, and says why
        for group in unseen {
            let place = logs.group_place(group).unwrap_or_default();
            let wanted = if place.is_empty() { servers.len() } else { place.len() };
            let room = match views.get(&group) {
                None => None,
                Some(view) if view.lacks_catalogue && follows => None, // another server leads it in a moment
                Some(view) if has_enough(&view.voters, wanted, &members) => Some(view.logs_max),
                Some(_) => continue, // it gets its voters, perhaps in a moment
            };
            seen.insert(group, (Instant::now(), room));
        }
        known.into_iter().filter_map(|group| Some((group, seen.get(&group)?.1?))).collect()
    }
}

/// Whether of these voters more than half as many are in the cluster as are wanted. None are wanted: the cluster is not known yet.
fn has_enough(voters: &[NodeId], wanted: usize, cluster: &[NodeId]) -> bool {
    wanted > 0 && 2 * voters.iter().filter(|node| cluster.contains(node)).count() > wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_servers_have_to_vote_as_most_of_those_that_are_wanted() {
        let nodes = |numbers: &[u64]| numbers.iter().map(|node| NodeId(*node)).collect::<Vec<_>>();
        for (voters, wanted, cluster, has) in [
            (&[1][..], 1, &[1][..], true),
            (&[1], 2, &[1, 2], false),
            (&[1], 3, &[1, 2, 3], false),
            (&[1, 2], 3, &[1, 2, 3], true),
            (&[1, 4, 5], 3, &[1, 2, 3], false),
            (&[1, 2, 3], 5, &[1, 2, 3, 4, 5], true),
            (&[1], 0, &[], false),
            (&[1], 0, &[1], false),
        ] {
            assert_eq!(
                has_enough(&nodes(voters), wanted, &nodes(cluster)),
                has,
                "{voters:?}, {wanted} of {cluster:?}"
            );
        }
    }
}
