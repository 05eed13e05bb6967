//! chiplog over gRPC: the client, the follower, and, with the feature `server`, what a server is made of.
//!
//! Each module uses only those above it in this list:
//!
//! | module | what it does |
//! |---|---|
//! | [`notices`] | what is noticed, for programs without a subscriber of `tracing` |
//! | [`wire`] | messages and services as generated, errors as statuses, addresses, ids, TLS |
//! | [`served`] | the log that a process serves, and what is open at it |
//! | [`client`] | the log over the network: producers, readers |
//! | [`follower`] | a copy of the log that does not vote, in the caller's process |
//! | `listener` | connections that come in: their limits, their tokens, the memory that their calls may take |
//! | `service` | the services: `chiplog.v1.Log`, `chiplog.v1.Follow`, `chiplog.v1.Admin`, `logspec.Log` |
//! | `peer` | the transport between replicas |
//!
//! Programs that are no servers need no feature, and link nothing of the last three.

pub mod client;
pub mod follower;
#[cfg(feature = "server")]
pub mod listener;
pub mod notices;
#[cfg(feature = "server")]
pub mod peer;
#[cfg_attr(not(feature = "server"), allow(dead_code, reason = "what services call"))]
pub mod served;
#[cfg(feature = "server")]
pub mod service;
#[cfg_attr(not(feature = "server"), allow(dead_code, reason = "what services call"))]
pub mod wire;
