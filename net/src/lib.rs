//! chiplog over gRPC: the services of a server, the transport between replicas, and the client.
//!
//! Layers, each using only those above it in this list:
//!
//! | module | what it does |
//! |---|---|
//! | [`proto`] | the messages and services as generated |
//! | [`address`] | where a replica is reached: by its peers, by clients |
//! | [`status`] | the log's errors as gRPC statuses, and back |
//! | [`ids`] | ids of logs and directories, on the wire and for people |
//! | [`host`] | the log that a server serves |
//! | [`peer`] | the transport between replicas |
//! | [`admin`] | looking after a cluster: the service |

pub mod address;
pub mod admin;
pub mod host;
pub mod ids;
pub mod peer;
pub mod proto;
pub mod status;
