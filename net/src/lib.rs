//! chiplog over gRPC: the services of a server, the transport between replicas, and the client.
//!
//! Layers, each using only those above it in this list:
//!
//! | module | what it does |
//! |---|---|
//! | [`proto`] | the messages and services as generated |
//! | [`address`] | where a replica is reached: by its peers, by clients |
//! | [`status`] | the log's errors as gRPC statuses, and back |
//! | [`host`] | the log that a server serves |
//! | [`native`] | the service `chiplog.v1.Log` |
//! | [`client`] | the log over the network: producers, readers |

pub mod address;
pub mod client;
pub mod host;
pub mod native;
pub mod proto;
pub mod status;
