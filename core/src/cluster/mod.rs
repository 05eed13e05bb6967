//! A cluster as values: its members, its options, and the interface over which replicas exchange messages.

pub(crate) mod membership;
pub(crate) mod memory_transport;
pub(crate) mod options;
pub(crate) mod peer_queue;
pub(crate) mod transport;

pub use membership::{Change, MEMBERS_MAX, Member};
pub use options::{Bootstrap, ClusterOptions, PeerStatus, ReplicaStatus, Role};
