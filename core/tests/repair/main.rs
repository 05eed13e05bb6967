//! Damage on the disk of a replica: found by the scrub, by a reader or at opening, and repaired from the other
//! replicas. Damaged bytes are never returned to readers, never sent, and never the reason for a vote.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod files;
mod opening;
mod random;
mod reported;
mod running;
mod superseded;
mod trio;
