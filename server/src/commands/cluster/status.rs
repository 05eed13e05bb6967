//! `chiplog status`: a cluster as its servers see it, and whether all is well.

use crate::commands::cluster::replicas::{number, or_dash, title};
use crate::common::exit::Exit;
use crate::common::failure::Result;
use crate::common::format;
use crate::common::output::Ui;
use crate::connect::cluster::{Asker, Connect, host_port};
use crate::connect::cluster_view::{Found, Silent, Survey, role_name};
use crate::connect::health;
use crate::connect::health::{Judged, Place, State};
use chiplog_net::wire::proto::v1::{Member, Role, StatusResponse};
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  chiplog status 127.0.0.1:7411
  chiplog status log1:7411 > /tmp/chiplog.status || mail -s chiplog operator < /tmp/chiplog.status
  chiplog status log1:7411,log2:7411 --json | jq -r '.replicas[] | select(.role == \"leader\").client'
  chiplog status log1:7411 --json | jq -r '.replicas[] | select(.state != \"ok\") | [.node, .state, .why] | @tsv'";

/// Show a cluster: its replicas, what they do, how far they are, and whether all is well.
///
/// One server that answers is enough: it names the others, which are asked as well. A server that is given and does not answer is
/// shown as unreachable (5), also where the cluster does not list it. Each replica has a state:
///
/// ok; draining: it is about to end; other_version: than the leader's; lagging: it lacks more than --lag-max entries;
/// no_leader: it knows none; waiting: part of no cluster yet; cut_off: it answers here, and the leader hears nothing of it;
/// repairing: it fetches what its log lacks; unreachable: no answer; locked_out: it refuses the token, or one side does not
/// trust the other's certificate; removed: from the cluster, and runs still; short: it has no room for what the leader
/// sends, on its disk or in its segments; full: it leads, and takes no appends for want of room; poisoned: it takes no appends until it is started
/// again; damaged: blocks are damaged and not repaired; wiped: it came back with an empty or another directory; other_log: a
/// server of another log stands there. Of several the last one in this order is told. A replica that lags, is cut off or knows no leader is
/// looked at again for up to 2 s before that is said.
///
/// Status 0 only if somebody leads and every replica is ok. 5: nobody leads, no server answers, or what is the matter can pass by
/// itself (draining, lagging, no_leader, waiting, cut_off, repairing, unreachable). 1: somebody has to mend it
/// (other_version, locked_out, removed, short, full, poisoned, wiped, other_log). 3: damaged. 2: all that answer refuse the token, or
/// each is locked_out by the options for TLS; 1 if that is by an expired certificate of the server. Of several: 5 if nobody leads, else 3, 1, 5.
///
/// Fields of --json: ok (the status is 0), log_id, leader (node; null: nobody), replicas: each {"node", "state" (as above), "why" (null: ok), "role" (leader, follower, candidate,
/// learner, repairing, removed, waiting; unreachable: it does not answer; unknown), "voter" (whether it counts for the majority, as the leader says), "client", "peer", "zone", "directory", "term",
/// "first", "last", "last_raft", "committed_raft", "lag" (entries of raft, of which one can hold many records, that it lacks as the leader knows; all of them, of a server
/// that has not answered this leader yet; null: not known, for nobody leads or the leader hears nothing of it),
/// "bytes_used", "bytes_capacity" (null: the disk), "sync_median_micros", "sync_p99_micros", "scrubbed_bytes",
/// "damaged", "repaired", "version", "poison" (null: it takes appends), "error" (null: it answered)}.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Status {
    /// Servers, by the address for clients: one that runs is enough; of A,B,C each is asked, and each has to answer.
    #[arg(value_name = "HOST:PORT", env = "CHIPLOG_SERVERS", value_delimiter = ',', required = true, value_parser = host_port)]
    servers: Vec<String>,

    /// So many entries of raft a replica may lack; one that lacks more is lagging.
    #[arg(long, value_name = "N", default_value_t = 1000)]
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
    version: Option<String>,
    poison: Option<String>,
    error: Option<String>,
}

impl Replica {
    fn answered(status: &StatusResponse) -> Self {
        let s = status.clone();
        let me = s.members.iter().find(|m| m.node == s.node);
        // A server that waits has no log of which there was anything to tell; syncs that were not made took no time.
        let waits = s.role() == Role::Waiting;
        let of_log = |value: u64| (!waits).then_some(value);
        let of_syncs = |micros: u64| (micros > 0).then_some(micros);
        Self {
            node: (s.node != 0).then_some(s.node),
            role: role_name(status),
            client: s.client_address,
            peer: s.peer_address,
            // As the cluster tells everybody; before it is part of one, as it was told itself.
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

    /// As the others tell.
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
        // As it counts for the majority: a replica that was wiped does, whatever it knows itself.
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
        out
    }
}

/// How long a server may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often what may pass is looked at again, and how long after.
const LOOKS: usize = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &Status, ui: &Ui) -> Result<Exit> {
    let asker = Asker::new(&args.connect, ui)?;
    let mut survey = Survey::new(asker.dialler().clone(), &args.servers);
    let mut found = asker.wait(survey.round(PATIENCE));
    for _ in 0..LOOKS {
        if !health::may_pass(&found, &health::judge(&found, args.lag_max)) {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        found = asker.wait(survey.round(PATIENCE));
    }
    if found.silent.iter().any(|s| s.refuses) {
        found = found.somebody()?; // nothing to show, and waiting does not mend it
    }
    let judged = health::judge(&found, args.lag_max);
    let exit = health::exit(&found, &judged);
    let mut replicas: Vec<Replica> = judged.iter().map(|j| Replica::new(j, &found)).collect();
    replicas.sort_by_key(|r| r.node.unwrap_or(u64::MAX));
    let (log_id, leader) = (found.log_id(), found.leader().map(|l| l.node));
    let shown = Shown { ok: exit == Exit::Ok, log_id, leader, replicas };
    Ui { quiet: false, ..*ui }.result(&shown, Shown::words)?;
    Ok(exit)
}
