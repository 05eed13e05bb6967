//! sim
mod clock;
mod fault;
mod history;
mod linear;
mod network;
mod story;

pub use clock::Moment;
pub use fault::{Counts, Fault};
pub use history::{Call, History, Seen, Told, What, When, number_of, record_of};
pub use linear::check as check_history;
