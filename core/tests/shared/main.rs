//! Shared groups: many named logs in one directory, on the real disk.
#![allow(clippy::unwrap_used, reason = "a test")]

mod appends;
mod discards;
mod groups;
mod names;
mod reads;
mod support;
