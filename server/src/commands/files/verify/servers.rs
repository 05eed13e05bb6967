//! Verify over the network: every server checks its replicas' files, of the default log and then of each group of named logs;
//! with `--records` all records of the default log are read here.
//!
//! ```text
//! server 1 ── Admin.Scrub ──\
//! server 2 ── Admin.Scrub ───+──> one channel: progress, findings, ends ──> bar, lines, report
//! server 3 ── Admin.Scrub ──/
//! ```

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::{Ui, print};
use crate::connect::cluster::{Asker, Connect, Dialler, failure};
use crate::connect::cluster_status::{ClusterQuery, Found, role_name};
use crate::connect::groups::{self, SYSTEM};
use crate::connect::remote;
use crate::connect::remote::Remote;
use crate::connect::target::Servers;
use chiplog::{ErrorKind, Start};
use chiplog_net::client::ReaderOptions;
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use chiplog_net::wire::proto::v1::{Role, ScrubRequest, ScrubResponse, StatusResponse};
use indicatif::ProgressBar;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tonic::Status;

/// How long a server may take to report its status.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a replica that checks its files may send nothing. It reports its progress every 16 MiB.
const SILENCE: Duration = Duration::from_secs(60);

/// Why a replica is not checked that its server does not report.
const NOT_OPEN: &str = "the server has no such replica open; its log says what fails";

/// The findings of a replica.
#[derive(Default, Serialize)]
struct Replica {
    node: Option<u64>,
    client: String,
    role: &'static str,
    bytes: u64,
    corrupt: u64,
    harmless: u64,
    undecodable: u64,
    findings: Vec<String>,
    findings_left_out: u64,
    error: Option<String>,
    /// `_system` or `_group-N`. None: the default log.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<String>,
}

impl Replica {
    /// The name of its server and of its log, for people.
    fn name(&self) -> String {
        let node = self.node.map_or("a server".into(), |node| format!("node {node}"));
        self.log.as_ref().map_or(node.clone(), |log| format!("{node}, {log}"))
    }
}

/// The records read over the network.
#[derive(Default, Serialize)]
struct Records {
    records: u64,
    bytes: u64,
    first: Option<u64>,
    last: Option<u64>,
    error: Option<String>,
    #[serde(skip)]
    corrupt: bool,
}

#[derive(Serialize)]
struct Verified {
    ok: bool,
    log_id: Option<String>,
    replicas: Vec<Replica>,
    /// Those of the groups of named logs, and of their catalogue.
    groups: Vec<Replica>,
    records: Option<Records>,
    seconds: f64,
}

/// A message from a replica, with its position in the list.
type ScrubAnswer = (usize, Result<ScrubResponse, Failure>);

pub(super) fn run(servers: &Servers, connect: &Connect, records: bool, ui: &Ui) -> Result<Exit> {
    servers.unnamed("all logs of the servers are verified together")?;
    let asker = Asker::new(connect, ui)?;
    let started = Instant::now();
    let found = asker.wait(ClusterQuery::new(asker.dialler().clone(), servers).round(PATIENCE)).somebody()?;
    let mut verified = Verified {
        ok: false,
        log_id: found.log_id(),
        replicas: replicas(&found),
        groups: groups(&found),
        records: None,
        seconds: 0.0,
    };
    let bar = ui.progress(Some(0), "verifying");
    let default = verified.replicas.len();
    let mut all: Vec<Replica> = verified.replicas.drain(..).chain(verified.groups.drain(..)).collect();
    asker.wait(scrub(asker.dialler(), &mut all, &bar, ui))?;
    verified.groups = all.split_off(default);
    verified.replicas = all;
    bar.finish_and_clear();
    if records {
        let bar = ui.progress(None, "reading");
        verified.records = Some(read(&Remote::connect(servers, connect, ui)?, &bar));
        bar.finish_and_clear();
    }
    verified.seconds = started.elapsed().as_secs_f64();
    verified.ok = verified.exit() == Exit::Ok;
    ui.result(&verified, Verified::words)?;
    Ok(verified.exit())
}

/// All replicas, before the check. Those that cannot be asked have the reason in `error`.
fn replicas(found: &Found) -> Vec<Replica> {
    let mut all: Vec<Replica> = Vec::new();
    for (server, status) in &found.answers {
        let node = (status.node != 0).then_some(status.node);
        let mut replica =
            Replica { node, client: server.clone(), role: role_name(status), ..Replica::default() };
        if status.log_id.is_empty() {
            let member = found.member_at(server, status).filter(|member| member.node == status.node);
            replica.error = Some(match member {
                Some(m) => format!(
                    "it returned with an empty directory, as node {}, and has nothing to check",
                    m.node
                ),
                None => "it is not part of a cluster yet".into(),
            });
        }
        all.push(replica);
    }
    for (server, status) in &found.others {
        all.push(Replica {
            node: Some(status.node),
            client: server.clone(),
            role: role_name(status),
            error: Some(found.strangeness(server, status)),
            ..Replica::default()
        });
    }
    for silent in &found.silent {
        all.push(Replica {
            node: silent.member.as_ref().map(|m| m.node),
            client: silent.server.clone(),
            role: "unreachable",
            error: Some(silent.why.clone()),
            ..Replica::default()
        });
    }
    all.sort_by_key(|r| r.node.unwrap_or(u64::MAX));
    all
}

/// The replicas of the groups of named logs, and of their catalogue, before the check. Those that a server is to have, and does
/// not have open, have the reason in `error`. Those of a server that cannot be asked are unknown.
fn groups(found: &Found) -> Vec<Replica> {
    let mut all = Vec::new();
    for group in groups::groups(found) {
        for (server, status) in &found.answers {
            let reported = status.groups.iter().find(|reported| reported.number == group.number);
            let runs = reported.filter(|reported| reported.role() != Role::Unspecified);
            // It knows the group, and is to run it as far as it knows itself.
            let is_meant = status.role() != Role::Removed
                && reported.is_some_and(|r| r.placed.is_empty() || r.placed.contains(&status.node));
            if runs.is_none() && !is_meant && !group.missing.contains(&status.node) {
                continue; // it runs elsewhere
            }
            let role = runs.map_or("missing", |runs| {
                role_name(&StatusResponse { role: runs.role, ..StatusResponse::default() })
            });
            all.push(Replica {
                node: Some(status.node),
                client: server.clone(),
                role,
                log: Some(match group.number {
                    SYSTEM => "_system".to_owned(),
                    number => format!("_group-{number}"),
                }),
                error: runs.is_none().then(|| NOT_OPEN.to_owned()),
                ..Replica::default()
            });
        }
    }
    all
}

/// Makes every server check its replicas one by one, all servers at the same time.
async fn scrub(dialler: &Dialler, replicas: &mut [Replica], bar: &ProgressBar, ui: &Ui) -> Result<()> {
    let (sender, mut answers) = mpsc::channel::<ScrubAnswer>(16);
    let mut work: BTreeMap<String, Vec<(usize, String)>> = BTreeMap::new();
    for (n, replica) in replicas.iter().enumerate().filter(|(_, r)| r.error.is_none()) {
        let log = replica.log.clone().unwrap_or_default();
        work.entry(replica.client.clone()).or_default().push((n, log));
    }
    for (server, logs) in work {
        let (dialler, sender) = (dialler.clone(), sender.clone());
        tokio::spawn(async move {
            for (n, log) in logs {
                if let Err(status) = ask(&dialler, &server, log, n, &sender).await {
                    let _ = sender.send((n, Err(failure(&server, &status)))).await;
                }
            }
        });
    }
    drop(sender);
    let mut totals = vec![0; replicas.len()];
    let mut done = vec![false; replicas.len()];
    while let Some((n, response)) = answers.recv().await {
        let replica = &mut replicas[n];
        match response {
            Ok(response) => {
                (replica.bytes, totals[n]) = (response.bytes, response.bytes_total.max(response.bytes));
                (replica.corrupt, replica.harmless) = (response.corrupt, response.harmless);
                replica.undecodable = response.undecodable;
                done[n] |= response.done;
                let who = replica.name();
                for finding in &response.findings {
                    if !ui.json {
                        bar.suspend(|| print(format!("{who}: {finding}\n").as_bytes()))?;
                    }
                }
                replica.findings.extend(response.findings);
            }
            Err(failure) => replica.error = Some(failure.to_string()),
        }
        bar.set_length(totals.iter().sum());
        bar.set_position(replicas.iter().map(|r| r.bytes).sum());
    }
    for (replica, done) in replicas.iter_mut().zip(done) {
        if !done && replica.error.is_none() {
            replica.error = Some(format!("{} ended before all files were read", replica.client));
        }
        let found = replica.corrupt + replica.harmless + replica.undecodable;
        replica.findings_left_out = found.saturating_sub(replica.findings.len() as u64);
    }
    Ok(())
}

/// Forwards the messages of one replica.
async fn ask(
    dialler: &Dialler,
    server: &str,
    log: String,
    n: usize,
    sender: &mpsc::Sender<ScrubAnswer>,
) -> Result<(), Status> {
    let silent = |_| Status::deadline_exceeded(format!("it sent nothing for {SILENCE:?}"));
    let mut admin = AdminClient::new(dialler.dial(server).await?);
    let begun = tokio::time::timeout(SILENCE, admin.scrub(ScrubRequest { log })).await;
    let mut progress = begun.map_err(silent)??.into_inner();
    while let Some(response) = tokio::time::timeout(SILENCE, progress.message()).await.map_err(silent)?? {
        if sender.send((n, Ok(response))).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Reads all records of the replicas. The client checks every record's batch, and that no record is missing.
fn read(remote: &Remote, bar: &ProgressBar) -> Records {
    let mut records = Records::default();
    if let Err(failed) = read_all(remote, bar, &mut records) {
        records.corrupt = failed.kind() == ErrorKind::Corrupt;
        records.error = Some(failed.to_string());
    }
    records
}

fn read_all(remote: &Remote, bar: &ProgressBar, records: &mut Records) -> Result<()> {
    let info = remote.info(true)?;
    let mut options = ReaderOptions::default();
    (options.follow, options.min_index) = (false, info.last);
    let mut reader = remote.client.reader_with(Start::First, options);
    while let Some(batch) = remote.wait(reader.next_batch()).map_err(remote::failure)? {
        let due = records.last.map_or(batch.first().get(), |last| last + 1);
        if batch.first().get() != due {
            let what = format!("record {} arrived instead of record {due}", batch.first());
            return Err(Failure::new(ErrorKind::Corrupt, what));
        }
        records.first.get_or_insert(due);
        records.last = Some(due + u64::from(batch.count()) - 1);
        records.records += u64::from(batch.count());
        records.bytes += batch.iter().map(|r| r.data.len() as u64).sum::<u64>();
        bar.set_position(records.bytes);
    }
    let there = info.last.next().get() > info.first.get();
    if there && records.last < Some(info.last.get()) {
        let what = format!("the log ends before record {}, which the replicas reported to have", info.last);
        return Err(Failure::new(ErrorKind::Corrupt, what));
    }
    Ok(())
}

impl Verified {
    fn exit(&self) -> Exit {
        let records = self.records.as_ref();
        let all = || self.replicas.iter().chain(&self.groups);
        if all().any(|r| r.corrupt > 0) || records.is_some_and(|r| r.corrupt) {
            return Exit::Corrupt;
        }
        let unread = all().any(|r| r.error.is_some());
        if unread || records.is_some_and(|r| r.error.is_some()) {
            return Exit::Retry;
        }
        Exit::Ok
    }

    /// The end of the report. The findings were printed when they arrived.
    fn words(&self) -> String {
        let mut out = String::new();
        for r in self.replicas.iter().chain(&self.groups) {
            _ = write!(out, "{} at {} ({}): ", r.name(), r.client, r.role);
            _ = match (&r.error, r.corrupt) {
                (Some(error), _) => writeln!(out, "NOT CHECKED: {error}"),
                (None, 0) => writeln!(out, "sound, {}{}", format::bytes(r.bytes), harmless(r.harmless)),
                (None, n) => writeln!(
                    out,
                    "CORRUPT, {} in {}{}",
                    format::many(n, "fault", "faults"),
                    format::bytes(r.bytes),
                    harmless(r.harmless)
                ),
            };
        }
        if let Some(r) = &self.records {
            let range = match (r.first, r.last) {
                (Some(first), Some(last)) => format!(", index {first} to {last} without a gap"),
                _ => String::new(),
            };
            let read = format!(
                "{} ({}) read over the network{range}",
                format::many(r.records, "record", "records"),
                format::bytes(r.bytes)
            );
            _ = match &r.error {
                None => writeln!(out, "records: sound, {read}"),
                Some(error) => writeln!(out, "records: {error}; {read}"),
            };
        }
        let time = format::duration(Duration::from_secs_f64(self.seconds));
        let (word, advice) = match self.exit() {
            Exit::Ok => ("sound", ""),
            Exit::Corrupt => (
                "CORRUPT",
                "; a replica fetches damaged blocks from the others: compare `damaged` and `repaired` of `chiplog status --json`, and verify again",
            ),
            _ => ("not everything was checked", ""),
        };
        _ = writeln!(out, "{word}, in {time}{advice}");
        out
    }
}

/// Describes harmless faults, if there are any.
fn harmless(n: u64) -> String {
    if n == 0 { String::new() } else { format!(", {}", format::many(n, "harmless fault", "harmless faults")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiplog_net::wire::proto::v1::{GroupStatus, Member};

    /// Groups that a server could not open were left out, and the rest was called sound.
    #[test]
    fn groups_that_a_server_does_not_have_open_are_not_checked() {
        let group = |number, role: Role, placed: &[u64]| GroupStatus {
            number,
            role: role.into(),
            placed: placed.to_vec(),
            ..GroupStatus::default()
        };
        let answer = |node: u64, groups: Vec<GroupStatus>| {
            let role = if node == 4 { Role::Removed } else { Role::Follower };
            (
                format!("a:{node}"),
                StatusResponse { node, role: role.into(), groups, ..StatusResponse::default() },
            )
        };
        let [leads, follows, none] = [Role::Leader, Role::Follower, Role::Unspecified];
        let found = Found {
            answers: vec![
                answer(1, vec![group(0, leads, &[]), group(1, leads, &[1, 2]), group(2, none, &[2, 3])]),
                // It could not open either group.
                answer(2, vec![group(0, follows, &[]), group(1, none, &[1, 2]), group(2, none, &[])]),
                // It could not open its system log, and so knows of no group.
                answer(3, Vec::new()),
                answer(4, vec![group(2, none, &[])]),
            ],
            members: (1..=3).map(|node| Member { node, voter: true, ..Member::default() }).collect(),
            ..Found::default()
        };
        let all: Vec<_> = groups(&found)
            .into_iter()
            .map(|r| (r.log.unwrap(), r.node.unwrap(), r.role, r.error.is_some()))
            .collect();
        let expected = [
            ("_system", 1, "leader", false),
            ("_system", 2, "follower", false),
            ("_system", 3, "missing", true),
            ("_group-1", 1, "leader", false),
            ("_group-1", 2, "missing", true),
            ("_group-2", 2, "missing", true),
            ("_group-2", 3, "missing", true),
        ];
        let expected = expected.map(|(log, node, role, lacks)| (log.to_owned(), node, role, lacks));
        assert_eq!(all, expected);
    }
}
