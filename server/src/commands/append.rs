//! `chiplog append`: records from standard input or a file, durably, and where they went.
//!
//! ```text
//! input thread: bytes -> records -> batches --(bounded channel)--> N worker threads: submit, wait -> tally
//! ```
//!
//! A batch is handed on when it is full, and before the input would have to be waited for: `tail -f | chiplog
//! append` confirms each line as it comes, a file goes in batches.

mod input;
mod pump;
mod remote;

use crate::cluster::Connect;
use crate::engine::{self, CodecName, WriteOptions};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::human;
use crate::remote::Remote;
use crate::target::Target;
use crate::ui::Ui;
use chiplog::{BATCH_RECORDS_MAX, ErrorKind};
use clap::Args;
use input::{Framing, Input};
use pump::{Local, Plan, Sink, Tally};
use remote::Servers;
use serde::Serialize;
use serde_json::to_value;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  chiplog append ./log < app.log
      Every line becomes a record, without its newline. Makes the log if there is none.
  tail -F /var/log/syslog | chiplog append ./log
      Each line is durable as soon as it comes.
  chiplog append ./log --lines data.csv --codec zstd --batch 10000
      Large compressed batches: small on disk, read back one by one all the same.
  producer | chiplog append ./log --length-prefixed
      Binary records, each after its length (32 bits, little-endian).
  chiplog append log1:7411,log2:7411 --lines app.log
      To a cluster, over the network: each record once, whatever fails on the way.
  chiplog append ./log --lines data.csv --json | jq .last
      The index of the last record, for a script.";

/// Append records: one a line, or length-prefixed; report where they went.
///
/// Ends when the input does. All records are durable then, and the indexes of the first and the last are
/// printed. If it fails before, the message says how many records are durable and under which indexes.
///
/// With one thread the records stand in the log in the order of the input. With more, those of one batch stay
/// together and in order; batches come in any order.
///
/// To servers each thread has a connection and a session: what is sent again after a failure is in the log once, and
/// the order stays. A command that is given again appends again. Status 5: no leader was found, nothing was appended;
/// status 6: the servers went silent, and what is not reported as durable may be in the log or not.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Append {
    /// The log's directory, or servers of a cluster; one is enough.
    #[arg(value_name = "DIR|HOST:PORT", env = "CHIPLOG_SERVERS")]
    target: Target,

    /// Read lines from FILE instead of standard input ("-").
    #[arg(long, value_name = "FILE", conflicts_with = "length_prefixed")]
    lines: Option<PathBuf>,

    /// Read records that each follow their length, 32 bits little-endian, from standard input or FILE.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    length_prefixed: Option<PathBuf>,

    /// Append from so many threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=512))]
    threads: u16,

    /// Put up to N records into a batch: it becomes durable as a whole and is compressed as a whole.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(BATCH_RECORDS_MAX)))]
    batch: u32,

    /// Let each thread have up to N batches under way before it waits for the first one.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: u16,

    /// Compress the batches.
    #[arg(long, value_enum, default_value_t = CodecName::None)]
    codec: CodecName,

    #[command(flatten)]
    log: WriteOptions,

    #[command(flatten)]
    connect: Connect,
}

/// What was appended: the JSON of a success, and the detail `durable` of a failure.
#[derive(Serialize)]
struct Summary {
    records: u64,
    bytes: u64,
    batches: u64,
    /// None when nothing was appended.
    first: Option<u64>,
    last: Option<u64>,
    seconds: f64,
    records_per_second: f64,
    bytes_per_second: f64,
}

impl Summary {
    fn new(tally: &Tally, started: Instant) -> Self {
        let time = started.elapsed();
        let ranges = tally.ranges();
        Self {
            records: tally.records(),
            bytes: tally.bytes(),
            batches: tally.batches(),
            first: ranges.first().map(|r| r.0),
            last: ranges.last().map(|r| r.1),
            seconds: time.as_secs_f64(),
            records_per_second: human::rate(tally.records(), time),
            bytes_per_second: human::rate(tally.bytes(), time),
        }
    }

    fn words(&self) -> String {
        let (Some(first), Some(last)) = (self.first, self.last) else {
            return "nothing to append: the input was empty".into();
        };
        format!(
            "appended {} ({}), index {} to {}, in {}: {} records/s, {}/s",
            human::many(self.records, "record", "records"),
            human::bytes(self.bytes),
            first,
            last,
            human::duration(std::time::Duration::from_secs_f64(self.seconds)),
            human::per_second(self.records_per_second),
            human::bytes(self.bytes_per_second as u64),
        )
    }
}

pub(crate) fn run(args: &Append, ui: &Ui) -> Result<Exit> {
    let (path, framing) = match (&args.length_prefixed, &args.lines) {
        (Some(path), _) => (Some(path), Framing::LengthPrefixed),
        (None, path) => (path.as_ref(), Framing::Lines),
    };
    let options = args.log.options();
    // The input first: a wrong file name makes no log.
    let input = Input::open(path.map(PathBuf::as_path), framing, options.record_bytes_max)?;
    let mut plan = Plan {
        threads: args.threads.into(),
        in_flight: args.in_flight.into(),
        batch_records: args.batch,
        batch_bytes: options.batch_bytes_max.min(options.block_bytes_max) as usize,
        codec: args.codec.into(),
    };
    let mut log = None;
    let sink: Arc<dyn Sink> = match &args.target {
        Target::Directory(dir) => {
            let opened = engine::open(dir, options)?;
            log = Some(opened.clone());
            Arc::new(Local { log: opened, in_flight: plan.in_flight })
        }
        Target::Servers(servers) => {
            if let Some(option) = args.log.given() {
                return Err(Failure::usage(format!("{option} is for directories: servers have their own")));
            }
            let servers = Servers::new(Remote::connect(servers, &args.connect)?, &plan);
            plan.codec = chiplog::Codec::None; // the producers compress
            Arc::new(servers)
        }
    };
    let progress = ui.progress(input.bytes_total(), "appending");
    let started = Instant::now();
    let (tally, ended) = pump::run(sink, input, plan, &progress)?;
    progress.finish_and_clear();
    let closed = log.map_or(Ok(()), |log| log.close().map_err(Failure::from));
    let summary = Summary::new(&tally, started);
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

/// What is sure, in words, when not all was appended.
fn durable(tally: &Tally) -> String {
    let ranges = tally.ranges();
    if ranges.is_empty() {
        return "no record was confirmed".into();
    }
    let spans: Vec<String> = ranges.iter().take(5).map(|(a, b)| format!("{a} to {b}")).collect();
    let more = if ranges.len() > spans.len() { " and further ones" } else { "" };
    let records = human::many(tally.records(), "record is", "records are");
    format!("{records} durable, index {}{more}", spans.join(", "))
}

/// The batch that cannot be taken, as an error of the input.
fn too_large(name: &str, record: u64, bytes: u64, max: u32) -> Failure {
    let why = format!("record {record} of {name} has {bytes} bytes; a record has at most {max}");
    Failure::new(ErrorKind::TooLarge, why)
}
