//! `chiplog append`: appends records from standard input or a file durably, and reports their indexes.
//!
//! ```text
//! input thread: bytes -> records -> batches --(bounded channel)--> N worker threads: submit, wait -> tally
//! ```
//!
//! The input thread passes a batch on when it is full, and also before it would have to wait for input: `tail
//! -f | chiplog append` confirms each line at once, while a file is appended in large batches.

mod input;
mod journal;
mod pump;
mod remote;
mod resume;
mod stall;
pub(crate) mod together;

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::number::whole_number;
use crate::common::output::Ui;
use crate::connect::cluster::Connect;
use crate::connect::directory;
use crate::connect::open_log;
use crate::connect::open_log::{CodecName, WriteOptions};
use crate::connect::remote::Remote;
use crate::connect::target::Target;
use chiplog::limits::BATCH_RECORDS_MAX;
use chiplog::{Durability, ErrorKind};
use clap::Args;
use input::{Framing, Input};
use journal::{Journal, Sum};
use pump::{Local, Plan, Sink, Tally};
use remote::Servers;
use resume::{Resuming, other_input};
use serde::Serialize;
use serde_json::to_value;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  chiplog append ./log < app.log
      Each line becomes a record, without its newline. Makes the log if there is none. A directory
      written without a slash, as `log`, has to exist, because it can also be a server's name.
  tail -F /var/log/syslog | chiplog append ./log
      Each line becomes durable as soon as it arrives.
  chiplog append ./log --lines data.csv --codec zstd --batch 10000
      Large compressed batches: small on disk, and still read record by record.
  producer | chiplog append ./log --length-prefixed
      Binary records, each after its length (32 bits, little-endian).
  chiplog append log1:7411,log2:7411 --lines app.log
      To a cluster, over the network: each record once, whatever fails on the way.
  until chiplog append log1:7411 --lines app.log --session-file app.session; do sleep 1; done
      The same, with each record once even if this machine fails: the command continues where it
      stopped.
  chiplog append ./log --lines data.csv --json | jq .last
      The index of the last record, for a script. `durability` says where the records are: majority,
      majority+slices or object.";

/// Append records: one a line, or length-prefixed; report where they went.
///
/// Ends with the input. All records are durable then, and the first and last index are printed. If the
/// command fails earlier, the message says how many records are durable, and their indexes.
///
/// With one thread the records keep the order of the input, and after a failure the log has a beginning of it, without a gap. With several threads, the records of a batch stay
/// together and in order, but batches can come in any order.
///
/// Servers: each thread has a connection and a session, so a record that is sent again after a failure is in
/// the log once and in order. If the servers confirm nothing for 3 s, the command reports why, and how long it waits: up
/// to a minute, or 5 s if the log is full. Status 5: no leader was found, or the log or its disk is full. Earlier records
/// may be durable then: the message says how many, and no other record is in the log. Status 6: the servers
/// stopped answering; what is not reported as durable may or may not be in the log. After both, running the command again
/// appends the input again from its beginning, unless it has a session file.
///
/// With --session-file the command can be run again with the same input and the same file: after it was
/// killed, after status 5 or 6, or when the input has grown. If the log is full and an earlier run was killed or ended with
/// status 6, the status is 6 again: what that run has sent may be in the log. The command continues with the first record that is not
/// in the log, and each record is in the log once. The input is read from its beginning; a checksum verifies
/// that it is the same. Each batch needs a sync of the file before it is sent, so large batches are faster.
/// Unconfirmed records have to be sent again before their session expires: log.session_idle_max_seconds of
/// the servers (a day).
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Append {
    /// The log's directory, or servers of a cluster: one that runs is enough; A,B,C are tried in turn. With
    /// /LOG after the servers: their log of this name (`chiplog logs`).
    #[arg(value_name = "DIR|HOST:PORT[/LOG]", env = "CHIPLOG_SERVERS")]
    target: Target,

    /// Read lines from FILE instead of standard input ("-").
    #[arg(long, value_name = "FILE", conflicts_with = "length_prefixed")]
    lines: Option<PathBuf>,

    /// Read length-prefixed records (32 bits, little-endian) from standard input or FILE.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    length_prefixed: Option<PathBuf>,

    /// For servers: record in this file what was sent and confirmed, so that the same command can be run
    /// again and appends each record once. The file is created if missing. Not with several --threads.
    #[arg(long, value_name = "FILE")]
    session_file: Option<PathBuf>,

    /// The number of threads that append.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole_number::<u16>("a number of threads", 1..=512))]
    threads: u16,

    /// Put up to N records into a batch. A batch becomes durable and is compressed as a whole.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole_number::<u32>("a number of records", 1..=BATCH_RECORDS_MAX.into()))]
    batch: u32,

    /// The number of batches that each thread may have in flight.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole_number::<u16>("a number of batches", 1..=4096))]
    in_flight: u16,

    /// Compress the batches.
    #[arg(long, value_enum, default_value_t = CodecName::None)]
    codec: CodecName,

    #[command(flatten)]
    log: WriteOptions,

    #[command(flatten)]
    connect: Connect,
}

/// The result: the JSON of a success, and the detail `durable` of a failure.
#[derive(Serialize)]
struct Summary {
    records: u64,
    bytes: u64,
    batches: u64,
    /// None if nothing was appended.
    first: Option<u64>,
    last: Option<u64>,
    /// How durable all records were when they were confirmed: `majority`, `majority+slices` or `object`; the weakest. None:
    /// nothing was appended, or servers of an earlier version do not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<&'static str>,
    seconds: f64,
    records_per_second: f64,
    bytes_per_second: f64,
    /// With a session file: the number of records of the input that were in the log before this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<u64>,
    /// Records of these whose indexes the servers no longer know: an earlier run sent them, and they were not confirmed then.
    #[serde(skip_serializing_if = "is_zero")]
    without_index: u64,
    /// It ended before its input did.
    #[serde(skip)]
    is_interrupted: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Summary {
    fn new(tally: &Tally, started: Instant, skipped: Option<u64>) -> Self {
        let time = started.elapsed();
        let ranges = tally.ranges();
        Self {
            records: tally.records(),
            bytes: tally.bytes(),
            batches: tally.batches(),
            first: ranges.first().map(|r| r.0),
            last: ranges.last().map(|r| r.1),
            durability: tally.durability().map(Durability::name),
            seconds: time.as_secs_f64(),
            records_per_second: format::rate(tally.records(), time),
            bytes_per_second: format::rate(tally.bytes(), time),
            skipped,
            without_index: tally.forgotten(),
            is_interrupted: false,
        }
    }

    fn words(&self) -> String {
        let before = self.skipped.filter(|n| *n > 0).map(|n| {
            let were = if n == 1 { "was" } else { "were" };
            format!("{} of the input {were} in the log before", format::many(n, "record", "records"))
        });
        let forgotten = (self.without_index > 0).then(|| self.forgotten());
        let (Some(first), Some(last)) = (self.first, self.last) else {
            if let Some(forgotten) = forgotten {
                return before.map_or(forgotten.clone(), |before| format!("{forgotten}; {before}"));
            }
            let why =
                if self.is_interrupted { "interrupted, nothing was appended" } else { "nothing to append" };
            return match before {
                Some(before) => format!("{why}: {before}"),
                None if self.is_interrupted => why.into(),
                None => format!("{why}: the input was empty"),
            };
        };
        let more: String =
            [forgotten, before].into_iter().flatten().map(|more| format!("; {more}")).collect();
        format!(
            "appended {} ({}), index {} to {}, in {}: {} records/s, {}/s{more}",
            format::many(self.records, "record", "records"),
            format::bytes(self.bytes),
            first,
            last,
            format::duration(std::time::Duration::from_secs_f64(self.seconds)),
            format::per_second(self.records_per_second),
            format::bytes(self.bytes_per_second as u64),
        )
    }

    fn forgotten(&self) -> String {
        let records = format::many(self.without_index, "record is", "records are");
        format!("{records} in the log since an earlier run, at indexes that are no longer known")
    }
}

pub(crate) fn run(args: &Append, ui: &Ui) -> Result<Exit> {
    let (path, framing) = match (&args.length_prefixed, &args.lines) {
        (Some(path), _) => (Some(path), Framing::LengthPrefixed),
        (None, path) => (path.as_ref(), Framing::Lines),
    };
    let options = args.log.options();
    // Open the input first: a wrong file name must not create a log.
    let mut input = Input::open(path.map(PathBuf::as_path), framing, options.record_bytes_max)?;
    let mut plan = Plan {
        threads: args.threads.into(),
        in_flight: args.in_flight.into(),
        batch_records: args.batch,
        batch_bytes: options.batch_bytes_max.min(options.block_bytes_max) as usize,
        codec: args.codec.into(),
        cuts: VecDeque::new(),
    };
    let (mut log, mut skipped) = (None, None);
    let sink: Arc<dyn Sink> = match &args.target {
        Target::Directory(_) if args.session_file.is_some() => {
            return Err(Failure::usage("--session-file works only with servers"));
        }
        Target::Directory(dir) => {
            if !args.log.creates() {
                args.target.check_new()?;
            }
            let is_new = !directory::is_log(dir);
            if is_new {
                directory::check_not_within(dir)?;
            }
            let opened = open_log::open(dir, options)?;
            if is_new {
                ui.say(&format!("made a new log in the directory {}", dir.display()));
            }
            log = Some(opened.clone());
            Arc::new(Local { log: opened, in_flight: plan.in_flight })
        }
        Target::Servers(servers) => {
            if let Some(option) = args.log.given() {
                return Err(Failure::usage(format!(
                    "{option} works only with directories: servers have their own options"
                )));
            }
            let remote = Remote::connect(servers, &args.connect, ui)?;
            let sink: Arc<dyn Sink> = match &args.session_file {
                None => Arc::new(Servers::new(remote, &plan)),
                Some(_) if args.threads > 1 => {
                    return Err(Failure::usage("--session-file works with one thread: leave out --threads"));
                }
                Some(path) => {
                    let journal = Journal::open(path)?;
                    let sum = skip(&mut input, &journal)?;
                    skipped = Some(sum.records);
                    Arc::new(Resuming::new(remote, journal, sum, &mut plan)?)
                }
            };
            plan.codec = chiplog::Codec::None; // the producers compress
            sink
        }
    };
    let progress = ui.progress(input.bytes_total(), "appending");
    let started = Instant::now();
    let (tally, ended) = pump::run(sink, input, plan, &progress)?;
    progress.finish_and_clear();
    let closed = log.map_or(Ok(()), |log| log.close().map_err(Failure::from));
    let mut summary = Summary::new(&tally, started, skipped);
    summary.is_interrupted = matches!(ended, Ok(Exit::Interrupted));
    match ended.and_then(|ended| closed.map(|()| ended)) {
        Ok(exit) => {
            ui.result(&summary, Summary::words)?;
            Ok(exit)
        }
        Err(failure) => {
            let value = to_value(&summary).unwrap_or_default();
            Err(failure.with_detail(&durable(&tally), "durable", value))
        }
    }
}

/// Reads the records that are in the log already, and computes their checksum.
fn skip(input: &mut Input, journal: &Journal) -> Result<Sum> {
    let (mut sum, mut record) = (Sum::new(), Vec::new());
    while sum.records < journal.done() {
        if !input.next(&mut record)? {
            return Err(other_input(journal.done()));
        }
        sum.add(&record);
    }
    Ok(sum)
}

/// Says what is durable when not everything was appended.
fn durable(tally: &Tally) -> String {
    let ranges = tally.ranges();
    let records = format::many(tally.records(), "record is", "records are");
    if ranges.is_empty() {
        return match tally.forgotten() {
            0 => "no record was confirmed".into(),
            _ => format!("{records} durable, at indexes that are no longer known"),
        };
    }
    let spans: Vec<String> = ranges.iter().take(5).map(|(a, b)| format!("{a} to {b}")).collect();
    let more = if ranges.len() > spans.len() || tally.forgotten() > 0 { " and more" } else { "" };
    format!("{records} durable, index {}{more}", spans.join(", "))
}

/// The error of a record that is too large.
fn too_large(name: &str, record: u64, bytes: u64, max: u32) -> Failure {
    let why = format!("record {record} of {name} has {bytes} bytes; the limit is {max}");
    Failure::new(ErrorKind::TooLarge, why)
}
