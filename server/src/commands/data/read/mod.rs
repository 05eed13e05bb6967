//! `chiplog read`: prints records, raw or formatted, from any index, and follows the end of the log.
//!
//! It opens the log read-only, so it works beside a program that appends and never disturbs it.

mod record_format;
mod remote;
mod salvage;

use crate::commands::files::info::{STALE_DIRECTORY, unproven, unproven_in};
use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::number::whole_number;
use crate::common::output::{Ui, json_line};
use crate::common::signals;
use crate::connect::cluster::Connect;
use crate::connect::open_log;
use crate::connect::target::Target;
use chiplog::{ErrorKind, Index, ReadOnlyLog, Reader, Record, Start};
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
      The newest ten, then each new one as it becomes durable, until Ctrl-C.
  chiplog read ./log --from 1000 --limit 5 --format '%i %t %e\\n'
      Five records from index 1000, with index and time, unprintable bytes escaped.
  chiplog read ./log --since 15m --json | jq -r .data
      The records of the last 15 minutes, as JSON.
  chiplog read log1:7411 --follow
      From a cluster; continues at another server when one fails.
  chiplog read log1:7411 --stale --length-prefixed | chiplog append ./saved --length-prefixed
      Save the records of a cluster that has lost its majority.
  chiplog read ./old --length-prefixed | chiplog append ./new --length-prefixed
      A copy, whatever bytes the records hold.
  chiplog read ./damaged --salvage --length-prefixed | chiplog append ./new --length-prefixed
      The sound records of a damaged log; records after a gap get new indexes.

Format:
  %i index    %t time (RFC 3339, UTC)     %T time (milliseconds since 1970)
  %d data     %e data, escaped            %x data, hexadecimal
  %s size     %%  a percent sign          \\n \\r \\t \\0 \\\\  as in C";

/// Print records: all, from an index, the last N, or since a time; follow the log's end.
///
/// Prints durable records. Beside a running writer it is a few milliseconds behind. Every record's checksum
/// is verified before it is printed. A closed pipe ends the command quietly with status 0.
///
/// A directory: prints the records of its files. A copy or a replica with an object store may keep older ones there
/// alone. If they belong to what is asked for, their indexes are reported on standard error (with --json as
/// {"in_object_store": {"first", "last"}}), and the status stays 0. If --from is one of them, status 1. Servers and
/// copies that run read them from the store.
///
/// Servers: prints every record that was confirmed before the command began, which needs a majority. --stale
/// needs none.
///
/// With --json each record is one line: {"index", "timestamp" (ms), "time", "size", and "data" (text) or, if
/// that is not UTF-8, "data_base64"}.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Read {
    /// The log's directory, or servers of a cluster: one that runs is enough; A,B,C are tried in turn. With
    /// /LOG after the servers: their log of this name (`chiplog logs`).
    #[arg(value_name = "DIR|HOST:PORT[/LOG]", env = "CHIPLOG_SERVERS")]
    target: Target,

    /// Start at this index. The record must not be discarded.
    #[arg(long, value_name = "INDEX", group = "start", value_parser = whole_number::<u64>("the index of a record", 1..=u64::MAX))]
    from: Option<u64>,

    /// Start N records before the end; 0 prints only new records, with --follow.
    #[arg(long, value_name = "N", group = "start", value_parser = whole_number::<u64>("a number of records", 0..=u64::MAX))]
    last: Option<u64>,

    /// Start at the first record of this time or later: RFC 3339, a date, milliseconds since 1970, or a span
    /// ago (90s, 15m, 2h, 7d).
    #[arg(long, value_name = "TIME", group = "start")]
    since: Option<String>,

    /// Wait for more records at the end of the log, until Ctrl-C (status 0).
    #[arg(short, long)]
    follow: bool,

    /// Stop after N records.
    #[arg(short = 'n', long, value_name = "N", value_parser = whole_number::<u64>("a number of records", 0..=u64::MAX))]
    limit: Option<u64>,

    /// Print only the number of records.
    #[arg(short, long, conflicts_with_all = ["follow", "format", "length_prefixed"])]
    count: bool,

    /// Print each record in this format, see below. No newline is added: end the format with \n.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,

    /// Print every sound record of a damaged log, even of one that does not open.
    ///
    /// Reads the files themselves and skips damaged parts. Each is reported on standard error (with --json as
    /// {"skipped": fault} or {"tail": tail}, see verify). Status 3 if anything but the tail was skipped.
    #[arg(long, conflicts_with_all = ["follow", "last"])]
    salvage: bool,

    /// Skip batches that cannot be unpacked.
    ///
    /// Such a batch is stored as it was appended: the program that appended it was wrong, and every replica
    /// has the same bytes. Without this option reading ends there. Each batch is reported on standard error
    /// (with --json as {"undecodable": text}); the status stays 0.
    #[arg(long)]
    skip_undecodable: bool,

    /// Print each record after its length, 32 bits little-endian, as `append --length-prefixed` reads it.
    #[arg(long, conflicts_with = "format")]
    length_prefixed: bool,

    /// For servers: read what the answering replicas have, without asking a majority whether there is more.
    #[arg(long, conflicts_with = "salvage")]
    stale: bool,

    #[command(flatten)]
    connect: Connect,
}

/// How often --follow checks whether it should end. New records wake it at once.
const STOP_CHECK: Duration = Duration::from_millis(250);

/// How records are printed.
enum Form<'a> {
    Raw,
    LengthPrefixed,
    Json,
    Custom(&'a Format),
    /// Records are counted, not printed.
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
            data_base64: text.is_none().then(|| data_encoding::BASE64.encode(record.data)),
        }
    }
}

impl Form<'_> {
    fn write(&self, out: &mut impl Write, record: &Record<'_>) -> Result<()> {
        let written = match self {
            Self::Raw => out.write_all(record.data).and_then(|()| out.write_all(b"\n")),
            Self::LengthPrefixed => {
                // A record is smaller than 4 GiB: the log's format has 32 bits for its length, too.
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
        return Err(Failure::usage(
            "--json is a format of its own: leave out --format and --length-prefixed",
        ));
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
        // The number is the result: it is printed even with --quiet.
        Ui { quiet: false, ..*ui }.result(&json!({ "count": count }), words)?;
    }
    Ok(exit)
}

/// Reads through a read-only view of the log, which a writer may extend meanwhile.
fn view(args: &Read, dir: &Path, start: Start, form: &Form<'_>, ui: &Ui) -> Result<u64> {
    let read_only = open_log::view(dir)?;
    let mut reader = read_only.reader(start)?;
    if let Some((first, last)) = stored_alone(&read_only, &reader, start) {
        note_stored(first, last, dir, ui);
    }
    let stop = stop_flag(args)?;
    let copied = copy(args, &mut reader, form, &stop, ui);
    // If the view met damage, that is why it ended.
    if let Some(error) = read_only.failure() {
        return Err(error.into());
    }
    let count = copied?;
    if !args.follow && args.limit.is_none_or(|limit| count < limit) {
        note(unproven_in(&read_only, dir), ui);
    }
    Ok(count)
}

/// The records that belong to what is asked for and are in an object store alone, so that `reader` begins after them.
fn stored_alone(read_only: &ReadOnlyLog, reader: &Reader, start: Start) -> Option<(Index, Index)> {
    left_out(read_only.in_object_store()?, reader.position(), start, read_only.last_index())
}

/// Of the records `first` to `last` that are in an object store alone, those that a reader from `start` leaves out which begins
/// at `position`. Files of a log that is written may have gone since then: their records are read nevertheless.
fn left_out(
    (first, last): (Index, Index),
    position: Index,
    start: Start,
    end: Index,
) -> Option<(Index, Index)> {
    if position <= first || position > last.next() {
        return None;
    }
    let last = last.min(Index(position.get() - 1));
    match start {
        // Which of them are as new as that is known in the store alone.
        Start::First | Start::Timestamp(_) => Some((first, last)),
        Start::Last(n) => {
            let wanted = Index(end.get().saturating_sub(n).saturating_add(1));
            (wanted <= last).then_some((wanted.max(first), last))
        }
        _ => None,
    }
}

/// Reports on standard error, also with --quiet, which records are missing in the output.
fn note_stored(first: Index, last: Index, dir: &Path, ui: &Ui) {
    let mut stderr = io::stderr().lock();
    // A closed standard error is no reason to fail.
    let _ = if ui.json {
        let stored = json!({ "in_object_store": { "first": first.get(), "last": last.get() } });
        writeln!(stderr, "{stored}")
    } else {
        let count = last.get().saturating_sub(first.get()).saturating_add(1);
        writeln!(
            stderr,
            "chiplog: {} not shown (index {first} to {last}): {} in an object store alone, and {} is read without one. `chiplog read HOST:PORT` of a server, or with --stale of a copy that runs with --listen, shows all; `chiplog tier fetch` and `chiplog restore` make a log of the objects",
            format::many(count, "record is", "records are"),
            if count == 1 { "it is" } else { "they are" },
            dir.display(),
        )
    };
}

/// The flag that Ctrl-C sets with --follow.
fn stop_flag(args: &Read) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    if args.follow {
        let stop = stop.clone();
        signals::on_stop(move || stop.store(true, Relaxed))?;
    }
    Ok(stop)
}

/// Reports on standard error that further records exist which are not shown.
fn note(records: u64, ui: &Ui) {
    if records == 0 || ui.quiet {
        return;
    }
    let mut stderr = io::stderr().lock();
    // A closed standard error is no reason to fail.
    let _ = if ui.json {
        writeln!(stderr, "{}", json!({ "unproven": records }))
    } else {
        writeln!(stderr, "chiplog: {}", unproven(records))
    };
}

/// A source of records.
trait Source {
    /// Passes the next record to `take`. Returns false at the end.
    fn next(&mut self, take: &mut dyn FnMut(&Record<'_>) -> Result<()>) -> Result<bool>;

    /// Skips the batch that the last step found undecodable.
    fn skip_batch(&mut self) -> Result<()>;

    /// Waits at the end for up to `time`. Returns true if there is more.
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

/// Whether the reader of the pipe behind standard output is gone. If nothing is written, no error reports
/// that.
fn output_is_gone() -> bool {
    let out = io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

/// Whether reading continues after this failure.
fn is_skipped(args: &Read, failure: &Failure) -> bool {
    args.skip_undecodable && failure.kind() == ErrorKind::Undecodable
}

/// Reports on standard error what is skipped.
fn say_skipped(failure: &Failure, ui: &Ui) {
    if ui.quiet {
        return;
    }
    let mut stderr = io::stderr().lock();
    // A closed standard error is no reason to fail.
    let _ = if ui.json {
        writeln!(stderr, "{}", json!({ "undecodable": failure.to_string() }))
    } else {
        writeln!(stderr, "chiplog: skipped: {failure}")
    };
}

/// Writes records until the end, the limit or a signal. Returns their number.
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
                // The records before the fault are sound: print them.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Files went between the beginning of the reader and the look at what is in the store alone: nothing was reported.
    #[test]
    fn records_in_a_store_alone_are_reported_while_files_go() {
        let index = |(first, last)| (Index(first), Index(last));
        let since = Start::Timestamp(chiplog::Timestamp(7));
        for (stored, position, start, told) in [
            ((1, 100), 101, Start::First, Some((1, 100))),
            ((1, 150), 101, Start::First, Some((1, 100))),
            ((1, 150), 101, since, Some((1, 100))),
            ((1, 150), 101, Start::Last(950), Some((51, 100))),
            ((80, 150), 101, Start::Last(950), Some((80, 100))),
            // It begins with a record of the files that is not the first one.
            ((1, 100), 102, since, None),
            ((1, 100), 102, Start::Last(899), None),
            ((1, 150), 101, Start::Last(900), None),
            // All of them are read.
            ((101, 150), 101, Start::First, None),
            ((1, 150), 101, Start::Index(Index(101)), None),
        ] {
            let found = left_out(index(stored), Index(position), start, Index(1000));
            assert_eq!(found, told.map(index), "{stored:?} {position} {start:?}");
        }
    }
}
