//! Groups: the groups of named logs in a cluster: their status, and whether they have followed changes of its members. A
//! group that does not run here is described by its leader.

use crate::served::elsewhere::GroupView;
use crate::served::log_slot::LogSlot;
use crate::wire::proto::v1::{GroupStatus, Role};
use crate::wire::status::to_status;
use chiplog::{Error, ErrorKind, Log, Logs, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tonic::Status;

/// How often a removal looks whether the groups have followed.
const LOOK_INTERVAL: Duration = Duration::from_millis(30);

/// How long a majority has to confirm that the replica here leads its group.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);

/// The status of the system log, which is group 0, and of all groups, with those that run on other servers only.
pub(super) fn statuses(host: &LogSlot, logs: &Logs) -> Vec<GroupStatus> {
    let placed = |number| -> Vec<u64> {
        logs.group_place(number).unwrap_or_default().into_iter().map(NodeId::get).collect()
    };
    let of = |(number, group): &(u32, Log)| {
        let status = group.status();
        GroupStatus {
            number: *number,
            role: role(status.replica.role).into(),
            leader_node: status.replica.leader.map_or(0, NodeId::get),
            term: status.replica.term.get(),
            logs: group.named_logs() as u64,
            bytes_used: status.bytes_used,
            voters: status.replica.voters().into_iter().map(NodeId::get).collect(),
            poison: group.poison_cause().map_or_else(String::new, |cause| cause.to_string()),
            placed: placed(*number),
            full: host.fullness(group).unwrap_or_default(),
            shortage: group.shortage_cause().map_or_else(String::new, |cause| cause.to_string()),
        }
    };
    let here = running(logs);
    let mut elsewhere = logs.known_groups().unwrap_or_default();
    elsewhere.retain(|number| !here.iter().any(|(runs, _)| runs == number));
    let elsewhere = elsewhere.into_iter().map(|number| GroupStatus {
        number,
        placed: placed(number),
        ..GroupStatus::default()
    });
    here.iter().map(of).chain(elsewhere).collect()
}

/// The replicas of the system log and of the groups that run here.
fn running(logs: &Logs) -> Vec<(u32, Log)> {
    std::iter::once((0, logs.system().clone())).chain(logs.groups()).collect()
}

/// Before servers leave the cluster: checks that the voters of each group are those of the default log, or those on which
/// it is placed, without the servers that leave now. A group that has not followed an earlier change could lose its
/// majority. `servers`: the voters of the default log.
///
/// # Errors
/// FAILED_PRECONDITION, `Membership`, also if a group runs on other servers and no leader of it answers.
pub(super) async fn check_follow(
    host: &Arc<LogSlot>,
    servers: &[NodeId],
    leaving: &[NodeId],
) -> Result<(), Status> {
    if host.lacks_named() {
        return Err(lacks_named());
    }
    let stays = |nodes: &[NodeId]| -> Vec<NodeId> {
        nodes.iter().copied().filter(|node| !leaving.contains(node)).collect()
    };
    for (number, view) in all_seen(host).await? {
        let view = view?;
        let have = stays(&view.voters);
        let place = place(host, number)?;
        let wanted = stays(if place.is_empty() { servers } else { &place });
        let lacks = wanted.iter().find(|node| !have.contains(node)).map(|node| (node, "does not vote"));
        let more = have.iter().find(|node| !wanted.contains(node)).map(|node| (node, "still votes"));
        if let Some((node, what)) = lacks.or(more) {
            let what = format!(
                "node {node} {what} in group {number} of the named logs: wait until `chiplog status` shows no group that differs, so that no group loses its majority; --force leaves this check out"
            );
            return Err(to_status(&Error::new(ErrorKind::Membership, what), None));
        }
    }
    Ok(())
}

/// Before servers are removed: checks that no group has its voters on these alone. A removed server can add no member, so nobody could
/// give the group to another one.
///
/// # Errors
/// FAILED_PRECONDITION, `Membership`, also if a group runs on other servers and no leader of it answers.
pub(super) async fn check_has_others(host: &Arc<LogSlot>, removed: &[NodeId]) -> Result<(), Status> {
    if host.lacks_named() {
        return Err(lacks_named());
    }
    for (number, view) in all_seen(host).await? {
        let view = view?;
        let Some(node) = view.voters.first() else {
            // A replica that was made a moment ago knows no member.
            return Err(unseen(
                number,
                &Status::unavailable(format!("the replica of group {number} here is new")),
            ));
        };
        if view.voters.iter().all(|voter| removed.contains(voter)) {
            let what = format!(
                "nothing was changed: group {number} of the named logs has no voter that stays, and would be lost. Run `chiplog member demote {node}` first, and remove the server once `chiplog status` shows the group on another one; --force leaves this check out"
            );
            return Err(to_status(&Error::new(ErrorKind::Membership, what), None));
        }
    }
    Ok(())
}

/// The refusal of a server that has lost its system log.
fn lacks_named() -> Status {
    let what = "nothing was changed: this server has no system log now, and a server that leaves may have the only one; see in its log why it has none. --force leaves this check out";
    to_status(&Error::new(ErrorKind::Membership, what), None)
}

/// All groups as [`seen`] shows them, looked at at the same time: one whose leader hangs takes some seconds.
async fn all_seen(host: &Arc<LogSlot>) -> Result<BTreeMap<u32, Result<GroupView, Status>>, Status> {
    let mut looking = JoinSet::new();
    for number in all(host)? {
        let host = host.clone();
        looking.spawn(async move { (number, seen(&host, number).await) });
    }
    let mut views = BTreeMap::new();
    while let Some(found) = looking.join_next().await {
        views.extend([found.map_err(|_| Status::internal("the call panicked"))?]);
    }
    Ok(views)
}

/// A group as [`view`] shows it.
///
/// # Errors
/// FAILED_PRECONDITION, `Membership`: nothing shows it.
async fn seen(host: &Arc<LogSlot>, group: u32) -> Result<GroupView, Status> {
    let found = match view(host, group).await {
        Ok(Some(view)) => return Ok(view),
        Ok(None) => Status::unavailable(format!("the replica of group {group} here was removed from it")),
        Err(status) => status,
    };
    Err(unseen(group, &found))
}

/// The refusal if a group's leader does not answer.
fn unseen(group: u32, status: &Status) -> Status {
    let what = format!(
        "nothing was changed: {}. Without the leader it is unknown whether the group can do without this server; --force leaves this check out, and the logs of group {group} can then be lost",
        status.message()
    );
    to_status(&Error::new(ErrorKind::Membership, what), None)
}

/// After servers have left the cluster: waits until no group counts their votes any more.
///
/// # Errors
/// DEADLINE_EXCEEDED, `Timeout`: they have left the cluster, and a group has not followed yet.
pub(super) async fn await_left(
    host: &Arc<LogSlot>,
    leaving: &[NodeId],
    timeout: Duration,
) -> Result<(), Status> {
    let deadline = Instant::now() + timeout;
    for number in all(host)? {
        let voting = async || match view(host, number).await {
            Ok(view) => view.and_then(|view| view.voters.into_iter().find(|node| leaving.contains(node))),
            // Other servers answer no server that has left the cluster. Its own replicas, while they vote, do.
            Err(_) if host.opened().is_some_and(is_removed) => None,
            Err(_) => leaving.first().copied(),
        };
        while let Some(node) = voting().await {
            if Instant::now() > deadline {
                let what = format!(
                    "node {node} has left the cluster, but may still vote in group {number} of the named logs: keep it running until `chiplog status` shows no group that differs"
                );
                return Err(to_status(&Error::new(ErrorKind::Timeout, what), None));
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
    Ok(())
}

/// The numbers of the system log and of all groups of the cluster.
fn all(host: &LogSlot) -> Result<BTreeSet<u32>, Status> {
    let Some(logs) = host.named() else { return Ok(BTreeSet::new()) };
    let known = logs.known_groups().map_err(|e| to_status(&e, None))?;
    Ok(running(logs).into_iter().map(|(number, _)| number).chain(known).collect())
}

/// The servers that are to run a group. Empty: all.
fn place(host: &LogSlot, group: u32) -> Result<Vec<NodeId>, Status> {
    let place = host.named().map_or(Ok(Vec::new()), |logs| logs.group_place(group));
    place.map_err(|e| to_status(&e, None))
}

/// A group as its leader sees it, here or on another server, confirmed by a majority. If none answers, as the replica here sees it, if it is to
/// run here: that can be old, and that of a poisoned replica stays so. None: this server was removed from the group, perhaps from the
/// cluster, too, and learns no more.
async fn view(host: &Arc<LogSlot>, group: u32) -> Result<Option<GroupView>, Status> {
    let place = place(host, group)?;
    let here = host.named().and_then(|logs| running(logs).into_iter().find(|(number, _)| *number == group));
    let is_to_run = |replica: &Log| place.is_empty() || place.contains(&replica.status().replica.node);
    let here = here.map(|(_, replica)| (is_to_run(&replica), replica));
    if let Some((true, replica)) = &here
        && is_removed(replica)
    {
        return Ok(None); // it learns no more, and perhaps neither does the catalogue here
    }
    let host = host.clone();
    let view = tokio::task::spawn_blocking(move || {
        if let Some((_, replica)) = &here
            && replica.role() == chiplog::cluster::Role::Leader
            && replica.barrier(CONFIRM_TIMEOUT).is_ok()
        {
            return Ok(GroupView::of(replica));
        }
        host.view_elsewhere(group, &[]).or_else(|error| match &here {
            Some((true, replica)) => Ok(GroupView::of(replica)),
            _ => Err(error),
        })
    });
    let view = view.await.map_err(|_| Status::internal("the call panicked"))?;
    view.map(Some).map_err(|e| to_status(&e, None))
}

fn is_removed(replica: &Log) -> bool {
    replica.role() == chiplog::cluster::Role::Removed
}

/// The role of a replica on the wire.
pub(super) fn role(role: chiplog::cluster::Role) -> Role {
    match role {
        chiplog::cluster::Role::Leader => Role::Leader,
        chiplog::cluster::Role::Follower => Role::Follower,
        chiplog::cluster::Role::Candidate => Role::Candidate,
        chiplog::cluster::Role::Learner => Role::Learner,
        chiplog::cluster::Role::Repairing => Role::Repairing,
        chiplog::cluster::Role::Removed => Role::Removed,
        _ => Role::Unspecified,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use chiplog::LogsOptions;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// A replica whose disk had died remembered the members of that time for ever, and `chiplog member remove` believed it.
    #[tokio::test]
    async fn leader_elsewhere_is_believed_more_than_a_replica_here() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::open(dir.path(), LogsOptions::default().groups(1)).unwrap();
        let host = LogSlot::new();
        host.open_named(logs.clone());
        let answers = Arc::new(AtomicBool::new(true));
        let is_there = answers.clone();
        host.ask_elsewhere(Box::new(move |asked| {
            let view = GroupView { voters: vec![NodeId(2), NodeId(3), NodeId(4)], ..GroupView::default() };
            let silent = || Error::new(ErrorKind::Unavailable, "no leader answers");
            let answer = || if is_there.load(Ordering::SeqCst) { Ok(view.clone()) } else { Err(silent()) };
            Ok(asked.into_keys().map(|group| (group, answer())).collect())
        }));
        let own = GroupView::of(&logs.group(1).unwrap()).voters;
        assert_eq!(view(&host, 1).await.unwrap().unwrap().voters, own, "it leads");
        logs.group(1).unwrap().close().unwrap();
        assert_eq!(view(&host, 1).await.unwrap().unwrap().voters, [2, 3, 4].map(NodeId));
        answers.store(false, Ordering::SeqCst);
        assert_eq!(view(&host, 1).await.unwrap().unwrap().voters, own, "no other one answers");
    }

    /// A removal waited some seconds for each group whose leader hung, one after the other.
    #[tokio::test]
    async fn check_asks_about_all_groups_at_the_same_time() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::open(dir.path(), LogsOptions::default().groups(3)).unwrap();
        logs.groups().values().for_each(|group| group.close().unwrap());
        let host = LogSlot::new();
        host.open_named(logs);
        let asked = Arc::new(AtomicUsize::new(0));
        let begun = asked.clone();
        host.ask_elsewhere(Box::new(move |groups| {
            begun.fetch_add(1, Ordering::SeqCst);
            let since = Instant::now();
            while begun.load(Ordering::SeqCst) < 3 {
                assert!(since.elapsed() < Duration::from_secs(30), "no other question comes meanwhile");
                std::thread::sleep(Duration::from_millis(1));
            }
            let view = GroupView { voters: vec![NodeId(2), NodeId(3)], ..GroupView::default() };
            Ok(groups.into_keys().map(|group| (group, Ok(view.clone()))).collect())
        }));
        let views = all_seen(&host).await.unwrap();
        assert_eq!(views.len(), 4, "and the system log");
        let of = |group| views[&group].as_ref().unwrap().voters.clone();
        assert!((1..=3).all(|group| of(group) == [2, 3].map(NodeId)), "{views:?}");
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }
}
