//! Copies that follow: fed by servers that come and go, by one another, and by servers that misbehave. What is in a copy
//! is what is in the log, byte for byte.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod catching_up;
mod chains;
mod closing;
mod cost;
mod rogue;
#[path = "../served/mod.rs"]
mod served;
mod servers;
mod support;
