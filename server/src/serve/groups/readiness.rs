//! Readiness: which groups new logs may be created in. A new group begins with one replica, and a record in it would be lost
//! with one disk until its members are those that it is to have.
//!
//! Invariant: a log is created only in a group that has logs already, or whose voters are those that it is to have; and then
//! only if the voters of the system log are those of the default log.

use super::Groups;
use chiplog::cluster::{Member, Role};
use chiplog::{Log, Logs, NodeId};
use chiplog_net::served::elsewhere::GroupView;
use std::collections::BTreeSet;

impl Groups {
    /// Looks which groups are ready, on the leader of the system log. Blocks while it asks other servers about new groups.
    pub(super) fn look_ready(&self, logs: &Logs, default: &Log) {
        if logs.system().role() == Role::Leader {
            logs.set_ready_groups(self.ready(logs, &default.status().replica.members));
        }
    }

    /// The groups without logs that are ready.
    fn ready(&self, logs: &Logs, members: &[Member]) -> BTreeSet<u32> {
        let servers = voters(members);
        if GroupView::of(logs.system()).voters != servers {
            return BTreeSet::new();
        }
        let is_ready = |group: &u32| {
            let place = logs.group_place(*group).unwrap_or_default();
            let wanted = if place.is_empty() { &servers } else { &place };
            self.view(logs, *group, &[]).is_ok_and(|view| view.leads && view.voters == *wanted)
        };
        logs.empty_groups().unwrap_or_default().into_iter().filter(is_ready).collect()
    }
}

/// The voters that are not about to leave, ascending.
fn voters(members: &[Member]) -> Vec<NodeId> {
    members.iter().filter(|m| m.is_voter() && !m.is_leaving()).map(|m| m.node).collect()
}
