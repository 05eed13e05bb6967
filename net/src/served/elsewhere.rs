//! Elsewhere: the groups of named logs that run on other servers of the cluster only, and their state as those see it.
//!
//! Must not know: how the servers are asked.

use crate::wire::address::Address;
use chiplog::cluster::Member;
use chiplog::{Log, LogId, LogInfo, LogNumber, Logs, NodeId, Result};
use std::collections::BTreeMap;

/// A group as its leader sees it, or another server that runs it.
///
/// ```
/// use chiplog_net::served::elsewhere::GroupView;
/// let mut view = GroupView::default();
/// view.voters = vec![chiplog::NodeId(1)];
/// assert!(!view.leads && view.members.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupView {
    /// The server that answers leads the group, and a majority has just confirmed that. Otherwise all of this can be old.
    pub leads: bool,
    /// The leader that it knows.
    pub leader: Option<NodeId>,
    /// The latest term that it knows.
    pub term: u64,
    /// The voters that are not about to leave, ascending.
    pub voters: Vec<NodeId>,
    /// All members, ascending.
    pub members: Vec<NodeId>,
    /// The state of those of the logs that were asked about which are in the group, without their names.
    pub logs: Vec<LogInfo>,
    /// Those of them that are not in the group, and can never be opened there again.
    pub gone: Vec<LogNumber>,
    /// The most named logs that the group can hold now.
    pub logs_max: usize,
    /// The replica of the server that answers gave up leadership lately because its disk was slow.
    pub slow_disk: bool,
    /// The replica of the server that answers found no room for another file.
    pub lacks_room: bool,
    /// The replica of the system log of the server that answers does not follow the others: as leader of the group it would neither open
    /// new logs nor replace members.
    pub lacks_catalogue: bool,
    /// The servers that are to run the group and have failed for long to make or to fill a replica of it, as its leader sees it.
    pub unhosted: Vec<NodeId>,
}

impl GroupView {
    /// The view of a replica. Its `leads` is only what the replica believes.
    pub fn of(replica: &Log) -> Self {
        let status = replica.status().replica;
        Self {
            leads: status.role == chiplog::cluster::Role::Leader,
            leader: status.leader,
            term: status.term.get(),
            voters: status.voters(),
            members: status.members.iter().map(|m| m.node).collect(),
            logs_max: replica.named_logs_max(),
            slow_disk: replica.has_slow_disk(),
            lacks_room: replica.lacks_room(),
            ..Self::default()
        }
    }
}

/// Asks the servers that run these groups for their leaders' views, also of these logs of each. All are asked at the same time. Blocks for some
/// seconds at most.
///
/// The view of a group is an error, `Unavailable`, if no leader of it answers. The callback fails if the server ends.
pub type AskElsewhere =
    Box<dyn Fn(BTreeMap<u32, Vec<LogNumber>>) -> Result<BTreeMap<u32, Result<GroupView>>> + Send + Sync>;

/// A named log of a group that does not run here.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    pub(crate) log_id: LogId,
    /// The servers that are to run it, with their addresses.
    pub(crate) servers: Vec<(NodeId, Address)>,
}

/// The other servers that are to run a group: the voters of the default log, or those on which the catalogue places it.
///
/// # Errors
/// Those of reading the system log.
pub(crate) fn servers_of(group: u32, logs: &Logs, default: &Log) -> Result<Vec<(NodeId, Address)>> {
    let place = logs.group_place(group)?;
    let replica = default.status().replica;
    let is_placed = |m: &Member| if place.is_empty() { m.is_voter() } else { place.contains(&m.node) };
    let placed = replica.members.into_iter().filter(|m| m.node != replica.node && is_placed(m));
    Ok(placed.filter_map(|m| Some((m.node, m.address.parse().ok()?))).collect())
}
