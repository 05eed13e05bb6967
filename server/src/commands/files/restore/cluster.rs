//! `chiplog restore` of a backup of a cluster: a server's data directory with the default log and all named logs, as of its end or of a
//! time.

use super::{Restore, RestoreSummary, nothing_by};
use crate::commands::files::backup::records;
use crate::commands::files::tier::{ended, show_notes};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use chiplog::backup::{ClusterBackup, LaterPart};
use chiplog::{ErrorKind, Timestamp};
use chiplog_net::wire::ids::to_hex;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// The result as it is shown.
#[derive(Serialize)]
struct ClusterSummary {
    #[serde(flatten)]
    default: RestoreSummary,
    named_logs: u64,
    ends_early: bool,
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    later: Option<Vec<Later>>,
}

/// A log of which the state at the time asked for is discarded.
#[derive(Serialize)]
pub(in crate::commands::files) struct Later {
    name: String,
    timestamp: u64,
    time: String,
}

impl Later {
    pub(in crate::commands::files) fn new(part: &LaterPart) -> Self {
        Self { name: part.name.clone(), timestamp: part.timestamp.get(), time: format::time(part.timestamp) }
    }

    /// Says what is not as it was at the time.
    pub(in crate::commands::files) fn note(&self, asked: Timestamp) -> String {
        let Self { name, time, .. } = self;
        let effect = match name.as_str() {
            "system" => {
                "logs that were deleted in between have lost their names, and are called recovered-NUMBER; logs that were created in \
                 between can be there, without records"
            }
            "default" => "the default log has no records",
            _ => "the named logs in it have no records",
        };
        format!(
            "{name}: nothing that is stored says how it was at {}, and it is as of {time}: {effect}",
            format::time(asked)
        )
    }
}

/// The backup as it is shown after a check.
#[derive(Serialize)]
struct CheckedCluster {
    log_id: String,
    logs: u64,
    files: u64,
    bytes: u64,
    seconds: f64,
    ends_early: bool,
    notes: Vec<String>,
}

pub(super) fn run(args: &Restore, started: Instant, ui: &Ui) -> Result<Exit> {
    if args.to_index.is_some() {
        let dir = args.backup.display();
        return Err(Failure::usage(format!(
            "{dir} is a backup of a cluster, and each log of it counts its records by itself: no index is one of all of them. Give \
             --to-time, or restore the backup of one log, such as {dir}/default, to an index"
        )));
    }
    let given = [
        ("--keep-log-id", args.keep_log_id),
        ("--as-copy", args.as_copy),
        ("--segment-bytes", args.segment_bytes.is_some()),
    ];
    if let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        let dir = args.backup.display();
        return Err(Failure::usage(format!(
            "{dir} is a backup of a cluster, which is restored whole: {option} is for the backup of one log, such as {dir}/default"
        )));
    }
    let backup = ClusterBackup::open(&args.backup)?;
    match &args.dir {
        Some(dir) => {
            restore(&backup, dir, args.to_time, started, ui)?;
            Ok(Exit::Ok)
        }
        None => {
            check(&backup, started, ui)?;
            Ok(ended(backup.ends_early(), args.allow_early_end, ui))
        }
    }
}

fn restore(
    backup: &ClusterBackup,
    dir: &Path,
    to: Option<Timestamp>,
    started: Instant,
    ui: &Ui,
) -> Result<()> {
    let bar = ui.progress(Some(2 * backup.bytes()), "restoring");
    let restored = backup.restore(dir, to, &mut |done, _| bar.set_position(done));
    let restored = restored.map_err(|error| match to.filter(|_| error.kind() == ErrorKind::OutOfRange) {
        Some(time) => nothing_by(time),
        None => error.into(),
    })?;
    bar.finish_and_clear();
    let later: Vec<Later> = restored.later.iter().map(Later::new).collect();
    let told = to.into_iter().flat_map(|time| later.iter().map(move |part| part.note(time)));
    let told: Vec<String> = told.collect();
    // Each of them is asked for and not there.
    told.iter().for_each(|note| ui.warn(note));
    let summary = ClusterSummary {
        default: RestoreSummary::new(&restored.default, started.elapsed()),
        named_logs: restored.named_logs,
        ends_early: backup.ends_early(),
        notes: restored.notes.into_iter().chain(told.iter().cloned()).collect(),
        later: to.map(|_| later),
    };
    let others = summary.notes.len() - told.len();
    show_notes(&summary.notes[..others], summary.ends_early, ui);
    ui.result(&summary, |summary| {
        format!(
            "restored {} as log {}: {}; and {}, in {}",
            dir.display(),
            summary.default.log_id,
            records(summary.default.first, summary.default.last),
            format::many(summary.named_logs, "named log", "named logs"),
            format::duration(started.elapsed())
        )
    })
}

fn check(backup: &ClusterBackup, started: Instant, ui: &Ui) -> Result<()> {
    let bar = ui.progress(Some(backup.bytes()), "checking");
    backup.check(&mut |done, _| bar.set_position(done))?;
    bar.finish_and_clear();
    let parts = backup.parts();
    let summary = CheckedCluster {
        log_id: parts.first().map(|part| to_hex(part.log_id.get())).unwrap_or_default(),
        logs: parts.len() as u64,
        files: parts.iter().filter_map(|part| part.backup).map(|info| info.files).sum(),
        bytes: backup.bytes(),
        seconds: started.elapsed().as_secs_f64(),
        ends_early: backup.ends_early(),
        notes: backup.notes().to_vec(),
    };
    show_notes(&summary.notes, summary.ends_early, ui);
    let default = parts.iter().find(|part| part.name == "default").and_then(|part| part.backup);
    let (first, last) = default.map_or((1, 0), |info| (info.first.get(), info.last.get()));
    let groups = parts.iter().filter(|part| part.name.starts_with("group-")).count() as u64;
    ui.result(&summary, |summary| {
        format!(
            "sound: a backup of the cluster of log {}: {}; its catalogue of named logs and {}; {} in {}, read in {}",
            summary.log_id,
            records(first, last),
            format::many(groups, "group", "groups"),
            format::bytes(summary.bytes),
            format::many(summary.files, "file", "files"),
            format::duration(started.elapsed())
        )
    })
}
