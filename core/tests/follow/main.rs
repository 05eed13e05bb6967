//! Followers: a log that follows another one, on real disks, as a program with a copy of a log uses it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod feeding;
mod one_log;
mod refusals;
mod replicas;
mod room;
mod support;
