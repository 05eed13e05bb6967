//! `chiplog read`: records, raw or formatted, from anywhere in the log, and on at its end.
//!
//! Opens the log read-only, so it works beside a program that appends, and never disturbs it.

mod record_format;
mod remote;
mod salvage;

use crate::commands::files::info::{STALE_DIRECTORY, unproven, unproven_in};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::output::{Ui, json_line};
use crate::common::signals;
use crate::connect::cluster::Connect;
use crate::connect::open_log;
use crate::connect::target::Target;
use chiplog::{ErrorKind, Index, Reader, Record, Start};
use clap::Args;
use record_format::Format;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::json;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  chiplog read ./log
      All records, each followed by a newline.
  chiplog read ./log --last 10 --follow
      The newest ten, then every new one as it becomes durable, until Ctrl-C.
  chiplog read ./log --from 1000 --limit 5 --format '%i %t %e\\n'
      Five records from index 1000, with index and time, unprintable bytes escaped.
  chiplog read ./log --since 15m --json | jq -r .data
      What the last quarter of an hour brought, as JSON.
  chiplog read log1:7411 --follow
      From a cluster; goes on at another server when one fails.
  chiplog read log1:7411 --stale --length-prefixed | chiplog append ./saved --length-prefixed
      What is left of a cluster that has lost its majority.
  chiplog read ./old --length-prefixed | chiplog append ./new --length-prefixed
      A copy, whatever the records hold.
  chiplog read ./damaged --salvage --length-prefixed | chiplog append ./new --length-prefixed
      What a damaged log still holds; records after a gap get new indexes.

Format:
  %i index    %t time (RFC 3339, UTC)     %T time (milliseconds since 1970)
  %d data     %e data, escaped            %x data, hexadecimal
  %s size     %%  a percent sign          \\n \\r \\t \\0 \\\\  as in C";

/// Print records: all, from an index, the last N, or since a time; follow the log's end.
///
/// Shows what is durable, beside a running writer too (a few milliseconds behind it). Every record's checksum
/// is verified before it is printed. A closed pipe ends it quietly with status 0.
///
/// From servers: everything that was confirmed before the command began is there, which a majority has to say. --stale
/// asks for no majority.
///
/// With --json each record is one line: {"index", "timestamp" (ms), "time", "size", and "data" (text) or,
/// when that is not UTF-8, "data_base64"}.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Read {
    /// The log's directory, or servers of a cluster: one that runs is enough, A,B,C are tried in turn.
    #[arg(value_name = "DIR|HOST:PORT", env = "CHIPLOG_SERVERS")]
    target: Target,

    /// Start at this index. It must not be discarded.
    #[arg(long, value_name = "INDEX", group = "start", value_parser = clap::value_parser!(u64).range(1..))]
    from: Option<u64>,

    /// Start N records before the end; 0 shows only what comes with --follow.
    #[arg(long, value_name = "N", group = "start")]
    last: Option<u64>,

    /// Start at the first record of this time or later: RFC 3339, a date, milliseconds since 1970, or a span
    /// ago (90s, 15m, 2h, 7d).
    #[arg(long, value_name = "TIME", group = "start")]
    since: Option<String>,

    /// At the end of the log wait for more, until Ctrl-C (status 0).
    #[arg(short, long)]
    follow: bool,

    /// Stop after N records.
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u64>,

    /// Print only how many records there are.
    #[arg(short, long, conflicts_with_all = ["follow", "format", "length_prefixed"])]
    count: bool,

    /// Print each record in this form, see below. Nothing is added: end it with \n.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,

    /// Give every sound record of a damaged log, also of one that does not open.
    ///
    /// Reads the files themselves, goes on past what is bad and names it on standard error (with --json as
    /// {"skipped": fault} or {"tail": tail}, see verify); status 3 if anything but the tail was left out.
    #[arg(long, conflicts_with_all = ["follow", "last"])]
    salvage: bool,

    /// Go on behind batches that do not unpack.
    ///
    /// Such a batch is as it was appended: its program was wrong, every replica has it so, and reading ends there without
    /// this option. Each one is named on standard error (with --json as {"undecodable": text}); the status stays 0.
    #[arg(long)]
    skip_undecodable: bool,

    /// Print each record after its length, 32 bits little-endian; what `append --length-prefixed` reads.
    #[arg(long, conflicts_with = "format")]
    length_prefixed: bool,

    /// Of servers: what the replicas have that answer, without a majority that says whether there is more.
    #[arg(long, conflicts_with = "salvage")]
    stale: bool,

    #[command(flatten)]
    connect: Connect,
}

/// How often a follower looks whether it should end. New records wake it at once.
const STOP_CHECK: Duration = Duration::from_millis(250);

/// How records are written.
enum Form<'a> {
    Raw,
    LengthPrefixed,
    Json,
    Custom(&'a Format),
    /// Not at all: they are counted.
    Counted,
}

/// A record in JSON.
#[derive(Serialize)]
struct JsonRecord<'a> {
    index: u64,
    timestamp: u64,
    time: String,
    size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
}

impl<'a> JsonRecord<'a> {
    fn new(record: &Record<'a>) -> Self {
        let text = std::str::from_utf8(record.data).ok();
        Self {
            index: record.index.get(),
            timestamp: record.timestamp.get(),
            time: format::time(record.timestamp),
            size: record.data.len(),
            data: text,
            data_base64: text.is_none().then(|| format::base64(record.data)),
        }
    }
}

impl Form<'_> {
    fn write(&self, out: &mut impl Write, record: &Record<'_>) -> Result<()> {
        let written = match self {
            Self::Raw => out.write_all(record.data).and_then(|()| out.write_all(b"\n")),
            Self::LengthPrefixed => {
                // A record is smaller than 4 GiB: the format has 32 bits for it too.
                let length = record.data.len() as u32;
                out.write_all(&length.to_le_bytes()).and_then(|()| out.write_all(record.data))
            }
            Self::Json => out.write_all(&json_line(&JsonRecord::new(record))?),
            Self::Custom(format) => format.write(out, record),
            Self::Counted => Ok(()),
        };
        written.map_err(|e| Failure::output(&e))
    }
}

pub(crate) fn run(args: &Read, ui: &Ui) -> Result<Exit> {
    if ui.json && (args.format.is_some() || args.length_prefixed) {
        return Err(Failure::usage("--json is a form of its own: leave out --format and --length-prefixed"));
    }
    let start = start(args)?;
    let form = match &args.format {
        _ if args.count => Form::Counted,
        _ if ui.json => Form::Json,
        _ if args.length_prefixed => Form::LengthPrefixed,
        Some(format) => Form::Custom(format),
        None => Form::Raw,
    };
    let (count, exit) = if args.salvage {
        let dir = args.target.directory()?;
        let salvaged = salvage::run(args, dir, start, &form, ui)?;
        (salvaged.count, if salvaged.damaged { Exit::Corrupt } else { Exit::Ok })
    } else {
        let count = match &args.target {
            Target::Directory(_) if args.stale => return Err(Failure::usage(STALE_DIRECTORY)),
            Target::Directory(dir) => view(args, dir, start, &form, ui)?,
            Target::Servers(servers) => {
                let mut source =
                    remote::Servers::open(servers, &args.connect, start, args.follow, args.stale, ui)?;
                copy(args, &mut source, &form, &*stop_flag(args)?, ui)?
            }
        };
        (count, Exit::Ok)
    };
    if args.count {
        let words = |_: &_| count.to_string();
        // The number is what was asked for: it is printed even when quiet.
        Ui { quiet: false, ..*ui }.result(&json!({ "count": count }), words)?;
    }
    Ok(exit)
}

/// Reads through a view of the log, which a writer may extend meanwhile.
fn view(args: &Read, dir: &Path, start: Start, form: &Form<'_>, ui: &Ui) -> Result<u64> {
    let read_only = open_log::view(dir)?;
    let mut reader = read_only.reader(start)?;
    let stop = stop_flag(args)?;
    let copied = copy(args, &mut reader, form, &stop, ui);
    // When the view met damage, that is why it ended.
    if let Some(error) = read_only.failure() {
        return Err(error.into());
    }
    let count = copied?;
    if !args.follow && args.limit.is_none_or(|limit| count < limit) {
        note(unproven_in(&read_only, dir), ui);
    }
    Ok(count)
}

/// Set by Ctrl-C, if that is how the command ends.
fn stop_flag(args: &Read) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    if args.follow {
        let stop = stop.clone();
        signals::on_stop(move || stop.store(true, Relaxed))?;
    }
    Ok(stop)
}

/// Says on standard error that records follow which are not shown.
fn note(records: u64, ui: &Ui) {
    if records == 0 || ui.quiet {
        return;
    }
    let mut stderr = io::stderr().lock();
    // Nobody to tell is no reason to fail.
    let _ = if ui.json {
        writeln!(stderr, "{}", json!({ "unproven": records }))
    } else {
        writeln!(stderr, "chiplog: {}", unproven(records))
    };
}

/// Where records come from.
trait Source {
    /// Gives the next record to `take`. False: at the end.
    fn next(&mut self, take: &mut dyn FnMut(&Record<'_>) -> Result<()>) -> Result<bool>;

    /// Goes on behind a batch that the last step found undecodable.
    fn skip_batch(&mut self) -> Result<()>;

    /// Waits at the end for more, at most so long. True: there is more.
    fn wait(&mut self, time: Duration) -> Result<bool>;
}

impl Source for Reader {
    fn next(&mut self, take: &mut dyn FnMut(&Record<'_>) -> Result<()>) -> Result<bool> {
        self.next_record()?.map_or(Ok(false), |record| take(&record).map(|()| true))
    }

    fn skip_batch(&mut self) -> Result<()> {
        Self::skip_batch(self)?;
        Ok(())
    }

    fn wait(&mut self, time: Duration) -> Result<bool> {
        Ok(Self::wait(self, Some(time))?)
    }
}

fn start(args: &Read) -> Result<Start> {
    if let Some(since) = &args.since {
        return crate::connect::open_log::since(since).map(Start::Timestamp).map_err(Failure::usage);
    }
    Ok(match (args.from, args.last) {
        (Some(index), _) => Start::Index(Index(index)),
        (None, Some(0)) => Start::Next,
        (None, Some(n)) => Start::Last(n),
        (None, None) => Start::First,
    })
}

/// Whether nobody reads the pipe behind standard output any more: with nothing to write, no error says so.
fn output_is_gone() -> bool {
    let out = io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

/// Whether reading goes on behind what the failure names.
fn is_skipped(args: &Read, failure: &Failure) -> bool {
    args.skip_undecodable && failure.kind() == ErrorKind::Undecodable
}

/// Says on standard error what is left out.
fn say_skipped(failure: &Failure, ui: &Ui) {
    if ui.quiet {
        return;
    }
    let mut stderr = io::stderr().lock();
    // Nobody to tell is no reason to fail.
    let _ = if ui.json {
        writeln!(stderr, "{}", json!({ "undecodable": failure.to_string() }))
    } else {
        writeln!(stderr, "chiplog: skipped: {failure}")
    };
}

/// Writes records until the end, the limit, or a signal; how many there were.
fn copy(args: &Read, source: &mut dyn Source, form: &Form<'_>, stop: &AtomicBool, ui: &Ui) -> Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut count = 0;
    let limit = args.limit.unwrap_or(u64::MAX);
    while count < limit && !stop.load(Relaxed) {
        match source.next(&mut |record| form.write(&mut out, record)) {
            Ok(true) => {
                count += 1;
                continue;
            }
            Ok(false) => {}
            Err(failure) if is_skipped(args, &failure) => {
                say_skipped(&failure, ui);
                source.skip_batch()?;
                continue;
            }
            Err(failure) => {
                // What came before the fault is sound: it goes out.
                out.flush().map_err(|e| Failure::output(&e))?;
                return Err(failure);
            }
        }
        out.flush().map_err(|e| Failure::output(&e))?;
        if !args.follow {
            break;
        }
        while !stop.load(Relaxed) && !output_is_gone() {
            match source.wait(STOP_CHECK) {
                Ok(false) => {}
                Ok(true) => break,
                Err(failure) if is_skipped(args, &failure) => {
                    say_skipped(&failure, ui);
                    source.skip_batch()?;
                    break;
                }
                Err(failure) => return Err(failure),
            }
        }
        if output_is_gone() {
            break;
        }
    }
    out.flush().map_err(|e| Failure::output(&e))?;
    Ok(count)
}
