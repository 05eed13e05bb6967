//! The log service of existing clients, over the network: its rules, one by one.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod append;
mod cluster;
mod discard;
mod go;
mod info;
mod named;
mod read;
mod support;
mod wire;
