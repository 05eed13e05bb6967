//! Servers as real processes on loopback: clusters made by hand, leaders killed and stopped, probes, configuration.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod certificates;
mod configuration;
mod doors;
mod harness;
mod one;
mod shell;
mod three;
mod tls;
