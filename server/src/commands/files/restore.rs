//! `chiplog restore`: makes a log of a backup, or verifies the backup.

mod cluster;

pub(super) use cluster::Later;

use crate::commands::files::backup::records;
use crate::commands::files::tier::{ended, show_notes};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::number::whole_number;
use crate::common::output::Ui;
use crate::connect::directory::check_not_within;
use crate::connect::open_log;
use crate::connect::target;
use chiplog::backup::{Backup, BackupInfo, ClusterBackup, RestoreOptions, RestoreTo, Restored};
use chiplog::{ErrorKind, Index, Timestamp};
use chiplog_net::wire::ids::to_hex;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const HELP: &str = "\
Examples:
  chiplog restore /backup/2026-11-23 --check
      Read every byte of the backup and report whether it is complete and sound.
  chiplog restore /backup/2026-11-23 /var/lib/chiplog/1
      A log without a cluster, which `chiplog serve` of node 1 serves; other servers join it with
      `chiplog member add`.
  chiplog restore /backup/2026-11-23 ./before --to-time 2026-11-23T11:59:00Z
      The log as it was at that time; of a cluster, the default log and all named logs.
  chiplog restore /backup/2026-11-23 ./before --to-index 41200
      The log as it was when record 41200 was its last.
  chiplog restore /backup/2026-11-23 ./copy --as-copy && chiplog follow ./copy log1:7411
      A copy of the log that was backed up: its servers feed it only what the backup does not have.

JSON fields:
  log_id, first, last, records, last_timestamp (ms since 1970), last_time, seconds
  ends_early  whether a log in the backup ends before entries that the object store had, as `chiplog tier fetch`
              said (then the status of --check is 8, without --allow-early-end)
  notes  what `chiplog tier fetch` said of the backup, if it made it: what it does not have, and why
  left_out {\"first\", \"last\"}, only if --to-index is inside an append, which is left out then
  With --check also files, bytes and made (ms since 1970) of the backup.
  Of a cluster also named_logs (how many), and in notes a text for each named log that is not as it was.
  With --to-time also later: logs whose state at that time is not stored, and which are as of a later one
  (each with name, timestamp in ms since 1970, time).
  With --check, of a cluster only log_id, logs (how many), files, bytes, seconds, ends_early, notes.";

/// Make a log of a backup, all of it or up to a record or a time; or verify the backup.
///
/// The backup is checked first: its manifest, and the size and checksum of each file. A missing, changed or
/// additional file is an error (status 3), and nothing is made. The log is made in DIR.restoring and renamed
/// when it is complete and durable, so an interrupted restore leaves nothing at DIR.
///
/// Records keep their indexes and times. Sessions continue, and the log's options are kept. The log gets a
/// new id, so that clients, copies and replicas of the old log do not mistake it for theirs. --keep-log-id
/// keeps the id, if nothing is left of the old log.
///
/// --as-copy makes a copy, with which `chiplog follow` goes on: it has the log's id and takes no appends. The log's
/// servers compare its last entry with theirs, and refuse the copy of another history. The backup of one named log
/// becomes a copy of that log.
///
/// The backup of a cluster with named logs, which `chiplog tier fetch` makes, is restored with all of its logs, to
/// its end or to a time: DIR is then a server's data directory, with the default log and all named logs. Each of
/// them has a new id. Named logs that come back empty or without their names are listed. To a time, each group of
/// named logs ends with what its own leaders had written by then: the clocks of different leaders differ, so the
/// groups agree as well as these clocks do. Batches that were appended together are never separated. Logs that
/// were created later are left out. Logs that were deleted later are there. If the catalogue's state at that time is
/// discarded, its oldest state is taken, and the command says so: logs that were deleted in between lose their names.
///
/// The members of the old cluster are not restored. `chiplog serve` of node 1 makes a new cluster of the log,
/// which other servers join.
///
/// --to-index and --to-time leave out everything later, including changes to sessions and options. An append
/// is all or nothing: it is left out if it continues after the given record, and refused if no record is left. Times are those that the leaders
/// assigned.
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct Restore {
    /// The backup's directory.
    #[arg(value_parser = target::directory)]
    backup: PathBuf,

    /// The directory for the log: missing or empty.
    #[arg(value_parser = target::directory, required_unless_present = "check")]
    dir: Option<PathBuf>,

    /// Restore nothing: read the whole backup, and verify each file's checksum and each block.
    #[arg(long, conflicts_with_all = ["dir", "to_index", "to_time", "keep_log_id", "as_copy", "segment_bytes"])]
    check: bool,

    /// With --check: status 0 also if a log in the backup ends early, as `chiplog tier fetch` said.
    #[arg(long, requires = "check")]
    allow_early_end: bool,

    /// End the log with this record.
    #[arg(long, value_name = "INDEX", conflicts_with = "to_time", value_parser = whole_number::<u64>("the index of a record", 0..=u64::MAX))]
    to_index: Option<u64>,

    /// End the log with what was written by this time: RFC 3339, a date, milliseconds since 1970, or a span
    /// ago (90s, 15m, 2h, 7d).
    #[arg(long, value_name = "TIME", value_parser = open_log::since)]
    to_time: Option<Timestamp>,

    /// Keep the id of the log that was backed up. Only if that log and all its replicas are gone for good.
    #[arg(long)]
    keep_log_id: bool,

    /// Make a copy of the log that was backed up, for `chiplog follow`, and no log of its own.
    #[arg(long, conflicts_with_all = ["to_index", "to_time", "keep_log_id"])]
    as_copy: bool,

    /// Size of the log's segment files, such as 64MiB. Default: as in the backup.
    #[arg(long, value_name = "SIZE", value_parser = open_log::segment_bytes)]
    segment_bytes: Option<u32>,
}

#[derive(Serialize)]
pub(super) struct RestoreSummary {
    pub(super) log_id: String,
    pub(super) first: u64,
    pub(super) last: u64,
    records: u64,
    last_timestamp: Option<u64>,
    last_time: Option<String>,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOut>,
    #[serde(flatten)]
    checked: Option<Checked>,
}

/// A restored or checked log, and what its backup does not have.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    log: RestoreSummary,
    ends_early: bool,
    notes: Vec<String>,
}

/// The append that continues after the record with which the log was to end.
#[derive(Clone, Copy, Serialize)]
struct LeftOut {
    first: u64,
    last: u64,
}

/// Fields about the backup itself.
#[derive(Serialize)]
struct Checked {
    files: u64,
    bytes: u64,
    made: u64,
}

impl RestoreSummary {
    pub(super) fn new(log: &Restored, time: Duration) -> Self {
        let written = Some(log.last_timestamp).filter(|time| *time > Timestamp(0));
        Self {
            log_id: to_hex(log.log_id.get()),
            first: log.first.get(),
            last: log.last.get(),
            records: log.last.next().get() - log.first.get(),
            last_timestamp: written.map(Timestamp::get),
            last_time: written.map(format::time),
            seconds: time.as_secs_f64(),
            left_out: log.left_out.map(|(first, last)| LeftOut { first: first.get(), last: last.get() }),
            checked: None,
        }
    }

    /// Says which records were left out although they were asked for, and why.
    pub(super) fn left_out(&self) -> Option<String> {
        let LeftOut { first, last } = self.left_out?;
        Some(format!(
            "records {first} to {last} are one append, which is all or nothing: it was left out, because it continues after the given record"
        ))
    }
}

pub(crate) fn run(args: &Restore, ui: &Ui) -> Result<Exit> {
    let started = Instant::now();
    if ClusterBackup::is_at(&args.backup) {
        return cluster::run(args, started, ui);
    }
    let backup = Backup::open(&args.backup)?;
    match &args.dir {
        Some(dir) => {
            restore(&backup, dir, args, started, ui)?;
            Ok(Exit::Ok)
        }
        None => {
            check(&backup, started, ui)?;
            Ok(ended(backup.ends_early(), args.allow_early_end, ui))
        }
    }
}

fn restore(backup: &Backup, dir: &Path, args: &Restore, started: Instant, ui: &Ui) -> Result<()> {
    check_not_within(dir)?;
    let mut options = RestoreOptions::default();
    options.to = match (args.to_index, args.to_time) {
        (Some(index), _) => RestoreTo::Index(Index(index)),
        (None, Some(time)) => RestoreTo::Timestamp(time),
        (None, None) => RestoreTo::End,
    };
    (options.keep_log_id, options.as_copy) = (args.keep_log_id, args.as_copy);
    options.segment_bytes = args.segment_bytes;
    let bar = ui.progress(Some(2 * backup.info().bytes), "restoring");
    let restored = backup.restore(dir, &options, &mut |done, _| bar.set_position(done));
    let restored =
        restored.map_err(|error| match args.to_time.filter(|_| error.kind() == ErrorKind::OutOfRange) {
            Some(time) => nothing_by(time),
            None => error.into(),
        })?;
    bar.finish_and_clear();
    show_notes(backup.notes(), backup.ends_early(), ui);
    let log = RestoreSummary::new(&restored, started.elapsed());
    let left_out = log.left_out();
    ui.result(
        &Shown { log, ends_early: backup.ends_early(), notes: backup.notes().to_vec() },
        |Shown { log, .. }| {
            format!(
                "restored {} as {} {}: {}, in {}",
                dir.display(),
                if args.as_copy { "a copy of log" } else { "log" },
                log.log_id,
                records(log.first, log.last),
                format::duration(started.elapsed())
            )
        },
    )?;
    left_out.iter().for_each(|what| ui.note(what));
    Ok(())
}

/// The error if there was nothing yet at a time.
fn nothing_by(time: Timestamp) -> Failure {
    let what = format!("the backup has no record of {} or before; nothing was made", format::time(time));
    Failure::new(ErrorKind::OutOfRange, what)
}

fn check(backup: &Backup, started: Instant, ui: &Ui) -> Result<()> {
    let bar = ui.progress(Some(backup.info().bytes), "checking");
    backup.check(&mut |done, _| bar.set_position(done))?;
    bar.finish_and_clear();
    let BackupInfo { log_id, first, last, last_timestamp, made, files, bytes, .. } = backup.info();
    let time = started.elapsed();
    let written = Some(last_timestamp).filter(|time| *time > Timestamp(0));
    show_notes(backup.notes(), backup.ends_early(), ui);
    let log = RestoreSummary {
        log_id: to_hex(log_id.get()),
        first: first.get(),
        last: last.get(),
        records: last.next().get() - first.get(),
        last_timestamp: written.map(Timestamp::get),
        last_time: written.map(format::time),
        seconds: time.as_secs_f64(),
        left_out: None,
        checked: Some(Checked { files, bytes, made: made.get() }),
    };
    ui.result(
        &Shown { log, ends_early: backup.ends_early(), notes: backup.notes().to_vec() },
        |Shown { log, .. }| {
            format!(
                "sound: a backup of log {} of {}: {}; {} in {}, read in {}",
                log.log_id,
                format::time(made),
                records(log.first, log.last),
                format::bytes(bytes),
                format::many(files, "file", "files"),
                format::duration(time)
            )
        },
    )
}
