//! chiplog over gRPC: the services of a server, the transport between replicas, and the client.
//!
//! Layers, each using only those above it in this list:
//!
//! | module | what it does |
//! |---|---|
//! | [`proto`] | the messages and services as generated |
//! | [`address`] | where a replica is reached: by its peers, by clients |
//! | [`causes`] | what is behind an error of a connection |
//! | [`status`] | the log's errors as gRPC statuses, and back |
//! | [`notices`] | what is noticed, for programs without a subscriber of `tracing` |
//! | [`ids`] | ids of logs and directories, on the wire and for people |
//! | [`gauges`] | what is open at a server |
//! | [`host`] | the log that a server serves |
//! | [`admin`] | looking after a cluster: the service |
//! | [`authority`] | what clients put where HTTP/2 wants a host's name |
//! | [`tls`] | what listeners prove themselves with; which replica a certificate names |
//! | [`refusals`] | counters of what was refused |
//! | [`access`] | tokens, roles, and which method needs which |
//! | [`arrival`] | what services know of a connection |
//! | [`budget`] | the memory that requests and answers may take, and how many streams there may be |
//! | [`paying`] | calls take their place among the streams |
//! | [`connection`] | one connection within its limits |
//! | [`listener`] | connections that come in |
//! | [`peer`] | the transport between replicas |
//! | [`logspec`] | the service that existing clients speak |
//! | [`native`] | the service `chiplog.v1.Log` |
//! | [`follow`] | the service `chiplog.v1.Follow`: feeds copies that do not vote |
//! | [`client`] | the log over the network: producers, readers |
//! | [`follower`] | such a copy, in the caller's process |

pub mod access;
mod accounts;
pub mod address;
pub mod admin;
pub mod arrival;
mod audit;
pub mod authority;
mod bill;
pub mod budget;
mod calls;
pub mod causes;
pub mod client;
pub mod connection;
pub mod follow;
pub mod follower;
pub mod gauges;
pub mod host;
pub mod ids;
pub mod listener;
pub mod logspec;
mod methods;
pub mod native;
pub mod notices;
mod own_thread;
pub mod paying;
pub mod peer;
mod places;
pub mod proto;
mod protocol;
pub mod refusals;
mod revoked;
mod room;
mod sockets;
pub mod status;
mod tail;
pub mod tls;
mod turn;
mod verbatim;
