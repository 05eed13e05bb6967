//! `chiplog backup`: copies the log of a directory or of servers to a directory of its own, sealed with a
//! manifest.

use crate::commands::files::info::{STALE_DIRECTORY, unproven, unproven_in};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use crate::connect::cluster::{Asker, Connect};
use crate::connect::cluster_status::ClusterQuery;
use crate::connect::groups::groups;
use crate::connect::open_log;
use crate::connect::remote;
use crate::connect::remote::Remote;
use crate::connect::target;
use crate::connect::target::{Servers, Target};
use chiplog::backup::{Backup, BackupInfo};
use chiplog::{ErrorKind, Index, Options, Start, Timestamp};
use chiplog_net::follower::{Follower, FollowerOptions};
use chiplog_net::wire::ids::to_hex;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const HELP: &str = "\
Examples:
  chiplog backup log1:7411,log2:7411 /backup/2026-11-23
      Every record confirmed before the command began, while the servers keep serving.
  chiplog backup ./log /backup/2026-11-23
      Of a directory on this machine, even while a program writes to it.
  chiplog backup log1:7411/orders /backup/orders
      A named log alone.
  chiplog restore /backup/2026-11-23 --check && chiplog restore /backup/2026-11-23 ./again
  chiplog backup log2:7411 /backup/last --stale
      The records of a replica, if the majority is lost.

JSON fields:
  log_id, first, last, records, last_time, files, bytes, seconds
  last_timestamp  ms since 1970
  notes           texts: what else the source has that is not in the backup
  unproven        records at the end of a directory that nothing proves to be durable; they are
                  not in the backup";

/// Back a log up: its records with their indexes and times, its sessions, its options.
///
/// DEST becomes a directory with the log's segment files and the manifest chiplog.backup, which lists each
/// file with its size and checksum. The manifest is written last, when everything else is durable: a
/// directory without it is not a backup. A backup never changes; copy or archive it like any directory.
///
/// Servers: the backup holds every record that was confirmed before the command began, which needs a
/// majority, except those that are in an object store alone: the command says which these are, and `chiplog
/// tier fetch` makes a backup of them, too. It also holds the changes to sessions and options before the last of these records, and those
/// that its source knows. The source is a server that does not lead, if there is one. --stale needs no
/// majority.
///
/// Named logs of the servers are not in it, which the command says: back each of them up by its name, or all of them by `chiplog tier
/// backup`.
///
/// A named log: the backup is that of a log on its own with the same records. It has no sessions, and none of the
/// options that are set for the log.
///
/// A directory: the backup holds what is proven durable there and, of a replica, what it knows to be
/// committed.
///
/// `chiplog restore` makes a log of the backup, `chiplog restore --check` verifies it.
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct BackUp {
    /// The log's directory, or servers of a cluster: one that runs is enough; A,B,C are tried in turn. With /LOG after
    /// the servers: a named log.
    #[arg(value_name = "DIR|HOST:PORT[/LOG]")]
    source: Target,

    /// The directory for the backup: missing or empty.
    #[arg(value_parser = target::directory)]
    dest: PathBuf,

    /// For servers: back up what an answering replica has, without asking a majority whether there is more.
    #[arg(long)]
    stale: bool,

    /// For servers: prefer those in this zone.
    #[arg(long, env = "CHIPLOG_ZONE", default_value = "", hide_default_value = true)]
    zone: String,

    /// For servers: size of the backup's segment files [default: 64MiB]. Each file has this size, even for a
    /// smaller log. Give at least the servers' size if their blocks are that large.
    #[arg(long, value_name = "SIZE", value_parser = open_log::segment_bytes)]
    segment_bytes: Option<u32>,

    #[command(flatten)]
    connect: Connect,
}

/// The command ends if no server feeds the copy for this long.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a server may take to say how many named logs there are.
const ANSWER: Duration = Duration::from_secs(5);
/// How often to check the progress of the copy.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Serialize)]
pub(super) struct BackupSummary {
    log_id: String,
    first: u64,
    last: u64,
    records: u64,
    last_timestamp: Option<u64>,
    last_time: Option<String>,
    files: u64,
    bytes: u64,
    unproven: u64,
    notes: Vec<String>,
    seconds: f64,
}

impl BackupSummary {
    pub(super) fn new(info: &BackupInfo, unproven: u64, time: Duration) -> Self {
        let written = Some(info.last_timestamp).filter(|time| *time > Timestamp(0));
        Self {
            log_id: to_hex(info.log_id.get()),
            first: info.first.get(),
            last: info.last.get(),
            records: info.last.next().get() - info.first.get(),
            last_timestamp: written.map(Timestamp::get),
            last_time: written.map(format::time),
            files: info.files,
            bytes: info.bytes,
            unproven,
            notes: Vec::new(),
            seconds: time.as_secs_f64(),
        }
    }

    pub(super) fn words(&self, dest: &Path) -> String {
        format!(
            "backed up log {}: {}; {} in {}, {}, at {}",
            self.log_id,
            records(self.first, self.last),
            format::bytes(self.bytes),
            format::many(self.files, "file", "files"),
            format::duration(Duration::from_secs_f64(self.seconds)),
            dest.display()
        )
    }
}

/// The records of a log, as text.
pub(crate) fn records(first: u64, last: u64) -> String {
    match (last + 1).saturating_sub(first) {
        0 => format!("no records, the next index is {}", format::count(last + 1)),
        n => format!("{}, index {first} to {last}", format::many(n, "record", "records")),
    }
}

pub(crate) fn run(args: &BackUp, ui: &Ui) -> Result<Exit> {
    let started = Instant::now();
    let mut notes = Vec::new();
    let (backup, left) = match &args.source {
        Target::Directory(_) if args.stale => return Err(Failure::usage(STALE_DIRECTORY)),
        Target::Directory(_) if args.segment_bytes.is_some() => {
            return Err(Failure::usage(
                "--segment-bytes works only with servers: the files of a directory keep their size",
            ));
        }
        Target::Directory(dir) => {
            let (backup, left, stored) = directory(dir, args, ui)?;
            notes.extend(stored.map(|(first, last)| without_stored(first, last)));
            (backup, left)
        }
        Target::Servers(list) => {
            let (backup, first) = servers(list, args, ui)?;
            let from = backup.info().first;
            notes.extend((first < from).then(|| without_stored(first, from.previous())));
            notes.extend(without_named_logs(list, args, ui)?);
            (backup, 0)
        }
    };
    let summary = BackupSummary { notes, ..BackupSummary::new(&backup.info(), left, started.elapsed()) };
    ui.result(&summary, |summary| summary.words(&args.dest))?;
    summary.notes.iter().for_each(|note| ui.note(note));
    Ok(Exit::Ok)
}

/// Says which records are not in a backup, because they are in the object store alone.
fn without_stored(first: Index, last: Index) -> String {
    format!(
        "records {first} to {last} are in the object store alone, and not in it: `chiplog tier fetch` makes a backup of all of them, \
         `chiplog tier backup` keeps them in the store"
    )
}

/// Says that the servers have named logs, which are not in a backup of the default log.
fn without_named_logs(source: &Servers, args: &BackUp, ui: &Ui) -> Result<Option<String>> {
    if !source.log.is_empty() {
        return Ok(None);
    }
    let asker = Asker::new(&args.connect, ui)?;
    let mut query = ClusterQuery::for_leader(asker.dialler().clone(), source, LOOK);
    let found = asker.wait(query.round(ANSWER));
    let how =
        "`chiplog tier backup` keeps all logs of a cluster, `chiplog backup HOST:PORT/NAME` one of them";
    Ok(match (found.is_answered(), groups(&found).iter().map(|group| group.logs).sum()) {
        (false, _) => {
            Some(format!("named logs, if there are any, are not in it (the servers do not say): {how}"))
        }
        (true, 0) => None,
        (true, 1) => Some(format!("1 named log of the servers is not in it: {how}")),
        (true, n) => Some(format!("{} named logs of the servers are not in it: {how}", format::count(n))),
    })
}

/// The first and the last record of some.
type Range = (Index, Index);

/// Backs a directory up. Also returns the number of its records that nothing proves to be durable, and those that are in an object store
/// alone.
fn directory(dir: &Path, args: &BackUp, ui: &Ui) -> Result<(Backup, u64, Option<Range>)> {
    let read_only = open_log::view(dir)?;
    let stored = read_only.in_object_store();
    let left = unproven_in(&read_only, dir);
    let bar = ui.progress(Some(read_only.status().bytes_used), "backing up");
    let backup = Backup::make(&read_only, &args.dest, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    if left > 0 {
        ui.note(&unproven(left));
    }
    Ok((backup, left, stored))
}

/// Backs servers up: a follower copies the log until it has every wanted record, then the copy is sealed. Also returns the log's first
/// record, which can be in an object store alone.
fn servers(source: &Servers, args: &BackUp, ui: &Ui) -> Result<(Backup, Index)> {
    if source.log.starts_with('_') {
        let what = "a group of named logs cannot be backed up as a whole: back up its logs, one by one";
        return Err(Failure::usage(what));
    }
    // Everything confirmed until now. Nothing is made before that is known.
    let otherwise = "; `--stale` backs up what an answering replica has, perhaps without the newest records";
    let info = Remote::connect(source, &args.connect, ui)?.info_or(args.stale, otherwise)?;
    Backup::begin(&args.dest)?;
    let backup = copy(source, args, info.bytes_used, (!args.stale).then_some(info.last), ui);
    let backup = backup.inspect_err(|_| {
        // The error says what happened. Files that cannot be removed are an unfinished backup.
        let _ = Backup::abandon(&args.dest);
    })?;
    // If nothing is in a store alone, records that are missing were discarded meanwhile.
    let is_stored = info.first_local.is_some_and(|local| local > info.first);
    let first = if is_stored { info.first } else { backup.info().first };
    Ok((backup, first))
}

fn copy(source: &Servers, args: &BackUp, bytes: u64, target: Option<Index>, ui: &Ui) -> Result<Backup> {
    let list = &source.addresses;
    let mut options = FollowerOptions::default();
    options.log.clone_from(&source.log);
    options.files =
        Backup::copy_options(args.segment_bytes.unwrap_or_else(|| Options::default().segment_bytes));
    options.zone.clone_from(&args.zone);
    let client = args.connect.options()?;
    (options.tls, options.token) = (client.tls, client.token);
    options.token_in_plain_text = client.token_in_plain_text;
    let follower = Follower::open(&args.dest, list.iter().cloned(), Start::First, options)
        .map_err(|error| remote::unreachable(error, list, &args.connect, ui))?;
    let bar = ui.progress(Some(bytes), "backing up");
    // With --stale: the last record of the server that feeds it now.
    let target = target.unwrap_or_else(|| follower.status().source_last);
    let mut fed = Instant::now();
    loop {
        match follower.wait_for(target, LOOK) {
            Ok(()) => break,
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            Err(error) => return Err(stopped(error)),
        }
        let status = follower.status();
        bar.set_length(bytes.max(status.received_bytes));
        bar.set_position(status.received_bytes);
        if status.server.is_some() {
            fed = Instant::now();
        } else if fed.elapsed() > PATIENCE {
            let why = status.last_error.map_or_else(String::new, |error| format!(": {error}"));
            let what = format!(
                "no server sends records for the backup any more{why}; the unfinished backup was removed. Try again when a server runs, or with --stale"
            );
            return Err(Failure::new(ErrorKind::Unavailable, what));
        }
    }
    follower.close()?;
    bar.set_message("sealing");
    let backup = Backup::seal(&args.dest)?;
    bar.finish_and_clear();
    Ok(backup)
}

/// The library reports what is wrong; the command line adds what to do.
fn stopped(error: chiplog::Error) -> Failure {
    match error.kind() {
        ErrorKind::TooLarge => {
            Failure::new(ErrorKind::TooLarge, format!("{error}; back up with a larger --segment-bytes"))
        }
        _ => remote::failure(error),
    }
}
