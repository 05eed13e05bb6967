//! `chiplog verify`: reads every byte of a log's files and reports all damage. For servers, each replica
//! checks its own files.

mod servers;

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::{Ui, print};
use crate::connect::cluster::Connect;
use crate::connect::open_log;
use crate::connect::target::Target;
use chiplog::Index;
use chiplog::backup::ClusterBackup;
use chiplog::inspect::{Block, Content, Event, Fault, Inspector, Report, Tail};
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

const HELP: &str = "\
Examples:
  chiplog verify ./log && echo sound
  chiplog verify ./log --json | jq '.faults[] | {file, offset, record_first, record_last}'
  chiplog verify log1:7411
      Every replica of the cluster checks its own files, all at the same time.
  chiplog verify log1:7411 --records --json | jq .records
      The same, and then all records are read over the network and checked here.

Faults:
  corrupt      records that may have been confirmed cannot be read (status 3)
  harmless     only a shortcut is damaged, every record can be read (status 0)
  undecodable  a batch is stored as it was appended, but cannot be unpacked. It is not damaged, and
               the same on every replica; none of its records can be read (status 0; see
               `chiplog read --skip-undecodable`)
  An unfinished or damaged write at the very end, which nothing proves to have been durable, is
  not a fault but the tail: the next opening cuts it off. If the machine did not crash while it
  was written, it may have been confirmed and damaged later.

JSON fields of a directory:
  ok, segments, blocks, batches, records, bytes, first, last, discarded (of these records),
  corrupt, harmless, undecodable, seconds, faults_left_out
  tail    {\"file\", \"offset\", \"bytes\"} or null
  faults  each {\"file\", \"offset\", \"bytes\", \"severity\", \"what\", \"raft_first\", \"raft_last\",
          \"record_first\", \"record_last\"}, null where unknown
  named   of a server's data directory, each group of named logs and their catalogue below it: the
          same fields, and \"directory\"; or \"directory\", \"ok\" (false) and \"error\" (text) of one
          that cannot be read; ok covers them, the other fields do not

JSON fields of servers:
  ok, log_id, seconds
  replicas  each {\"node\" (null: unknown), \"client\", \"role\", \"bytes\", \"corrupt\", \"harmless\",
            \"undecodable\", \"findings\" (texts), \"findings_left_out\", \"error\" (null: all was read)}
  groups    the same of the groups of named logs, each also with \"log\" (_system or _group-N); the
            role is \"missing\" where a server is to run a group and does not
  records   {\"records\", \"bytes\", \"first\", \"last\" (null: none), \"error\" (null: all are sound)};
            null without --records";

/// Check every byte of a log's files; continue after damage and report all of it.
///
/// Reads the files themselves, so it works on a log that does not open, and beside a running writer. Checks
/// headers, the checksums of all blocks and batches, that compressed batches can be unpacked, that indexes
/// have no gap, and each segment's block index and footer.
///
/// Of a server's data directory it checks the default log, and the groups of named logs below it (named/). Those in
/// group_directories are checked by their own paths. If one of the groups cannot be read, the others still are, and the status is
/// that of the error, or 3 if another one is corrupt.
///
/// Of a backup it checks the log inside. Use `chiplog restore --check` to verify that no file of the backup
/// was changed, added or lost.
///
/// Servers: every replica that answers checks its own files while it keeps working, and so do the replicas of the groups
/// of named logs. Status 3: one of them is
/// corrupt. Status 5: none is corrupt, but a replica could not be asked, or a server does not run a group that it is to
/// run. --records also reads all records of the default log as
/// a client does, and checks that they are sound and without a gap. A replica later fetches its damaged
/// blocks from the others on its own; `chiplog status` counts them.
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct Verify {
    /// The log's directory, or servers of a cluster: one that runs is enough; A,B,C are tried in turn.
    #[arg(value_name = "DIR|HOST:PORT", env = "CHIPLOG_SERVERS")]
    target: Target,

    /// For servers: also read all records of the default log over the network, and check each.
    #[arg(long)]
    records: bool,

    #[command(flatten)]
    connect: Connect,
}

/// The directory of the named logs, below a server's data directory.
pub(super) const NAMED: &str = "named";
/// The number of faults that are listed; further ones are only counted.
const FAULTS_SHOWN_MAX: usize = 10_000;

/// A fault in JSON.
#[derive(Serialize)]
pub(crate) struct JsonFault {
    file: String,
    offset: u64,
    bytes: u64,
    severity: &'static str,
    what: String,
    raft_first: Option<u64>,
    raft_last: Option<u64>,
    record_first: Option<u64>,
    record_last: Option<u64>,
}

impl From<&Fault> for JsonFault {
    fn from(fault: &Fault) -> Self {
        Self {
            file: fault.file.clone(),
            offset: fault.offset,
            bytes: fault.bytes,
            severity: fault.severity.name(),
            what: fault.what.clone(),
            raft_first: fault.raft.map(|r| r.0.get()),
            raft_last: fault.raft.map(|r| r.1.get()),
            record_first: fault.records.map(|r| r.0.get()),
            record_last: fault.records.map(|r| r.1.get()),
        }
    }
}

/// The tail in JSON.
#[derive(Serialize)]
pub(crate) struct JsonTail {
    file: String,
    offset: u64,
    bytes: u64,
}

impl From<&Tail> for JsonTail {
    fn from(tail: &Tail) -> Self {
        Self { file: tail.file.clone(), offset: tail.offset, bytes: tail.bytes }
    }
}

#[derive(Serialize)]
struct Verified {
    ok: bool,
    segments: u64,
    blocks: u64,
    batches: u64,
    records: u64,
    bytes: u64,
    first: Option<u64>,
    last: Option<u64>,
    discarded: u64,
    corrupt: u64,
    harmless: u64,
    undecodable: u64,
    seconds: f64,
    tail: Option<JsonTail>,
    faults: Vec<JsonFault>,
    faults_left_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    named: Vec<Named>,
}

/// A group of named logs, or their catalogue.
#[derive(Serialize)]
#[serde(untagged)]
enum Named {
    Read(Box<Verified>),
    Unread(Unread),
}

/// A directory that could not be read, in JSON.
#[derive(Serialize)]
struct Unread {
    directory: String,
    ok: bool,
    error: String,
    #[serde(skip)]
    exit: Exit,
}

impl Named {
    fn unread(directory: &str, failure: &Failure) -> Self {
        let (directory, error) = (directory.to_owned(), failure.to_string());
        Self::Unread(Unread { directory, ok: false, error, exit: failure.exit() })
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Read(verified) => verified.exit(),
            Self::Unread(unread) => unread.exit,
        }
    }

    /// The end of the report, each line after the name of the directory.
    fn words(&self) -> String {
        let (directory, words) = match self {
            Self::Read(verified) => (verified.directory.as_deref().unwrap_or_default(), verified.words()),
            Self::Unread(unread) => (&*unread.directory, format!("NOT CHECKED: {}", unread.error)),
        };
        words.lines().map(|line| format!("{directory}: {line}\n")).collect()
    }
}

impl Verified {
    /// `log_first`: records before it are discarded.
    fn new(report: &Report, log_first: Index, faults: Vec<JsonFault>, time: Duration) -> Self {
        let held = report.last.map_or(0, |last| last.next().get());
        let begin = report.first.map_or(held, Index::get);
        Self {
            ok: report.corrupt == 0,
            segments: report.segments,
            blocks: report.blocks,
            batches: report.batches,
            records: report.records,
            bytes: report.bytes,
            first: report.first.map(Index::get),
            last: report.last.map(Index::get),
            discarded: log_first.get().min(held).saturating_sub(begin),
            corrupt: report.corrupt,
            harmless: report.harmless,
            undecodable: report.undecodable,
            seconds: time.as_secs_f64(),
            tail: report.tail.as_ref().map(JsonTail::from),
            faults_left_out: report.corrupt + report.harmless + report.undecodable - faults.len() as u64,
            faults,
            directory: None,
            named: Vec::new(),
        }
    }

    /// Damage anywhere counts before what could not be read.
    fn exit(&self) -> Exit {
        if self.corrupt > 0 {
            return Exit::Corrupt;
        }
        let exits = || self.named.iter().map(Named::exit);
        let corrupt = exits().find(|exit| *exit == Exit::Corrupt);
        corrupt.or_else(|| exits().find(|exit| *exit != Exit::Ok)).unwrap_or(Exit::Ok)
    }

    /// The end of the report. The faults were printed when they were found.
    fn words(&self) -> String {
        let mut out = String::new();
        let time = Duration::from_secs_f64(self.seconds);
        let rate = format::bytes(format::rate(self.bytes, time) as u64);
        let range = match (self.first, self.last) {
            (Some(first), Some(last)) => format!(", index {first} to {last}"),
            _ => String::new(),
        };
        let discarded = match self.discarded {
            0 => String::new(),
            n => format!(" ({} of them discarded, in a file that still exists)", format::count(n)),
        };
        _ = writeln!(
            out,
            "{}: {}{discarded} in {}, {} and {}{range}; read {} in {}, {rate}/s",
            if self.corrupt == 0 { "sound" } else { "CORRUPT" },
            format::many(self.records, "record", "records"),
            format::many(self.batches, "batch", "batches"),
            format::many(self.blocks, "block", "blocks"),
            format::many(self.segments, "segment file", "segment files"),
            format::bytes(self.bytes),
            format::duration(time),
        );
        if let Some(JsonTail { file, offset, bytes }) = &self.tail {
            _ = writeln!(
                out,
                "tail: {file} at offset {offset} holds an unfinished or damaged write ({}): nothing proves that it was durable, and the next opening cuts it off",
                format::bytes(*bytes)
            );
        }
        if self.corrupt > 0 {
            let (cost, rest) = if self.faults.iter().any(|f| f.record_first.is_some()) {
                ("the records named above cannot be read. Restore", "the others")
            } else {
                ("restore", "every record that is sound")
            };
            _ = writeln!(
                out,
                "{}: {cost} the files from a copy; `chiplog read --salvage` prints {rest}",
                format::many(self.corrupt, "fault", "faults")
            );
        }
        if self.undecodable > 0 {
            _ = writeln!(
                out,
                "{}: stored as appended, but no reader can unpack them; `chiplog read --skip-undecodable` skips them",
                format::many(self.undecodable, "undecodable batch", "undecodable batches")
            );
        }
        if self.harmless > 0 {
            _ = writeln!(
                out,
                "{}: every record is still served",
                format::many(self.harmless, "harmless fault", "harmless faults")
            );
        }
        out
    }
}

pub(crate) fn run(args: &Verify, ui: &Ui) -> Result<Exit> {
    match &args.target {
        Target::Directory(_) if args.records => Err(Failure::usage(
            "--records works only with servers: the records of a directory are always checked",
        )),
        Target::Directory(dir) => directory(dir, ui),
        Target::Servers(list) => servers::run(list, &args.connect, args.records, ui),
    }
}

fn directory(dir: &Path, ui: &Ui) -> Result<Exit> {
    if ClusterBackup::is_at(dir) {
        let dir = dir.display();
        let what = format!("{dir} is a backup of a cluster: `chiplog restore {dir} --check` checks it");
        return Err(Failure::usage(what));
    }
    let mut verified = one(dir, None, ui)?;
    verified.named = below(dir, ui)?;
    verified.ok = verified.exit() == Exit::Ok;
    ui.result(&verified, |verified| {
        verified.words() + &verified.named.iter().map(Named::words).collect::<String>()
    })?;
    Ok(verified.exit())
}

/// Reads all groups of named logs, and their catalogue, below a server's data directory.
///
/// # Errors
/// Standard output is closed.
fn below(dir: &Path, ui: &Ui) -> Result<Vec<Named>> {
    let names = match named(dir) {
        Ok(names) => names,
        Err(failure) => return Ok(vec![Named::unread(NAMED, &failure)]),
    };
    let mut all = Vec::new();
    for name in names {
        let path = dir.join(&name);
        match one(&path, Some(&name), ui) {
            Ok(verified) => {
                all.push(Named::Read(Box::new(Verified { directory: Some(name), ..verified })));
            }
            Err(failure) if failure.quiet() => return Err(failure),
            // The server has removed it since it was listed.
            Err(_) if path.symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) => {}
            Err(failure) => all.push(Named::unread(&name, &failure)),
        }
    }
    Ok(all)
}

/// The groups of named logs, and their catalogue, below a server's data directory: `named/system`, `named/group-1`. Also
/// those that have lost what makes them logs.
///
/// # Errors
/// The directory cannot be listed.
fn named(dir: &Path) -> Result<Vec<String>> {
    let path = dir.join(NAMED);
    let failed = |e: io::Error| Failure::io("list", &path, &e);
    let entries = match std::fs::read_dir(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let number = |name: &str| match name {
        "system" => Some(0),
        name => name.strip_prefix("group-")?.parse::<u32>().ok(),
    };
    let mut all = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        all.extend(number(&name).map(|number| (number, format!("{NAMED}/{name}"))));
    }
    all.sort();
    Ok(all.into_iter().map(|(_, name)| name).collect())
}

/// Reads all files of one log. Its faults are printed, each after `name`.
fn one(dir: &Path, name: Option<&str>, ui: &Ui) -> Result<Verified> {
    // The path of a listed directory is not mistyped.
    let unreadable = |error| match name.is_some() {
        true => Failure::from(error),
        false => open_log::unreadable(dir, error),
    };
    let inspector = Inspector::open(dir).map_err(unreadable)?;
    let bar = ui.progress(Some(inspector.bytes().map_err(unreadable)?), "verifying");
    let place = name.map_or(String::new(), |name| format!("{name}: "));
    let started = Instant::now();
    let (mut faults, mut failed, mut log_first) = (Vec::new(), None, Index(0));
    // The bytes of the segments before the current one, and those including it.
    let (mut before, mut with) = (0, 0);
    let report = inspector.walk(&mut |event| {
        match event {
            Event::Segment(segment) => (before, with) = (with, with + segment.bytes),
            Event::Block(block) => {
                bar.set_position(before + block.offset());
                log_first = log_first.max(discarded_by(block));
            }
            Event::SegmentEnd(_) => bar.set_position(with),
            Event::Fault(fault) if faults.len() < FAULTS_SHOWN_MAX => {
                faults.push(JsonFault::from(fault));
                if !ui.json {
                    let printed = bar.suspend(|| print(format!("{place}{}", line(fault)).as_bytes()));
                    if let Err(failure) = printed {
                        failed = Some(failure);
                        return ControlFlow::Break(());
                    }
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    let report = report.map_err(unreadable)?;
    bar.finish_and_clear();
    if let Some(failure) = failed {
        return Err(failure);
    }
    Ok(Verified::new(&report, log_first, faults, started.elapsed()))
}

/// Records before this index are discarded, according to the block.
fn discarded_by(block: &Block<'_>) -> Index {
    if !matches!(block.kind(), "opening" | "command") {
        return Index(0);
    }
    match block.content() {
        Ok(Content::Discard { first } | Content::Opening { log_first: first, .. }) => first,
        _ => Index(0),
    }
}

/// A fault as one line.
pub(crate) fn line(fault: &Fault) -> String {
    format!("{}: {fault}\n", fault.severity.name())
}
