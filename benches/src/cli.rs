//! The command line.
//!
//! Results are written to standard output, progress to standard error. No result of a measurement makes the process
//! fail; only errors do.

use crate::bar::Bars;
use crate::bars;
use crate::cases::Bench;
use crate::data::Pool;
use crate::machine::{Machine, WorkDir, free_bytes, is_memory};
use crate::net::load::Streams;
use crate::net::{appends, bare, process};
use crate::reads::probe;
use crate::report::Report;
use crate::run::{self, Sizes, Workload};
use crate::workload::Window;
use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

/// Benchmarks of chiplog, each beside the raw limit of the machine it runs on.
#[derive(Debug, Parser)]
#[command(version = version(), args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    /// `run` by default.
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    common: Common,
    /// Workloads to run; all if none is named
    #[arg(value_enum)]
    workloads: Vec<Workload>,
}

/// The version, followed by the commit if the build was given one as CHIPLOG_COMMIT, as `make bench` does.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("CHIPLOG_COMMIT").filter(|commit| !commit.is_empty());
        let commit = commit.map_or_else(String::new, |commit| format!(" ({commit})"));
        env!("CARGO_PKG_VERSION").to_owned() + &commit
    });
    &VERSION
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Measure workloads, each beside its raw limit
    Run {
        #[command(flatten)]
        common: Common,
        /// Workloads to run; all if none is named
        #[arg(value_enum)]
        workloads: Vec<Workload>,
    },
    /// Measure the bars and print `NAME figure limit ratio bar met|short`
    Bars {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        net: NetOptions,
        /// Bars to measure; all if none is named
        #[arg(value_enum)]
        names: Vec<bars::Name>,
    },
    /// Open a log and report how long it took and how much memory it cost
    #[command(hide = true)]
    Probe {
        /// The log's directory
        dir: PathBuf,
        /// Read all of it
        #[arg(long)]
        scan: bool,
    },
    /// Become another program, which ends with the calling one
    #[command(hide = true)]
    Bound {
        /// The program and its arguments
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
    /// Serve messages of 1 MiB over gRPC
    #[command(hide = true)]
    BareMessages {
        /// The address to listen at
        address: String,
    },
}

#[derive(Clone, Debug, Args)]
struct Common {
    /// Directory for the logs and files to measure with; the run makes a directory of its own in it and removes it
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    dir: PathBuf,
    /// Seconds of each measurement; the warm-up before it takes a third of that
    #[arg(long, value_name = "S")]
    secs: Option<f64>,
    /// Rounds, which alternate between chiplog and its limit; medians are shown
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Short measurements, one round, small logs: checks that everything works, not how fast
    #[arg(long)]
    quick: bool,
    /// Thread counts of `append_threads`
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = run::THREADS)]
    threads: Vec<usize>,
    /// Megabytes of the log that is scanned
    #[arg(long, value_name = "MIB")]
    scan_mib: Option<u64>,
    /// Megabytes of the log that is opened
    #[arg(long, value_name = "MIB")]
    open_mib: Option<u64>,
    /// Two directories, each on a disk of its own (of `many_disks`); a directory `many-groups` in them is removed
    #[arg(long, value_name = "DIR,DIR", value_delimiter = ',')]
    disks: Vec<PathBuf>,
    /// Directory for the object store of `tier_append` and `tier_object`, on a disk of its own or in memory; default: in `--dir`
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Milliseconds that a PUT to the object store takes, at least (of `tier_object`)
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(..=10_000))]
    put_millis: u64,
    /// Results as JSON
    #[arg(long)]
    json: bool,
    /// Also write the JSON to this file
    #[arg(long, value_name = "FILE")]
    json_file: Option<PathBuf>,
}

/// Options for bars of the network only.
#[derive(Clone, Debug, Args)]
struct NetOptions {
    /// Numbers of connections of the network's append bars
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = appends::CONNECTIONS)]
    connections: Vec<usize>,
    /// There, all appenders of a connection share one append stream; by default each has its own
    #[arg(long)]
    shared_streams: bool,
    /// Seconds of the overload (of `net_overload`)
    #[arg(long, value_name = "S")]
    overload_secs: Option<f64>,
}

impl Common {
    fn seconds(&self) -> f64 {
        self.secs.unwrap_or(if self.quick { 0.3 } else { 2.0 })
    }

    fn checked_seconds(&self) -> Result<f64> {
        let seconds = self.seconds();
        ensure!((0.01..=600.0).contains(&seconds), "--secs is {seconds}; it must be from 0.01 to 600");
        Ok(seconds)
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 5 }).max(1)
    }

    /// `net`: None if nothing of the network is measured.
    fn sizes(&self, net: Option<&NetOptions>) -> Sizes {
        let overload = net.and_then(|net| net.overload_secs).unwrap_or(if self.quick { 2.0 } else { 30.0 });
        let (scan, open, idle) = if self.quick { (128, 512, 2) } else { (2048, 16 << 10, 5) };
        Sizes {
            threads: self.threads.clone(),
            connections: net.map_or_else(|| appends::CONNECTIONS.to_vec(), |net| net.connections.clone()),
            streams: if net.is_some_and(|net| net.shared_streams) { Streams::Shared } else { Streams::Own },
            logs: if self.quick { 200 } else { 10_000 },
            disks: self.disks.clone(),
            scan_bytes: self.scan_mib.unwrap_or(scan) << 20,
            open_bytes: self.open_mib.unwrap_or(open) << 20,
            idle: Duration::from_secs(idle),
            overload: Duration::from_secs_f64(overload),
            put: Duration::from_millis(self.put_millis),
        }
    }

    /// `store`: where the object store is, if it is not in `dir`.
    fn bench(&self, dir: &WorkDir, store: Option<&WorkDir>) -> Result<Bench> {
        let seconds = self.checked_seconds()?;
        // The opened log, the files prepared ahead of it, and the same again as a margin.
        let sizes = self.sizes(None);
        let need = sizes.open_bytes.max(sizes.scan_bytes) + if self.quick { 1 << 30 } else { 4 << 30 };
        let free = free_bytes(dir.path())?;
        let (need, free) = (need >> 20, free >> 20);
        ensure!(free >= need, "{} has {free} MiB free; {need} are needed", self.dir.display());
        if is_memory(dir.path())? {
            eprintln!(
                "note: {} is in memory: a sync costs nothing there, and no ratio is meaningful",
                self.dir.display()
            );
        }
        let disks = self.disks.len();
        ensure!(disks == 0 || disks == 2, "--disks names {disks} directories; it must name two");
        let measured = Duration::from_secs_f64(seconds);
        let window = Window { warm_up: measured / 3, measured };
        let raw_bytes = if self.quick { 16 << 20 } else { 256 << 20 };
        Ok(Bench {
            dir: dir.path().to_owned(),
            store: store.map(|store| store.path().to_owned()),
            pool: Pool::new(1),
            window,
            rounds: self.rounds(),
            raw_bytes,
            own: process::Own::new()?,
        })
    }

    /// Prints and stores a result.
    fn put(&self, table: &str, json: &impl serde::Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(json)?;
        if let Some(path) = &self.json_file {
            fs::write(path, format!("{text}\n")).with_context(|| format!("writing {}", path.display()))?;
        }
        if self.json {
            println!("{text}");
        } else {
            print!("{table}");
        }
        Ok(())
    }
}

/// Runs the command.
///
/// # Errors
/// Those of the file system and of the log, and options out of bounds.
pub(crate) fn run(args: Arguments) -> Result<()> {
    match args.command {
        None => run_workloads(&args.common, &args.workloads),
        Some(Command::Run { common, workloads }) => run_workloads(&common, &workloads),
        Some(Command::Bars { common, net, names }) => run_bars(&common, &net, &names),
        Some(Command::Probe { dir, scan }) => {
            println!("{}", serde_json::to_string(&probe(&dir, scan)?)?);
            Ok(())
        }
        Some(Command::Bound { command }) => process::become_bound(&command),
        Some(Command::BareMessages { address }) => bare::serve(&address),
    }
}

/// All of an enum's values if none was chosen.
fn chosen<T: ValueEnum>(some: &[T]) -> Vec<T> {
    if some.is_empty() { T::value_variants().to_vec() } else { some.to_vec() }
}

fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

fn run_workloads(common: &Common, workloads: &[Workload]) -> Result<()> {
    let dir = WorkDir::create(&common.dir)?;
    let bench = common.bench(&dir, None)?;
    let machine = Machine::look(dir.path())?;
    let mut report = Report { machine, seconds: common.seconds(), rounds: bench.rounds, rows: Vec::new() };
    for which in chosen(workloads) {
        eprintln!("{}", name(&which));
        let rows = run::measure(&bench, &common.sizes(None), which);
        report.rows.extend(rows.with_context(|| name(&which))?);
    }
    common.put(&report.table(), &report)
}

fn run_bars(common: &Common, net: &NetOptions, names: &[bars::Name]) -> Result<()> {
    let dir = WorkDir::create(&common.dir)?;
    let store = common.store.as_deref().map(WorkDir::create).transpose()?;
    let bench = common.bench(&dir, store.as_ref())?;
    let machine = Machine::look(dir.path())?;
    let mut all = Bars { machine, seconds: common.seconds(), rounds: bench.rounds, bars: Vec::new() };
    for which in chosen(names) {
        eprintln!("{}", name(&which));
        let bars = bars::measure(&bench, &common.sizes(Some(net)), which);
        all.bars.extend(bars.with_context(|| name(&which))?);
    }
    common.put(&all.table(), &all)
}
