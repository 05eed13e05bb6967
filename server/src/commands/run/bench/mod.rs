//! `chiplog bench`: the benchmarks of the `chiplog-bench` crate, from the command that everybody has; of servers, what
//! clients get from them.

mod servers;

use crate::common::exit::Exit;
use crate::common::failure::{Failure, Result};
use crate::common::output::Ui;
use crate::connect::cluster::Connect;
use crate::connect::target::Target;
use chiplog::ErrorKind;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  chiplog bench --quick                        a few seconds, to see that all works
  chiplog bench --dir /var/lib/chiplog-bench   on the disk that matters
  chiplog bench run append_threads --svg curve.svg --json
  chiplog bench log1:7411,log2:7411 --yes      servers: appends into their log, and reads it
  chiplog bench log1:7411 --yes --appenders 1,64 --connections 1,8 --record-bytes 100,4KiB";

/// Measure the log on this machine, each figure beside the raw limit measured in the same run; or servers.
///
/// Makes a directory of its own below --dir and removes it at the end. Figures never make it fail; only errors
/// do.
///
/// Of servers, given as HOST:PORT: so many appenders, on so many connections, append records of a size, each one record
/// after the other, and wait until it is durable at a majority; then the log is read from its first record on. Every
/// combination of --appenders, --connections and --record-bytes is a row. THE RECORDS STAY IN THE LOG: it has to be empty,
/// or --yes to be said. --secs, --quick and --json mean the same as ever; the other options are for directories.
///
/// Fields of --json of servers: log_id, seconds (of each row), appends (each {"appenders", "connections", "record_bytes",
/// "records", "records_per_second", "bytes_per_second", "p50_micros", "p99_micros", "p999_micros", "max_micros"}), read
/// ({"records", "bytes", "seconds", "records_per_second", "bytes_per_second"}).
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_long_help = EXAMPLES)]
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
                return Err(Failure::usage(format!("{option} is for servers: give HOST:PORT")));
            }
            chiplog_bench::run(args.bench, &["bench"]).map_err(failed)?;
        }
        [one] => match one.parse().map_err(Failure::usage)? {
            Target::Servers(list) => {
                let seconds = args.bench.seconds().map_err(|e| Failure::usage(e.to_string()))?;
                servers::run(&list, &args.load, seconds, args.bench.quick(), &args.connect, ui)?;
            }
            Target::Directory(_) => {
                return Err(Failure::usage(format!("{one} is neither a workload nor HOST:PORT")));
            }
        },
        _ => return Err(Failure::usage("give the servers of one cluster, with commas between them")),
    }
    Ok(Exit::Ok)
}
