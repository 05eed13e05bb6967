//! The traffic of a cluster: two rounds of status from its servers, of the default log and of each group of named logs.
//!
//! A rate is the growth of a counter of the leader between the rounds, so the leader has to stay the same.
//!
//! Must not know: prices, how anything is shown.

use super::model::Flow;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::connect::cluster::Asker;
use crate::connect::cluster_status::{ClusterQuery, Found};
use crate::connect::groups::{self, SYSTEM};
use crate::connect::target::Servers;
use chiplog::ErrorKind;
use chiplog_net::served::log_slot::DEFAULT_LOG;
use chiplog_net::wire::proto::v1::{Member, StatusResponse};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The traffic of one group of replicas.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Group {
    /// The log that its servers know it by: `default`, `_system`, `_group-1`, a named log.
    pub(super) log: String,
    pub(super) leader: u64,
    pub(super) append_bytes_per_second: f64,
    pub(super) appends_per_second: f64,
    pub(super) replicas: usize,
    /// The replicas in other zones than the leader's.
    pub(super) copies_between_zones: usize,
    /// The bytes that the leader keeps.
    pub(super) stored_bytes: u64,
}

impl Group {
    /// `retention_seconds`: how long records are kept. None: what is stored now stays as much.
    pub(super) fn flow(&self, retention_seconds: Option<f64>) -> Flow {
        let rate = self.append_bytes_per_second;
        Flow {
            bytes_per_second: rate,
            appends_per_second: Some(self.appends_per_second),
            replicas: self.replicas as f64,
            copies_between_zones: self.copies_between_zones as f64,
            stored_bytes: retention_seconds.map_or(self.stored_bytes as f64, |seconds| rate * seconds),
        }
    }
}

/// The traffic of a cluster.
#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) groups: Vec<Group>,
    /// The bytes that clients read per second, of all logs. None: a server does not count them, a log was named, or a server
    /// answered in one round only.
    pub(super) read_bytes_per_second: Option<f64>,
    /// The zones of the servers; without labels each server counts as one.
    pub(super) zones: u32,
    /// Whether every server has a label of its zone.
    pub(super) are_zones_known: bool,
}

/// One log, before and after.
struct Watched {
    log: String,
    query: ClusterQuery,
    before: Found,
    at: Instant,
}

/// Measures for this long.
///
/// # Errors
/// `Unavailable`: no server answers, a log has no leader, or its leader changed meanwhile. `Unauthenticated`, `NotFound`: as for
/// [`Found::somebody`].
pub(super) fn measure(asker: &Asker, servers: &Servers, time: Duration) -> Result<Traffic> {
    let mut watched = vec![watch(asker, servers)?];
    let members = watched[0].before.members.clone();
    // A log that is named stands for its group alone.
    let numbers: Vec<u32> = match servers.is_named() {
        true => Vec::new(),
        false => groups::groups(&watched[0].before).into_iter().map(|group| group.number).collect(),
    };
    for number in numbers {
        let log = if number == SYSTEM { "_system".to_owned() } else { format!("_group-{number}") };
        watched.push(watch(asker, &servers.with_log(&log))?);
    }
    std::thread::sleep(time);
    let (mut groups, mut read) = (Vec::new(), None);
    for mut log in watched {
        let after = asker.wait(log.query.round(PATIENCE)).somebody()?;
        let passed = log.at.elapsed();
        groups.push(group(&log.log, &log.before, &after, passed)?);
        // Each server counts the reads of all its logs, so the first log stands for all.
        if groups.len() == 1 && !servers.is_named() {
            read = reads(&log.before, &after).map(|bytes| format::rate(bytes, passed));
        }
    }
    let are_zones_known = has_labels(&members);
    let labels: BTreeSet<&str> = members.iter().map(|member| &*member.zone).collect();
    let zones = if are_zones_known { labels.len() } else { members.len() };
    Ok(Traffic {
        groups,
        read_bytes_per_second: read,
        zones: u32::try_from(zones).unwrap_or(u32::MAX),
        are_zones_known,
    })
}

fn watch(asker: &Asker, servers: &Servers) -> Result<Watched> {
    let mut query = ClusterQuery::new(asker.dialler().clone(), servers);
    let before = asker.wait(query.round(PATIENCE)).somebody()?;
    let log = if servers.log.is_empty() { DEFAULT_LOG.to_owned() } else { servers.log.clone() };
    Ok(Watched { log, query, before, at: Instant::now() })
}

/// The bytes that clients read between two rounds.
fn reads(before: &Found, after: &Found) -> Option<u64> {
    if !before.silent.is_empty() || !after.silent.is_empty() {
        return None;
    }
    let grown = |now: &StatusResponse| {
        let is_it = |then: &&StatusResponse| (then.node, &then.directory) == (now.node, &now.directory);
        let then = before.answers.iter().map(|(_, then)| then).find(is_it)?;
        now.read_bytes?.checked_sub(then.read_bytes?)
    };
    after.answers.iter().map(|(_, now)| grown(now)).sum()
}

fn has_labels(members: &[Member]) -> bool {
    !members.is_empty() && members.iter().all(|member| !member.zone.is_empty())
}

/// The replicas that get their copy from another zone. Without labels every other replica does.
fn copies_between_zones(members: &[Member], leader: u64) -> usize {
    let zone = members.iter().find(|member| member.node == leader).map_or("", |member| &*member.zone);
    let is_known = has_labels(members);
    members.iter().filter(|m| m.node != leader && (!is_known || m.zone != zone)).count()
}

fn group(log: &str, before: &Found, after: &Found, passed: Duration) -> Result<Group> {
    let failed = |what: &str| {
        let advice = "run this again once `chiplog status` shows a leader that stays";
        Failure::new(ErrorKind::Unavailable, format!("{what}: log {log}; {advice}"))
    };
    let (Some(then), Some(now)) = (before.leader(), after.leader()) else {
        return Err(failed("no server that answers leads"));
    };
    if (then.node, &then.directory) != (now.node, &now.directory) {
        return Err(failed(&format!("node {} led at first, node {} later", then.node, now.node)));
    }
    let grown = |figure: fn(&StatusResponse) -> u64| figure(now).checked_sub(figure(then));
    let (Some(bytes), Some(appends)) = (grown(|s| s.written_bytes), grown(|s| s.appends)) else {
        return Err(failed(&format!("node {} was restarted meanwhile", now.node)));
    };
    Ok(Group {
        log: log.to_owned(),
        leader: now.node,
        append_bytes_per_second: format::rate(bytes, passed),
        appends_per_second: format::rate(appends, passed),
        replicas: after.members.len(),
        copies_between_zones: copies_between_zones(&after.members, now.node),
        stored_bytes: now.bytes_used,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog_net::wire::proto::v1::Role;

    /// Three servers, of which node `leader` leads and has written this many bytes.
    fn found(leader: u64, written_bytes: u64, zones: [&str; 3]) -> Found {
        let members = (1..=3).zip(zones);
        let members = members.map(|(node, zone)| Member { node, zone: zone.into(), ..Member::default() });
        let status = StatusResponse {
            node: leader,
            role: Role::Leader.into(),
            written_bytes,
            appends: written_bytes / 10,
            bytes_used: 7,
            ..StatusResponse::default()
        };
        Found { answers: vec![("a:1".into(), status)], members: members.collect(), ..Found::default() }
    }

    #[test]
    fn rates_are_the_growth_at_the_leader() {
        let time = Duration::from_secs(10);
        let of = |zones| group("default", &found(2, 1000, zones), &found(2, 6000, zones), time).unwrap();
        let all = of(["a", "b", "c"]);
        assert_eq!((all.append_bytes_per_second, all.appends_per_second), (500.0, 50.0));
        assert_eq!((all.leader, all.replicas, all.copies_between_zones, all.stored_bytes), (2, 3, 2, 7));
        assert_eq!(of(["a", "a", "b"]).copies_between_zones, 1);
        assert_eq!(of(["", "", ""]).copies_between_zones, 2, "unknown zones count as different ones");
        assert_eq!(of(["a", "a", ""]).copies_between_zones, 2);
        assert_eq!(all.flow(None).stored_bytes, 7.0);
        assert_eq!(all.flow(Some(60.0)).stored_bytes, 30_000.0);
    }

    #[test]
    fn reads_are_known_if_every_server_counts_them() {
        let of = |bytes: [Option<u64>; 2]| {
            let answers = (1..).zip(bytes).map(|(node, read_bytes)| {
                (format!("a:{node}"), StatusResponse { node, read_bytes, ..StatusResponse::default() })
            });
            Found { answers: answers.collect(), ..Found::default() }
        };
        let before = || of([Some(10), Some(20)]);
        assert_eq!(reads(&before(), &of([Some(15), Some(27)])), Some(12));
        assert_eq!(reads(&before(), &of([Some(15), None])), None, "an older version");
        assert_eq!(reads(&of([Some(10), None]), &of([Some(15), Some(27)])), None);
        assert_eq!(reads(&before(), &of([Some(15), Some(1)])), None, "it was restarted");
    }

    #[test]
    fn leader_that_changes_is_reported() {
        let zones = ["a", "b", "c"];
        let none = || Found { answers: Vec::new(), ..found(1, 0, zones) };
        for (before, after, words) in [
            (
                found(1, 10, zones),
                found(2, 20, zones),
                "node 1 led at first, node 2 later: log _group-1; run",
            ),
            (found(1, 10, zones), found(1, 5, zones), "node 1 was restarted meanwhile"),
            (found(1, 10, zones), none(), "no server that answers leads: log _group-1"),
        ] {
            let failure = group("_group-1", &before, &after, Duration::from_secs(1)).unwrap_err();
            assert!(failure.to_string().contains(words), "{failure}");
            assert_eq!(failure.exit(), crate::common::exit::Exit::Retry);
        }
    }
}
