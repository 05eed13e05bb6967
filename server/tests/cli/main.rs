//! The command line as users see it: the built program, its output, its exit codes.
//!
//! The tests check the output of `--json` field by field, because scripts rely on it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod backup;
mod beside;
mod cost;
mod damage;
mod harness;
mod info;
mod installed;
#[path = "../support/limited.rs"]
mod limited;
mod named;
mod new_log;
mod records;
mod targets;
mod tier;
#[path = "../support/tmpfs.rs"]
mod tmpfs;
mod usage;
