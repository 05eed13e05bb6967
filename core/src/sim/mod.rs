//! sim
mod admin;
mod client;
mod clock;
mod drill;
mod fault;
mod history;
mod host;
mod linear;
mod machine;
mod nemesis;
mod network;
mod oracle;
mod plan;
mod run;
mod story;
mod world;

pub use crate::moment::Moment;
pub use fault::{Counts, Fault};
pub use history::{Call, History, Seen, Told, What, When, number_of, record_of};
pub use linear::check as check_history;
pub use plan::Plan;
pub use run::{FailOver, Report, Simulation, Violation, run};
