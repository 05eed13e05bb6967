//! Simulated clusters: whole replicas, real except for their threads, over simulated disks, networks and clocks, in virtual
//! time. A run is a function of its seed: what it finds, it finds again.
//!
//! ```
//! let report = chiplog::sim::run(7);
//! assert!(report.violation.is_none(), "{}", report.violation.unwrap());
//! println!("{} appends in {:?} of virtual time", report.acknowledged, report.simulated);
//! ```
//!
//! What runs is what ships: the same nodes and the same driver that `Log` runs with threads and a real disk, here step by
//! step: the seed says which thread has the turn, and when a sync ends. Around them:
//!
//! | file | what it is |
//! |---|---|
//! | `clock` | virtual time; what is to happen when |
//! | `network`, `outbox` | loss, replay, reordering, damage, walls, slow links; the queues before them, which are those that ship |
//! | `host`, `machine`, `threads` | a process on a simulated disk, with a clock and a power switch; its two threads |
//! | `patient` | a replica that repairs its log before it takes part |
//! | `copy` | a follower: fed, not a member |
//! | `world` | all of it, event by event; clients, an operator, the nemesis that makes trouble, drills of fail-over |
//! | `oracle`, `kept` | what has to hold after every event; what is on a disk, entry by entry |
//! | `history`, `linear` | what clients asked and were told; whether one log can have said so |
//! | `plan`, `run` | what a seed stands for; from building the cluster to the verdict |
//! | `directed`, `bugs` | plays for mistakes that seeds meet too rarely; mistakes that can be planted, and what finds each |
//! | `harm` | where newest files can be damaged so that a log is specified to survive it |
//! | `story`, `fault` | a number and a text for what happened; what can happen |
//!
//! Whoever builds on the log can let a [`Plan`] of their own run, look at the [`History`] and the records of the
//! [`Report`], and check what their program would have made of them.

#[cfg(feature = "planted-bugs")]
pub mod bugs;
mod clock;
mod copy;
#[cfg(any(test, feature = "planted-bugs"))]
mod directed;
mod failover;
mod fault;
mod harm;
mod history;
mod host;
mod kept;
mod linear;
mod machine;
mod network;
mod oracle;
mod outbox;
mod patient;
mod plan;
mod run;
mod story;
mod threads;
mod world;

pub use crate::sync::clock::Moment;
pub use failover::FailOver;
pub use fault::{Counts, Fault};
pub use history::{Call, History, Seen, Told, What, When, number_of, record_of};
pub use linear::check as check_history;
pub use plan::Plan;
pub use run::{Report, Simulation, Violation, run};

#[cfg(all(test, not(loom)))]
mod tests;
