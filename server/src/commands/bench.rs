//! `chiplog bench`: the benchmarks of the `chiplog-bench` crate, from the command that everybody has.

use crate::exit::Exit;
use crate::failure::{Failure, Result};
use chiplog::ErrorKind;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  chiplog bench --quick                        a few seconds, to see that all works
  chiplog bench --dir /var/lib/chiplog-bench   on the disk that matters
  chiplog bench run append_threads --svg curve.svg --json";

/// Measure the log on this machine, each figure beside the raw limit measured in the same run.
///
/// Makes a directory of its own below --dir and removes it at the end. Figures never make it fail; only errors
/// do.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_long_help = EXAMPLES)]
pub(crate) struct Bench {
    #[command(flatten)]
    bench: chiplog_bench::BenchArgs,
}

pub(crate) fn run(args: Bench) -> Result<Exit> {
    chiplog_bench::run(args.bench, &["bench"]).map_err(|error| {
        let kind = error.downcast_ref::<chiplog::Error>().map_or(ErrorKind::Io, chiplog::Error::kind);
        Failure::new(kind, format!("{error:#}"))
    })?;
    Ok(Exit::Ok)
}
