//! Named logs over the network: beside the default log of a server, each with its own indexes, sessions and discards.
#![allow(clippy::unwrap_used, reason = "a test")]

mod catalogue;
mod fixture;
#[path = "../served/mod.rs"]
mod served;
mod streams;
mod together;
