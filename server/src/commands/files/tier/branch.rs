//! `chiplog tier branch`: a log that reads the older records of another one from its objects, or all logs of a cluster.

use super::cluster_branch::{self, Wanted, refused};
use super::fetch;
use super::objects::{Part, logs, only_log};
use crate::commands::files::backup::records;
use crate::commands::files::restore::RestoreSummary;
use crate::common::exit::Exit;
use crate::common::failure::Result;
use crate::common::format;
use crate::common::output::Ui;
use crate::connect::directory::check_not_within;
use chiplog::backup::{Branch, BranchOptions, ClusterLogs, RestoreTo};
use chiplog::vault::Vault;
use chiplog::{Index, LogId};
use chiplog_net::wire::ids::to_hex;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// A branch as it is shown.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    log: RestoreSummary,
    /// None: not known.
    branch_of: Option<Vec<Part>>,
}

pub(super) fn run(vault: &dyn Vault, dir: &Path, wanted: &Wanted<'_>, ui: &Ui) -> Result<Exit> {
    let started = Instant::now();
    check_not_within(dir)?;
    let log = only_log(vault, wanted.log, ui)?.log;
    if !wanted.only_log {
        let of_fetch = fetch::Wanted {
            log: wanted.log,
            only_log: false,
            catalogue: wanted.catalogue,
            without: wanted.without,
            pin: wanted.pin,
            allow_early_end: wanted.allow_early_end,
            server: None,
            segments: None,
        };
        if let Some(cluster) = fetch::cluster(vault, log, &of_fetch)? {
            return cluster_branch::run(vault, dir, (log, &cluster), wanted, ui);
        }
        fetch::check_without(log, wanted.without)?;
        if is_unserved_branch(vault, log)? {
            ui.warn(&format!(
                "log {} is a branch of the default log of a cluster, and has no list of named logs. If it is a branch of all of them, no \
                 server has run it yet, and this branch has none of them: start a server first",
                to_hex(log.get())
            ));
        }
    }
    let to = match (wanted.to_index, wanted.to_time) {
        (Some(index), _) => RestoreTo::Index(Index(index)),
        (None, Some(time)) => RestoreTo::Timestamp(time),
        (None, None) => RestoreTo::End,
    };
    let options = BranchOptions::default().to(to).pin(wanted.pin.map(str::to_owned));
    let made = Branch::make(vault, log, dir, &options);
    let made = made.map_err(|error| refused(error, dir, wanted.to_time))?;
    let time = started.elapsed();
    // The branch is there, whatever can be read of it.
    let branch_of = logs(vault, Some(made.log_id))
        .map(|mut logs| logs.remove(&made.log_id.get()).map(|listed| listed.parts()).unwrap_or_default())
        .inspect_err(|failure| ui.warn(&format!("it is not known which objects it reads: {failure}")))
        .ok();
    let shown = Shown { log: RestoreSummary::new(&made, time), branch_of };
    ui.result(&shown, |shown| {
        let parts = shown.branch_of.as_ref().map(|parts| parts.iter().map(Part::words).collect::<Vec<_>>());
        let reads = match parts.as_deref() {
            None => "which objects it reads is not known".to_owned(),
            Some([]) => "it has all of them itself".to_owned(),
            Some(parts) => format!("it reads {}", parts.join(", ")),
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
        ui.note("it has no named logs: with --only-log it is a branch of the default log of a cluster alone");
    }
    shown.log.left_out().iter().for_each(|what| ui.note(what));
    Ok(Exit::Ok)
}

/// Whether a log without a list of named logs is a branch of the default log of a cluster, which has one.
fn is_unserved_branch(vault: &dyn Vault, log: LogId) -> Result<bool> {
    let parent = Branch::of(vault, log)?.and_then(|branch| branch.parts.last().map(|part| part.log_id));
    Ok(parent.is_some_and(|parent| !matches!(ClusterLogs::find(vault, parent), Ok(None))))
}
