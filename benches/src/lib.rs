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
//!       replicas.rs several of it in one cluster, and dragonboat, which they are compared with
//!     net/        the same over the network, with servers as processes of their own
//!   bar.rs report.rs plot.rs   tables, JSON, pictures
//!   measure.rs data.rs machine.rs   histograms, records, the machine and the directory
//! ```
//!
//! ```
//! use chiplog_bench::{Pool, raw};
//! let dir = tempfile::tempdir()?;
//! let mut file = raw::ZeroFilled::create(dir.path(), 1 << 20)?;
//! let syncs = raw::sync_loop(&mut file, &Pool::new(1), 2048, std::time::Duration::from_millis(10))?;
//! println!("an fdatasync of 2 KiB takes {} us here", syncs.latencies.summary().p50);
//! # assert!(syncs.per_second > 0.0);
//! # Ok::<(), anyhow::Error>(())
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
mod measure;
mod net;
mod plot;
pub mod raw;
mod reads;
mod replicas;
mod report;
mod run;
mod workload;

pub use cli::{BenchArgs, run};
pub use data::Pool;
pub use machine::Machine;
pub use measure::{Latencies, Percentiles};
