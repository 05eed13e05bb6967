//! chiplog over gRPC: the client, the follower, and, with the feature `server`, the parts of a server.
//!
//! Each module uses only those above it in this list:
//!
//! | module | what it does |
//! |---|---|
//! | [`notices`] | chiplog's log messages, for programs without a subscriber of `tracing` |
//! | [`wire`] | generated messages and services, errors as statuses, addresses, ids, TLS |
//! | [`client`] | the log over the network: producers, readers |
//! | [`follower`] | a copy of the log in the caller's process, which does not vote |
//! | `served` | the log that a process serves, and its open connections and streams |
//! | `listener` | incoming connections: their limits, their tokens, the memory of their calls |
//! | `service` | the services: `chiplog.v1.Log`, `chiplog.v1.Follow`, `chiplog.v1.Admin`, `logspec.Log` |
//! | `peer` | the transport between replicas |
//!
//! Programs that are not servers do not need the feature; they do not link the last four modules.

pub mod client;
pub mod follower;
#[cfg(feature = "server")]
pub mod listener;
pub mod notices;
#[cfg(feature = "server")]
pub mod peer;
#[cfg(feature = "server")]
pub mod served;
#[cfg(feature = "server")]
pub mod service;
pub mod wire;
