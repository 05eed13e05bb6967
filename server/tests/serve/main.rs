//! Servers as real processes on loopback: clusters made by hand, killed and stopped leaders, cut links, full
//! disks, probes, configuration.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod all_lost;
mod backup;
mod certificates;
mod cluster;
mod configuration;
mod copy_boots;
mod cost;
mod damage;
mod disks;
mod doors;
mod follow;
mod full;
mod harness;
mod http_objects;
#[path = "../support/limited.rs"]
mod limited;
mod logs;
mod metrics;
mod named;
mod network;
mod notary;
mod objects;
mod one;
mod operator;
mod options;
mod partitions;
mod payloads;
mod placed;
mod reflection;
mod sealed_segments;
mod session_file;
mod shell;
mod shortened;
mod slices;
mod small;
mod stopped;
mod stranger;
mod three;
mod tls;
#[path = "../support/tmpfs.rs"]
mod tmpfs;
mod together;
mod wrong_port;
