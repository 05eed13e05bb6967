//! `chiplog tier branch`: a log that reads the older records of another one from its objects.

use super::objects::{Part, logs, only_log};
use crate::commands::files::backup::records;
use crate::commands::files::restore::RestoreSummary;
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use chiplog::backup::{Branch, BranchOptions, ClusterLogs, RestoreTo};
use chiplog::vault::Vault;
use chiplog::{ErrorKind, Index, LogId, Timestamp};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// The log, and how far the branch goes.
pub(super) struct Wanted {
    pub(super) log: Option<LogId>,
    pub(super) to_index: Option<u64>,
    pub(super) to_time: Option<Timestamp>,
    pub(super) pin: Option<String>,
}

/// A branch as it is shown.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    log: RestoreSummary,
    branch_of: Vec<Part>,
}

pub(super) fn run(vault: &dyn Vault, dir: &Path, wanted: &Wanted, ui: &Ui) -> Result<Exit> {
    let started = Instant::now();
    let log = only_log(vault, wanted.log, ui)?.log;
    let to = match (wanted.to_index, wanted.to_time) {
        (Some(index), _) => RestoreTo::Index(Index(index)),
        (None, Some(time)) => RestoreTo::Timestamp(time),
        (None, None) => RestoreTo::End,
    };
    let options = BranchOptions::default().to(to).pin(wanted.pin.clone());
    let made = Branch::make(vault, log, dir, &options).map_err(|error| {
        let is_full = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        if error.kind() == ErrorKind::InvalidArgument && is_full {
            let dir = dir.display();
            return Failure::usage(format!(
                "{dir} is not empty: a branch needs a directory that is missing or empty"
            ));
        }
        match wanted.to_time.filter(|_| error.kind() == ErrorKind::OutOfRange) {
            Some(time) => {
                let what = format!(
                    "the objects have no record of {} or before; nothing was made",
                    format::time(time)
                );
                Failure::new(ErrorKind::OutOfRange, what)
            }
            None => error.into(),
        }
    })?;
    let time = started.elapsed();
    let listed = logs(vault, Some(made.log_id))?.remove(&made.log_id.get());
    let shown = Shown {
        log: RestoreSummary::new(&made, time),
        branch_of: listed.map(|listed| listed.parts()).unwrap_or_default(),
    };
    ui.result(&shown, |shown| {
        let parts: Vec<_> = shown.branch_of.iter().map(Part::words).collect();
        let reads = match parts[..] {
            [] => "it has all of them itself".to_owned(),
            _ => format!("it reads {}", parts.join(", ")),
        };
        format!(
            "{} is a branch, log {}: {}, in {}; {reads}",
            dir.display(),
            shown.log.log_id,
            records(shown.log.first, shown.log.last),
            format::duration(time)
        )
    })?;
    // A list that cannot be read says as much: there are named logs.
    if !matches!(ClusterLogs::find(vault, log), Ok(None)) {
        ui.note(
            "it has no named logs: the log is the default log of a cluster, and a branch is of one log. `chiplog tier fetch` and \
             `chiplog restore` bring all of them",
        );
    }
    shown.log.left_out().iter().for_each(|what| ui.note(what));
    Ok(Exit::Ok)
}
