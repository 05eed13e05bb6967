//! Copies that follow: fed by servers that start and stop, by other copies, and by servers that misbehave. The contents
//! of a copy equal the log, byte for byte.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod catching_up;
mod chains;
mod closing;
mod cost;
mod one_log;
mod rogue;
#[path = "../served/mod.rs"]
mod served;
mod served_objects;
mod servers;
mod support;
