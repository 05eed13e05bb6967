//! Simulated clusters: whole replicas, real except for their threads, over simulated disks, networks and clocks, in
//! virtual time. A run is a function of its seed: the same seed finds the same violation again.
//!
//! ```
//! let report = chiplog::sim::run(7);
//! assert!(report.violation.is_none(), "{}", report.violation.unwrap());
//! println!("{} appends in {:?} of virtual time", report.acknowledged, report.simulated);
//! ```
//!
//! The simulated code is the shipped code: the same nodes and the same driver that `Log` runs with threads and a real
//! disk run here step by step. The seed decides which thread runs next, and when a sync ends. The files around them:
//!
//! | file | what it is |
//! |---|---|
//! | `clock` | virtual time; events and their times |
//! | `network`, `outbox` | loss, replay, reordering, damage, partitions, slow links; the outgoing queues, which are the shipped ones |
//! | `promises` | what a message says that has to be durable before it is sent |
//! | `host`, `machine`, `threads` | a process on a simulated disk, with a clock and a power switch; its two threads |
//! | `setup`, `found` | what a process is started with; what is on the disk of one that is off |
//! | `patient` | a replica that repairs its log before it takes part |
//! | `copy` | a follower: it is fed and is no member |
//! | `world` | the whole simulation, event by event; clients, an operator, the nemesis that injects faults, fail-over drills |
//! | `oracle`, `contents`, `kept` | the invariants, checked after every event; what was ever committed, log by log; the entries on a disk |
//! | `excuse` | the reasons for which a check accepts what it looks for, counted |
//! | `readers`, `store_faults` | read the logs of a directory on; the errors that faults of the object store explain |
//! | `history`, `linear` | the calls of clients and their answers; whether one log can have given these answers |
//! | `vault` | an object store with faults, which refuses to have an object replaced by other bytes |
//! | `made` | the log that the object store alone has, for comparison |
//! | `plan`, `run` | the parameters that a seed determines; a run, from building the cluster to the verdict |
//! | `names` | two clusters with the catalogue and a group: programs that create and delete named logs beside each other |
//! | `directed`, `bugs` | scenarios for mistakes that seeds meet too rarely; planted mistakes, and what finds each |
//! | `harm` | damage to the newest files that a log is specified to survive |
//! | `story`, `fault` | a digest and a text of the events; the faults |
//!
//! A program that builds on the log can run a [`Plan`] of its own, read the [`History`] and the records of the
//! [`Report`], and check the program's results against them.

#[cfg(feature = "testing")]
pub mod bugs;
mod clock;
mod contents;
mod copy;
mod directed;
mod excuse;
mod failover;
mod fault;
mod found;
mod harm;
mod history;
mod host;
mod kept;
mod linear;
mod machine;
mod made;
mod names;
mod network;
mod object_rows;
mod oracle;
mod outbox;
mod patient;
mod plan;
mod promises;
mod readers;
mod run;
mod setup;
mod store_faults;
mod story;
mod threads;
mod vault;
mod world;

pub use crate::sync::clock::Moment;
pub use failover::FailOver;
pub use fault::{Counts, Fault};
pub use history::{Call, History, Reply, Seen, What, When, number_of, record_of};
pub use linear::check as check_history;
pub use plan::Plan;
pub use run::{Report, Simulation, Violation, run};

#[cfg(all(test, not(loom)))]
mod tests;
