//! The command line as its users meet it: the built program, its output, its exit codes.
//!
//! What `--json` prints is pinned here field by field: scripts rely on it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod backup;
mod beside;
mod files;
mod harness;
mod installed;
