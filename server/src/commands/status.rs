//! `chiplog status`: a cluster as its servers see it.

use crate::cluster::{Asker, Connect, host_port};
use crate::commands::replicas::{complaints, number, or_dash, title};
use crate::exit::Exit;
use crate::failure::Result;
use crate::human;
use crate::survey::{Silent, Survey, role_name};
use crate::ui::Ui;
use chiplog_net::proto::v1::StatusResponse;
use clap::Args;
use serde::Serialize;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  chiplog status 127.0.0.1:7411
  chiplog status log1:7411,log2:7411 --json | jq -r '.replicas[] | select(.role == \"leader\").client'";

/// Show a cluster: its replicas, what they do and how far they are.
///
/// One server that answers is enough: it names the others, which are asked as well. Status 5 when nobody leads or no
/// server answers, 2 when all that answer refuse the token.
///
/// Fields of --json: log_id, leader (node; null: nobody), replicas: each {"node", "role" (leader, follower, candidate,
/// learner, repairing, removed, waiting; unreachable: it does not answer; unknown), "voter", "client", "peer", "zone", "directory", "term",
/// "first", "last", "last_raft", "committed_raft", "lag" (entries of raft, of which one can hold many records, that it lacks as the leader knows; all of them, of a server
/// that has not answered this leader yet; null: not known),
/// "bytes_used", "bytes_capacity" (null: the disk), "sync_median_micros", "sync_p99_micros", "scrubbed_bytes",
/// "damaged", "repaired", "version", "poison" (null: it takes appends), "error" (null: it answered)}.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Status {
    /// Servers, by the address for clients: one that runs is enough, A,B,C are tried in turn.
    #[arg(value_name = "HOST:PORT", env = "CHIPLOG_SERVERS", value_delimiter = ',', required = true, value_parser = host_port)]
    servers: Vec<String>,

    #[command(flatten)]
    connect: Connect,
}

#[derive(Serialize)]
struct Shown {
    log_id: Option<String>,
    leader: Option<u64>,
    replicas: Vec<Replica>,
}

#[derive(Default, Serialize)]
struct Replica {
    node: Option<u64>,
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
        Self {
            node: (s.node != 0).then_some(s.node),
            role: role_name(status),
            voter: me.is_some_and(|m| m.voter),
            client: s.client_address,
            peer: s.peer_address,
            // As the cluster tells everybody; before it is part of one, as it was told itself.
            zone: me.map_or(s.zone, |m| m.zone.clone()),
            directory: (!s.directory.is_empty()).then_some(s.directory),
            term: Some(s.term),
            first: Some(s.first),
            last: Some(s.last),
            last_raft: Some(s.last_raft),
            committed_raft: Some(s.committed_raft),
            lag: (s.leader_node == s.node && s.node != 0).then_some(0),
            bytes_used: Some(s.bytes_used),
            bytes_capacity: (s.capacity > 0).then_some(s.capacity),
            sync_median_micros: Some(s.sync_median_micros),
            sync_p99_micros: Some(s.sync_p99_micros),
            scrubbed_bytes: Some(s.scrubbed_bytes),
            damaged: Some(s.damaged),
            repaired: Some(s.repaired),
            version: Some(s.version),
            poison: (!s.poison.is_empty()).then_some(s.poison),
            error: None,
        }
    }

    fn silent(silent: &Silent) -> Self {
        let (client, error) = (silent.server.clone(), Some(silent.why.clone()));
        let mut replica = Self { client, role: "unreachable", error, ..Self::default() };
        if let Some(m) = &silent.member {
            (replica.node, replica.voter) = (Some(m.node), m.voter);
            replica.peer.clone_from(&m.peer_address);
            replica.zone.clone_from(&m.zone);
            replica.directory = Some(m.directory.clone());
        }
        replica
    }
}

impl Shown {
    fn words(&self) -> String {
        let answered = self.replicas.iter().any(|r| r.error.is_none());
        let (log, leader) = title(self.log_id.as_deref(), self.leader, answered);
        let mut rows = vec![
            ["NODE", "ROLE", "VOTES", "CLIENT", "ZONE", "TERM", "FIRST", "LAST", "LAG", "USED", "SYNC P99"]
                .map(str::to_owned),
        ];
        for r in &self.replicas {
            rows.push([
                number(r.node),
                r.role.to_owned(),
                if r.node.is_none() {
                    "-"
                } else if r.voter {
                    "yes"
                } else {
                    "no"
                }
                .to_owned(),
                r.client.clone(),
                or_dash(&r.zone),
                number(r.term),
                number(r.first),
                number(r.last),
                number(r.lag),
                r.bytes_used.map_or("-".into(), human::bytes),
                r.sync_p99_micros.map_or("-".into(), |m| human::duration(Duration::from_micros(m))),
            ]);
        }
        let said = complaints(self.replicas.iter().map(|r| (r.node, &r.poison, &r.error)));
        format!("{log}; {leader}\n{}{said}", human::table(&rows))
    }
}

/// How long a server may take.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &Status, ui: &Ui) -> Result<Exit> {
    let asker = Asker::new(&args.connect, ui)?;
    let mut found = asker.wait(Survey::new(asker.dialler().clone(), &args.servers).round(PATIENCE));
    if found.silent.iter().any(|s| s.refuses) {
        found = found.somebody()?; // nothing to show, and waiting does not mend it
    }
    let mut replicas: Vec<Replica> = found.answers.iter().map(|(_, s)| Replica::answered(s)).collect();
    replicas.extend(found.silent.iter().map(Replica::silent));
    for replica in &mut replicas {
        replica.lag = replica.node.and_then(|node| found.lag(node)).or(replica.lag);
    }
    replicas.sort_by_key(|r| r.node.unwrap_or(u64::MAX));
    let shown = Shown { log_id: found.log_id(), leader: found.leader().map(|l| l.node), replicas };
    Ui { quiet: false, ..*ui }.result(&shown, Shown::words)?;
    Ok(if shown.leader.is_some() { Exit::Ok } else { Exit::Retry })
}
