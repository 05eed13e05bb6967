//! `chiplog restore`: makes a log of a backup, or verifies the backup.

use crate::commands::files::backup::records;
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::number::whole_number;
use crate::common::output::Ui;
use crate::connect::open_log;
use crate::connect::target;
use chiplog::backup::{Backup, BackupInfo, RestoreOptions, RestoreTo, Restored};
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
      The log as it was at that time.
  chiplog restore /backup/2026-11-23 ./before --to-index 41200
      The log as it was when record 41200 was its last.

JSON fields:
  log_id, first, last, records, last_timestamp (ms since 1970), last_time, seconds
  With --check also files, bytes and made (ms since 1970) of the backup.";

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
/// The members of the old cluster are not restored. `chiplog serve` of node 1 makes a new cluster of the log,
/// which other servers join.
///
/// --to-index and --to-time leave out everything later, including changes to sessions and options. An append
/// is all or nothing: it is left out if it continues after the given record. Times are those that the leaders
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
    #[arg(long, conflicts_with_all = ["dir", "to_index", "to_time", "keep_log_id", "segment_bytes"])]
    check: bool,

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

    /// Size of the log's segment files, such as 64MiB. Default: as in the backup.
    #[arg(long, value_name = "SIZE", value_parser = open_log::segment_bytes)]
    segment_bytes: Option<u32>,
}

#[derive(Serialize)]
struct RestoreSummary {
    log_id: String,
    first: u64,
    last: u64,
    records: u64,
    last_timestamp: Option<u64>,
    last_time: Option<String>,
    seconds: f64,
    #[serde(flatten)]
    checked: Option<Checked>,
}

/// Fields about the backup itself.
#[derive(Serialize)]
struct Checked {
    files: u64,
    bytes: u64,
    made: u64,
}

impl RestoreSummary {
    fn new(log: &Restored, time: Duration) -> Self {
        let written = Some(log.last_timestamp).filter(|time| *time > Timestamp(0));
        Self {
            log_id: to_hex(log.log_id.get()),
            first: log.first.get(),
            last: log.last.get(),
            records: log.last.next().get() - log.first.get(),
            last_timestamp: written.map(Timestamp::get),
            last_time: written.map(format::time),
            seconds: time.as_secs_f64(),
            checked: None,
        }
    }
}

pub(crate) fn run(args: &Restore, ui: &Ui) -> Result<Exit> {
    let started = Instant::now();
    let backup = Backup::open(&args.backup)?;
    match &args.dir {
        Some(dir) => restore(&backup, dir, args, started, ui)?,
        None => check(&backup, started, ui)?,
    }
    Ok(Exit::Ok)
}

fn restore(backup: &Backup, dir: &Path, args: &Restore, started: Instant, ui: &Ui) -> Result<()> {
    let mut options = RestoreOptions::default();
    options.to = match (args.to_index, args.to_time) {
        (Some(index), _) => RestoreTo::Index(Index(index)),
        (None, Some(time)) => RestoreTo::Timestamp(time),
        (None, None) => RestoreTo::End,
    };
    (options.keep_log_id, options.segment_bytes) = (args.keep_log_id, args.segment_bytes);
    let bar = ui.progress(Some(2 * backup.info().bytes), "restoring");
    let restored = backup.restore(dir, &options, &mut |done, _| bar.set_position(done));
    let restored =
        restored.map_err(|error| match args.to_time.filter(|_| error.kind() == ErrorKind::OutOfRange) {
            Some(time) => {
                let what =
                    format!("the backup has no record of {} or before; nothing was made", format::time(time));
                Failure::new(ErrorKind::OutOfRange, what)
            }
            None => error.into(),
        })?;
    bar.finish_and_clear();
    let summary = RestoreSummary::new(&restored, started.elapsed());
    ui.result(&summary, |summary| {
        format!(
            "restored {} as log {}: {}, in {}",
            dir.display(),
            summary.log_id,
            records(summary.first, summary.last),
            format::duration(started.elapsed())
        )
    })?;
    if let Some(index) = args.to_index.filter(|index| restored.last < Index(*index)) {
        ui.say(&format!(
            "record {index} belongs to an append that continues after it: an append is all or nothing, so this one was left out"
        ));
    }
    Ok(())
}

fn check(backup: &Backup, started: Instant, ui: &Ui) -> Result<()> {
    let bar = ui.progress(Some(backup.info().bytes), "checking");
    backup.check(&mut |done, _| bar.set_position(done))?;
    bar.finish_and_clear();
    let BackupInfo { log_id, first, last, last_timestamp, made, files, bytes, .. } = backup.info();
    let time = started.elapsed();
    let written = Some(last_timestamp).filter(|time| *time > Timestamp(0));
    let summary = RestoreSummary {
        log_id: to_hex(log_id.get()),
        first: first.get(),
        last: last.get(),
        records: last.next().get() - first.get(),
        last_timestamp: written.map(Timestamp::get),
        last_time: written.map(format::time),
        seconds: time.as_secs_f64(),
        checked: Some(Checked { files, bytes, made: made.get() }),
    };
    ui.result(&summary, |summary| {
        format!(
            "sound: a backup of log {} of {}: {}; {} in {}, read in {}",
            summary.log_id,
            format::time(made),
            records(summary.first, summary.last),
            format::bytes(bytes),
            format::many(files, "file", "files"),
            format::duration(time)
        )
    })
}
