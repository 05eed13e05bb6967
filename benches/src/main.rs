//! `chiplog-bench`: see the library.

use clap::Parser;
use std::process::ExitCode;

/// Benchmarks of chiplog, each beside the raw limit of the machine it runs on.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(flatten)]
    bench: chiplog_bench::BenchArgs,
}

fn main() -> ExitCode {
    match chiplog_bench::run(Arguments::parse().bench, &[]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chiplog-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
