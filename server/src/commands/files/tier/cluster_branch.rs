//! `chiplog tier branch` of the default log of a cluster: branches of it and of all named logs, as a server's data directory.

use super::fetch::{Cluster, show_notes};
use super::objects::{Part, logs};
use crate::commands::files::backup::records;
use crate::commands::files::restore::{Later, RestoreSummary};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use chiplog::backup::{ClusterBranch, ClusterBranchOptions};
use chiplog::vault::Vault;
use chiplog::{Error, ErrorKind, LogId, Timestamp};
use chiplog_net::wire::ids::to_hex;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// The log or the logs, and how far the branch goes.
pub(super) struct Wanted<'a> {
    pub(super) log: Option<LogId>,
    pub(super) only_log: bool,
    pub(super) catalogue: Option<LogId>,
    pub(super) without: &'a [String],
    pub(super) to_index: Option<u64>,
    pub(super) to_time: Option<Timestamp>,
    pub(super) pin: Option<&'a str>,
    /// Whether a branch in which a log ends early is a success.
    pub(super) allow_early_end: bool,
}

/// A branch of a cluster as it is shown.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    default: RestoreSummary,
    /// None: not known.
    branch_of: Option<Vec<Part>>,
    named_logs: u64,
    logs: Vec<ShownLog>,
    ends_early: bool,
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    later: Option<Vec<Later>>,
}

/// The default log, or a group of named logs.
#[derive(Serialize)]
struct ShownLog {
    name: String,
    log_id: String,
    /// None: not known.
    branch_of: Option<Vec<Part>>,
}

pub(super) fn run(
    vault: &dyn Vault,
    dir: &Path,
    (log, cluster): (LogId, &Cluster),
    wanted: &Wanted<'_>,
    ui: &Ui,
) -> Result<Exit> {
    let started = Instant::now();
    if wanted.to_index.is_some() {
        return Err(Failure::usage(format!(
            "log {} is the default log of a cluster, and each log of that counts its records by itself: no index is one of all of them. \
             Give --to-time, or --only-log for a branch of the default log alone",
            to_hex(log.get())
        )));
    }
    let options = ClusterBranchOptions::default().to(wanted.to_time).without(wanted.without.to_vec());
    let made = match cluster {
        Cluster::Stored(logs) => ClusterBranch::make(vault, logs, dir, &options),
        Cluster::Pinned(pins) => ClusterBranch::make_of_pins(vault, pins, dir, &options),
    };
    let made = made.map_err(|error| refused(error, dir, wanted.to_time))?;
    let time = started.elapsed();
    let (mut all, mut unlisted) = (Vec::new(), Vec::new());
    for part in &made.parts {
        // The branch is there, whatever can be read of it.
        let branch_of = match logs(vault, Some(part.log_id)) {
            Ok(mut logs) => {
                Some(logs.remove(&part.log_id.get()).map(|listed| listed.parts()).unwrap_or_default())
            }
            Err(failure) => {
                unlisted.push(format!("{}: it is not known which objects it reads: {failure}", part.name));
                None
            }
        };
        all.push(ShownLog { name: part.name.clone(), log_id: to_hex(part.log_id.get()), branch_of });
    }
    let later: Vec<Later> = made.later.iter().map(Later::new).collect();
    let told: Vec<String> = wanted
        .to_time
        .into_iter()
        .flat_map(|time| later.iter().map(move |part| part.note(time)).collect::<Vec<_>>())
        .collect();
    unlisted.iter().for_each(|note| ui.warn(note));
    // Each of them is asked for and not there.
    told.iter().for_each(|note| ui.warn(note));
    show_notes(&made.notes, made.ends_early, ui);
    let shown = Shown {
        default: RestoreSummary::new(&made.default, time),
        branch_of: all.first().and_then(|default| default.branch_of.clone()),
        named_logs: made.named_logs,
        logs: all,
        ends_early: made.ends_early,
        notes: made.notes.into_iter().chain(told).chain(unlisted).collect(),
        later: wanted.to_time.map(|_| later),
    };
    ui.result(&shown, |shown| {
        let reading = shown
            .logs
            .iter()
            .filter(|log| log.branch_of.as_ref().is_some_and(|parts| !parts.is_empty()))
            .count() as u64;
        format!(
            "{} is a branch of the cluster of log {}, as log {}: {}; and {}, in {}; it reads objects of {}",
            dir.display(),
            to_hex(log.get()),
            shown.default.log_id,
            records(shown.default.first, shown.default.last),
            format::many(shown.named_logs, "named log", "named logs"),
            format::duration(time),
            format::many(reading, "log", "logs")
        )
    })?;
    if !made.ends_early || wanted.allow_early_end {
        return Ok(Exit::Ok);
    }
    ui.warn("the branch is finished and sound, and a log in it ends early. Use it, or look for what is missing; a script takes it with \
             --allow-early-end");
    Ok(Exit::EndsEarly)
}

/// The error of a branch that was not made.
pub(super) fn refused(error: Error, dir: &Path, to_time: Option<Timestamp>) -> Failure {
    let is_full = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if error.kind() == ErrorKind::InvalidArgument && is_full {
        let dir = dir.display();
        return Failure::usage(format!(
            "{dir} is not empty: a branch needs a directory that is missing or empty"
        ));
    }
    match to_time.filter(|_| error.kind() == ErrorKind::OutOfRange) {
        Some(time) => {
            let what =
                format!("the objects have no record of {} or before; nothing was made", format::time(time));
            Failure::new(ErrorKind::OutOfRange, what)
        }
        None => error.into(),
    }
}
