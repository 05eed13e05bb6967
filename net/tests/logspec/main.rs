//! The log service that existing clients speak, over the wire: what holds of it, row by row.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod append;
mod cluster;
mod discard;
mod go;
mod info;
mod read;
mod support;
mod wire;
