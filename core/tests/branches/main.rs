//! Branches: logs that read the older records of another log from its objects.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod histories;
mod interruptions;
mod place;
#[path = "../support/mod.rs"]
mod support;
mod uses;
