//! `chiplog bench`: the rate and the latency of durable appends, by many clients of servers or many threads with
//! a log of their own, then of a read.
//!
//! Each appender is a closed loop: it sends a record, waits until it is durable, and sends the next one. The
//! benchmarks of development, beside the limits of the machine, are the program `chiplog-bench`.
//!
//! Must not know: the machine's page cache, which it leaves as it is.

mod directory;
mod servers;

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::format;
use crate::common::number::whole_number;
use crate::common::output::Ui;
use crate::connect::cluster::Connect;
use crate::connect::target::Target;
use chiplog::ErrorKind;
use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HELP: &str = "\
Examples:
  chiplog bench /var/lib --quick               a few seconds, on the disk that matters
  chiplog bench log1:7411,log2:7411 --yes      servers: append to their log, then read it
  chiplog bench log1:7411 --yes --appenders 1,64 --connections 1,8 --record-bytes 100,4KiB

JSON fields:
  log_id of servers, or directory; seconds (of each row)
  appends  each {\"appenders\", \"connections\" of servers, \"record_bytes\", \"records\", \"records_per_second\",
           \"bytes_per_second\", \"p50_micros\", \"p99_micros\", \"p999_micros\", \"max_micros\"}
  read     {\"records\", \"bytes\", \"seconds\", \"records_per_second\", \"bytes_per_second\"}";

/// Measure what appenders of servers get, or threads with a log on this machine's disk.
///
/// Each appender waits until its record is durable before it sends the next one. Then the log is read from its
/// first record, or the first that it still has. Each combination of --appenders, --connections and
/// --record-bytes is a row. The command fails only on errors, whatever the figures are.
///
/// A directory has to exist. The log is made in a new directory below it, keeps its newest GiB, and is removed
/// at the end. `chiplog doctor` measures the disk alone.
///
/// Servers: the appenders share connections, and durable means on a majority. THE RECORDS STAY IN THE LOG: it
/// has to be empty, or --yes has to be given.
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct Bench {
    /// A directory, or servers as HOST:PORT[,HOST:PORT…]. With /LOG after the servers: their log of this name.
    #[arg(value_name = "DIR|HOST:PORT[/LOG]")]
    target: Target,

    /// Number of concurrent appenders. Default 1,16,128; with --quick 1,16.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = whole_number::<u32>("a number of appenders", 1..=100_000))]
    appenders: Vec<u32>,

    /// Number of connections to servers that the appenders share. Rows with more connections than appenders are
    /// skipped. Default 1,4; with --quick 1.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = whole_number::<u32>("a number of connections", 1..=1000))]
    connections: Vec<u32>,

    /// Size of the records. Default 1KiB.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = format::parse_bytes)]
    record_bytes: Vec<u64>,

    /// Seconds of each row, after a warm-up of a third of it; 0.01 to 600. Default 2; with --quick 0.3.
    #[arg(long, value_name = "S", value_parser = seconds)]
    secs: Option<f64>,

    /// Short measurements, fewer rows.
    #[arg(long)]
    quick: bool,

    /// Append to servers even if their log has records.
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    connect: Connect,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=600.0).contains(seconds));
    seconds.ok_or_else(|| "give 0.01 to 600 seconds".into())
}

/// A row to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Case {
    appenders: u32,
    /// None: a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u32>,
    record_bytes: u64,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    case: Case,
    records: u64,
    records_per_second: f64,
    bytes_per_second: f64,
    p50_micros: f64,
    p99_micros: f64,
    p999_micros: f64,
    max_micros: f64,
}

/// How much was read.
#[derive(Default, Serialize)]
struct Read {
    records: u64,
    bytes: u64,
    seconds: f64,
    records_per_second: f64,
    bytes_per_second: f64,
}

#[derive(Serialize)]
struct Measured {
    #[serde(skip_serializing_if = "Option::is_none")]
    log_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<PathBuf>,
    seconds: f64,
    appends: Vec<Row>,
    read: Read,
}

/// Longer than any append that returns.
const NANOS_MAX: u64 = 600_000_000_000;

/// Latencies in nanoseconds, to three digits.
type Latencies = Histogram<u64>;

/// When appends count, and when appenders end.
#[derive(Clone, Debug)]
struct Window {
    from: Instant,
    until: Instant,
    stopped: Arc<AtomicBool>,
}

impl Window {
    fn is_over(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || Instant::now() >= self.until
    }

    /// Records the latency of an append that is acknowledged now, outside the warm-up.
    fn note(&self, begun: Instant, latencies: &mut Latencies) {
        let now = Instant::now();
        if now >= self.from && now < self.until {
            latencies.saturating_record(now.duration_since(begun).as_nanos() as u64);
        }
    }
}

/// The load, as both sorts of targets carry it out.
struct Load {
    cases: Vec<Case>,
    time: Duration,
    /// Ctrl-C or SIGTERM arrived, and there is a directory to remove.
    stopped: Arc<AtomicBool>,
    /// No latencies.
    none: Latencies,
}

impl Load {
    fn new(args: &Bench) -> Result<Self> {
        let none = Latencies::new_with_max(NANOS_MAX, 3)
            .map_err(|e| Failure::new(ErrorKind::Io, format!("cannot count latencies: {e}")))?;
        let seconds = args.secs.unwrap_or(if args.quick { 0.3 } else { 2.0 });
        Ok(Self {
            cases: args.cases(),
            time: Duration::from_secs_f64(seconds),
            stopped: Arc::default(),
            none,
        })
    }

    fn window(&self) -> Window {
        let from = Instant::now() + self.time / 3;
        Window { from, until: from + self.time, stopped: Arc::clone(&self.stopped) }
    }

    fn row(&self, case: Case, latencies: &Latencies) -> Row {
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
        Row {
            case,
            records: latencies.len(),
            records_per_second: format::rate(latencies.len(), self.time),
            bytes_per_second: format::rate(latencies.len() * case.record_bytes, self.time),
            p50_micros: at(0.5),
            p99_micros: at(0.99),
            p999_micros: at(0.999),
            max_micros: latencies.max() as f64 / 1000.0,
        }
    }

    /// Whether a read that began then ends, although there is more.
    fn has_read_enough(&self, begun: Instant) -> bool {
        self.stopped.load(Ordering::Relaxed) || begun.elapsed() >= self.time
    }
}

impl Read {
    /// Counts records of these sizes.
    fn count(&mut self, sizes: impl Iterator<Item = usize>) {
        for size in sizes {
            self.records += 1;
            self.bytes += size as u64;
        }
    }

    fn after(self, time: Duration) -> Self {
        let (records, bytes) = (format::rate(self.records, time), format::rate(self.bytes, time));
        Self { seconds: time.as_secs_f64(), records_per_second: records, bytes_per_second: bytes, ..self }
    }
}

pub(crate) fn run(args: &Bench, ui: &Ui) -> Result<Exit> {
    let load = Load::new(args)?;
    let measured = match &args.target {
        Target::Servers(_) if load.cases.is_empty() => {
            return Err(Failure::usage("every row would have more connections than appenders"));
        }
        Target::Servers(servers) => servers::measure(servers, &load, args.yes, &args.connect, ui)?,
        Target::Directory(_) if args.yes || !args.connections.is_empty() => {
            return Err(Failure::usage("--connections and --yes work only with servers: give HOST:PORT"));
        }
        Target::Directory(dir) => directory::measure(dir, &load, ui)?,
    };
    if load.stopped.load(Ordering::Relaxed) {
        return Ok(Exit::Interrupted);
    }
    // The result is printed even with --quiet.
    Ui { quiet: false, ..*ui }.result(&measured, Measured::words)?;
    Ok(Exit::Ok)
}

impl Bench {
    /// All useful combinations of the options.
    fn cases(&self) -> Vec<Case> {
        fn or<T: Copy>(given: &[T], default: &[T]) -> Vec<T> {
            if given.is_empty() { default.to_vec() } else { given.to_vec() }
        }
        let appenders = or(&self.appenders, if self.quick { &[1, 16] } else { &[1, 16, 128] });
        let connections = match &self.target {
            Target::Directory(_) => vec![None],
            Target::Servers(_) => {
                let counts = or(&self.connections, if self.quick { &[1] } else { &[1, 4] });
                counts.into_iter().map(Some).collect()
            }
        };
        let mut cases = Vec::new();
        for record_bytes in or(&self.record_bytes, &[1024]) {
            for &connections in &connections {
                for &appenders in appenders.iter().filter(|n| connections.is_none_or(|least| **n >= least)) {
                    cases.push(Case { appenders, connections, record_bytes });
                }
            }
        }
        cases
    }
}

impl Case {
    /// Reports that this row is being measured.
    fn announce(&self, ui: &Ui) {
        if !ui.quiet {
            let appenders = format::many(self.appenders.into(), "appender", "appenders");
            let over = self.connections.map_or(String::new(), |n| {
                format!(" over {}", format::many(n.into(), "connection", "connections"))
            });
            eprintln!("{appenders}{over}, records of {}", format::bytes(self.record_bytes));
        }
    }
}

impl Measured {
    fn words(&self) -> String {
        let micros = |m: f64| format::duration(Duration::from_secs_f64(m / 1e6));
        let head =
            ["APPENDERS", "CONNECTIONS", "RECORD", "APPENDS/S", "BYTES/S", "P50", "P99", "P99.9", "MAX"];
        let mut rows = vec![head.map(str::to_owned)];
        for r in &self.appends {
            rows.push([
                r.case.appenders.to_string(),
                r.case.connections.map_or_else(|| "-".into(), |n| n.to_string()),
                format::bytes(r.case.record_bytes),
                format::per_second(r.records_per_second),
                format::bytes(r.bytes_per_second as u64),
                micros(r.p50_micros),
                micros(r.p99_micros),
                micros(r.p999_micros),
                micros(r.max_micros),
            ]);
        }
        let mut out = format::table(&rows);
        _ = writeln!(
            out,
            "read {} in {}: {} records/s, {}/s",
            format::many(self.read.records, "record", "records"),
            format::duration(Duration::from_secs_f64(self.read.seconds)),
            format::per_second(self.read.records_per_second),
            format::bytes(self.read.bytes_per_second as u64)
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    #[test]
    fn rows_are_all_useful_combinations() {
        let cases = |words: &str| Line::parse_from(words.split(' ')).bench.cases();
        let case = |appenders, connections| Case { appenders, connections, record_bytes: 10 };
        assert_eq!(
            cases("bench a:1 --appenders 1,8 --connections 1,2 --record-bytes 10"),
            [case(1, Some(1)), case(8, Some(1)), case(8, Some(2))]
        );
        assert_eq!(cases("bench . --appenders 3,4 --record-bytes 10"), [case(3, None), case(4, None)]);
        assert_eq!([cases("bench a:1 --quick").len(), cases("bench a:1").len()], [2, 5]);
        assert_eq!([cases("bench . --quick").len(), cases("bench .").len()], [2, 3]);
        assert!(seconds("0").is_err() && seconds("NaN").is_err() && seconds("0.5") == Ok(0.5));
    }
}
