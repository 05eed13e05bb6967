//! `chiplog status`: a cluster as its servers see it, and whether all is well.

use crate::commands::cluster::replicas::{number, or_dash, title};
use crate::common::exit::Exit;
use crate::common::failure::Result;
use crate::common::format;
use crate::common::number::whole_number;
use crate::common::output::Ui;
use crate::connect::cluster::{Asker, Connect};
use crate::connect::cluster_status::{ClusterQuery, Found, Silent, role_name};
use crate::connect::groups::{self, SYSTEM, numbers};
use crate::connect::health;
use crate::connect::health::{Judged, Place, State, store_failing_since};
use crate::connect::target::Servers;
use chiplog_net::wire::proto::v1::{Member, Role, StatusResponse};
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

const HELP: &str = "\
Examples:
  chiplog status 127.0.0.1:7411
  chiplog status log1:7411 > /tmp/chiplog.status || mail -s chiplog operator < /tmp/chiplog.status
  chiplog status log1:7411,log2:7411 --json | jq -r '.replicas[] | select(.role == \"leader\").client'
  chiplog status log1:7411 --json |
    jq -r '.replicas[] | select(.state != \"ok\") | [.node, .state, .why] | @tsv'

States:
  ok
  draining       it is shutting down
  other_version  its version differs from the leader's
  store_fails    its requests to the object store fail, or the store is not the one with the log's
                 objects: another bucket, a directory that is not mounted
  no_store       it has no object_store, and the log has objects in one
  lagging        it lacks more than --lag-max entries
  no_leader      it knows no leader
  waiting        it is not part of a cluster yet
  cut_off        it answers this command, but the leader hears nothing from it
  repairing      it is fetching what its log lacks
  unreachable    it does not answer
  locked_out     it refuses the token, or one side does not trust the other's certificate
  removed        it was removed from the cluster and still runs
  short          its disk or its segments have no room for what the leader sends
  full           it leads, and refuses appends for lack of room
  poisoned       it takes no appends until it is started again
  damaged_objects
                 it has found objects lost or damaged in the object store, of its logs or groups, and
                 could not store them again: records are lost, unless another replica, a copy or a
                 backup has them
  damaged        blocks are damaged and not repaired
  wiped          its directory is empty, or another one than before
  other_log      a server of another log is at its address
  If several apply to a replica, the last one in this order, the worst, is shown. Before a replica
  is reported as lagging, cut_off or no_leader, it is checked again for up to 2 s.

States of a group of named logs, which is shown if the servers have any:
  ok
  other_voters  its voters are not those of the default log, or those on which it is placed
  missing       a server that is to run it does not, or it is one of the `groups` that the servers
                are configured with, or the system log, and is not made yet
  no_leader     no server that answers knows its leader
  short         the disk or the segments of a replica have no room for what the leader sends
  full          its leader refuses appends for lack of room; of the system log, named logs can be
                neither created nor deleted
  poisoned      a replica takes no appends until its server is started again

Exit status of this command:
  0  there is a leader, and every replica and every group is ok
  1  an operator has to act: other_version, no_store, locked_out, removed, short, full, poisoned,
     wiped, other_log
  2  every server that answers refuses the token, or each is locked_out by the TLS options
     (1 if the reason is the expired certificate of a server)
  3  damaged_objects, damaged
  5  no leader, no server answers, or the state can pass by itself: draining, store_fails, lagging,
     no_leader, waiting, cut_off, repairing, unreachable, and of a group other_voters, missing,
     no_leader
  If several apply: 5 if there is no leader, else 3, 1, 5 in this order.

JSON fields:
  ok        whether the status is 0
  log_id
  leader    its node; null: none
  replicas  for each replica:
    node, state (as above), why (null: ok), client, peer, zone, directory, term, first, last,
    last_raft, committed_raft, bytes_used, sync_median_micros, sync_p99_micros, scrubbed_bytes,
    damaged, repaired, version, unstored_bytes (of blocks that are in no object in the object store),
    stored_index (the last record in such an object; 0: none),
    sliced_index (the last record in an object or a slice, as it knows: the leader knows best),
    object_failures, slice_failures (attempts to use the object store)
    damaged_objects of the server's logs and groups, as in the state of that name; 0 after a restart,
                    until they are examined again
    store_failure   why requests to the object store fail now; null: they do not
    store_failing_since
                    since when, as text; null: they do not
    role            leader, follower, candidate, learner, repairing, removed, waiting,
                    unreachable (it does not answer), unknown
    voter           whether it counts for the majority, according to the leader
    lag             raft entries it lacks, according to the leader (one entry can hold many
                    records); all entries, if it has not answered this leader yet; null: unknown,
                    because there is no leader or the leader hears nothing from it
    bytes_capacity  null: the disk is the limit
    poison          why it takes no appends; null: it does
    error           why it did not answer; null: it did
  groups    of named logs, for each:
    number (0: the system log, which has the names), state, why (null: ok), leader (its node; null:
    none), term, voters, placed (the servers that are to run it; empty: all), logs, bytes_used";

/// Show a cluster: its replicas, their roles and positions, and whether all is well.
///
/// One server that answers is enough: it names the others, and the command asks them as well. A server that
/// is given and does not answer is shown as unreachable (status 5), even if the cluster does not list it.
///
/// The status is 0 only if there is a leader and every replica is ok. If the servers keep named logs, each group
/// has a line below the replicas, and has to be ok, too.
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct Status {
    /// Servers, by their address for clients. One running server is enough to find the others. Each server of A,B,C has
    /// to answer. With /LOG after the servers: the replicas of the group that holds this named log; also of
    /// /_group-N, and of /_system, the log of the names.
    #[arg(value_name = "HOST:PORT[/LOG]", env = "CHIPLOG_SERVERS", required = true)]
    servers: Vec<Servers>,

    /// The number of raft entries that a replica may lack before it counts as lagging.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole_number::<u64>("a number of entries", 0..=u64::MAX))]
    lag_max: u64,

    #[command(flatten)]
    connect: Connect,
}

#[derive(Serialize)]
struct Shown {
    ok: bool,
    log_id: Option<String>,
    leader: Option<u64>,
    replicas: Vec<Replica>,
    groups: Vec<Group>,
}

/// A group of named logs.
#[derive(Serialize)]
struct Group {
    number: u32,
    state: &'static str,
    why: Option<String>,
    leader: Option<u64>,
    term: u64,
    voters: Vec<u64>,
    placed: Vec<u64>,
    logs: u64,
    bytes_used: u64,
}

impl Group {
    fn new(group: groups::Group) -> Self {
        let groups::Group { number, state, why, leader, term, voters, placed, logs, bytes_used, missing: _ } =
            group;
        Self { number, state: state.name(), why, leader, term, voters, placed, logs, bytes_used }
    }

    fn name(&self) -> String {
        if self.number == SYSTEM { "system".into() } else { self.number.to_string() }
    }
}

#[derive(Default, Serialize)]
struct Replica {
    node: Option<u64>,
    state: &'static str,
    why: Option<String>,
    role: &'static str,
    voter: bool,
    client: String,
    peer: String,
    zone: String,
    directory: Option<String>,
    term: Option<u64>,
    first: Option<u64>,
    last: Option<u64>,
    last_raft: Option<u64>,
    committed_raft: Option<u64>,
    lag: Option<u64>,
    bytes_used: Option<u64>,
    bytes_capacity: Option<u64>,
    sync_median_micros: Option<u64>,
    sync_p99_micros: Option<u64>,
    scrubbed_bytes: Option<u64>,
    damaged: Option<u64>,
    repaired: Option<u64>,
    unstored_bytes: Option<u64>,
    stored_index: Option<u64>,
    sliced_index: Option<u64>,
    slice_failures: Option<u64>,
    object_failures: Option<u64>,
    damaged_objects: Option<u64>,
    store_failure: Option<String>,
    store_failing_since: Option<String>,
    version: Option<String>,
    poison: Option<String>,
    error: Option<String>,
}

impl Replica {
    fn answered(status: &StatusResponse) -> Self {
        let s = status.clone();
        let me = s.members.iter().find(|m| m.node == s.node);
        // A waiting server has no log to report. A median of 0 means that no sync was made.
        let waits = s.role() == Role::Waiting;
        let of_log = |value: u64| (!waits).then_some(value);
        let of_syncs = |micros: u64| (micros > 0).then_some(micros);
        Self {
            node: (s.node != 0).then_some(s.node),
            role: role_name(status),
            client: s.client_address,
            peer: s.peer_address,
            // As the cluster lists it; before the server belongs to one, as in its own configuration.
            zone: me.map_or(s.zone, |m| m.zone.clone()),
            directory: (!s.directory.is_empty()).then_some(s.directory),
            term: of_log(s.term),
            first: of_log(s.first),
            last: of_log(s.last),
            last_raft: of_log(s.last_raft),
            committed_raft: of_log(s.committed_raft),
            bytes_used: of_log(s.bytes_used),
            bytes_capacity: (s.capacity > 0).then_some(s.capacity),
            sync_median_micros: of_syncs(s.sync_median_micros),
            sync_p99_micros: of_syncs(s.sync_p99_micros),
            scrubbed_bytes: Some(s.scrubbed_bytes),
            damaged: Some(s.damaged),
            repaired: Some(s.repaired),
            unstored_bytes: Some(s.unstored_bytes),
            stored_index: of_log(s.stored_index),
            sliced_index: of_log(s.sliced_index),
            slice_failures: Some(s.slice_failures),
            object_failures: Some(s.object_failures),
            damaged_objects: Some(s.damaged_objects),
            store_failing_since: store_failing_since(status),
            store_failure: (!s.store_failure.is_empty()).then_some(s.store_failure),
            version: Some(s.version),
            poison: (!s.poison.is_empty()).then_some(s.poison),
            error: None,
            ..Self::default()
        }
    }

    fn silent(silent: &Silent) -> Self {
        let (client, error) = (silent.server.clone(), Some(silent.why.clone()));
        let known = silent.member.as_ref().map_or_else(Self::default, Self::of_member);
        Self { client, role: "unreachable", error, ..known }
    }

    /// As the other replicas list it.
    fn of_member(m: &Member) -> Self {
        Self {
            node: Some(m.node),
            role: "unknown",
            client: m.client_address.clone(),
            peer: m.peer_address.clone(),
            zone: m.zone.clone(),
            directory: (!m.directory.is_empty()).then(|| m.directory.clone()),
            ..Self::default()
        }
    }

    fn new(judged: &Judged<'_>, found: &Found) -> Self {
        // As it counts for the majority: a wiped replica still does, whatever it knows itself.
        let voter = match judged.place {
            Place::Answer(status) => found.seat_of(status),
            Place::Silent(silent) => silent.member.as_ref(),
            Place::Unasked(member) => Some(member),
        }
        .is_some_and(|member| member.voter);
        let mut replica = match judged.place {
            Place::Answer(status) => Self::answered(status),
            Place::Silent(silent) => Self::silent(silent),
            Place::Unasked(member) => Self::of_member(member),
        };
        (replica.state, replica.why, replica.voter) = (judged.state.name(), judged.why.clone(), voter);
        let is_the_one = !matches!(judged.state, State::Wiped | State::OtherLog | State::Waiting);
        replica.lag = replica.node.filter(|_| is_the_one).and_then(|node| found.lag(node));
        replica
    }
}

impl Shown {
    fn words(&self) -> String {
        let answered = self.replicas.iter().any(|r| r.error.is_none());
        let (log, leader) = title(self.log_id.as_deref(), self.leader, answered);
        let mut rows = vec![
            [
                "NODE", "STATE", "ROLE", "VOTES", "CLIENT", "ZONE", "TERM", "FIRST", "LAST", "LAG", "USED",
                "SYNC P99",
            ]
            .map(str::to_owned),
        ];
        for r in &self.replicas {
            rows.push([
                number(r.node),
                r.state.to_owned(),
                if r.role == r.state { "-" } else { r.role }.to_owned(),
                if r.node.is_none() {
                    "-"
                } else if r.voter {
                    "yes"
                } else {
                    "no"
                }
                .to_owned(),
                or_dash(&r.client),
                or_dash(&r.zone),
                number(r.term),
                number(r.first),
                number(r.last),
                number(r.lag),
                r.bytes_used.map_or("-".into(), format::bytes),
                r.sync_p99_micros.map_or("-".into(), |m| format::duration(Duration::from_micros(m))),
            ]);
        }
        let mut out = format!("{log}; {leader}\n{}", format::table(&rows));
        for r in &self.replicas {
            let who = r.node.map_or_else(|| r.client.clone(), |n| format!("node {n}"));
            if let Some(why) = &r.why {
                _ = writeln!(out, "{who}: {why}");
            }
        }
        if !self.groups.is_empty() {
            _ = write!(out, "\n{}", self.group_words());
        }
        out
    }

    fn group_words(&self) -> String {
        let mut rows =
            vec![["GROUP", "STATE", "LEADER", "TERM", "VOTERS", "LOGS", "USED"].map(str::to_owned)];
        for g in &self.groups {
            rows.push([
                g.name(),
                g.state.to_owned(),
                number(g.leader),
                g.term.to_string(),
                numbers(&g.voters),
                if g.number == SYSTEM { "-".into() } else { format::count(g.logs) },
                format::bytes(g.bytes_used),
            ]);
        }
        let mut out = format::table(&rows);
        for g in &self.groups {
            if let Some(why) = &g.why {
                _ = writeln!(out, "group {}: {why}", g.name());
            }
        }
        out
    }
}

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a state that may pass is checked again, and how long to wait before each check.
const LOOKS: usize = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &Status, ui: &Ui) -> Result<Exit> {
    let asker = Asker::new(&args.connect, ui)?;
    let mut query = ClusterQuery::new(asker.dialler().clone(), &Servers::joined(&args.servers)?);
    let mut found = asker.wait(query.round(PATIENCE));
    for _ in 0..LOOKS {
        if !health::may_pass(&found, &health::judge(&found, args.lag_max), &groups::with_unmade(&found)) {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        found = asker.wait(query.round(PATIENCE));
    }
    if found.silent.iter().any(|s| s.refuses || s.lacks_log) {
        found = found.somebody()?; // there is nothing to show, and waiting does not help
    }
    let judged = health::judge(&found, args.lag_max);
    let groups = groups::with_unmade(&found);
    let exit = health::exit(&found, &judged, &groups);
    let mut replicas: Vec<Replica> = judged.iter().map(|j| Replica::new(j, &found)).collect();
    replicas.sort_by_key(|r| r.node.unwrap_or(u64::MAX));
    let (log_id, leader) = (found.log_id(), found.leader().map(|l| l.node));
    let groups = groups.into_iter().map(Group::new).collect();
    let shown = Shown { ok: exit == Exit::Ok, log_id, leader, replicas, groups };
    Ui { quiet: false, ..*ui }.result(&shown, Shown::words)?;
    Ok(exit)
}
