//! A log whose older records are in an object store.
#![allow(clippy::unwrap_used, reason = "a test")]

mod deletion;
mod repair;
mod stored;
mod support;
