//! `chiplog bench`: runs the benchmarks of the `chiplog-bench` crate from the installed command. For servers
//! it measures the throughput and latency of clients.

mod servers;

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::output::Ui;
use crate::connect::cluster::Connect;
use crate::connect::target::Target;
use chiplog::ErrorKind;
use clap::Args;

const HELP: &str = "\
Examples:
  chiplog bench --quick                        a few seconds, to see that it works
  chiplog bench --dir /var/lib/chiplog-bench   on the disk that matters
  chiplog bench run append_threads --svg curve.svg --json
  chiplog bench log1:7411,log2:7411 --yes      servers: append to their log, then read it
  chiplog bench log1:7411 --yes --appenders 1,64 --connections 1,8 --record-bytes 100,4KiB

JSON fields of servers:
  log_id, seconds (of each row)
  appends  each {\"appenders\", \"connections\", \"record_bytes\", \"records\", \"records_per_second\",
           \"bytes_per_second\", \"p50_micros\", \"p99_micros\", \"p999_micros\", \"max_micros\"}
  read     {\"records\", \"bytes\", \"seconds\", \"records_per_second\", \"bytes_per_second\"}";

/// Measure the log on this machine, each figure beside the raw limit measured in the same run; or measure
/// servers.
///
/// Makes a directory of its own below --dir and removes it at the end. The command fails only on errors,
/// whatever the figures are.
///
/// Servers, given as HOST:PORT: appenders share connections and append records of one size. Each appender
/// waits until its record is durable on a majority before it sends the next one. Then the log is read from
/// its first record. Each combination of --appenders, --connections and --record-bytes is a row.
///
/// THE RECORDS STAY IN THE LOG: it has to be empty, or --yes has to be given. For servers, --secs, --quick
/// and --json have their usual meaning; the other options are for directories.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_long_help = HELP)]
pub(crate) struct Bench {
    #[command(flatten)]
    bench: chiplog_bench::BenchArgs,

    #[command(flatten)]
    load: servers::Load,

    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: Bench, ui: &Ui) -> Result<Exit> {
    let failed = |error: anyhow::Error| {
        let kind = error.downcast_ref::<chiplog::Error>().map_or(ErrorKind::Io, chiplog::Error::kind);
        Failure::new(kind, format!("{error:#}"))
    };
    match args.bench.others().as_slice() {
        [] => {
            if let Some(option) = args.load.given() {
                return Err(Failure::usage(format!("{option} works only with servers: give HOST:PORT")));
            }
            chiplog_bench::run(args.bench, &["bench"]).map_err(failed)?;
        }
        [one] => match one.parse().map_err(Failure::usage)? {
            Target::Servers(list) => {
                let seconds = args.bench.seconds().map_err(|e| Failure::usage(e.to_string()))?;
                servers::run(&list, &args.load, seconds, args.bench.quick(), &args.connect, ui)?;
            }
            Target::Directory(_) => {
                return Err(Failure::usage(format!(
                    "{one} is neither a workload nor HOST:PORT: see `chiplog bench --help`"
                )));
            }
        },
        _ => return Err(Failure::usage("give the servers of one cluster, separated by commas")),
    }
    Ok(Exit::Ok)
}
