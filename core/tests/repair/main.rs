//! Damage on the disk of a replica: found by the scrub, by a reader or when the log is opened, and repaired with what
//! the others have. Never served, never shipped, and never the ground for a vote.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod files;
mod opening;
mod random;
mod reported;
mod running;
mod superseded;
mod trio;
