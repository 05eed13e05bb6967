//! Tests of the vault over real stores: a directory, an S3 server, and a server that misbehaves.

#![allow(clippy::unwrap_used, reason = "a test")]

mod environment;
mod faults;
mod opening;
mod providers;
mod s3_server;
mod scripted_server;
mod servers;
mod stores;
mod threads;
