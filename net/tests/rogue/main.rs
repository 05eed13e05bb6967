//! The client against a server that misbehaves, answers late or twice, or does not answer.
#![allow(clippy::unwrap_used, reason = "a test")]

mod calls;
mod leaders;
mod producers;
mod readers;
#[path = "../served/mod.rs"]
mod served;
mod server;
mod sessions;
