//! Servers as real processes on loopback: clusters made by hand, leaders killed and stopped, probes, configuration.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod certificates;
mod cluster;
mod configuration;
mod doors;
mod follow;
mod harness;
mod metrics;
mod one;
mod session_file;
mod shell;
mod three;
mod tls;
