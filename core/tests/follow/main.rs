//! Followers: a log that follows another one, on real disks: what a program sees that has a copy of a log.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod feeding;
mod refusals;
mod replicas;
mod room;
mod support;
