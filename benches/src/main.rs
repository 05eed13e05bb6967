//! Benchmarks of chiplog. Every figure is compared with the raw limit of the machine, measured in the same run and in
//! the same directory, alternating with it: a figure alone says how fast the machine is.
//!
//! ```text
//! cli.rs        arguments, progress, output
//!   bars.rs     the ratios chiplog must reach        run.rs   the workloads a user may want to see
//!     cases.rs  chiplog and its limit, alternating   reads.rs the same for reading, opening, idleness
//!       workload.rs closed loop, pipeline, open loop
//!       bare.rs     the bare reference loop
//!       raw.rs      what the machine itself does
//!       engine.rs   chiplog as it is used here
//!       many.rs     many named logs beside one
//!       replicas.rs several of it in one cluster, and dragonboat, which they are compared with
//!     net/        the same over the network, with servers as processes of their own
//!   bar.rs report.rs   tables, and JSON, of which tools/plot.py makes pictures
//!   measure.rs data.rs machine.rs   histograms, records, the machine and the directory
//! ```
//!
//! Modules use only those below them. Absent on purpose: timings that fail a test.

mod bar;
mod bare;
mod bars;
mod cases;
mod checks;
mod cli;
mod data;
mod engine;
mod machine;
mod many;
mod many_replicas;
mod measure;
mod net;
mod raw;
mod reads;
mod replicas;
mod report;
mod run;
mod tier;
mod tier_learner;
mod tier_object;
mod workload;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run(cli::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chiplog-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
