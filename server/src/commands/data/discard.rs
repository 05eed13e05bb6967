//! `chiplog discard`: removes the records before an index.

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::Ui;
use crate::connect::cluster::Connect;
use crate::connect::open_log;
use crate::connect::remote::{Remote, failure};
use crate::connect::target::{Servers, Target};
use chiplog::{Index, Log};
use clap::Args;
use serde::Serialize;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  chiplog discard ./log 5001
      Records 1 to 5000 are gone; the log begins at 5001.
  chiplog discard ./log $(chiplog info ./log --json | jq .last+1)
      All records are gone; the next index stays the same.
  chiplog discard log1:7411 5001
      The same on every replica of a cluster.
  chiplog discard ./log 1000000 --fast-forward
      The next record gets index 1000000.
  chiplog discard ./log 5001 --segment-bytes 1MiB
      On a disk that has 1 MiB free, and no room for a file of the log's usual size.";

/// Discard the records before FIRST, for good.
///
/// Durable when it returns. Space is freed in whole segments, because files are deleted or reused as a whole.
/// Discarding records that are already discarded changes nothing. A directory must not be open for writing
/// elsewhere (status 5).
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES, allow_missing_positional = true)]
pub(crate) struct Discard {
    /// The log's directory, or servers of a cluster: one that runs is enough; A,B,C are tried in turn. With
    /// /LOG after the servers: their log of this name (`chiplog logs`).
    #[arg(value_name = "DIR|HOST:PORT[/LOG]", env = "CHIPLOG_SERVERS")]
    target: Option<Target>,

    /// The first record to keep.
    #[arg(value_parser = first)]
    first: u64,

    /// Allow a FIRST beyond the next record: the log continues at FIRST, and every record before it is gone.
    #[arg(long)]
    fast_forward: bool,

    /// For a directory: the size of new segment files, such as 1MiB; smaller ones let a log be opened on a disk that is
    /// nearly full. Existing files keep their size. Default: that of the largest file.
    #[arg(long, value_name = "SIZE", value_parser = open_log::segment_bytes)]
    segment_bytes: Option<u32>,

    #[command(flatten)]
    connect: Connect,
}

fn first(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(index) if index > 0 => Ok(index),
        // Clap takes a single argument for the last one.
        _ if text.contains(['/', ':']) || Path::new(text).is_dir() => {
            Err(format!("FIRST is missing: after {text}, give the index of the first record to keep, from 1"))
        }
        _ => Err("after the directory or server, give the index of the first record to keep, from 1".into()),
    }
}

#[derive(Serialize)]
struct Discarded {
    first: u64,
    last: u64,
    discarded: u64,
    bytes_used: u64,
}

impl Discarded {
    fn words(&self) -> String {
        let rest = if self.last < self.first {
            format!("the log is empty, the next record is {}", self.last + 1)
        } else {
            format!("the log holds {} to {} ({})", self.first, self.last, format::bytes(self.bytes_used))
        };
        format!("discarded {}; {rest}", format::many(self.discarded, "record", "records"))
    }
}

/// The bounds of a log, and its size.
struct Extent {
    first: Index,
    last: Index,
    bytes_used: u64,
}

/// Checks that FIRST is within the log, or --fast-forward is set.
///
/// # Errors
/// `InvalidArgument`: FIRST is beyond the end, and --fast-forward is missing.
fn check(args: &Discard, last: Index) -> Result<()> {
    let next = last.next();
    if args.first <= next.get() || args.fast_forward {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{} is beyond the end: the last record is {last}, so {next} discards all; \
         to let the log continue at {0}, pass --fast-forward",
        args.first
    )))
}

fn local(args: &Discard, dir: &Path) -> Result<[Extent; 2]> {
    let log = open_log::open_as_it_is(dir, args.segment_bytes)?;
    let extent = |log: &Log| {
        let status = log.status();
        Extent { first: status.first_index, last: status.last_index, bytes_used: status.bytes_used }
    };
    let before = extent(&log);
    check(args, before.last)?;
    log.discard(Index(args.first))?;
    let after = extent(&log);
    log.close()?;
    Ok([before, after])
}

fn remote(args: &Discard, servers: &Servers, ui: &Ui) -> Result<[Extent; 2]> {
    if args.segment_bytes.is_some() {
        let what = "--segment-bytes works only with directories: servers have their own options";
        return Err(Failure::usage(what));
    }
    let remote = Remote::connect(servers, &args.connect, ui)?;
    let extent = || {
        let info = remote.wait_for_leader(remote.client.info()).map_err(failure)?;
        Ok::<_, Failure>(Extent { first: info.first, last: info.last, bytes_used: info.bytes_used })
    };
    let before = extent()?;
    check(args, before.last)?;
    remote.wait_for_leader(remote.client.discard(Index(args.first))).map_err(failure)?;
    Ok([before, extent()?])
}

pub(crate) fn run(args: &Discard, ui: &Ui) -> Result<Exit> {
    let [before, after] = match &args.target {
        Some(Target::Directory(dir)) => local(args, dir)?,
        Some(Target::Servers(servers)) => remote(args, servers, ui)?,
        None => return Err(Failure::usage("give a directory or host:port before the index")),
    };
    let gone = after.first.min(before.last.next()).get().saturating_sub(before.first.get());
    let discarded = Discarded {
        first: after.first.get(),
        last: after.last.get(),
        discarded: gone,
        bytes_used: after.bytes_used,
    };
    ui.result(&discarded, Discarded::words)?;
    Ok(Exit::Ok)
}
